"""The schedule against a simulated clock."""

import pytest

from unlazy.diagnostics.schedule import BUDGET, Schedule


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


COSTS = {"gap": 0.02, "features": 0.03, "kernel": 0.4}


def simulate(steps, *, planned=None, every="auto", compiling=0.0, start=0.0, step_time=lambda i: 0.01):
    """Train with a clock; measures take their time, the first of each also that of compiling."""
    clock = Clock()
    schedule = Schedule(every, planned, clock)
    with schedule.timed("start", forced=True):
        clock.now += start
    with schedule.timed("gap", forced=True):
        clock.now += COSTS["gap"]
    checks, training, spent, worst = {name: [] for name in COSTS}, 0.0, 0.0, 0.0
    for i in range(1, steps + 1):
        clock.now += step_time(i)
        training += step_time(i)
        if schedule.step() and schedule.allows("gap"):
            schedule.synchronize(lambda: None)
            for name, cost in COSTS.items():
                if schedule.allows(name):
                    with schedule.timed(name):
                        taken = cost + (0 if checks[name] or name == "gap" else compiling)
                        clock.now += taken
                        spent += taken
                    checks[name].append(i)
            schedule.checked()
        if i > steps // 2:
            worst = max(worst, spent / training)
    return schedule, checks, spent / training, worst


@pytest.mark.parametrize("planned", [None, 20_000])
def test_automatic_checks_stay_within_the_budget(planned):
    schedule, checks, overhead, worst = simulate(20_000, planned=planned)
    assert worst <= BUDGET
    assert overhead == pytest.approx(schedule.overhead)
    assert len(checks["gap"]) >= 10 and len(checks["features"]) >= 5 and checks["kernel"]


def test_compilation_counts_and_is_made_up_for():
    """The first measures take fifty times as long, as long as the evaluations that the start has compiled."""
    _, checks, _, worst = simulate(50_000, compiling=1.0, start=1.0)
    assert worst <= BUDGET
    assert len(checks["gap"]) >= 10 and checks["kernel"]


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


def test_a_run_too_short_for_the_budget_is_left_alone():
    _, checks, overhead, _ = simulate(50)
    assert not checks["gap"] and overhead == 0


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
    """The first check waits 5 s for queued steps, and the call itself takes 0.1 s."""
    clock = Clock()
    schedule = Schedule("auto", None, clock)
    queue = [5.0]

    def wait():
        clock.now += 0.1 + (queue.pop() if queue else 0)

    for _ in range(3):
        clock.now += 0.01
        schedule.step()
    schedule.synchronize(wait)
    assert schedule.training_seconds == pytest.approx(0.02 + 5)
    assert schedule.check_seconds == pytest.approx(0.2)


def test_what_the_user_asks_for_is_no_part_of_the_budget():
    clock = Clock()
    schedule = Schedule("auto", None, clock)
    with schedule.timed("kernel", forced=True):
        clock.now += 10
    assert schedule.check_seconds == 0 and schedule.all_seconds == 10 and schedule.expected("kernel") == 10
