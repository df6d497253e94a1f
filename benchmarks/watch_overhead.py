"""What `unlazy.watch` costs at its defaults, and whether it leaves the training as it is.

    python benchmarks/watch_overhead.py time [--device cuda] [--steps N] [--rounds 3] [--record]
    python benchmarks/watch_overhead.py memory [--record]
    python benchmarks/watch_overhead.py bits [--device cuda]

time: training with and without the monitor in alternation, from its construction to the last step. A network of the
shape of ResNet-18 on 32 × 32 images with --device cuda, an MLP on the CPU (PyTorch and JAX). Target: at most 3%, of
seconds on a GPU; whole runs differ by some 4% from one to the next, so a last run synchronizes before and after each
call of the monitor and shows the seconds inside them. On the CPU those inside the monitor's calls over those outside
count, in CPU seconds, since other programs on the machine disturb a comparison of two runs by more than 3%. On a GPU
also the additional peak memory; target: at most 1.2 times the parameters.

memory: the same target on the CPU, for an MLP of 129 MiB in PyTorch: peak resident memory of two new processes, both of
which take every measure of a small network first, so that both have loaded the same code. The run is short: all
measures are asked for once.

bits: weights, buffers, optimizer state, losses, random generators and what a user's hook recorded, with a monitor that
takes every measure every few steps and without; all must be equal bit for bit. Two runs without a monitor are compared
first: where they differ the machine is not deterministic.
"""

import argparse
import hashlib
import math
import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
import torch
from record import add_option, recorder
from torch import Tensor, nn
from torch.nn import functional

import unlazy

R = TypeVar("R")
LIMIT = 0.03
MEMORY_LIMIT = 1.2
PROBES = 256


# networks


