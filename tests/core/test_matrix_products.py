"""All matrix products specify their precision: checked in the sources and in traced programs."""

import ast
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unlazy
from unlazy.core.arrays import dot, einsum, vdot
from unlazy.kernels.metric import with_metric
from unlazy.kernels.networks.infinite_width import NNGP, NTK
from unlazy.kernels.radial import Gaussian, Laplace
from unlazy.measures import alignment, neurons, subspace
from unlazy.networks import Network
from unlazy.networks.quadratic import QuadraticNetwork, second_order
from unlazy.networks.tangent import tangent_kernel, tangent_product
from unlazy.products import agop, product
from unlazy.solvers.convex.nuclear_norm import minimum_frobenius_norm
from unlazy.solvers.gaussian_process.posterior import ensemble, posterior
from unlazy.solvers.path import decompose
from unlazy.tasks.index_models import single_index
from unlazy.tasks.patterns import pattern_task
from unlazy.theory.activations.functions import activation
from unlazy.theory.dynamics import gaussian_process
from unlazy.theory.feature_learning import gradients
from unlazy.theory.finite_width import two_layer
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.training.one_step import algorithm, method_of_moments, readout

ROOT = Path(unlazy.__file__).parent
PRODUCTS = {
    "matmul", "dot", "einsum", "tensordot", "vdot", "inner", "vecdot", "matvec", "vecmat", "multi_dot", "matrix_power",
    "cov", "corrcoef", "convolve", "correlate", "kron", "dot_general", "batch_matmul", "conv", "conv_general_dilated",
}  # fmt: skip


def bare_products(source: str) -> list[int]:
    """Lines of a module with a product without explicit precision. Modules without JAX use NumPy arrays."""
    tree = ast.parse(source)
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {(a.asname or a.name.split(".")[0]): True for a in node.names if a.name.split(".")[0] == "jax"}
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "jax":
            on_chip = "pallas" in node.module  # those programs multiply bfloat16 parts: nothing is left to choose
            names |= {(a.asname or a.name): not on_chip for a in node.names}
    if not any(names.values()):
        return []
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.MatMult):
            found.append(node.lineno)
        if isinstance(node, ast.Attribute) and node.attr in PRODUCTS and names.get(root_name(node.value)):
            found.append(node.lineno)
    return found


