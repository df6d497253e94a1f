"""`unlazy.watch` end to end on small networks."""

import jax.numpy as jnp
import numpy as np
import pytest
from small_model import SmallModel, gradient_step, initial, mlp

import unlazy
from unlazy.core.errors import UnlazyWarning
from unlazy.diagnostics.measures.movement import linearization_gap
from unlazy.diagnostics.schedule import Schedule

quiet = pytest.mark.filterwarnings("error::unlazy.core.errors.UnlazyWarning")


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(48, 5)).astype(np.float32)
    return X, np.sin(X @ rng.normal(size=(5, 1))).astype(np.float32)


def squared(outputs, targets):
    return jnp.mean((outputs - targets) ** 2)


def step(monitor, model, X, y, rate):
    """One training step, of which the monitor is told."""
    model.update(gradient_step(model, X, y, rate))
    monitor.update(model.value)


def train(monitor, model, X, y, steps, rate):
    for _ in range(steps):
        step(monitor, model, X, y, rate)


@quiet
def test_verdicts_follow_the_output_scale(data):
    words = {}
    for alpha in (30.0, 0.3):
        model = SmallModel(initial(0, 5, 64, 1), alpha=alpha)
        monitor = unlazy.watch(model, *data, every=50, planned_steps=150)
        train(monitor, model, *data, 150, 0.1 / alpha**2)
        words[alpha] = monitor.verdict.word
        assert monitor.record.checks[-1].loss < 0.5 * monitor.record.initial_loss
    assert words == {30.0: "lazy", 0.3: "rich"}


@quiet
@pytest.mark.slow
def test_every_measure_is_taken(data):
    model = SmallModel(initial(0, 5, 32, 16, 1))
    start = model.snapshot()
    logged = []
    options = unlazy.WatchOptions(loss=squared)
    monitor = unlazy.watch(model, *data, every=20, planned_steps=60, step_size=0.1, log=logged.append, options=options)
    train(monitor, model, *data, 60, 0.1)
    check = monitor.record.checks[-1]
    assert [c.step for c in monitor.record.checks] == [20, 40, 60] and monitor.record.step == 60
    assert check.gap == pytest.approx(linearization_gap(model, start, data[0]), rel=1e-6)
    assert all(np.isfinite(v) for v in check.numbers().values())
    assert check.stability == pytest.approx(0.1 * check.sharpness) and check.sharpness > 0
    assert list(check.layers) == ["w1", "w2", "w3"] and monitor.record.output_layers == ("w3",)
    assert set(monitor.verdict.layers) == {"w1", "w2"}
    # kernel and features are those of 32 points
    assert check.points == 48 and 0 < check.kernel_movement_error < check.kernel_movement
    assert len(logged) == 3 and logged[-1]["unlazy/gap"] == check.gap and "unlazy/w1/movement" in logged[-1]
    assert "unlazy/forecast" in logged[-1] and all(isinstance(v, int | float) for v in logged[-1].values())
    assert str(monitor) == monitor.verdict.text and "gap" in repr(monitor)


@quiet
def test_functions_of_parameters_are_watched_through_their_adapter(data):
    X, y = data
    params = {k: jnp.asarray(v, jnp.float32) for k, v in initial(0, 5, 16, 1).items()}
    monitor = unlazy.watch((lambda p, x: mlp(p, x)[0], params), X, y, every=10, planned_steps=10)
    trained = {k: 2 * jnp.asarray(v, jnp.float32) for k, v in initial(1, 5, 16, 1).items()}
    for _ in range(10):
        monitor.update(trained)
    assert monitor.verdict.word == "rich" and list(monitor.record.checks[-1].layers) == ["w1", "w2"]


@quiet
def test_checks_are_forced_at_will(data):
    model = SmallModel(initial(0, 5, 16, 1))
    monitor = unlazy.watch(model, *data, planned_steps=10**6)
    assert monitor.verdict.word == "too early" and "no check" in str(monitor)
    step(monitor, model, *data, 0.1)
    assert monitor.check().step == 1 and len(monitor.record.checks) == 1
    assert monitor.check().gap == monitor.record.checks[0].gap  # the same step again
    assert len(monitor.record.checks) == 1
    assert "every run looks lazy at first" in str(monitor) and "step 200000" in str(monitor)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Timed(SmallModel):
    """Every evaluation takes its time."""

    clock = Clock()

    def apply(self, params, inputs):
        self.clock.now += 0.01
        return super().apply(params, inputs)

    def jvp(self, params, direction, inputs):
        self.clock.now += 0.02
        return super().jvp(params, direction, inputs)

    def vjp(self, params, cotangents, inputs):
        self.clock.now += 0.02
        return super().vjp(params, cotangents, inputs)


