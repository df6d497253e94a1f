"""The first call in a fresh process: a fit without arguments, an import, a command; the empty cache, then the warm one.

    python benchmarks/first_call.py [--rows 500 3000] [--tables NAME ...] [--commands] [--record]
    python benchmarks/first_call.py --data FOLDER [--sets uci_protein ...] [--record]       real tables of large_tables

Targets. CPU with one thread and an empty cache: a fit of 500 rows at most 3 CPU-s, of 3,000 rows at most 20; `list`,
`show` and `--help` at most 1 CPU-s; a saved model loads and predicts in at most 2 s beyond importing NumPy and SciPy.
Programs compiled by a fit: at most 5 on the CPU, at most 12 on a GPU; with a warm cache none. On a GPU wall-clock
seconds are recorded; targets for an H200 and an empty cache: 15,000 rows of 26 classes, protein and adult 15 s, kin40k
20 s, 100,000 rows of covtype 30 s, 561,012 rows 90 s; for a warm cache 1.3 times a second fit in the same process and
3 s more.

"programs" are those that the fit asks XLA for; with a warm cache they are loaded ("loaded") instead of compiled.
"tracing" and "compiling" are the seconds of tracing with lowering and of XLA (or of loading), added over threads. The
score on test rows (accuracy or R²) is printed so that speed is not gained by fitting less.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import large_tables
import numpy as np
from record import add_option, recorder

TABLES = {"2 classes x 10": (2, 10), "26 classes x 16": (26, 16), "regression x 21": (0, 21)}
"""Number of classes (0 for regression) and of columns."""
ROWS = {"cpu": [500, 3000], "gpu": [500, 3000, 15_000, 50_000]}
HELD_OUT = 1000
ON_GPU = shutil.which("nvidia-smi") is not None
Note = Callable[[str, float, str], None]
SETS = ("uci_protein", "adult", "uci_kin40k", "covtype:100000", "covtype:561012")
SERVE = {"numpy and scipy": "import numpy, scipy.linalg"}
SERVE["a saved model and a prediction"] = (
    SERVE["numpy and scipy"] + ", sys, unlazy; unlazy.load_predictor(sys.argv[1]).predict(numpy.zeros((1, 10)))"
)
SAVE = """
import sys, numpy, unlazy
X = numpy.random.default_rng(0).normal(size=(2000, 10))
unlazy.save(unlazy.FeatureMachineRegressor(effort="low").fit(X, numpy.sin(X[:, 0])), sys.argv[1])
"""
COMMANDS = {"list": ["list"], "show": ["show", "solver_race"], "--help": ["--help"]}
IMPORTS = {
    "jax and sklearn.base": "import jax, sklearn.base",
    "estimator": "from unlazy import FeatureMachineRegressor",
}


def table(name: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Classes of three clusters each, or a smooth function of five of the columns with noise."""
    classes, columns = TABLES[name]
    rng = np.random.default_rng(0)
    if classes == 0:
        X = rng.normal(size=(rows, columns))
        return X, np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + np.abs(X[:, 3]) + X[:, 4] + 0.3 * rng.normal(size=rows)
    centers = 1.2 * rng.normal(size=(classes, 3, columns))
    y = rng.integers(classes, size=rows)
    return centers[y, rng.integers(3, size=rows)] + rng.normal(size=(rows, columns)), y


def split(name: str, rows: int, data: str | None) -> tuple[np.ndarray, ...]:
    """Training and test rows of a synthetic table, or of a real one."""
    if data:
        return large_tables.split(Path(data), name, seed=0)
    X, y = table(name, rows + HELD_OUT)
    return X[:rows], y[:rows], X[rows:], y[rows:]


def measure(name: str, rows: int, data: str | None, twice: bool) -> dict[str, float | str]:
    """One fit or two in this process: CPU and wall-clock seconds of the import and the fits, programs, score."""
    X, y, Z, truth = split(name, rows, data)
    start, cpu = time.perf_counter(), time.process_time()
    from unlazy import FeatureMachineClassifier, FeatureMachineRegressor

    imported, import_cpu = time.perf_counter() - start, time.process_time() - cpu
    counts = count_programs()
    classify = TABLES[name][0] > 0 if name in TABLES else name.partition(":")[0] in large_tables.CLASSES
    machine = (FeatureMachineClassifier if classify else FeatureMachineRegressor)()
    start, cpu = time.perf_counter(), time.process_time()
    machine.fit(X, y)
    seconds, fit_cpu, programs = time.perf_counter() - start, time.process_time() - cpu, dict(counts)
    start = time.perf_counter()
    if twice:
        type(machine)().fit(X, y)
    second = time.perf_counter() - start if twice else float("nan")
    import jax

    return {
        "import": imported, "import CPU": import_cpu, "fit": seconds, "fit CPU": fit_cpu, **programs, "rows": len(X),
        "second": second, "score": float(machine.score(Z, truth)), "device": jax.default_backend(),
    }  # fmt: skip