class BasicBlock(nn.Module):
    """Two 3 × 3 convolutions with BatchNorm and a shortcut."""

    def __init__(self, n_in: int, n_out: int, stride: int):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False), nn.BatchNorm2d(n_out)
        self.conv2, self.bn2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False), nn.BatchNorm2d(n_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or n_in != n_out:
            self.shortcut = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(inner + self.shortcut(x))


def resnet18(width: int = 64) -> nn.Module:
    """ResNet-18 with the stem for 32 × 32 images."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    before = width
    for stage in range(4):
        for block in range(2):
            layers.append(BasicBlock(before, width << stage, 2 if stage and not block else 1))
            before = width << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


def mlp(width: int = 512, dropout: float = 0.0) -> nn.Module:
    """Three hidden layers."""
    layers: list[nn.Module] = []
    for i in range(3):
        layers += [nn.Linear(width if i else 64, width), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def images(n: int, device: str) -> tuple[Tensor, Tensor]:
    """Random images and labels."""
    generator = torch.Generator().manual_seed(1)
    X, y = torch.randn(n, 3, 32, 32, generator=generator), torch.randint(0, 10, (n,), generator=generator)
    return X.to(device), y.to(device)


def vectors(n: int, device: str) -> tuple[Tensor, Tensor]:
    """Random vectors with labels that can be learned."""
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(n, 64, generator=generator)
    return X.to(device), X[:, :10].argmax(1).to(device)


# time


class Run(NamedTuple):
    """What a training run took: seconds, CPU seconds, those of them in calls of the monitor, peak bytes on a GPU."""

    seconds: float
    cpu_seconds: float
    inside: float = 0.0
    peak: int = 0


class Meter:
    """CPU seconds of all threads inside the calls of a monitor, or elapsed ones of a GPU that waits for each call."""

    def __init__(self, synchronize: bool = False) -> None:
        self.seconds, self.synchronize = 0.0, synchronize

    def __call__(self, call: Callable[..., R], *args: object, **options: object) -> R:
        began = self._now()
        result = call(*args, **options)
        self.seconds += self._now() - began
        return result

    def _now(self) -> float:
        if not self.synchronize:
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()


def timed_torch(
    build: Callable[[], nn.Module], data: tuple[Tensor, Tensor], batch: int, steps: int, watched: bool,
    synchronize: bool = False,
) -> Run:  # fmt: skip
    """One training run."""
    X, y = data
    cuda = X.is_cuda
    torch.manual_seed(0)
    model = build().to(X.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    order = torch.randint(0, len(X), (steps, batch), generator=torch.Generator().manual_seed(2)).to(X.device)

    def step(rows: Tensor) -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(X[rows]), y[rows]).backward()
        optimizer.step()

    for rows in order[:10]:  # memory pools, algorithms of cuDNN
        step(rows)
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    meter = Meter(synchronize)
    began, cpu = time.perf_counter(), time.process_time()
    monitor = meter(unlazy.watch, model, X[:PROBES], y[:PROBES], planned_steps=steps) if watched else None
    for rows in order:
        step(rows)
        if monitor is not None:
            meter(monitor.step)
    if cuda:
        torch.cuda.synchronize()
    taken = time.perf_counter() - began, time.process_time() - cpu
    if monitor is not None:
        print(f"        checks {len(monitor.record.checks)}, own estimate {monitor.record.overhead:.2%}; {monitor}")
    return Run(*taken, meter.seconds, torch.cuda.max_memory_allocated() if cuda else 0)


def timed_jax(batch: int, steps: int, watched: bool) -> Run:
    """The same MLP in JAX."""
    import jax
    import jax.numpy as jnp

    X, y = (jnp.asarray(v.numpy()) for v in vectors(4096, "cpu"))
    rng = np.random.default_rng(0)
    sizes = (64, 512, 512, 512, 10)
    params = [jnp.asarray(rng.normal(size=s) * (2 / s[0]) ** 0.5, jnp.float32) for s in pairwise(sizes)]

    def apply(params: Sequence, X: jax.Array) -> jax.Array:
        for w in params[:-1]:
            X = jax.nn.relu(X @ w)
        return X @ params[-1]

    @jax.jit
    def step(params: Sequence, rows: jax.Array) -> Sequence:
        def loss(p: Sequence) -> jax.Array:
            return -jnp.take_along_axis(jax.nn.log_softmax(apply(p, X[rows])), y[rows][:, None], 1).mean()

        return jax.tree.map(lambda p, g: p - 0.02 * g, params, jax.grad(loss)(params))

    order = rng.integers(0, len(X), (steps, batch))
    for rows in order[:10]:
        params = jax.block_until_ready(step(params, rows))
    meter = Meter()
    began, cpu = time.perf_counter(), time.process_time()
    monitor = meter(unlazy.watch, (apply, params), X[:PROBES], y[:PROBES], planned_steps=steps) if watched else None
    for rows in order:
        params = jax.block_until_ready(step(params, rows))  # else a call of the monitor waits for it
        if monitor is not None:
            meter(monitor.update, params)
    taken = time.perf_counter() - began, time.process_time() - cpu
    if monitor is not None:
        print(f"        checks {len(monitor.record.checks)}, own estimate {monitor.record.overhead:.2%}; {monitor}")
    return Run(*taken, meter.seconds)


def measure(what: str, run: Callable[[bool], Run], rounds: int, note: Callable, cpu: bool) -> bool:
    """Time with and without, in alternation; the ratio of each pair of neighbors."""
    run(False)  # compiles, fills caches
    ratios, peaks = [], {False: 0, True: 0}
    for i in range(rounds):
        pair: dict[bool, Run] = {}
        for watched in (False, True) if i % 2 == 0 else (True, False):
            pair[watched] = run(watched)
            peaks[watched] = max(peaks[watched], pair[watched].peak)
        without, run_with = pair[False], pair[True]
        inside = run_with.inside / (run_with.cpu_seconds - run_with.inside)
        seconds = run_with.seconds / without.seconds - 1
        ratios.append(inside if cpu else seconds)
        cpu_seconds = run_with.cpu_seconds / without.cpu_seconds - 1
        print(
            f"    round {i + 1}: {without.seconds:.2f} s ({without.cpu_seconds:.2f} CPU-s) without, "
            f"{run_with.seconds:.2f} s ({run_with.cpu_seconds:.2f} CPU-s) with, {seconds:+.2%} ({cpu_seconds:+.2%}); "
            f"{inside:.2%} CPU-s in the monitor's calls",
            flush=True,
        )
    middle = statistics.median(ratios)
    print(f"{what}: overhead {middle:+.2%} (median of {rounds}; {min(ratios):+.2%} to {max(ratios):+.2%})", flush=True)
    note(f"{what}, overhead{' in CPU-s' if cpu else ''}", 100 * middle, "%")
    if peaks[True]:
        print(f"    peak memory {peaks[False] / 2**20:.1f} MiB without, {peaks[True] / 2**20:.1f} MiB with")
        note(f"{what}, additional peak memory", (peaks[True] - peaks[False]) / 2**20, "MiB")
    return middle <= LIMIT


def measure_times(device: str, steps: int | None, rounds: int, note: Callable) -> bool:
    """All networks of a device."""
    if device == "cpu":
        steps = steps or 400
        data = vectors(4096, device)
        print(f"MLP, 3 × 512, batch 128, {steps} steps, {torch.get_num_threads()} threads")
        torch_ok = measure("MLP, PyTorch", lambda w: timed_torch(mlp, data, 128, steps, w), rounds, note, cpu=True)
        return measure("MLP, JAX", lambda w: timed_jax(128, steps, w), rounds, note, cpu=True) and torch_ok
    steps = steps or 1500
    data = images(4096, device)
    parameters = sum(p.numel() * p.element_size() for p in resnet18().parameters())
    print(
        f"ResNet-18, batch 128, {steps} steps, {torch.cuda.get_device_name()}; parameters {parameters / 2**20:.1f} MiB"
    )
    peaks: dict[bool, int] = {}

    def run(watched: bool) -> Run:
        found = timed_torch(resnet18, data, 128, steps, watched)
        peaks[watched] = max(found.peak, peaks.get(watched, 0))
        return found

    fast = measure("ResNet-18", run, rounds, note, cpu=False)
    found = timed_torch(resnet18, data, 128, steps, True, synchronize=True)
    inside = found.inside / (found.seconds - found.inside)
    print(
        f"    {found.inside:.2f} s in the monitor's calls, {inside:.2%} of {found.seconds - found.inside:.2f} s outside"
    )
    note("ResNet-18, seconds in the monitor's calls", 100 * inside, "%")
    more = (peaks[True] - peaks[False]) / parameters
    print(f"    additional peak memory {more:.2f} × parameters")
    return fast and more <= MEMORY_LIMIT


# memory


def peak_bytes(watched: bool, width: int, steps: int) -> tuple[int, int]:
    """Bytes that the peak of resident memory lies above a training run's start, and number of checks."""
    X, y = vectors(512, "cpu")
    small = unlazy.watch(mlp(32), X[:PROBES], y[:PROBES], every=1)  # loads what the measures need
    small.step()
    torch.manual_seed(0)
    model = mlp(width)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    _reset_peak()
    before = _resident("VmRSS")
    monitor = unlazy.watch(model, X[:PROBES], y[:PROBES], planned_steps=steps) if watched else None
    for i in range(steps):
        rows = torch.arange(128) + 128 * (i % 4)
        optimizer.zero_grad()
        functional.cross_entropy(model(X[rows]), y[rows]).backward()
        optimizer.step()
        if monitor is not None:
            monitor.step()
            if i == steps // 2:
                monitor.check()  # all measures, as in a longer run
    taken = sum(math.isfinite(c.kernel_movement) for c in monitor.record.checks) if monitor else 0
    print(f"    {'with' if watched else 'without'}: {len(monitor.record.checks) if monitor else 0} checks, "
          f"{taken} of the kernel", flush=True)  # fmt: skip
    return _resident("VmHWM") - before, sum(p.numel() * p.element_size() for p in model.parameters())


def _resident(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def measure_memory(steps: int | None, note: Callable) -> bool:
    """Additional peak memory on the CPU, of one run each."""
    peaks = {}
    for watched in (False, True):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            peaks[watched], parameters = pool.apply(peak_bytes, (watched, 4096, steps or 40))
    more = (peaks[True] - peaks[False]) / parameters
    print(f"MLP of {parameters / 2**20:.1f} MiB: peak {peaks[False] / 2**20:.1f} MiB above the start without, "
          f"{peaks[True] / 2**20:.1f} MiB with: {more:.2f} × parameters")  # fmt: skip
    note("MLP, PyTorch, additional peak memory over parameters", more, "×")
    return more <= MEMORY_LIMIT


# bits


class Network(nn.Module):
    """Convolutions with BatchNorm, dropout, and a buffer of its own that every training step changes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(0.2),
            nn.Conv2d(16, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.readout = nn.Linear(16, 10)
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += len(x)
        return self.readout(self.body(x))


def fingerprint(
    device: str, precision: torch.dtype | None, optimizer_name: str, watched: bool, steps: int = 40
) -> dict:
    """Hashes of everything that a training run leaves behind."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    model = Network().to(device)
    model.body[3].eval()  # a user may keep one layer in evaluation mode
    recorded: list[float] = []
    model.body[0].register_forward_hook(lambda module, args, out: recorded.append(float(out.detach().float().sum())))
    kinds = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
        "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
    }
    optimizer = kinds[optimizer_name](model.parameters())
    scaler = torch.amp.GradScaler(device, enabled=precision is torch.float16)
    X, y = images(256, device)
    monitor = None
    if watched:
        options = unlazy.WatchOptions(loss=functional.cross_entropy)
        monitor = unlazy.watch(model, X[:64], y[:64], every=5, planned_steps=steps, step_size=0.05, options=options)
    losses = []
    for _ in range(steps):
        rows = torch.randint(0, len(X), (32,))
        noise = float(np.random.rand()) + random.random()  # noqa: NPY002
        optimizer.zero_grad()
        with torch.autocast(device, dtype=precision, enabled=precision is not None):
            loss = functional.cross_entropy(model(X[rows] + 0.01 * noise), y[rows])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach().cpu())
        if monitor is not None:
            monitor.step()
    if monitor is not None:
        assert len(monitor.record.checks) >= steps // 5 and not monitor.record.notes, monitor.record.notes
    state = {
        "weights": [p.detach() for p in model.parameters()],
        "gradients": [p.grad for p in model.parameters()],
        "buffers": list(model.buffers()),
        "optimizer": [v for s in optimizer.state.values() for v in s.values()],
        "losses": losses,
        "flags": [torch.tensor([m.training for m in model.modules()])],
        "hook": [torch.tensor(recorded, dtype=torch.float64)],
        "random": [torch.get_rng_state(), torch.tensor(np.random.rand(4)), torch.tensor([random.random()])],  # noqa: NPY002
    }
    if device == "cuda":
        state["random"].append(torch.cuda.get_rng_state())
    return {name: digest(parts) for name, parts in state.items()}


