"""Run the cases of the device check, remember the verdicts and print a table."""

import json
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

import jax

from unlazy.core import devices, engines
from unlazy.core.threads import available_cores
from unlazy.device_check.cases import Case, Measured, all_cases, describe

SECONDS_ON_GPU, SECONDS_ON_CPU = 90.0, 60.0
"""Time after which no further case is started."""
MAX_THREADS = 8
"""Most cases that run at the same time on a GPU."""


@dataclass(frozen=True)
class CheckRow:
    """One program compared with float64.

    Attributes
    ----------
    case : str
        What was computed.
    engine : str
        The program that this machine chose.
    error : float
        Largest relative error of the sampled rows; ∞ if the program failed.
    bound : float
        Largest error allowed.
    seconds : float or None
        Time of the program, if it was measured.
    xla_seconds : float or None
        Time of the plain XLA program, if it was measured.
    problem : str
        The exception, if there was one.
    passed : bool
        Whether the error is within the bound.
    """

    case: str
    engine: str
    error: float
    bound: float
    seconds: float | None = None
    xla_seconds: float | None = None
    problem: str = ""

    @property
    def passed(self) -> bool:
        """Whether the error is within the bound."""
        return self.error <= self.bound


@dataclass(frozen=True)
class DeviceCheck:
    """Result of `check_device`; `print` shows it as a table.

    Attributes
    ----------
    device : dict
        Device, driver and versions.
    rows : tuple of CheckRow
        One row per case.
    not_run : tuple of str
        Cases for which no time was left.
    seconds : float
        Time of the check.
    passed : bool
        Whether every row passed.
    failed_engines : tuple of str
        Engines that failed and can be switched off.
    """

    device: dict[str, str]
    rows: tuple[CheckRow, ...]
    not_run: tuple[str, ...] = ()
    seconds: float = math.nan

    @property
    def passed(self) -> bool:
        """Whether every row passed."""
        return all(row.passed for row in self.rows)

    @property
    def failed_engines(self) -> tuple[str, ...]:
        """Engines that failed and can be switched off with `UNLAZY_ENGINES`."""
        named = {name for row in self.rows if not row.passed for name in row.engine.split(" + ")}
        return tuple(name for name in engines.SWITCHABLE if name in named)

    def to_json(self) -> str:
        """The result as JSON.

        Returns
        -------
        str
            Device, rows and outcome; numbers that are not finite are null.
        """
        rows = [asdict(row) | {"passed": row.passed} for row in self.rows]
        content = {
            "passed": self.passed, "failed_engines": self.failed_engines, "seconds": self.seconds, **self.device,
            "rows": [{name: _finite(value) for name, value in row.items()} for row in rows],
            "not_run": self.not_run,
        }  # fmt: skip
        return json.dumps(content, indent=1)

    def __str__(self) -> str:
        width = max([len(row.case) for row in self.rows], default=4)
        wide = max([len(row.engine) for row in self.rows], default=6)
        lines = [
            f"{self.device['device']}, driver {self.device['driver']}, JAX {self.device['jax']}",
            f"{'case':{width}}  {'engine':{wide}}  {'error':>8}  {'bound':>8}  {'time':>10}  {'XLA time':>10}",
        ]
        for row in self.rows:
            times = "  ".join(f"{_milliseconds(value):>10}" for value in (row.seconds, row.xla_seconds))
            mark = "" if row.passed else f"  FAILED {row.problem}"
            lines.append(
                f"{row.case:{width}}  {row.engine:{wide}}  {row.error:8.1e}  {row.bound:8.1e}  {times}{mark}".rstrip()
            )
        failed = sum(not row.passed for row in self.rows)
        outcome = f"{failed} of {len(self.rows)} failed" if failed else f"all {len(self.rows)} passed"
        lines.append(f"{outcome} in {self.seconds:.0f} s")
        if self.not_run:
            lines.append(f"no time left for {len(self.not_run)} cases: {', '.join(self.not_run)}")
        if self.failed_engines:
            off = ",".join(f"-{name}" for name in self.failed_engines)
            lines.append(f"to switch off the engines that failed: {engines.VARIABLE}={off}")
        return "\n".join(lines)


