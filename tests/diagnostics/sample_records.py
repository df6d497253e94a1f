"""Records of runs, made by hand."""

import math

from unlazy.diagnostics import Check, KernelMachine, LayerCheck, Record

STEPS = (5, 10, 20, 50, 100)


def growing(layers=3, planned=200, last_gap=0.3):
    """A run whose gap grows as the square root of the step, every measure taken; the last layer is the readout."""
    names = [f"block{i}.conv" for i in range(layers - 1)] + ["readout"]
    checks = []
    for step in STEPS:
        share = math.sqrt(step / STEPS[-1])
        found = {name: LayerCheck(0.05 * share, 0.2 * share * (i + 1), 1 - 0.1 * share, 3.0 + i, 3.0)
                 for i, name in enumerate(names)}  # fmt: skip
        checks.append(Check(
            step, 0.1 * step, 0.01, 64, last_gap * share, 0.02 * share, share, 2.3 - share, 0.9 - 0.5 * share,
            0.4 * share, 0.03, 0.05 * share, 0.01, 0.2, 0.1, 0.05, 0.3, 20.0, 0.1, 2.0 * share, found,
        ))  # fmt: skip
    return Record(
        tuple(checks), planned, 0.1, 2.3, STEPS[-1], 0.021, ("readout",), notes=("kernel failed at step 120: <b>",)
    )


def with_kernel_machine():
    """The end of a run that was compared with its kernel."""
    record = growing(planned=100)
    return Record(record.checks, 100, initial_loss=2.3, kernel_machine=KernelMachine(64, 0.3, 0.2))
