"""Are the verdicts of `unlazy.watch` right? Fresh training runs of known laziness.

    python benchmarks/watch_truth.py RUNS.jsonl [--workers 16] [--seconds 360] [--only mlp-torch] [--seeds 2]
    python benchmarks/watch_truth.py ADVICE.jsonl --advice [--workers 16] [--seconds 360]
    python benchmarks/watch_truth.py RUNS.jsonl --evaluate [--record]
    python benchmarks/watch_truth.py ADVICE.jsonl --evaluate-advice

The first command trains every setting (watch_settings.py: four architectures, two frameworks, SGD and Adam) at seven
values of the dial α [W6] between 0.1 and 100, one in each seventh of the range of log α. A finished run is appended to
the file at once; a second call does what is missing.

Truth, fixed before the runs:
- D = ‖F - F_lin‖ / ‖F‖ on 256 test rows. F = α (f - f_0) is the network at the end of training, F_lin the fully trained
  linearization at θ_0 after the same number of steps with the same batches and the same optimizer. Normalization layers
  use the statistics of the batch in both.
- A run is lazy if D < 0.2, rich if D > 0.5, intermediate otherwise.
- A run that ends with at least 0.99 of the training loss of F = 0, or not finite, has failed and is repeated with the
  rate divided by 4 (network and linearization), up to three times. Failed runs are kept as such and are not counted.

--evaluate prints the rank correlation of gap and D, the three-way verdict at the end (with the thresholds of unlazy,
and with thresholds refitted to the other architectures), the verdict from the checks up to 30% of the planned steps,
and the runs on which it is wrong.

--advice trains one run at a random α, asks for the α of a gap, trains there too, and asks again from both runs, for
gaps of 0.3 and 0.05. The right α is found by bisection over runs. Counted is max(ratio, 1/ratio) of the α advised and
the right one.
"""

import argparse
import json
import math
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from record import add_option, recorder

LAZY_D, RICH_D = 0.2, 0.5
"""Lazy below the first, rich above the second."""
WORDS = ("lazy", "intermediate", "rich")
DIALS = 7
FIRST_SEED = 100
LOW, HIGH = 0.1, 100.0
EARLY = 0.3
"""Share of the planned steps after which the early verdict is judged."""
ADVICE_SETTINGS, ADVICE_SEED = 40, 1000
TARGETS = (0.3, 0.05)
FACTOR = 2.0
ADVICE_RANGE = (0.003, 3e4)
"""Where the right α is searched."""
Line = dict


def truth(D: float) -> str:
    """The regime of a run."""
    return "lazy" if D < LAZY_D else "rich" if D > RICH_D else "intermediate"


# running


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="start nothing after this time")
    parser.add_argument("--only", default="", help="settings whose name contains this")
    parser.add_argument("--seeds", type=int, default=2, help="seeds per architecture, framework and optimizer")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED, help="development used seeds below 100")
    parser.add_argument("--advice", action="store_true")
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument("--evaluate-advice", action="store_true")
    add_option(parser)
    given = parser.parse_args()
    note = recorder(__file__, given.record)
    if given.evaluate:
        note("rank correlation of gap and truth", evaluate(read(given.file)), "")
    elif given.evaluate_advice:
        evaluate_advice(read(given.file))
    else:
        from watch_settings import advice_settings, settings

        chosen = (
            advice_settings(ADVICE_SETTINGS, ADVICE_SEED) if given.advice else settings(given.seeds, given.first_seed)
        )
        chosen = [s for s in chosen if given.only in s.name]
        run_all(chosen, given.file, given.workers, given.seconds, given.advice)