def check_device(seconds: float | None = None, progress: Callable[[CheckRow], None] | None = None) -> DeviceCheck:
    """Compare every program that this machine would choose with float64.

    Products of each family of kernels at small and large sizes, near and far points, convolutional kernels with and
    without flips, solvers, AGOP and feature machines run on the default device of JAX. Samples of their results are
    compared with float64 on the CPU. Verdicts of fused GPU programs are remembered for this device, driver and JAX
    version: a program that failed is not used until it passes. `UNLAZY_ENGINES` switches engines off by hand.

    Parameters
    ----------
    seconds : float, optional
        Time after which no further case is started; 90 on a GPU and 60 on the CPU by default.
    progress : callable, optional
        Called with every finished `CheckRow`.

    Returns
    -------
    DeviceCheck
        The rows, `passed`, and a table as text.

    Raises
    ------
    ValueError
        If `seconds` is not positive, or if `UNLAZY_ENGINES` names an unknown engine.

    Examples
    --------
    >>> import unlazy
    >>> result = unlazy.check_device(seconds=1)
    >>> result.passed
    True
    """
    limit = (SECONDS_ON_CPU if devices.is_host() else SECONDS_ON_GPU) if seconds is None else seconds
    if not limit > 0:
        raise ValueError(f"seconds must be positive, got {seconds!r}")
    engines.allowed(engines.SWITCHABLE[0])  # an unknown name is an error before anything runs
    start = time.perf_counter()
    rows: list[CheckRow] = []
    not_run: list[str] = []
    found: dict[str, list[engines.Verdict]] = {}
    if not all(verdict.passed for verdict in engines.verdicts().values()):
        jax.clear_caches()  # compiled without the programs that failed
    with engines.unchecked():
        for case, done in _outcomes(list(all_cases()), start + limit):
            if done is None:
                not_run.append(case.name)
                continue
            row, programs = done
            rows.append(row)
            for name in programs:
                found.setdefault(name, []).append(engines.Verdict(row.error, row.bound))
            if progress is not None:
                progress(row)
    worst = {name: max(some, key=lambda verdict: verdict.error / verdict.bound) for name, some in found.items()}
    engines.remember(worst)
    if not all(verdict.passed for verdict in worst.values()):
        jax.clear_caches()  # later calls must not use what failed
    return DeviceCheck(engines.identity(), tuple(rows), tuple(not_run), time.perf_counter() - start)


def _outcomes(cases: list[Case], end: float) -> Iterator[tuple[Case, tuple[CheckRow, tuple[str, ...]] | None]]:
    """Each case with its outcome; None if it would begin after `end`, except for the first one.

    Compilation takes most of the time. For a GPU several threads compile, and timed cases run alone afterwards.
    """

    alone = [] if devices.is_host() else [case for case in cases if case.timed]
    together = [case for case in cases if case not in alone]
    first = (together or alone)[0]

    def outcome(case: Case) -> tuple[CheckRow, tuple[str, ...]] | None:
        return None if case is not first and time.perf_counter() > end else _run(case)

    if devices.is_host():
        yield from ((case, outcome(case)) for case in together)
        return
    pool = ThreadPoolExecutor(min(MAX_THREADS, available_cores()))
    try:
        yield from zip(together, pool.map(outcome, together))
    finally:
        pool.shutdown(cancel_futures=True)  # an interrupt does not wait for cases that have not begun
    yield from ((case, outcome(case)) for case in alone)


def _run(case: Case) -> tuple[CheckRow, tuple[str, ...]]:
    """The row of a case, and the verdicts that it concerns; an exception is a failure."""
    try:
        done = case.run()
    except Exception as problem:
        done = Measured("?", math.inf, 0.0, problem=describe(problem))
    times = done.seconds, done.xla_seconds
    return CheckRow(case.name, done.engine, done.error, done.bound, *times, done.problem), done.programs


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{1e3 * value:.3g} ms"
