"""Claim: `check_scaling` finds at least 95% of wrong scalings and names the right module first in at least 90%.

203 PyTorch networks that were written without sight of the check (`scaling_cases.py`): 79 correct ones and 124 with one
wrong initialization, rate, multiplier or attention scale, each wrong by a power of the width. Printed are the recall of
errors of 1/2 or more and of errors of 1/4, the share in which the first finding names the right module, false alarms
among correct networks, and CPU-seconds of a check at its default widths.

    python benchmarks/scaling_check.py [--only mlp cnn] [--kind correct rate] [--jobs 2] [--record]
"""

import argparse
import os
import time
import warnings
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

from record import add_option, recorder  # noqa: E402  (threads must be set first)
from scaling_cases import Case, cases  # noqa: E402


class Outcome(NamedTuple):
    """What the check said of one case."""

    found: bool
    named: bool
    seconds: float
    text: str


def check(case: Case) -> Outcome:
    """Run the check at its defaults."""
    import torch

    from unlazy import check_scaling

    torch.set_num_threads(1)
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # imports
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = check_scaling(lambda width: case.make(width), case.data(), optimizer=case.optimizer)
        except ValueError as error:
            return Outcome(True, False, time.process_time() - started, f"refused: {error}")
    wrong = [finding.name for finding in found.wrong]
    named = bool(wrong) and case.wrong is not None and is_module(wrong[0], case.wrong)
    shown = "; ".join(f"{f.name} {f.quantity} {f.excess.value:+.2f}" for f in found.wrong[:4])
    return Outcome(bool(wrong), named, time.process_time() - started, shown)


def is_module(found: str, wrong: str) -> bool:
    """Whether a parameter is the wrong one, or belongs to the wrong module."""
    return found == wrong or found.removesuffix(".weight") == wrong or found.rpartition(".")[0] == wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="families")
    parser.add_argument("--kind", nargs="*", default=[], help="kinds of error, or 'correct'")
    parser.add_argument("--jobs", type=int, default=1)
    add_option(parser)
    options = parser.parse_args()
    some = [c for c in cases() if (not options.only or c.family in options.only)
            and (not options.kind or c.kind in options.kind)]  # fmt: skip
    groups: dict[str, list[tuple[Case, Outcome]]] = defaultdict(list)
    with ProcessPoolExecutor(options.jobs) as pool:
        for case, outcome in zip(some, pool.map(check_number, [c.name for c in some])):
            size = abs(case.exponent)
            group = "correct" if case.wrong is None else "errors of 1/2 or more" if size >= 0.5 else "errors of 1/4"
            groups[group].append((case, outcome))
            if outcome.found != (case.wrong is not None) or (case.wrong is not None and not outcome.named):
                print(f"{case.name} [{case.kind} {case.exponent:+g} of {case.wrong}]: {outcome.text or 'nothing'}")
    note = recorder(__file__, options.record)
    for group, found in groups.items():
        n = len(found)
        flagged = sum(outcome.found for _, outcome in found)
        print(f"{group}: {flagged} of {n} flagged ({flagged / n:.1%})")
        note(f"{group}, {n} networks: flagged", flagged / n, "share")
        if group != "correct":
            named = sum(outcome.named for _, outcome in found)
            print(f"{group}: {named} of {n} named first ({named / n:.1%})")
            note(f"{group}, {n} networks: right module first", named / n, "share")
    seconds = sorted(outcome.seconds for found in groups.values() for _, outcome in found)
    print(f"CPU-seconds of a check: median {seconds[len(seconds) // 2]:.1f}, largest {seconds[-1]:.1f}")
    note("CPU-seconds of a check, largest", seconds[-1], "CPU-s")


def check_number(name: str) -> Outcome:
    """Run the case of this name (functions of cases cannot be sent to another process)."""
    return check(next(case for case in cases() if case.name == name))


if __name__ == "__main__":
    main()
