"""Sketched movement, distance and norm of the tangent kernel against exact ones."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_model import SmallModel, initial

from unlazy.diagnostics.measures import kernel_sketch
from unlazy.diagnostics.measures.kernel_sketch import KernelSketch, kernel_alignment

SHAPES = (((4, 16, 1), 24), ((6, 24, 12, 2), 16), ((3, 32, 3), 20), ((8, 16, 16, 16, 1), 32))


class JacobianModel(SmallModel):
    """What a sketch asks of a network, from whole Jacobians of shape (m c, parameters): parameters are Jacobians."""

    def __init__(self, outputs):
        self.outputs, self.value = outputs, None

    def jvp(self, params, direction, inputs):
        return (params @ direction).reshape(-1, self.outputs)

    def vjp(self, params, cotangents, inputs):
        return params.T @ cotangents.ravel()

    def inner(self, left, right):
        return float(left @ right)


@functools.cache
def jacobian(widths):
    model = SmallModel(initial(0, *widths))
    return jax.jit(jax.jacrev(lambda p, X: model.f(p, X).ravel()))


def case(number):
    """Jacobians of a network at two parameters at a distance of .01 to 3 of their size; its kernels; (m, c)."""
    widths, m = SHAPES[number % 4]
    rng = np.random.default_rng([7, number])
    p = initial(number, *widths)
    size = 10 ** rng.uniform(-2, 0.5)
    q = {k: v + size * abs(rng.normal()) * rng.normal(size=v.shape) / np.sqrt(len(v)) for k, v in p.items()}
    X = jnp.asarray(rng.normal(size=(m, widths[0])), jnp.float32)
    found = []
    for params in (p, q):
        blocks = jacobian(widths)({k: jnp.asarray(v, jnp.float32) for k, v in params.items()}, X).values()
        found.append(np.concatenate([np.asarray(b, np.float64).reshape(len(b), -1) for b in blocks], 1))
    J, L = found
    return JacobianModel(widths[-1]), J, L, J @ J.T, L @ L.T, (m, widths[-1])


@pytest.mark.slow
def test_movement_lies_within_two_standard_errors_in_94_percent_of_cases():
    """Two stated errors cover 95%; of 200 cases at least 94% are required. Movement, distance and norm err together:
    each is counted for itself. A coverage of 90% would pass with probability P(Bin(200, .9) ≥ 188) = 3%. The other way
    about, errors are no larger than they need be: the median ratio of error to stated error of a normal variable is
    0.67, and 0.2 is asked for."""
    inside, ratios = [], []
    for number in range(200):
        model, p, q, before, after, shape = case(number)
        found = KernelSketch(model, p, None, shape, seed=number).compare(q)
        norms = np.linalg.norm(before), np.linalg.norm(after)
        true = np.linalg.norm(after - before) / norms[0], 1 - np.sum(before * after) / (norms[0] * norms[1])
        errors = [abs(e.value - t) / e.standard_error for e, t in zip((found.movement, found.distance), true)]
        inside.append([error <= 2 for error in errors])
        ratios.append(errors)
    assert (np.mean(inside, 0) >= 0.94).all()
    assert (np.median(ratios, 0) >= 0.2).all()


def test_norm_of_the_centered_kernel():
    """As above, with 40 cases: 95% coverage gives fewer than 34 with probability P(Bin(40, .95) < 34) = 0.3%."""
    inside = 0
    for number in range(40):
        model, p, q, _, after, (m, c) = case(number)
        H = np.kron(np.eye(m) - 1 / m, np.eye(c))
        found = KernelSketch(model, p, None, (m, c), centered=True, seed=number).norm(q)
        inside += abs(found.value - np.linalg.norm(H @ after @ H)) <= 2 * found.standard_error
    assert inside >= 34


def test_few_outputs_are_exact():
    """Products with a basis, in float64."""
    model, p, q, before, after, _ = case(0)
    before, after = before[:12, :12], after[:12, :12]
    found = KernelSketch(model, p[:12], None, (12, 1)).compare(q[:12])
    assert found.movement.standard_error == 0 and found.vectors == 12
    assert found.movement.value == pytest.approx(np.linalg.norm(after - before) / np.linalg.norm(before), rel=1e-12)


def test_a_network_gives_the_same_as_its_jacobians():
    """Products in float32: some 1e-6 of the norms, amplified by their cancellation in the movement, here 0.1."""
    (widths, m), rng = SHAPES[1], np.random.default_rng(3)
    start = initial(1, *widths)
    model = SmallModel(start)
    X = jnp.asarray(rng.normal(size=(m, widths[0])), jnp.float32)
    end = model._cast({k: v + 0.02 * rng.normal(size=v.shape) for k, v in start.items()})
    found = []
    for params in (model.value, end):
        blocks = jacobian(widths)(params, X).values()
        found.append(np.concatenate([np.asarray(b, np.float64).reshape(len(b), -1) for b in blocks], 1))
    expected = KernelSketch(JacobianModel(2), found[0], None, (m, 2)).compare(found[1])
    sketched = KernelSketch(model, model.value, X, (m, 2)).compare(end)
    assert sketched.movement == pytest.approx(expected.movement, rel=1e-4)
    assert sketched.distance == pytest.approx(expected.distance, rel=1e-3)


def test_no_movement_is_zero():
    model, p, _, _, _, shape = case(1)
    found = KernelSketch(model, p, None, shape).compare(p)
    assert found.movement == (0, 0)
    assert found.distance.value == pytest.approx(0, abs=1e-12)


def test_more_vectors_are_drawn_for_a_smaller_error():
    model, p, q, before, after, shape = case(6)
    rough, fine = (KernelSketch(model, p, None, shape, error=e).compare(q) for e in (0.5, 2e-4))
    assert rough.vectors < fine.vectors <= kernel_sketch.BASIS + kernel_sketch.MAX_SAMPLE
    assert fine.movement.standard_error < rough.movement.standard_error
    true = np.linalg.norm(after - before) / np.linalg.norm(before)
    assert abs(fine.movement.value - true) <= 3 * fine.movement.standard_error


def test_many_outputs_are_projected(monkeypatch):
    """Random sums keep the movement within its stated error; three of them, since one case is tried."""
    monkeypatch.setattr(kernel_sketch, "MAX_ENTRIES", 10)
    monkeypatch.setattr(kernel_sketch, "BUCKETS", 256)
    model, p, q, before, after, shape = case(3)
    found = KernelSketch(model, p, None, shape, error=0.1).compare(q)
    true = np.linalg.norm(after - before) / np.linalg.norm(before)
    assert 0 < found.movement.standard_error < true
    assert abs(found.movement.value - true) <= 3 * found.movement.standard_error


def test_alignment_equals_numpy():
    model, p, _, before, _, (m, c) = case(1)
    y = np.random.default_rng(0).normal(size=(m, c))
    H = np.kron(np.eye(m) - 1 / m, np.eye(c))
    norm = np.linalg.norm(H @ before @ H)
    v = H @ y.ravel()
    assert kernel_alignment(model, p, None, y, norm) == pytest.approx(v @ before @ v / (v @ v * norm), rel=1e-10)
    assert np.isnan(kernel_alignment(model, p, None, np.ones((m, c)), norm))