def digest(parts: Sequence) -> str:
    """Hash of the bits of tensors."""
    found = hashlib.sha256()
    for part in parts:
        tensor = part.detach().cpu().contiguous() if isinstance(part, Tensor) else torch.tensor(part)
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return found.hexdigest()


def compare_bits(device: str) -> bool:
    """All combinations of precision and optimizer."""
    torch.use_deterministic_algorithms(True)
    precisions = [None, torch.bfloat16, *([torch.float16] if device == "cuda" else [])]
    good = True
    for precision in precisions:
        for name in ("sgd", "adamw"):
            first, again, watched = (fingerprint(device, precision, name, w) for w in (False, False, True))
            title = f"{device}, {'float32' if precision is None else f'autocast {precision}'}, {name}"
            changed = [part for part in first if first[part] != watched[part]]
            if first != again:
                print(f"{title}: two runs without a monitor differ, nothing can be compared")
            print(f"{title}: {'equal bit for bit: ' + ', '.join(first) if not changed else f'DIFFERENT: {changed}'}")
            good &= not changed and first == again
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("time", "memory", "bits"))
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--steps", type=int, help="training steps of a timed run")
    parser.add_argument("--rounds", type=int, default=3)
    add_option(parser)
    given = parser.parse_args()
    if given.what == "bits":
        holds = compare_bits(given.device)
    elif given.what == "memory":
        holds = measure_memory(given.steps, recorder(__file__, given.record))
    else:
        holds = measure_times(given.device, given.steps, given.rounds, recorder(__file__, given.record))
    print("holds" if holds else "does not hold")
    raise SystemExit(not holds)


if __name__ == "__main__":
    main()
