"""Changes to a configuration: parsing, conversion to the types of known values, error messages."""

import lab_toys
import pytest

from unlazy import lab
from unlazy.lab.experiment import config
from unlazy.lab.runner.settings import parse_changes, resolve_config

_quick = config(
    {"n": [10, 20], "method": ["ntk", "one_step"], "noise": [0.0, 0.5]},
    {"widths": [(8, 8)], "shift": [-1.0]},
    seeds=2, centered=True,
)  # fmt: skip
toy = lab_toys.make("toy", lab_toys.plain_trial, _quick, choices={"method": ("random_features",)})


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("n=100,300", "n", [100, 300]),
        ("n=1e3", "n", [1000.0]),
        ("method=ntk, one_step", "method", ["ntk", "one_step"]),
        ("noise=.5,1e-3,inf", "noise", [0.5, 0.001, float("inf")]),
        ("widths=[64,64],[128]", "widths", [[64, 64], [128]]),
        ("centered=true,False", "centered", [True, False]),
    ],
)
def test_values_are_parsed(text, name, values):
    assert parse_changes([text]) == {name: values}


@pytest.mark.parametrize("text", ["n", "=3", "n=", ""])
def test_unknown_settings_are_rejected(text):
    with pytest.raises(ValueError, match="--set takes name=value"):
        parse_changes([text])


def test_values_take_the_type_of_those_they_replace():
    chosen = resolve_config(toy, change=parse_changes(["n=1e3", "noise=1", "widths=[4,4]", "method=random_features"]))
    first, second = chosen.points()
    assert first == {"n": 1000, "noise": 1.0, "method": "random_features", "centered": True}
    assert type(first["n"]) is int and type(first["noise"]) is float
    assert second == {"widths": (4, 4), "shift": -1.0, "centered": True}  # a grid without n does not get one


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"m": 3}, "toy has no parameter 'm'; choose one of centered, method, n, noise"),
        ({"widht": 3}, "did you mean 'widths'"),
        ({"n": -5}, "n must be at least 1, got -5; it takes values like 10, 20"),
        ({"n": 0}, "n must be at least 1, got 0"),
        ({"n": 2.5}, "n must be an integer, got 2.5"),
        ({"n": "many"}, "n cannot be 'many'; it takes values like 10, 20"),
        ({"n": None}, "n cannot be None"),
        ({"n": True}, "n cannot be True"),
        ({"n": []}, "n needs at least one value"),
        ({"noise": -0.1}, "noise must be at least 0, got -0.1"),
        ({"noise": float("nan")}, "noise must be a finite number, got nan"),
        ({"method": "ntq"}, "method cannot be 'ntq'; did you mean 'ntk'"),
        ({"centered": 3}, "centered cannot be 3"),
    ],
)
def test_errors_list_the_allowed_values(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        resolve_config(toy, change=change)


def test_negative_numbers_where_they_are_known():
    assert resolve_config(toy, change={"shift": -3}).points()[-1]["shift"] == -3.0


def test_configurations_and_seeds():
    assert resolve_config(toy, "full", seeds=7).seeds == 7
    with pytest.raises(ValueError, match="seeds must be a positive integer, got 0"):
        resolve_config(toy, seeds=0)
    with pytest.raises(ValueError, match="config must be 'quick', 'full' or a Config, got 'fast'"):
        resolve_config(toy, "fast")


def test_padded_counts_are_checked_before_anything_runs():
    with pytest.raises(ValueError, match="a padded count must be a positive integer, got -4"):
        own = config({"n": [-4], "method": ["mean"]}, seeds=1, scale=1.0)
        lab.run(lab_toys.means, config=own, store=None, engine="inline", progress=False)


def test_names_are_found_by_reference_and_suggested():
    assert lab.find("lab_toys:plain") is lab_toys.plain
    with pytest.raises(ValueError, match="no experiment 'no_such_module:x'"):
        lab.find("no_such_module:x")
    with pytest.raises(ValueError, match="is not an Experiment"):
        lab.find("lab_toys:traces")
    with pytest.raises(ValueError, match="no experiment 'plian'"):
        lab.find("plian")


def test_every_experiment_of_the_package_is_found_by_its_name():
    for experiment in lab.all_experiments():
        assert lab.find(experiment.name) is experiment
