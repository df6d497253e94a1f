"""Every experiment has its texts, configurations that can run, and undecided claims without records."""

import re

import pytest

from unlazy.lab import all_experiments
from unlazy.lab.experiment import Records

EXPERIMENTS = {e.name: e for e in all_experiments()}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_state_question_prediction_and_verdict_rule(name):
    e = EXPERIMENTS[name]
    for words in (e.question, e.prediction, e.protocol, e.verdict):
        assert len(words) > 20
    assert e.question.endswith("?")
    assert e.tags and all(re.fullmatch(r"[KADLPMGCEWTI]\d+", tag) for tag in e.tags)
    assert e.source in ("S1", "S2", "S3", "S4", "general")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_points_can_be_grouped_and_quick_is_smaller_than_full(name):
    e = EXPERIMENTS[name]
    sizes = []
    for configuration in (e.quick, e.full):
        points = configuration.points()
        assert points and all(hash(e.static_part(p)) is not None for p in points)
        sizes.append(len(points) * configuration.seeds)
        for moving in (*e.traced, *e.padded):
            assert any(moving in p for p in points), f"{moving} is traced but no point has it"
    assert sizes[0] <= sizes[1]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_without_records_nothing_holds(name):
    try:
        claims = EXPERIMENTS[name].claims(Records())
    except (KeyError, IndexError, ValueError, ZeroDivisionError, FloatingPointError, RuntimeWarning):
        return  # the page says that there are too few records
    assert all(c.verdict != "holds" for c in claims)


def test_the_demo_covers_both_sources():
    assert {"S1", "S2"} <= {e.source for e in EXPERIMENTS.values() if e.demo}