@pytest.mark.slow_cases("5000")
@quiet
@pytest.mark.parametrize("planned", [None, 5000])
def test_overhead_stays_within_three_percent(data, planned):
    """Steps of 0.1 s, checks of 0.03 s (gap) and 3 s (kernel), by a simulated clock."""
    model = Timed(initial(0, 5, 8, 1))
    monitor = unlazy.watch(model, *data, planned_steps=planned)
    monitor._schedule = Schedule("auto", planned, model.clock)
    began = model.clock.now
    for i in range(5000):
        model.clock.now += 0.1
        if i < 100:
            step(monitor, model, *data, 0.1)
        else:
            monitor.step()
    record = monitor.record
    total = model.clock.now - began
    assert total == pytest.approx(500 + record.overhead * 500, rel=0.01)  # all time is one or the other
    assert record.overhead <= 0.03
    assert len(record.checks) >= 8 and any(not np.isnan(c.kernel_movement) for c in record.checks)
    if planned:
        assert record.checks[-1].step == 5000 and record.checks[-1].layers


class Failing(SmallModel):
    """Forward-mode derivatives fail after a while."""

    broken = False

    def jvp(self, params, direction, inputs):
        if self.broken:
            raise RuntimeError("no forward mode for this operation")
        return super().jvp(params, direction, inputs)


def test_a_failing_monitor_warns_once_and_never_stops_training(data):
    model = Failing(initial(0, 5, 16, 1))
    monitor = unlazy.watch(model, *data, every=2)
    train(monitor, model, *data, 4, 0.1)
    model.broken = True
    with pytest.warns(
        UnlazyWarning, match=r"gap failed at step 6: RuntimeError: no forward mode.*Training continues"
    ) as seen:
        train(monitor, model, *data, 20, 0.1)
    assert len(seen) == 1
    assert [c.step for c in monitor.record.checks] == [2, 4]
    assert len(monitor.record.notes) == 1 and "no forward mode" in repr(monitor)
    assert monitor.check() is None


def test_one_failing_measure_leaves_the_others(data):
    class NoLayers(SmallModel):
        def layer_outputs(self, params, inputs):
            raise MemoryError("too large")

    model = NoLayers(initial(0, 5, 16, 1))
    monitor = unlazy.watch(model, *data, every=1)
    with pytest.warns(UnlazyWarning, match="features failed") as seen:
        train(monitor, model, *data, 3, 0.1)
    assert len(seen) == 1 and len(monitor.record.checks) == 3
    assert not np.isnan(monitor.record.checks[-1].kernel_movement)


def test_a_failing_log_is_dropped(data):
    def log(numbers):
        raise ConnectionError("the server is gone")

    model = SmallModel(initial(0, 5, 16, 1))
    monitor = unlazy.watch(model, *data, every=1, log=log, options=unlazy.WatchOptions(measures=("gap",)))
    with pytest.warns(UnlazyWarning, match="log failed at step 1: ConnectionError") as seen:
        train(monitor, model, *data, 3, 0.1)
    assert len(seen) == 1 and len(monitor.record.checks) == 3


def test_wrong_parameters_warn_once(data):
    params = {"w1": jnp.ones((5, 1))}
    monitor = unlazy.watch((lambda p, x: x @ p["w1"], params), *data, every=1)
    with pytest.warns(UnlazyWarning, match="parameters failed at step 1") as seen:
        for _ in range(3):
            monitor.update({"w1": jnp.ones((4, 1))})
    assert len(seen) == 1


@quiet
def test_parameters_that_are_not_finite_are_broken(data):
    model = SmallModel(initial(0, 5, 16, 1))
    monitor = unlazy.watch(model, *data, every=1)
    monitor.update({name: v * np.nan for name, v in model.value.items()})
    assert monitor.verdict.word == "broken" and "not finite" in str(monitor)


