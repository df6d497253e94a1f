"""`check_scaling`: exponents of correct networks are zero, planted errors are found and named."""

import functools
import json
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scaling_networks import data, maker, optimizer, residual, residual_optimizer

from unlazy import ScalingCheck, ScalingOptions, check_scaling
from unlazy.diagnostics.scaling.rules import Finding
from unlazy.diagnostics.scaling.slopes import Slope, fit_slope, smaller

WIDTHS = (16, 128)
PLAIN = ScalingOptions(coordinates=False)
# two seeds at two widths: slopes of means over rows of at least 16 entries fluctuate by √(2/16)/log 8 = 0.17 at most;
# limits are 0.15 (only for norms over at least 80 entries: 0.05) and 0.3


def checked(make, of, **keywords):
    return check_scaling(make, data(), optimizer=of, widths=WIDTHS, **{"options": PLAIN, **keywords})


@pytest.fixture(scope="module", params=["sgd", "adam"])
def kind(request):
    return request.param


def test_a_correct_network_learns_features_at_every_width(kind):
    found = checked(maker(), optimizer(kind))
    assert found.ok and str(found).startswith("Feature learning at every width from 16 to 128.")
    assert found.linear == (kind == "sgd")
    rates = {f.name: f.excess.value for f in found.findings if f.quantity == "rate"}
    assert set(rates) == {f"layers.{i}.{p}" for i in range(3) for p in ("weight", "bias")} - {"layers.2.bias"}
    # those of SGD are ratios of given rates; those of Adam have the norm of a sign matrix
    assert max(map(abs, rates.values())) < (1e-3 if kind == "sgd" else 0.2)


@pytest.mark.parametrize("name", ["layers.0.bias", "layers.1.weight", "layers.2.weight"])
@pytest.mark.parametrize("exponent", [0.5, -0.5])
def test_a_wrong_rate_is_found(kind, name, exponent):
    found = checked(maker(), optimizer(kind, name, exponent))
    assert [f.name for f in found.wrong] == [name]
    assert found.wrong[0].quantity == "rate" and abs(found.wrong[0].excess.value - exponent) < 0.2
    word = "Unstable: the update of" if exponent > 0 else "Lazy:"
    assert found.verdict.startswith(f"{word} {name}")
    assert f"{name}: multiply its learning rate by (n/16)^{-exponent:g}." in found.advice()


@pytest.mark.parametrize(("name", "exponent"), [("layers.0.weight", 0.5), ("layers.1.weight", -0.5),
                                                ("layers.1.weight", 0.25), ("layers.2.weight", 0.5)])  # fmt: skip
def test_a_wrong_initialization_is_found(name, exponent):
    found = checked(maker(name, exponent), optimizer("adam"))
    assert [(f.name, f.quantity) for f in found.wrong] == [(name, "initialization")]
    # ‖W‖_F of at least 80 entries: √(1/160)/log(8) = 0.04; a single output is one random projection of inputs that
    # are correlated, of which the smaller measure counts
    assert 0 < found.wrong[0].excess.value / exponent < 1 + 0.15 / abs(exponent)
    if name != "layers.2.weight":
        assert abs(found.wrong[0].excess.value - exponent) < 0.15


def test_a_smaller_readout_and_a_zero_one_are_right():
    for exponent in (-0.5, -math.inf):
        make = maker("layers.2.weight", exponent)
        assert checked(make, optimizer("adam")).ok


def test_an_optimizer_for_all_sizes_is_the_standard_parametrization():
    found = checked(lambda width, key: eqx.nn.MLP(5, 1, width, 2, key=key), optax.adam(0.02))
    names = {(f.name, f.quantity) for f in found.wrong}
    assert {("layers.1.weight", "rate"), ("layers.2.weight", "rate")} <= names
    assert {name for name, _ in names} == {"layers.1.weight", "layers.2.weight"}


class Attention(eqx.Module):
    """One head whose dimension grows; logits are divided by d^power."""

    q: jax.Array
    k: jax.Array
    out: jax.Array
    power: float = eqx.field(static=True)

    def __init__(self, width, key, power):
        keys = jax.random.split(key, 3)
        self.q, self.k = (jax.random.normal(key, (5, width)) / jnp.sqrt(5) for key in keys[:2])
        self.out, self.power = jax.random.normal(keys[2], (5, 1)), power

    def __call__(self, x):
        h = x.reshape(1, 5) * jnp.arange(1, 4)[:, None]
        logits = (h @ self.q) @ (h @ self.k).T / self.q.shape[1] ** self.power
        return (jax.nn.softmax(logits) @ h @ self.out).mean(0)


