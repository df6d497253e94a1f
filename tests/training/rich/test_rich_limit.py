"""The rich limit of two layers [M2]: against its equations in plain NumPy, the NTK's flow, and finite networks."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unlazy
from unlazy.core.arrays import precision
from unlazy.core.dataset import Data
from unlazy.solvers.checkpoint import Checkpoint
from unlazy.theory.dynamics.losses import resolve_loss
from unlazy.training.descent.descend import descend
from unlazy.training.options import DescentOptions, RichOptions
from unlazy.training.rich.finite_width import rich_network
from unlazy.training.rich.initialization import BITS, _sobol, scramble
from unlazy.training.rich.limit import rich_limit
from unlazy.training.rich.two_layer import two_layer_limit

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 3))
Y = RNG.normal(size=6)
Z = RNG.normal(size=(4, 3))
NET = unlazy.MLP(1, "erf", sigma_w=(1.3, 0.8), sigma_b=(0.5, 0.3))


def of_width(width):
    """The same architecture, finite."""
    return unlazy.MLP(1, "erf", sigma_w=(1.3, 0.8), sigma_b=(0.5, 0.3), width=width)


def in_kernel_space(h, z, K, y, gamma, eta, steps, scale, bias, phi, slope, train):
    """[M2] as it is written: every neuron is (h, z), inputs enter through K alone, test points have Δ = 0."""
    b = 0.0
    f = np.zeros(K.shape[0])
    for _ in range(steps):
        delta = np.where(train, y - f, 0.0)
        back, forward = delta * z[:, None] * slope(h), phi(h) @ delta
        h, z, b = h + eta * gamma * scale * back @ K, z + eta * gamma * scale * forward, b + eta * bias**2 * delta.sum()
        f = scale / gamma * np.mean(z[:, None] * phi(h), 0) + b
    Phi, G = phi(h).T @ phi(h) / len(h), (slope(h) * z[:, None] ** 2).T @ slope(h) / len(h)
    return f, Phi, G, scale**2 * (Phi + G * K) + bias**2


@pytest.mark.slow
def test_steps_are_the_equations_in_kernel_space():
    from scipy.special import erf

    options = RichOptions(draws=16, runs=2)
    found = rich_limit(NET, X, Y, richness=1.5, times=[3], step_size=6 * 0.1, options=options)  # n = 6
    with precision("float64"):
        key = jax.random.split(jax.random.key(0))[0]
        _, start = two_layer_limit(NET, jnp.asarray(X), 1.5, options, key)
    E = np.c_[1.3 * np.r_[X, Z] / np.sqrt(3), np.full(10, 0.5)]
    train, y = np.arange(10) < 6, np.r_[Y, np.zeros(4)]
    each = [
        in_kernel_space(np.asarray(w) @ E.T, np.asarray(z)[:, 0], E @ E.T, y, 1.5, 0.1, 3, 0.8, 0.3, erf,
                        lambda h: 2 / np.sqrt(np.pi) * np.exp(-(h**2)), train)
        for w, z in zip(start.w, start.z)
    ]  # fmt: skip
    f, Phi, G, Theta = (np.mean(part, 0) for part in zip(*each))
    rounding = {"rtol": 0, "atol": 1e-13}  # sums of 16 terms below 10, in another order
    np.testing.assert_allclose(found.fitted.value[0], f[:6], **rounding)
    np.testing.assert_allclose(found.predict(Z, 3), f[6:], **rounding)
    for mine, theirs in ((found.features[0], Phi), (found.gradients[0], G), (found.tangent, Theta)):
        np.testing.assert_allclose(mine.value[0], theirs[:6, :6], **rounding)
    spread = np.std([one[0][:6] for one in each], axis=0, ddof=1) / np.sqrt(2)
    np.testing.assert_allclose(found.fitted.error[0], spread, **rounding)
    np.testing.assert_allclose(found.losses.value[0], np.mean([0.5 * np.mean((one[0][:6] - Y) ** 2) for one in each]))


def test_scrambled_points_are_as_even_as_before_and_uniform():
    points = np.asarray(scramble(jax.random.key(0), jnp.asarray(_sobol(64, 5)), 500)).astype(float) / 2**BITS
    # every coordinate has one point in each of 64 equal parts, every pair one in each of 8 × 8 boxes (of these two)
    assert np.all(np.sort(np.floor(64 * points), 1) == np.arange(64)[None, :, None])
    boxes = np.floor(8 * points[..., 0]) * 8 + np.floor(8 * points[..., 1])
    assert np.all(np.sort(boxes, 1) == np.arange(64))
    # over 500 runs one point is uniform: mean within 4 standard errors, √(1/12/500) = 0.013
    assert np.all(np.abs(points.mean(0)[3] - 0.5) < 4 * 0.013)


def test_impossible_arguments_are_rejected_with_a_remedy():
    ask = {"richness": 1.0, "times": [1.0]}
    for change, match in [
        ({"richness": 0.0}, r"got 0.0; the lazy limit γ_0 → 0 is decompose\(NTK"),
        ({"times": [2.0, 1.0]}, "increasing, got"),
        ({"times": [0.5], "step_size": 0.1}, "integer numbers of steps"),
        ({"options": RichOptions(batch_size=2)}, "pass a step_size"),
        ({"step_size": 0.1, "times": [1], "options": RichOptions(batch_size=7)}, "at most the 6 training points"),
    ]:
        with pytest.raises(ValueError, match=match):
            rich_limit(NET, X, Y, **(ask | change))
    with pytest.raises(ValueError, match=r"MLP\(…, width=…\)"):
        rich_network(NET, X, Y, **ask)
    with pytest.raises(ValueError, match=r"MLP\(…, outputs=2\)"):
        rich_limit(NET, X, np.c_[Y, Y], **ask)


@pytest.mark.slow
def test_without_richness_it_is_the_flow_of_the_tangent_kernel():
    times = [0.0, 0.1, 1.0, 10.0]
    found = rich_limit(NET, X, Y, richness=0.01, times=times, options=RichOptions(tolerance=1e-4))
    with precision("float64"):
        lazy = unlazy.decompose(unlazy.NTK(NET), X).flow(Y, times)
        truth, at_z = np.asarray(lazy.fitted), np.asarray(lazy.predict(Z))
    # five standard errors (of 4 runs), the integrator's tolerance times some steps, and γ_0² for what moved
    for mine, theirs in ((found.fitted, truth), (found.estimate(Z, times), at_z)):
        assert np.all(np.abs(mine.value - theirs) <= 8 * np.asarray(mine.error) + 0.01)
    assert np.sqrt(np.mean((found.fitted.value - truth) ** 2)) < 0.01 * np.sqrt(np.mean(truth**2))


@pytest.mark.slow
def test_finite_partners_are_networks_that_descend_and_approach_the_limit():
    steps, key = 40, jax.random.key(3)
    ask = {"richness": 1.0, "times": [steps], "step_size": 0.3}
    limit = rich_limit(NET, X, Y, options=RichOptions(draws=8192), **ask)
    wide = rich_network(of_width(1024), X, Y, options=RichOptions(runs=8), key=key, **ask)
    for name in ("fitted", "tangent", "losses"):
        a, b = getattr(limit, name), getattr(wide, name)
        error = np.hypot(a.error, b.error)
        # 6 errors of few runs, and 1/width times a constant of a few
        assert np.all(np.abs(a.value - b.value) <= 6 * error + 5 / 1024 * np.abs(b.value).max()), name
    for a, b in zip(limit.features + limit.gradients, wide.features + wide.gradients):
        assert np.all(np.abs(a.value - b.value) <= 6 * np.hypot(a.error, b.error) + 5 / 1024 * np.abs(b.value).max())
    # the same by the library's descent on the mean loss
    one = rich_network(of_width(64), X, Y, options=RichOptions(runs=1), key=key, **ask)
    net, start = one.system.network, jax.tree.map(lambda leaf: leaf[0, 0], one.states.start)
    with precision("float64"):
        data = Data(jnp.asarray(X), jnp.asarray(Y))
        off = net(start, data.X)
        options = DescentOptions(rates=net.rates)
        params = descend(lambda p, x: net(p, x) - off, start, data, steps=steps, step_size=0.3, options=options).params
        f = net(params, data.X) - off
        theta = unlazy.tangent_kernel(net, params, data.X, rates=net.rates)
    np.testing.assert_allclose(one.fitted.value[0], f, rtol=0, atol=1e-11)  # 40 steps, each stable, of rounding
    np.testing.assert_allclose(one.tangent.value[0], theta, rtol=1e-10)
    np.testing.assert_allclose(one.kernel_at(steps).gram(jnp.asarray(X, jnp.float32)), theta, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_doubling_the_draws_halves_the_variance():
    def train(draws, quasi):
        options = RichOptions(draws=draws, quasi=quasi, runs=256, keep_states=False)
        return rich_limit(NET, X, Y, richness=1.0, times=[20], step_size=0.6, options=options)

    few, many = train(64, False), train(128, False)
    for name in ("fitted", "tangent"):
        a, b = (np.asarray(getattr(t, name).error) ** 2 for t in (few, many))
        ratio = b.mean() / a.mean()
        # variances of 256 runs have relative deviation √(2/255) = 0.09 each; entries are correlated, so no less for
        # their mean; 4 deviations of the ratio, and 1/64 of what is not yet linear in 1/draws
        assert abs(ratio / 0.5 - 1) < 4 * np.sqrt(2) * np.sqrt(2 / 255) + 1 / 64, name
    smooth = train(128, True)
    assert np.mean(np.asarray(smooth.tangent.error) ** 2) < np.mean(np.asarray(many.tangent.error) ** 2)


@pytest.mark.slow
def test_more_inputs_than_points_cost_nothing_and_change_nothing():
    """In the span of the points all is as before; elsewhere a neuron's part that never moves is drawn."""
    rotation = np.linalg.qr(RNG.normal(size=(40, 40)))[0][:3]
    net = unlazy.MLP(1, "relu", sigma_b=0.2)
    lifted, tests = X @ rotation * np.sqrt(40 / 3), Z @ rotation * np.sqrt(40 / 3)  # the same K^x
    ask = {"richness": 1.0, "times": [15], "step_size": 0.6, "options": RichOptions(draws=8192)}
    narrow, wide = rich_limit(net, X, Y, **ask), rich_limit(net, lifted, Y, **ask)
    assert wide.states.w.shape[-1] == 6 and narrow.states.w.shape[-1] == 4
    for a, b in ((narrow.fitted, wide.fitted), (narrow.estimate(Z, 15), wide.estimate(tests, 15))):
        assert np.all(np.abs(a.value - b.value) <= 8 * np.hypot(a.error, b.error))
    off = RNG.normal(size=(2, 40))
    assert np.all(np.isfinite(wide.predict(off, 15))) and np.array_equal(wide.predict(off, 15), wide.predict(off, 15))
    gram = np.asarray(wide.kernel_at(15).gram(np.r_[lifted, off].astype(np.float32)))
    np.testing.assert_allclose(gram[:6, :6], wide.tangent.value[0], rtol=1e-4, atol=1e-4)
    assert np.linalg.eigvalsh(gram).min() > -1e-4 * np.trace(gram)


