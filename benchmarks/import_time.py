"""CPU-seconds to import unlazy, compared with jax alone: the median of five fresh interpreters.

python benchmarks/import_time.py [--record]
"""

import argparse
import resource
import statistics
import subprocess
import sys

from record import add_option, recorder

CASES = {
    "nothing": "pass",
    "jax": "import jax",
    "unlazy": "import unlazy",
    "unlazy and a kernel": "import unlazy; unlazy.NTK",
    "unlazy and the lab": "import unlazy; unlazy.lab.runner.run",
    "the command line": "import unlazy.cli",
}


def cpu_seconds(code: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_option(parser)
    note = recorder(__file__, parser.parse_args().record)
    times = {name: statistics.median(cpu_seconds(code) for _ in range(5)) for name, code in CASES.items()}
    for name, seconds in times.items():
        print(f"{name:22s} {seconds:6.2f} CPU-s   {seconds / times['jax']:5.2f} × jax alone")
        note(f"import {name}", seconds, "CPU-s")


if __name__ == "__main__":
    main()