def read(file: Path) -> list[Line]:
    """The finished lines of a file; a killed run may have left half a line."""
    if not file.exists():
        return []
    found = []
    for line in file.read_text("utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            print(f"skipped a damaged line of {file}", file=sys.stderr)
    return found


def run_all(settings: Sequence, file: Path, workers: int, seconds: float, advice: bool) -> None:
    """Run what is missing in worker processes of one thread each."""
    if file.exists() and not file.read_bytes().endswith(b"\n"):
        with file.open("a") as out:
            out.write("\n")
    done = {line["key"] for line in read(file) if line["status"] != "failed"}
    began, deadline = time.time(), time.time() + seconds
    jobs = [(setting, file, done, deadline, advice) for setting in settings]
    cores = multiprocessing.get_context("spawn").Value("i", 0)
    one_thread = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ |= {**one_thread, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "CUDA_VISIBLE_DEVICES": ""}
    whole = workers >= len(os.sched_getaffinity(0))
    with multiprocessing.get_context("spawn").Pool(workers, _prepare, (cores, whole)) as pool:
        for i, (name, written) in enumerate(pool.imap_unordered(_job, jobs), start=1):
            print(f"{time.time() - began:6.0f} s  {i}/{len(jobs)}  {name}: {written}", flush=True)


def _prepare(counter: object, whole: bool) -> None:
    """Give the process a core of its own, if it has the whole machine: XLA starts a thread for each core it sees."""
    if whole:
        cores = sorted(os.sched_getaffinity(0))
        with counter.get_lock():  # type: ignore[attr-defined]
            mine, counter.value = counter.value, counter.value + 1  # type: ignore[attr-defined]
        os.sched_setaffinity(0, {cores[mine % len(cores)]})


def _job(job: tuple) -> tuple[str, str]:
    """Run one setting; append every finished run."""
    setting, file, done, deadline, advice = job
    if setting.framework == "torch":
        import torch

        torch.set_num_threads(1)
    lines = advise(setting, done, deadline) if advice else runs(setting, done, deadline)
    count = 0
    try:
        for line in lines:
            append(file, line)
            count += 1
    except Exception:  # one setting that fails must not end the others
        return setting.name, f"failed after {count} lines\n{traceback.format_exc()}"
    return setting.name, f"{count} lines"


def append(file: Path, line: Line) -> None:
    """Append with one write, so that lines of several processes do not mix."""
    text = json.dumps(_plain(line)) + "\n"
    handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)


def _plain(value: object) -> object:
    """Floats to 6 digits; what is not finite becomes None."""
    if isinstance(value, float | np.floating):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


def dials(setting) -> list[float]:
    """One α in each part of the range, uniform in log α."""
    at = (np.arange(DIALS) + setting.rng(4).uniform(size=DIALS)) / DIALS
    return [float(a) for a in LOW * (HIGH / LOW) ** at]


def runs(setting, done: set[str], deadline: float) -> Iterator[Line]:
    """All runs of a setting that are missing."""
    from watch_settings import REDUCTIONS, choices, program

    wanted = [(f"{setting.name}/{i}", alpha) for i, alpha in enumerate(dials(setting))]
    wanted = [(key, alpha) for key, alpha in wanted if key not in done]
    if not wanted or time.time() > deadline:
        return
    trained = program(setting)
    linear: dict[float, np.ndarray] = {}
    for key, alpha in wanted:
        for reduction in REDUCTIONS:
            if time.time() > deadline:
                return
            began, cpu = time.time(), time.process_time()
            run = trained.train(alpha, reduction)
            D = math.nan
            if not run.failed:
                if reduction not in linear:
                    linear[reduction] = trained.linearized(reduction)
                D = float(np.linalg.norm(run.outputs - linear[reduction]) / np.linalg.norm(run.outputs))
            yield {
                "key": key, "status": "failed" if run.failed else "done", "architecture": setting.architecture,
                "framework": setting.framework, "optimizer": setting.optimizer, "seed": setting.seed, "alpha": alpha,
                "reduction": reduction, "D": D, **vars(choices(setting)), "start_loss": run.start_loss,
                "start_train_loss": run.start_train_loss, "checks": run.checks, "seconds": time.time() - began,
                "cpu_seconds": time.process_time() - cpu,
            }  # fmt: skip
            if not run.failed:
                break


# verdicts