@pytest.mark.slow
def test_several_outputs_other_losses_and_batches():
    classes = np.arange(6) % 3
    net = unlazy.MLP(1, "relu", outputs=3)
    ask = {"richness": 1.0, "step_size": 3.0, "loss": "cross_entropy"}

    def options(batch_size=None):
        return RichOptions(draws=512, runs=2, batch_size=batch_size)

    found = rich_limit(net, X, classes, times=[0, 10, 60], options=options(), **ask)
    assert found.fitted.value.shape == (3, 6, 3) and found.predict(Z, [60, 10]).shape == (2, 4, 3)
    np.testing.assert_allclose(found.losses.value[0], np.log(3), rtol=1e-12)
    assert found.losses.value[2] < found.losses.value[1] < found.losses.value[0]
    by_batch = rich_limit(net, X, classes, times=[60], options=options(2), **ask)
    again = rich_limit(net, X, classes, times=[60], options=options(6), **ask)
    assert not np.allclose(by_batch.fitted.value[0], found.fitted.value[2], atol=1e-3)
    np.testing.assert_allclose(again.fitted.value[0], found.fitted.value[2], rtol=0, atol=1e-10)  # a batch of all
    # Θ moves f: one tiny step of every output, by the chain rule
    small = rich_limit(net, X, classes, times=[0, 1], options=options(), **(ask | {"step_size": 6e-6}))
    with precision("float64"):
        cross_entropy, targets = resolve_loss("cross_entropy"), jnp.asarray(classes, float)
        pull = -np.asarray(jax.grad(lambda f: cross_entropy.per_point(f, targets).sum())(jnp.zeros((6, 3))))
        w, z, E = (np.asarray(a) for a in (small.states.w[0], small.states.z[0], small.system.inputs(small.X)))
    slopes = [(zr[:, :, None] * (wr @ E.T > 0)[:, None, :]) for wr, zr in zip(w, z)]
    change = np.mean([
        2 * (np.maximum(E @ wr.T, 0) @ np.maximum(wr @ E.T, 0) / len(wr) @ pull
             + np.einsum("nkm,nla,ma,al->mk", s, s, E @ E.T, pull) / len(wr))
        for wr, s in zip(w, slopes)
    ], 0)  # fmt: skip
    moved = (small.fitted.value[1] - small.fitted.value[0]) / 1e-6
    np.testing.assert_allclose(moved, change, rtol=0, atol=1e-4)  # second order in a step of 1e-6, sizes below 10


