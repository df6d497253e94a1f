"""The schedule against a simulated clock."""

import pytest

from unlazy.diagnostics.schedule import BUDGET, Schedule


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


COSTS = {"start": 0.02, "gap": 0.02, "features": 0.03, "kernel": 0.4}


def simulate(steps, *, planned=None, every="auto", compiling=0.0, construction=0.0, step_time=lambda i: 0.01):
    """Train with a clock, as a monitor does; measures take their time, the first of each also that of compiling.

    Returns the schedule, the steps of every measure, and the share of training time that was spent: at the end, and
    the largest from the first check on.
    """
    clock = Clock()
    schedule = Schedule(every, planned, clock)
    with schedule.timed("construction"):
        clock.now += construction
    checks, training, spent, worst = {name: [] for name in COSTS}, 0.0, construction, 0.0

    def allows(name):
        startup = compiling if name in ("start", "gap") and not checks[name] else 0.0
        allowed = schedule.allows(name, startup)
        if not allowed and name in ("start", "gap"):
            schedule.postpone(name, startup)
        return allowed

    def measure(name, step):
        nonlocal spent
        with schedule.timed(name):
            taken = COSTS[name] + (0 if checks[name] else compiling)
            clock.now += taken
            spent += taken
        checks[name].append(step)

    for i in range(1, steps + 1):
        clock.now += step_time(i)
        training += step_time(i)
        if schedule.step():
            schedule.synchronize(lambda: None)
            if not checks["start"] and allows("start"):
                measure("start", i)
                schedule.evaluated(COSTS["start"])
            if checks["start"] and allows("gap"):
                for name in list(COSTS)[1:]:
                    if allows(name):
                        measure(name, i)
                schedule.checked()
        if checks["gap"]:
            worst = max(worst, spent / training)
    return schedule, checks, spent / training, worst


@pytest.mark.parametrize("planned", [None, 20_000])
def test_automatic_checks_stay_within_the_budget(planned):
    """At every step, not only at the end; the measures take more than expected the first time, by a step's 0.01 s."""
    schedule, checks, overhead, worst = simulate(20_000, planned=planned)
    assert worst <= BUDGET
    # the first step is not counted as training
    assert overhead == pytest.approx(schedule.overhead, rel=1e-3)
    assert len(checks["gap"]) >= 10 and len(checks["features"]) >= 5 and checks["kernel"]


@pytest.mark.slow_cases("50000")
@pytest.mark.parametrize("planned", [None, 50_000])
def test_construction_and_compilation_count(planned):
    """Construction takes 0.5 s, and the first of every measure 1 s more: all of it is in the budget of 15 s."""
    schedule, checks, overhead, worst = simulate(50_000, planned=planned, compiling=1.0, construction=0.5)
    assert worst <= BUDGET
    assert schedule.check_seconds == pytest.approx(overhead * 500)
    # from step 8,735 on, with steps that grow by 1.25: 7.8 more
    assert len(checks["gap"]) >= 8 and checks["kernel"]
    # nothing before construction, the compiled start and a compiled gap fit: 2.5 s of 83 s
    assert checks["gap"][0] >= 2.5 / BUDGET / 0.01


def test_expensive_measures_spare_the_gap():
    _, checks, _, _ = simulate(8_000)
    assert len(checks["gap"]) > len(checks["kernel"])
    gaps = [b / a for a, b in zip(checks["gap"][3:], checks["gap"][4:])]
    assert max(gaps) < 2  # steps


def test_the_end_of_a_planned_run_is_measured():
    for steps in (3_000, 7_777, 20_000):
        _, checks, overhead, _ = simulate(steps, planned=steps)
        assert checks["gap"][-1] == steps and checks["features"][-1] == steps
        assert overhead <= BUDGET


@pytest.mark.parametrize("planned", [None, 1000])
def test_a_run_too_short_for_the_budget_is_left_alone(planned):
    """10 s of training pay for 0.3 s; what must be compiled takes 1 s."""
    _, checks, overhead, _ = simulate(1000, planned=planned, compiling=1.0, construction=0.1)
    assert not any(checks.values()) and overhead == pytest.approx(0.01)


def test_pauses_pay_for_no_checks():
    """An hour in the middle of a run of a minute: at most 20 typical steps count."""
    schedule, _, _, _ = simulate(6_000, step_time=lambda i: 3600.0 if i == 3000 else 0.01)
    assert schedule.training_seconds == pytest.approx(60, rel=0.02)


def test_fixed_intervals():
    _, checks, _, _ = simulate(100, every=30)
    assert checks["gap"] == checks["kernel"] == [30, 60, 90]
    with pytest.raises(ValueError, match="every must be a positive integer, got 0"):
        Schedule(0)
    with pytest.raises(ValueError, match="every must be a positive integer, got 'often'"):
        Schedule("often")
    with pytest.raises(ValueError, match="planned_steps must be a positive integer, got -1"):
        Schedule(planned_steps=-1)


def test_waiting_for_the_device_is_training():
    """The first check waits 5 s for queued steps; another program waits again at once."""
    clock = Clock()
    schedule = Schedule("auto", None, clock)
    queue = [5.0, 0.0]

    def wait():
        clock.now += queue.pop(0)

    for _ in range(3):
        clock.now += 0.01
        schedule.step()
    schedule.synchronize(wait)
    schedule.synchronize(wait)
    assert schedule.training_seconds == pytest.approx(0.02 + 5)
    assert schedule.check_seconds == 0


@pytest.mark.parametrize("read_every", [7, 100])
def test_steps_of_a_device_that_runs_behind(read_every):
    """The program queues a step in 1 ms, the device takes 50 ms, and the loss is read at times: after the first reads
    the monitor's own waits have shown the time of a step, and the long intervals count as the steps they waited for."""
    clock = Clock()
    schedule = Schedule("auto", None, clock)
    busy_until = 0.0

    def wait():
        clock.now = max(clock.now, busy_until)

    for i in range(1, 2001):
        clock.now += 0.001
        busy_until = max(busy_until, clock.now) + 0.05
        if i % read_every == 0:
            wait()
        if schedule.step():
            schedule.synchronize(wait)
            schedule.postpone("kernel")
    assert 0.95 * clock.now <= schedule.training_seconds <= clock.now


def test_what_the_user_asks_for_is_no_part_of_the_budget():
    clock = Clock()
    schedule = Schedule("auto", None, clock)
    with schedule.timed("kernel", forced=True):
        clock.now += 10
    assert schedule.check_seconds == 0 and schedule.all_seconds == 10 and schedule.expected("kernel") == 10
