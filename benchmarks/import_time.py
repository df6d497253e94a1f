"""CPU-seconds to import unlazy, compared with jax alone and with what estimators need anyway, jax and sklearn.base.

Target: an estimator takes at most 1.2 times as long to import as jax and sklearn.base. Medians over fresh interpreters,
interleaved so that a busy moment of the machine falls on all cases alike; bytecode is written before.

    python benchmarks/import_time.py [--repeats 5] [--record]
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys

from record import add_option, recorder

CASES = {
    "nothing": "pass",
    "jax": "import jax",
    "jax and sklearn.base": "import jax, sklearn.base",
    "unlazy": "import unlazy",
    "unlazy and a kernel": "import unlazy; unlazy.NTK",
    "solve": "from unlazy import solve",
    "FeatureMachineRegressor": "from unlazy import FeatureMachineRegressor",
    "KernelRegressor": "from unlazy import KernelRegressor",
    "GaussianProcess": "from unlazy import GaussianProcess",
    "unlazy and the lab": "import unlazy; unlazy.lab.run",
    "the command line": "import unlazy.cli",
}
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def cpu_seconds(code: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, env=ENVIRONMENT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_option(parser)
    parser.add_argument("--repeats", type=int, default=5, help="interpreters per case")
    options = parser.parse_args()
    note = recorder(__file__, options.record)
    for code in CASES.values():
        cpu_seconds(code)  # writes the bytecode
    runs = [{name: cpu_seconds(code) for name, code in CASES.items()} for _ in range(options.repeats)]
    times = {name: statistics.median(run[name] for run in runs) for name in CASES}
    needed = times["jax and sklearn.base"]
    for name, seconds in times.items():
        print(f"{name:24s} {seconds:6.2f} CPU-s  {seconds / times['jax']:5.2f} × jax  {seconds / needed:5.2f} × needed")
        note(f"import {name}", seconds, "CPU-s")


if __name__ == "__main__":
    main()