def record_of(line: Line, until: float = 1.0):
    """The record that the monitor of this run had after a share of the planned steps."""
    from unlazy.diagnostics.record import Check, Record

    known = {"step", "points", "gap", "gap_error", "change", "loss"}
    checks = tuple(
        Check(**{k: math.nan if v is None else v for k, v in check.items() if k in known})
        for check in line["checks"]
        if check["step"] <= until * line["steps"] + 0.5
    )
    return Record(checks, planned_steps=line["steps"], initial_loss=line["start_loss"])


def evaluate(lines: list[Line]) -> float:
    """Print how right the verdicts are."""
    from scipy.stats import spearmanr

    from unlazy.diagnostics.verdict import LAZY_GAP, RICH_GAP

    failed = [line for line in lines if line["status"] == "failed"]
    done = [line for line in lines if line["status"] == "done" and line["D"] is not None]
    gaps = np.array([line["checks"][-1]["gap"] for line in done])
    D = np.array([line["D"] for line in done])
    right = [truth(d) for d in D]
    print(f"{len(done)} runs, {len(failed)} failed; {dict(Counter(right))}")
    for part in ("architecture", "framework", "optimizer"):
        print("   ", dict(Counter(line[part] for line in done)))
    print(f"cpu seconds: {sum(line['cpu_seconds'] for line in lines):.0f}, wall {sum(l['seconds'] for l in lines):.0f}")
    print(f"rank correlation of gap and D: {spearmanr(gaps, D).statistic:.4f}")
    ratio = D / gaps
    print(
        f"D/gap: median {np.median(ratio):.2f}, 5% {np.quantile(ratio, 0.05):.2f}, 95% {np.quantile(ratio, 0.95):.2f}"
    )
    for word in WORDS:
        inside = gaps[[w == word for w in right]]
        if len(inside):
            print(f"    gaps of {word} runs: {inside.min():.3f} to {inside.max():.3f}")
    own = [line["checks"][-1]["plain_gap"] for line in done]
    distance = np.abs(np.array(own, float) - gaps) / gaps
    batch = np.array([line["architecture"] == "resnet" and line["framework"] == "torch" for line in done])
    for title, chosen in (("without BatchNorm in torch", ~batch), ("with", batch)):
        if chosen.any():
            print(f"gap against one jvp in the framework, {title}: at most {distance[chosen].max():.1e} apart")

    print(f"\nAt the end, gap < {LAZY_GAP} and > {RICH_GAP}")
    by_gap = [classify(g, (LAZY_GAP, RICH_GAP)) for g in gaps]
    confusion(right, by_gap)
    print("\nAt the end, verdict of the monitor")
    confusion(right, [record_of(line).verdict.word for line in done], done, gaps)
    print("\nAt the end, thresholds fitted to the other architectures")
    fitted = [""] * len(done)
    for left_out in sorted({line["architecture"] for line in done}):
        others = [i for i, line in enumerate(done) if line["architecture"] != left_out]
        edges = fit_thresholds(gaps[others], [right[i] for i in others])
        for i, line in enumerate(done):
            if line["architecture"] == left_out:
                fitted[i] = classify(gaps[i], edges)
        mine = [i for i, line in enumerate(done) if line["architecture"] == left_out]
        share = np.mean([fitted[i] == right[i] for i in mine])
        print(f"    without {left_out}: {edges[0]:.3f}, {edges[1]:.3f}; right on {left_out}: {share:.3f}")
    confusion(right, fitted)
    print(f"    fitted to all: {', '.join(f'{e:.3f}' for e in fit_thresholds(gaps, right))}")
    for until in (0.1, 0.2, EARLY, 0.5):
        print(f"\nAt {until:.0%} of the planned steps, verdict of the monitor")
        early = [record_of(line, until).verdict for line in done]
        confusion(right, [v.word for v in early], done if until == EARLY else None, gaps)
        inside = [v.forecast.low <= g <= v.forecast.high for v, g in zip(early, gaps) if v.forecast is not None]
        if inside:
            print(f"    95% interval of the forecast holds the gap at the end: {np.mean(inside):.3f}")
    print("\nAt 30%, the forecast's word without silence")
    confusion(right, [forecast_word(record_of(line, EARLY)) for line in done])
    return float(spearmanr(gaps, D).statistic)


