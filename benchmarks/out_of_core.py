"""Rows on disk: one pass of Nyström-CG over a .npy file, compared with reading alone and computing alone.

    python benchmarks/out_of_core.py [--rows 100000000] [--centers 256] [--file X.npy] [--memory 2GiB] [--record]

If the file is missing, `--rows` × 10 standard normal float32 numbers are written (and removed afterwards, unless
--keep). Before each measurement the file is dropped from the page cache, if the system allows it. Measured after
compilation:

- reading: the file from start to end into one buffer;
- computing: the same number of rows, multiplied as in a pass, all from one block in memory;
- a pass: K_nMᵀ(K_nM v) with the rows from the file (solvers.methods.nystrom_cg.DataPasses), the step of Nyström-CG;
- with --steps, a complete `solve` from the file, including samples, centers and preconditioner.

Target: a pass takes at most 1.2 times reading plus computing, and little more than the longer of the two.
Memory: peak memory during the pass above that before it; at most --memory.
"""

import argparse
import os
import time
import warnings
from pathlib import Path

import numpy as np
from record import add_option, recorder

from unlazy.core.devices import parse_bytes
from unlazy.kernels.radial import Gaussian
from unlazy.solvers import problem as problems
from unlazy.solvers.methods.nystrom_cg import BLOCK_BYTES, DataPasses, NystromCG
from unlazy.solvers.solve import SolveOptions, solve

INPUTS, CHUNK = 10, 1_000_000


class Repeated:
    """Any number of rows, all from one block in memory."""

    def __init__(self, block: np.ndarray, rows: int):
        self.block, self.shape = block, (rows, block.shape[1])

    def __getitem__(self, rows: slice) -> np.ndarray:
        return self.block[: rows.stop - rows.start]


def write(path: Path, rows: int) -> None:
    """Write standard normal rows in chunks."""
    rng = np.random.default_rng(0)
    form = {
        "descr": np.lib.format.dtype_to_descr(np.dtype(np.float32)),
        "fortran_order": False,
        "shape": (rows, INPUTS),
    }
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, form)
        for start in range(0, rows, CHUNK):
            file.write(rng.standard_normal((min(CHUNK, rows - start), INPUTS), dtype=np.float32).tobytes())
        file.flush()
        os.fsync(file.fileno())  # only pages that are on disk can be dropped


def drop(path: Path) -> bool:
    """Drop the file from the page cache; return whether that was possible."""
    if not hasattr(os, "posix_fadvise"):
        return False
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return True


def timed(call) -> tuple[float, float]:
    """Wall-clock seconds, and CPU-seconds of all threads."""
    start, busy = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - start, time.process_time() - busy


def read(path: Path) -> None:
    buffer = bytearray(BLOCK_BYTES)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def status(name: str) -> int:
    """Bytes from /proc/self/status; ru_maxrss would start at the peak of the parent process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(2**10 * int(line.split()[1]) for line in lines if line.startswith(name))


def forget_peak() -> None:
    """Reset VmHWM."""
    Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--centers", type=int, default=256)
    parser.add_argument("--file", type=Path, default=Path("out_of_core.npy"))
    parser.add_argument(
        "--memory", default="2GiB", help="memory budget; must be smaller than the file, so that it is read in blocks"
    )
    parser.add_argument("--steps", type=int, default=0, help="steps of a complete `solve`; 0 to skip it")
    parser.add_argument("--keep", action="store_true", help="keep the file that was written")
    add_option(parser)
    options = parser.parse_args()
    note = recorder(__file__, options.record)
    warnings.simplefilter("ignore")
    ours = not options.file.exists()
    if ours:
        seconds, _ = timed(lambda: write(options.file, options.rows))
        print(f"written in {seconds:.0f} s", flush=True)
    try:
        measure(options, note)
    finally:
        if ours and not options.keep:
            options.file.unlink()


def measure(options, note) -> None:
    kernel, memory = Gaussian(float(INPUTS**0.5)), parse_bytes(options.memory)
    rng = np.random.default_rng(1)
    n = int(np.load(options.file, mmap_mode="r").shape[0])
    y = rng.standard_normal(n, dtype=np.float32)
    v = rng.standard_normal((options.centers, 1))
    Z = rng.standard_normal((options.centers, INPUTS), dtype=np.float32)

    def passes(X) -> DataPasses:
        made = DataPasses(problems.make_problem(kernel, X, y, 1e-6 * n, memory), problems.on_device(Z, Z.dtype), memory)
        if made.engine != "by blocks from the source":
            raise SystemExit(f"the rows fit in the memory budget ({made.engine}): reduce --memory")
        return made

    block = rng.standard_normal((passes(options.file).rows, INPUTS), dtype=np.float32)
    in_memory, from_file = passes(Repeated(block, n)), passes(options.file)
    small = passes(Repeated(block, n))
    small.problem.source.n = len(block)  # one block of the same shape, to compile
    small.normal(v)
    dropped = drop(options.file)
    reading, reading_cpu = timed(lambda: read(options.file))
    computing, computing_cpu = timed(lambda: in_memory.normal(v))
    drop(options.file)
    forget_peak()
    before = status("VmRSS")
    both, both_cpu = timed(lambda: from_file.normal(v))
    peak = status("VmHWM") - before
    size = f"n = {n}, {options.centers} centers"
    cache = "dropped from the page cache" if dropped else "may be in the page cache"
    print(f"{size}, {n * INPUTS * 4 / 1e9:.3g} GB on disk ({cache}), blocks of {from_file.rows} rows")
    print(f"  reading   {reading:7.2f} s {reading_cpu:7.2f} CPU-s")
    print(f"  computing {computing:7.2f} s {computing_cpu:7.2f} CPU-s")
    print(f"  one pass  {both:7.2f} s {both_cpu:7.2f} CPU-s")
    print(f"  over reading + computing {both / (reading + computing):.3f} (at most 1.2)")
    print(f"  over the longer of them  {both / max(reading, computing):.3f}")
    print(f"  the same in CPU-seconds, over the sum {both_cpu / (reading_cpu + computing_cpu):.3f}")
    print(
        f"  memory {peak / 2**20:.0f} MiB above that before the pass (planned {from_file.bytes / 2**20:.0f}, "
        f"budget {memory / 2**20:.0f})"
    )
    note(f"one pass over reading + computing, {size}", both / (reading + computing), "ratio")
    note(f"one pass over the longer of reading and computing, {size}", both / max(reading, computing), "ratio")
    note(
        f"CPU-s of one pass over those of reading + computing, {size}",
        both_cpu / (reading_cpu + computing_cpu),
        "ratio",
    )
    note(f"memory beyond what was held before, {size}", peak / 2**20, "MiB")
    if options.steps:
        drop(options.file)
        forget_peak()
        before = status("VmRSS")
        limits = SolveOptions(max_steps=options.steps, memory=memory, precision="float32")
        run = {"method": NystromCG(centers=options.centers), "tolerance": 1e-12, "options": limits}
        seconds, cpu = timed(lambda: print(solve(kernel, options.file, y, 1e-6 * n, **run)))
        peak = status("VmHWM") - before
        print(
            f"  solve, {options.steps} steps: {seconds:.1f} s, {cpu:.1f} CPU-s, {peak / 2**20:.0f} MiB, "
            f"{8 * n / 2**20:.0f} of them labels"
        )
        note(f"solve of {options.steps} steps, {size}", seconds, "s")


if __name__ == "__main__":
    main()
