"""Write the index of experiments, from which `unlazy list` and `unlazy show` read without importing JAX.

    python tools/write_experiment_index.py [--check]

With --check nothing is written; the exit code is 1 if the index differs from the files.
"""

import sys

from unlazy.lab.experiments import INDEX, index_text
from unlazy.lab.runner.catalog import all_experiments

COMMAND = "python tools/write_experiment_index.py"


def main(arguments: list[str]) -> int:
    text = index_text(all_experiments())
    if "--check" not in arguments:
        INDEX.write_text(text, encoding="utf-8")
        return 0
    if INDEX.exists() and INDEX.read_text(encoding="utf-8") == text:
        return 0
    print(f"{INDEX} differs from the experiments; to rewrite it: {COMMAND}")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