@pytest.mark.slow
def test_a_killed_run_resumes(tmp_path):
    ask, seen = {"richness": 1.0, "times": [0.0, 0.5, 1.0]}, []
    whole = rich_limit(NET, X, Y, options=RichOptions(draws=64, runs=2), **ask)

    class Killed(Exception):
        pass

    def kill(progress):
        seen.append(progress.step)
        if progress.step == 3:
            raise Killed

    file = Checkpoint(tmp_path / "rich.safetensors", every=0.0)
    options = RichOptions(draws=64, runs=2, checkpoint=file, progress=kill)
    with pytest.raises(Killed):
        rich_limit(NET, X, Y, options=options, **ask)
    options = replace(options, progress=lambda progress: seen.append(progress.step))
    resumed = rich_limit(NET, X, Y, options=options, **ask)
    assert seen == [1, 2, 3, 3]
    for a, b in zip(jax.tree.leaves(whole.states), jax.tree.leaves(resumed.states)):
        assert np.array_equal(a, b)
    assert np.array_equal(whole.fitted.value, resumed.fitted.value)
    with pytest.raises(ValueError, match="another problem"):
        rich_limit(NET, X, Y, options=options, **(ask | {"richness": 2.0}))


@pytest.mark.slow
def test_training_stops_below_a_given_loss():
    ask, options = {"richness": 1.0, "step_size": 0.6, "times": [0, 5, 10, 20]}, RichOptions(draws=64, runs=2)
    whole = rich_limit(NET, X, Y, options=options, **ask)
    bound = float(whole.losses.value[2])
    early = rich_limit(NET, X, Y, options=replace(options, stop_below=bound), **ask)
    assert early.times.tolist() == [0, 5, 10] and early.evidence.steps == 10
    assert np.array_equal(early.predict(Z), whole.predict(Z, 10)) and early.losses.value[1] > bound
    finite = rich_network(of_width(16), X, Y, options=replace(options, stop_below=9.0), **ask)
    assert finite.times.tolist() == [0]


@pytest.mark.slow
def test_a_step_size_that_is_too_large_is_reported():
    with np.errstate(all="ignore"):
        found = rich_limit(NET, X, Y, richness=1.0, times=[400], step_size=300.0, options=RichOptions(draws=16, runs=2))
    assert found.evidence.converged is False and "smaller step_size" in found.evidence.notes[0]
