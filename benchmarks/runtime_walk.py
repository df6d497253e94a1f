"""Number of files of the package that a call enters: a measure of how much code a reader must follow.

    python benchmarks/runtime_walk.py [--list] [--record]

Counts the functions of `unlazy` that are entered during a call, with `sys.setprofile`, after one warm-up call.
Targets: Gaussian.gram at most 6 files, NTK(layers).gram 15, solve (direct) 18, FeatureMachineRegressor.fit 22.
"""

import argparse
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
from record import add_option, recorder

import unlazy
from unlazy import layers

PACKAGE = Path(unlazy.__file__).parent
TARGETS = {"Gaussian.gram": 6, "NTK(layers).gram": 15, "solve (direct)": 18, "FeatureMachineRegressor.fit": 22}


def calls() -> dict[str, Callable[[int], object]]:
    """Calls by name. Each takes a number of rows; a new number traces and compiles everything again."""
    rng = np.random.default_rng(0)
    X, images = rng.normal(size=(400, 5)), rng.normal(size=(40, 4, 4, 1))
    y = np.sin(X[:, 0])
    network = layers.serial(layers.Conv(3), "relu", layers.Flatten(), layers.Dense())
    gaussian, tangent = unlazy.Gaussian(1.0), unlazy.NTK(network)  # construction is not part of the calls
    return {
        "Gaussian.gram": lambda n: gaussian.gram(X[:n]),
        "NTK(layers).gram": lambda n: tangent.gram(images[: n // 10]),
        "solve (direct)": lambda n: unlazy.solve(gaussian, X[:n], y[:n], ridge=1e-2),
        "FeatureMachineRegressor.fit": lambda n: unlazy.FeatureMachineRegressor().fit(X[:n], y[:n]),
    }


def files_entered(call: Callable[[int], object]) -> dict[str, set[str]]:
    """Functions of the package that a call enters, by file; modules are imported before."""
    call(300)
    found: dict[str, set[str]] = defaultdict(set)

    def profile(frame: object, event: str, _: object) -> None:
        code = frame.f_code  # type: ignore[attr-defined]
        if event == "call" and code.co_filename.startswith(str(PACKAGE)) and code.co_name != "<module>":
            found[str(Path(code.co_filename).relative_to(PACKAGE))].add(code.co_qualname)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        call(320)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print every file and the functions entered in it")
    parser.add_argument("--only", help="run only the call with this name")
    add_option(parser)
    options = parser.parse_args()
    note = recorder(__file__, options.record)
    for name, call in calls().items():
        if options.only not in (None, name):
            continue
        found = files_entered(call)
        functions = sum(len(names) for names in found.values())
        print(f"{name}: {len(found)} files (target {TARGETS[name]}), {functions} functions")
        note(f"{name}: files entered", len(found), "files")
        if options.list:
            for file, names in sorted(found.items()):
                print(f"    {file}: {', '.join(sorted(names))}")


if __name__ == "__main__":
    main()