@pytest.mark.parametrize(("power", "excess"), [(1.0, 0.0), (0.5, 0.5), (1.5, -0.5)])
def test_the_scale_of_attention(power, excess):
    found = checked(lambda width, key: Attention(width, key, power), optax.adam(0.01))
    (attention,) = (f for f in found.findings if f.quantity == "attention")
    assert attention.excess.value == pytest.approx(excess, abs=1e-6) and attention.wrong == (excess != 0)
    assert not any(f.quantity == "initialization" for f in found.wrong)  # the scale is not that of q or k


@pytest.mark.parametrize("where", ["weight", "input", "output"])
def test_a_multiplier_counts_wherever_it_stands(where):
    """Readout with weights of order 1 and the multiplier 1/n, under Adam with a constant rate."""

    def make(width, key):
        keys = jax.random.split(key)
        params = {"into": jax.random.normal(keys[0], (5, width)) / jnp.sqrt(5), "out": jnp.ones((width, 1))}
        params["out"] = jax.random.normal(keys[1], (width, 1))

        def apply(params, X):
            h = jnp.tanh(X @ params["into"])
            if where == "weight":
                return h @ (params["out"] / width)
            return (h / width) @ params["out"] if where == "input" else (h @ params["out"]) / width

        return apply, params

    found = checked(make, optax.adam(0.01))
    assert found.ok
    for kind in ("initialization", "rate"):
        (finding,) = (f for f in found.findings if (f.name, f.quantity) == ("out", kind))
        assert abs(finding.excess.value) < 0.15


@pytest.mark.parametrize(("power", "rate", "wrong"), [(1, 0, None), (0.5, 0, "branch"), (0.5, -0.5, "block")])
def test_depth(power, rate, wrong):
    found = check_scaling(
        functools.partial(residual, power=power), data(), optimizer=functools.partial(residual_optimizer, power=rate),
        widths=WIDTHS, depths=(2, 16), options=ScalingOptions(seeds=1, coordinates=False),
    )  # fmt: skip
    assert {f.role for f in found.wrong} == ({wrong} if wrong else set())
    assert all(f.axis == "depth" and abs(abs(f.excess.value) - 0.5) < 0.15 for f in found.wrong)


def test_sizes_of_layers_and_files(tmp_path):
    found = checked(maker(), optimizer("adam", "layers.1.weight", 1.0), options=ScalingOptions(seeds=1))
    assert [c.sizes["width"] for c in found.coordinates] == list(WIDTHS)
    small, large = found.coordinates
    assert large.changes["layers[1]"] > 2 * small.changes["layers[1]"]  # n^1 over a factor of 8, in part
    assert 0 < small.gap < 2 and len(small.losses) == 3
    saved = json.loads(found.save(tmp_path / "check.json").read_text())
    assert saved["ok"] is False and saved["findings"][0]["name"] == "layers.1.weight"
    frame = found.frame()
    assert list(frame.columns) == ["name", "quantity", "role", "axis", "excess", "error", "wrong"]
    assert frame.wrong.sum() == len(found.wrong)
    page = found.page(tmp_path / "check.html").read_text(encoding="utf-8")
    assert "This network does not scale" in page and found.verdict in page and "http" not in page.split("</head>")[0]
    assert len(found.figure().axes) == 2 and found.verdict in found._repr_html_()


def refused(message, make=None, given=None, **keywords):
    with pytest.raises(ValueError, match=message):
        check_scaling(make or maker(), data() if given is None else given, optimizer=optax.sgd(0.1), **keywords)