def count_programs() -> dict[str, float]:
    """Programs requested of XLA from now on, and how many of them came from the cache; the counts change as it runs."""
    from jax import monitoring

    counts = {"programs": 0, "loaded": 0, "tracing": 0.0, "compiling": 0.0}

    def took(event: str, seconds: float, **_: object) -> None:
        compiles = event.endswith("/backend_compile_duration")
        counts["programs"] += compiles
        if compiles or event.endswith(("/jaxpr_trace_duration", "/jaxpr_to_mlir_module_duration")):
            counts["compiling" if compiles else "tracing"] += seconds

    def happened(event: str, **_: object) -> None:
        counts["loaded"] += event.endswith("/cache_hits")

    monitoring.register_event_duration_secs_listener(took)
    monitoring.register_event_listener(happened)
    return counts


def environment(home: str) -> dict[str, str]:
    """No cache but one in this folder, bytecode written, and one thread unless there is a GPU."""
    kept = {k: v for k, v in os.environ.items() if "CACHE" not in k and k != "PYTHONDONTWRITEBYTECODE"}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1") if not ON_GPU else {}
    return kept | threads | {"HOME": home, "XDG_CACHE_HOME": str(Path(home) / ".cache")}


def fresh(arguments: list[str], home: str) -> tuple[float, str]:
    """CPU-seconds and output of a fresh interpreter."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment(home), cwd=home)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_option(parser)
    parser.add_argument("--rows", type=int, nargs="*", help="training rows (default: 500 and 3,000, more on a GPU)")
    parser.add_argument("--tables", nargs="*", default=[*TABLES], choices=[*TABLES], metavar="NAME")
    parser.add_argument("--commands", action="store_true", help="only imports and commands")
    parser.add_argument("--data", type=os.path.abspath, help="folder of real tables, in place of synthetic ones")
    parser.add_argument("--sets", nargs="*", default=[*SETS], metavar="SET", help="real tables")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--twice", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.child[0], int(options.child[1]), options.data, options.twice)))
        return
    note = recorder(__file__, options.record)
    if not options.data:
        measure_commands(note)
    if options.commands:
        return
    rows = options.rows or ROWS["gpu" if ON_GPU else "cpu"]
    cases = [(name, 0) for name in options.sets] if options.data else [(t, n) for n in rows for t in options.tables]
    for case in cases:
        measure_fit(*case, options.data, note)


def measure_commands(note: Note) -> None:
    """Imports and commands, whose bytecode is written."""
    with tempfile.TemporaryDirectory() as home:
        cases = {f"import {k}": ["-c", code] for k, code in IMPORTS.items()}
        saved = str(Path(home) / "model.unlazy")
        fresh(["-c", SAVE, saved], home)
        cases |= {f"serve {k}": ["-c", code, saved] for k, code in SERVE.items()}
        cases |= {f"unlazy {k}": ["-m", "unlazy", *words] for k, words in COMMANDS.items()}
        for what, arguments in cases.items():
            fresh(arguments, home)
            seconds = min(fresh(arguments, home)[0] for _ in range(3))
            print(f"{what:38s} {seconds:6.2f} CPU-s", flush=True)
            note(what, seconds, "CPU-s")


def measure_fit(name: str, rows: int, data: str | None, note: Note) -> None:
    """One table in two fresh processes: the compilation cache is empty in the first and warm in the second."""
    child = [str(Path(__file__).resolve()), "--child", name, str(rows), *(["--data", data] if data else [])]
    with tempfile.TemporaryDirectory() as home:
        for cache in ("empty", "warm"):
            twice = ["--twice"] if cache == "warm" else []
            found = json.loads(fresh([*child, *twice], home)[1].splitlines()[-1])
            unit, measured = ("CPU-s", "fit CPU") if found["device"] == "cpu" else ("s", "fit")
            took = f"{found[measured]:6.2f} {unit}, {found['fit']:6.2f} s elapsed"
            took += f", second fit {found['second']:6.2f} s" if cache == "warm" else ""
            spent = f"tracing {found['tracing']:5.2f} s, compiling {found['compiling']:5.2f} s"
            programs = f"{found['programs']:3d} programs, {found['loaded']:3d} loaded, {spent}"
            case = f"{name}, {found['rows']} rows, {cache} cache"
            print(f"{case:44s} {took}, {programs}, score {found['score']:.4f}", flush=True)
            note(f"first fit, {case}", found[measured], unit)
            note(f"programs compiled, {case}", found["programs"] - found["loaded"], "programs")


if __name__ == "__main__":
    main()
