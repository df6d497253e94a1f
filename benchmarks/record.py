"""Results of benchmarks, kept in the repository in benchmarks/record.csv, one line per figure.

A benchmark called with --record appends its figures: date, commit ("+" if files had changed), machine, benchmark, what
was measured, the figure, and its unit. Only figures from the same machine can be compared.
"""

import argparse
import csv
import datetime
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

FILE = Path(__file__).with_name("record.csv")
COLUMNS = ("date", "commit", "machine", "benchmark", "what", "figure", "unit")


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add the option --record, which every benchmark has."""
    parser.add_argument("--record", action="store_true", help=f"append the figures to benchmarks/{FILE.name}")


def recorder(script: str, keep: bool, file: Path = FILE) -> Callable[[str, float, str], None]:
    """Return note(what, figure, unit), which appends a line if `keep`, and does nothing otherwise."""
    if not keep:
        return lambda what, figure, unit: None
    day, at = datetime.datetime.now(datetime.UTC).date().isoformat(), commit()

    def note(what: str, figure: float, unit: str) -> None:
        new = not file.exists()
        with file.open("a", newline="", encoding="utf-8") as out:
            lines = csv.writer(out, lineterminator="\n")
            if new:
                lines.writerow(COLUMNS)
            # determine the machine only now: JAX may have been imported meanwhile
            lines.writerow((day, at, machine(), Path(script).stem, what, f"{figure:.4g}", unit))

    return note


def commit() -> str:
    """The current commit."""

    def git(*words: str) -> str:
        done = subprocess.run(("git", *words), cwd=FILE.parent, capture_output=True, text=True)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":!record.csv")
    return (git("rev-parse", "--short=10", "HEAD") or "unknown") + ("+" if changed else "")


def machine() -> str:
    """Processor, number of cores, and the accelerator if JAX uses one."""
    here = f"{_processor()} × {os.cpu_count()}"
    jax = sys.modules.get("jax")  # do not import it here: that would change what is measured
    if jax is not None and jax.default_backend() != "cpu":
        here += f", {jax.devices()[0].device_kind}"
    return here


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