def test_wrong_use_gets_one_sentence():
    refused("make must take the keyword width, but its parameters are n, key", make=lambda n, key: None)
    refused("make ignores width", make=lambda width, key: eqx.nn.MLP(5, 1, 8, 1, key=key))
    refused("one is at least 4 times the other", widths=(64,))
    refused("one is at least 4 times the other", widths=(64, 128))
    refused("must be a positive integer", widths=(0, 64))
    refused("exists at only one of the widths 16 and 64", widths=(16, 64),
            make=lambda width, key: eqx.nn.MLP(5, 1, width, 1 + width // 64, key=key))  # fmt: skip
    with pytest.raises(ValueError, match=r"training diverges at width 16 .*smaller learning rate"):
        check_scaling(maker(), data(), optimizer=optax.sgd(1e12), widths=WIDTHS, options=PLAIN)
    with pytest.raises(ValueError, match="steps must be a positive integer"):
        ScalingOptions(steps=0)


def test_slopes():
    sizes = np.array([8, 8, 64, 64])
    values = 3 * sizes**0.5 * np.array([1.1, 1 / 1.1, 1.1, 1 / 1.1])
    slope = fit_slope(sizes, values)
    assert slope.value == pytest.approx(0.5)
    # four residuals of log 1.1, two degrees of freedom, Σx² = log(8)²
    assert slope.error == pytest.approx(math.sqrt(4 * math.log(1.1) ** 2 / 2) / math.log(8))
    assert not fit_slope(sizes, [1, 1, 0, 1]).known
    assert smaller(Slope(0.4, 0.1), Slope(0.2, 0.1)).value == 0.2
    assert smaller(Slope(0.4, 0.1), Slope(-0.2, 0.1)).value == 0.0


def test_texts_of_findings():
    def said(**values):
        given = {"name": "a", "quantity": "rate", "role": "hidden", "excess": Slope(0.5, 0.0), "wrong": True}
        check = ScalingCheck((64, 512), (Finding(**{**given, **values}),), (), False)
        return check.verdict, check.advice()[0]

    assert said(quantity="attention")[0] == "Unstable: the logits of the attention in a grow like n^0.5."
    assert said(excess=Slope(-1.0, 0.0)) == (
        "Lazy: a stops moving like n^-1.",
        "a: multiply its learning rate by (n/64).",
    )
    assert said(excess=Slope(0.3, 0.0))[0] == "Unstable: the update of a grows like n^0.25."
    deep = ScalingCheck((64, 512), (Finding("a", "rate", "block", Slope(0.5, 0.0), True, "depth"),), (), False, (4, 16))
    assert deep.advice() == ["a: multiply its learning rate by (L/4)^-0.5."]
    assert said(quantity="initialization", role="readout")[0] == "Unstable: the initial output of a is n^0.5 too large."


@pytest.mark.parametrize("fixed", [6, 10, 17, 31])
def test_constant_sizes_do_not_grow(fixed):
    """A least-squares slope of a constant is zero only up to rounding."""
    make = lambda width, key: eqx.nn.MLP(fixed, fixed, width, 1, use_bias=False, key=key)  # noqa: E731
    X = np.random.default_rng(0).normal(size=(32, fixed)).astype("float32")
    found = check_scaling(make, (X, X), optimizer=optax.sgd(0.01), widths=(8, 16, 32), options=PLAIN)
    assert {f.name: f.role for f in found.findings} == {"layers.0.weight": "input", "layers.1.weight": "readout"}


def test_targets_must_fit_the_outputs():
    X, _ = data()
    with pytest.raises(ValueError, match=r"returns \(32, 1\) and the targets are \(32, 3\): pass integers for classes"):
        check_scaling(maker(), (X, np.ones((32, 3))), optimizer=optax.sgd(0.1), widths=WIDTHS, options=PLAIN)


def test_a_network_that_does_not_move_gets_no_verdict():
    with pytest.raises(ValueError, match="no parameter with a growing axis moved"):
        check_scaling(maker(), data(), optimizer=optax.sgd(0.0), widths=WIDTHS, options=PLAIN)


def test_a_parameter_that_does_not_move_is_named():
    found = checked(maker(), optimizer("sgd", "layers.1.weight", -math.inf))  # only the smallest width moves it
    assert found.unknown == ("layers.1.weight",) and not found.verdict.startswith("Feature learning")
    assert "layers.1.weight could not be measured" in found.verdict


@pytest.mark.parametrize("make_bad", [lambda X: X * np.nan, lambda X: X[:0], lambda X: X.astype(str)])
def test_bad_batches_get_one_sentence(make_bad):
    X, y = data()
    with pytest.raises(ValueError, match=r"inputs (contains NaN|is empty|must contain numbers)"):
        check_scaling(maker(), (make_bad(X), y), optimizer=optax.sgd(0.1), widths=WIDTHS, options=PLAIN)


def test_low_precision_is_refused():
    def make(width, key):
        return jax.tree.map(
            lambda a: a.astype(jnp.bfloat16) if eqx.is_array(a) else a, eqx.nn.MLP(5, 1, width, 1, key=key)
        )

    with pytest.raises(ValueError, match="parameters are bfloat16, in which small updates round to 0"):
        check_scaling(make, data(), optimizer=optax.sgd(0.1), widths=WIDTHS, options=PLAIN)