def forecast_word(record) -> str:
    """The regime of the forecast."""
    from unlazy.diagnostics.verdict import regime

    ahead = record.verdict.forecast
    return "none" if ahead is None else regime(ahead.gap)


def classify(gap: float, edges: tuple[float, float]) -> str:
    """Three-way by two thresholds."""
    return "lazy" if gap < edges[0] else "rich" if gap > edges[1] else "intermediate"


def fit_thresholds(gaps: np.ndarray, right: Sequence[str]) -> tuple[float, float]:
    """The two thresholds with the fewest errors; among equals, the middle of the widest interval of log g."""
    order = np.sort(gaps)
    if not len(order):
        return math.nan, math.nan
    cuts = np.concatenate([[order[0] / 2], np.sqrt(order[1:] * order[:-1]), [order[-1] * 2]])
    widths = np.concatenate([[0.0], np.diff(np.log(order)), [0.0]])
    words = np.array(right)
    # errors of "below the first cut is lazy" and "above the second is rich" add up, since cuts are ordered
    low = np.array([np.sum((gaps < c) & (words != "lazy")) + np.sum((gaps >= c) & (words == "lazy")) for c in cuts])
    high = np.array([np.sum((gaps > c) & (words != "rich")) + np.sum((gaps <= c) & (words == "rich")) for c in cuts])
    first, second = (max((-e, w, c) for e, w, c in zip(errors, widths, cuts))[2] for errors in (low, high))
    return float(min(first, second)), float(max(first, second))


def confusion(right: Sequence[str], said: Sequence[str], lines: list[Line] | None = None, gaps=None) -> None:
    """Print the table of truths and verdicts, the share right, swaps, and which are wrong."""
    words = [*WORDS, *sorted(set(said) - set(WORDS))]
    print("    truth \\ said  " + "".join(f"{w:>14}" for w in words))
    for word in WORDS:
        row = [sum(r == word and s == w for r, s in zip(right, said)) for w in words]
        print(f"    {word:14}" + "".join(f"{n:14d}" for n in row))
    share = np.mean([r == s for r, s in zip(right, said)])
    swaps = sum({r, s} == {"lazy", "rich"} for r, s in zip(right, said))
    error = math.sqrt(share * (1 - share) / len(right))
    print(f"    right: {share:.3f} ± {error:.3f}; lazy and rich swapped: {swaps}")
    if lines is None:
        return
    for line, r, s, g in zip(lines, right, said, gaps):
        if r != s:
            path = " ".join(f"{c['gap']:.2f}" if c["gap"] is not None else "-" for c in line["checks"])
            last = line["checks"][-1]["loss"]
            print(
                f"    {line['key']:28} α {line['alpha']:<8.3g} {line['activation']:5} {line['loss'][:7]:8} "
                f"D {line['D']:.3f} gap {g:.3f}  truth {r}, said {s}; loss {line['start_loss']:.2f} → {last:.2f}; "
                f"gaps {path}"
            )


# advice


def advise(setting, done: set[str], deadline: float) -> Iterator[Line]:
    """The runs of one setting for which advice is asked, and the right α."""
    from watch_settings import REDUCTIONS, choices, program

    if setting.name in done or time.time() > deadline:
        return
    began, cpu = time.time(), time.process_time()
    trained = program(setting)
    found: dict[float, Line] = {}
    reductions = list(REDUCTIONS)

    def run(alpha: float) -> Line:
        """Train at α; all runs of the setting have one rate, that of the first run."""
        while True:
            trial = trained.train(alpha, reductions[0])
            if not trial.failed or found or len(reductions) == 1:
                break
            reductions.pop(0)
        checks = trial.checks
        gap = checks[-1]["gap"] if checks and not trial.failed else math.nan
        found[alpha] = {"alpha": alpha, "gap": gap, "failed": trial.failed, "checks": checks}
        return found[alpha]

    first = run(float(LOW * (HIGH / LOW) ** setting.rng(5).uniform()))
    line = {
        "key": setting.name, "status": "done", "architecture": setting.architecture, "framework": setting.framework,
        "optimizer": setting.optimizer, "seed": setting.seed, **vars(choices(setting)),
    }  # fmt: skip
    if first["failed"]:
        yield {**line, "status": "failed", "runs": list(found.values())}
        return
    answers = {}
    for target in TARGETS:
        once = advised([first], target)
        second = run(min(max(once, ADVICE_RANGE[0]), ADVICE_RANGE[1]))
        usable = [first] if second["failed"] else [first, second]
        answers[str(target)] = {"one run": once, "two runs": advised(usable, target), "second": second["gap"]}
    for target in TARGETS:
        if time.time() > deadline:
            return
        answers[str(target)]["right"] = right_alpha(run, found, target)
    yield {
        **line, "answers": answers, "reduction": reductions[0], "runs": list(found.values()),
        "seconds": time.time() - began, "cpu_seconds": time.process_time() - cpu,
    }  # fmt: skip