@quiet
def test_changes_count_from_the_reference(data):
    """Fine-tuning: the gap is that to the pretrained weights [I3]."""
    start, later = initial(0, 5, 16, 1), initial(1, 5, 16, 1)
    model = SmallModel(later)
    reference = SmallModel(start).snapshot()
    monitor = unlazy.watch(model, *data, every=1, reference=reference)
    monitor.step()
    assert monitor.record.checks[0].gap == pytest.approx(linearization_gap(model, reference, data[0]), rel=1e-6)
    apply, pretrained = lambda p, x: mlp(p, x)[0], {k: jnp.asarray(v, jnp.float32) for k, v in start.items()}
    tuned = {k: jnp.asarray(v, jnp.float32) for k, v in later.items()}
    adapted = unlazy.watch((apply, tuned), *data, every=1, reference=pretrained)
    adapted.step()
    assert adapted.record.checks[0].gap == pytest.approx(monitor.record.checks[0].gap, rel=1e-4)


@quiet
def test_torch_modules_count_from_a_module_or_its_state():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    before, after = (torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)) for _ in "ab")
    X = torch.randn(16, 3)
    gaps = []
    for reference in (before, before.state_dict(), dict(before.named_parameters())):
        monitor = unlazy.watch(after, X, every=1, reference=reference)
        monitor.step()
        gaps.append(monitor.record.checks[0].gap)
    assert gaps[0] > 0.1 and len(set(gaps)) == 1
    with pytest.raises(ValueError, match=r"reference has no value of shape \(8, 3\) for the parameter '0.weight'"):
        unlazy.watch(after, X, reference={})
    with pytest.raises(ValueError, match="reference must be a module or its state_dict"):
        unlazy.watch(after, X, reference=3)


@quiet
def test_the_number_of_points_follows_the_stated_error():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(512, 5)).astype(np.float32)
    model = SmallModel(initial(0, 5, 32, 1))
    moved = {k: v * 1.8 for k, v in model.value.items()}
    points = {}
    for error in (0.5, 0.004):
        options = unlazy.WatchOptions(measures=("gap",), error=error)
        monitor = unlazy.watch(SmallModel(initial(0, 5, 32, 1)), X, every=1, options=options)
        for _ in range(4):
            monitor.update(moved)
        points[error] = [c.points for c in monitor.record.checks]
    assert points[0.5] == [64] * 4
    assert points[0.004][0] == 64 and points[0.004][-1] > 64
    fixed = unlazy.watch(model, X, every=1, options=unlazy.WatchOptions(measures=("gap",), points=100, error=0.004))
    fixed.update(moved)
    fixed.update(moved)
    assert [c.points for c in fixed.record.checks] == [100, 100]


@quiet
def test_points_that_depend_on_each_other_are_used_together():
    class Centered(SmallModel):
        def apply(self, params, inputs):
            out = super().apply(params, inputs)
            return out - out.mean(0)

    X = np.random.default_rng(0).normal(size=(200, 5)).astype(np.float32)
    monitor = unlazy.watch(Centered(initial(0, 5, 8, 1)), X, every=1, options=unlazy.WatchOptions(measures=("gap",)))
    monitor.update({k: 1.1 * v for k, v in monitor._measuring.model.params.items()})
    assert monitor.record.checks[0].points == 200


def test_misuse_is_refused(data):
    model = SmallModel(initial(0, 5, 8, 1))
    with pytest.raises(ValueError, match="step_size must be positive, got -1"):
        unlazy.watch(model, *data, step_size=-1)
    with pytest.raises(ValueError, match="every must be"):
        unlazy.watch(model, *data, every="often")
    with pytest.raises(ValueError, match=r"the network must be a torch\.nn\.Module"):
        unlazy.watch("model", *data)
    for wrong, text in (
        ({"measures": "gap"}, "must be a sequence"), ({"measures": ("gaps",)}, "unknown measure 'gaps'"),
        ({"points": 0}, "points must be a positive integer"), ({"error": 2}, "error must be between 0 and 1"),
        
    ):  # fmt: skip
        with pytest.raises(ValueError, match=text):
            unlazy.WatchOptions(**wrong)
    assert unlazy.WatchOptions(measures=("kernel",)).measures == ("gap", "kernel")