def root_name(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def test_every_product_goes_through_one_module():
    sources = [p for p in ROOT.rglob("*.py") if p != ROOT / "core" / "arrays.py"]
    assert len(sources) > 100
    found = [f"{p.relative_to(ROOT)}:{line}" for p in sources for line in bare_products(p.read_text())]
    assert not found, f"use unlazy.core.arrays there: {found}"


@pytest.mark.parametrize(
    "line", ["A @ B", "A @= B", "jnp.dot(A, B)", "jax.numpy.einsum('ij,jk', A, B)", "jnp.linalg.multi_dot([A, B])",
             "lax.dot_general(A, B, d)", "f = jnp.vdot"],
)  # fmt: skip
def test_a_bare_product_is_detected(line):
    assert bare_products(f"import jax\nimport jax.numpy as jnp\nfrom jax import lax\n{line}\n") == [4]
    assert bare_products("import numpy as np\nA @ np.dot(A, B)\n") == []


def test_products_agree_with_numpy_and_numpy_stays_numpy(x64):
    rng = np.random.default_rng(0)
    A, B, c = rng.normal(size=(3, 4)), rng.normal(size=(4, 5)), rng.normal(size=5)
    calls = [lambda a, b, c: dot(a, b, c), lambda a, b, c: einsum("ij,jk,k->i", a, b, c), lambda a, b, c: vdot(a, a)]
    for call in calls:
        host, device = call(A, B, c), call(jnp.asarray(A), B, jnp.asarray(c))
        assert not isinstance(host, jax.Array) and isinstance(device, jax.Array)
        # sums of at most 20 products: 20 units of rounding of the sum of their sizes, whatever the order
        size = call(np.abs(A), np.abs(B), np.abs(c))
        assert np.all(np.abs(host - np.asarray(device)) <= 20 * 2.0**-52 * size)


def unsaid(closed) -> list[str]:
    """Products of floats in a traced program and its subprograms without explicit precision."""
    found = []
    for eqn in closed.eqns:
        if eqn.primitive.name in ("dot_general", "conv_general_dilated"):
            said = eqn.params["precision"]
            sides = said if isinstance(said, tuple) else (said, said)
            if eqn.invars[0].aval.dtype.kind == "f" and any(p != jax.lax.Precision.HIGHEST for p in sides):
                found.append(str(eqn))
        for value in jax.tree.leaves(tuple(eqn.params.values()), is_leaf=lambda v: hasattr(v, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                found += unsaid(inner)
    return found


X, Z, Y = jnp.ones((6, 3)), jnp.ones((4, 3)), jnp.ones((6, 2))
y, W, a, v = Y[:, 0], jnp.ones((8, 3)), jnp.ones(8), jnp.ones(3)
K, U = jnp.eye(6), jnp.eye(3)[:1]
RELU = MLP(depth=2, width=8)
NETWORK = Network(RELU, inputs=3)
KEY = jax.random.key(0)

PROGRAMS = {
    "gaussian": lambda: Gaussian(1.0).gram(X, Z),
    "laplace with a metric": lambda: with_metric(Laplace(1.0), jnp.eye(3)).gram(X, Z),
    "nngp": lambda: NNGP(MLP(depth=2, activation="erf", sigma_b=0.1)).gram(X, Z),
    "ntk": lambda: NTK(RELU).gram(X, Z),
    "ntk with a numerical dual": lambda: NTK(MLP(depth=1, activation="tanh")).gram(X, Z),
    "blocked": lambda: product(Gaussian(1.0), X, Z, engine="blocked").matmul(Y[:4]),
    "agop": lambda: agop(Gaussian(1.0), X, Z, Y[:4]),
    "network's gradient": lambda: jax.grad(lambda p: jnp.sum(NETWORK(p, X)))(NETWORK.init(KEY))[0].weight,
    "tangent kernel": lambda: tangent_kernel(NETWORK, NETWORK.init(KEY), X, Z),
    "any tangent kernel": lambda: tangent_kernel(lambda p, A: NETWORK(p, A), NETWORK.init(KEY), X, Z),
    "tangent product": lambda: tangent_product(NETWORK, NETWORK.init(KEY), X, jnp.ones(4), Z),
    "quadratic network": lambda: QuadraticNetwork(8)(W, X),
    "second order": lambda: second_order(W, a, "softplus")(W, X),
    "posterior": lambda: posterior(Gaussian(1.0), X, y, Z, 0.1).sample(2, key=KEY),
    "ensemble": lambda: ensemble(NTK(RELU), NNGP(RELU), X, y, Z, 1.0).covariance,
    "likelihood's gradient": lambda: jax.grad(gaussian_process.log_marginal_likelihood)(K, Y, a[0]),
    "path": lambda: decompose(Gaussian(1.0), X).ridge_path(y, jnp.ones(3)).predict(Z),
    "frobenius": lambda: minimum_frobenius_norm(X, y),
    "hessian moment": lambda: method_of_moments.hessian_moment(X, y),
    "fourth moment": lambda: method_of_moments.contracted_fourth_moment(X, y, v),
    "first gradient": lambda: algorithm.first_gradient(X, y, W, a),
    "head": lambda: jax.jit(lambda F: readout.ridge_path(F, y, jnp.ones(2), errors=True))(X).leave_one_out,
    "descent head": lambda: readout.descent_readout(X, y, steps=3, step_size=0.1),
    "hessian term": lambda: gradients.hessian_term(jnp.eye(3), W, a),
    "two layers": lambda: two_layer.first_layer_kernel(X, Z, W, a, activation("relu")),
    "alignment": lambda: alignment.target_alignment(K, y),
    "energy": lambda: subspace.energy(W, U),
    "cosines": lambda: neurons.pairwise_cosines(W),
    "index model": lambda: single_index(3, {2: 1.0}).sample(KEY, 6).y,
    "patterns": lambda: pattern_task(20, 10, 5).sample(KEY, 6).y,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_traced_programs_set_their_precision(name):
    program = jax.make_jaxpr(lambda: jnp.asarray(PROGRAMS[name]()))()
    assert "dot_general" in str(program)  # something was traced
    assert not unsaid(program.jaxpr)


def test_a_missing_precision_is_detected():
    inside = jax.jit(lambda A: jax.lax.fori_loop(0, 2, lambda _, B: B @ A, A))
    assert len(unsaid(jax.make_jaxpr(inside)(K).jaxpr)) == 1
    convolved = jax.make_jaxpr(lambda A: jnp.convolve(A, A))(a)
    assert unsaid(convolved.jaxpr)


def test_products_in_user_functions_keep_full_precision_in_tangent_kernels():
    def f(w, X):
        return jnp.tanh(X @ w["W"]) @ w["a"]

    w, X = {"W": jnp.ones((3, 4)), "a": jnp.ones(4)}, jnp.ones((5, 3))
    kernel = unlazy.TangentKernel(f, w)
    assert unsaid(jax.make_jaxpr(f)(w, X))  # products without explicit precision are found
    for program in (
        lambda: kernel.gram(X),
        lambda: kernel.matmul_prepared(X, X, jnp.ones((5, 2))),
        lambda: kernel.diag(X),
    ):
        assert unsaid(jax.make_jaxpr(program)()) == []