def advised(runs: Sequence[Line], target: float) -> float:
    """The α that unlazy advises for a gap, from finished runs."""
    from unlazy.diagnostics.advice import ScaledRun, advise_scale

    return advise_scale([ScaledRun(r["alpha"], r["gap"]) for r in runs], target).scale


def right_alpha(run: Callable[[float], Line], found: dict[float, Line], target: float) -> float:
    """The α at which runs have this gap, to a factor of 1.15: log odds interpolated between runs on both sides.

    Where the gap is not monotone in α the crossing nearest to lazy counts.
    """
    for _ in range(14):
        usable = sorted((a, r["gap"]) for a, r in found.items() if math.isfinite(r["gap"]))
        below = [a for a, g in usable if g <= target]
        if not below:  # richer than wanted everywhere
            at = usable[-1][0] * 4
        else:
            lazy = next((a for a, g in reversed(usable) if g > target), 0.0)
            edge = min(a for a in below if a > lazy) if lazy < usable[-1][0] else None
            if edge is None:
                at = usable[-1][0] * 4
            elif lazy == 0.0:
                at = usable[0][0] / 4
            elif edge / lazy < 1.3:
                gaps = dict(usable)
                x, y = (math.log(g / max(1e-2, 1 - g)) for g in (gaps[lazy], gaps[edge]))
                share = (x - math.log(target / (1 - target))) / (x - y)
                return float(lazy * (edge / lazy) ** share)
            else:
                at = math.sqrt(lazy * edge)
        if not ADVICE_RANGE[0] <= at <= ADVICE_RANGE[1] or at in found:
            return math.nan
        run(at)
    return math.nan


def evaluate_advice(lines: list[Line]) -> None:
    """Print how far from the right α the advice is."""
    failed = sum(line["status"] == "failed" for line in lines)
    done = [line for line in lines if line["status"] == "done"]
    print(f"{len(done)} settings, {failed} failed first runs; cpu {sum(line['cpu_seconds'] for line in done):.0f} s")
    for target in TARGETS:
        for after in ("one run", "two runs"):
            answers = [(line, line["answers"][str(target)]) for line in done]
            known = [(line, a) for line, a in answers if a.get("right") is not None]
            factors = np.array([abs(math.log(a[after] / a["right"])) for _, a in known])
            if not len(factors):
                continue
            share = np.mean(factors <= math.log(FACTOR))
            print(
                f"gap {target} after {after}: {len(known)} with a right α; within {FACTOR:g}: {share:.3f} ± "
                f"{math.sqrt(share * (1 - share) / len(known)):.3f}; median factor {math.exp(np.median(factors)):.2f}, "
                f"90% {math.exp(np.quantile(factors, 0.9)):.2f}"
            )
            for (line, a), factor in zip(known, factors):
                if factor > math.log(FACTOR):
                    first = line["runs"][0]
                    print(
                        f"    {line['key']:28} {line['activation']:5} first α {first['alpha']:.3g} gap "
                        f"{first['gap']:.3f}; advised {a[after]:.3g}, right {a['right']:.3g}, gap at the "
                        f"second run {a['second']}"
                    )


if __name__ == "__main__":
    main()
