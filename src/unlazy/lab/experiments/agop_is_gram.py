"""The first-layer weights of a trained network and its average gradient outer product (AGOP) [D11].

Question: does the first layer of a network learn what recursive feature machines compute, the network's AGOP?
Prediction [D11] (the neural feature ansatz; Radhakrishnan, Beaglehole, Pandit and Belkin, Science 2024): after training
from a small initialization W¹ᵀW¹ is proportional to a power of the AGOP, (1/n) Σ ∇f ∇fᵀ; with two balanced layers the
power is 1/2, since the head weight of each neuron has the norm of its first-layer weights. A lazily trained network
fits the data but barely changes W¹.
Protocol: x ~ N(0, I_10), n = 200, f* = relu(x_1) - relu(-x_2), centered and normalized; two-layer ReLU network of width
128, NTK parametrization, antisymmetric initialization (f_0 = 0), output multiplied by α and learning rates divided by
α²: α = 0.001 is rich, α = 30 lazy (experiment lazy_to_rich); gradient descent until the loss is 1e-3 (predicting zero:
1/2), with step size 0.3 min(1, α)/λ_max of the tangent kernel at initialization, which grows during rich training.
Correlation of the entries of W¹ᵀW¹ with those of AGOP^s, s = 1/2 and 1, both minus their mean diagonal, at
initialization and after training. float64.
Verdict: every run reaches the loss. Rich: after training the correlation with AGOP^½ is at least 0.95, and the top two
eigenvectors of both matrices span the relevant plane (overlap at least 0.95). Lazy: the correlation is at most 0.8. All
with two standard errors.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from unlazy.core.arrays import dot
from unlazy.core.dataset import Data
from unlazy.lab.claims import Claim, at_least, at_most, standard_error
from unlazy.lab.experiment import Experiment, Figure, Measures, Params, Records, config
from unlazy.measures.subspace import top_overlap
from unlazy.networks import Network
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.training.descent.descend import STOPPED, descend
from unlazy.training.descent.stability import stable_step_size
from unlazy.training.options import DescentOptions

INPUTS, POINTS, ENOUGH, SAFETY = 10, 200, 1e-3, 0.3
RICH, LAZY = 0.001, 30.0


def agop(f: Callable[[Array], Array], X: Array) -> Array:
    """(1/n) Σ ∇f(x) ∇f(x)ᵀ for a function of one row."""
    G = jax.vmap(jax.grad(f))(X)
    return dot(G.T, G) / X.shape[0]


def traceless_correlation(A: Array, B: Array) -> Array:
    """Correlation of the traceless parts of two symmetric matrices, which compares their directions."""
    a, b = (M - jnp.trace(M) / M.shape[0] * jnp.eye(M.shape[0]) for M in (A, B))
    return jnp.sum(a * b) / jnp.maximum(jnp.linalg.norm(a) * jnp.linalg.norm(b), jnp.finfo(a.dtype).tiny)


def trial(params: Params, key: PRNGKeyArray) -> Measures:
    """One trial; measures half, one, start, weights_overlap, agop_overlap, gram, root, reached, steps_taken."""
    key_data, key_start = jax.random.split(key)
    X = jax.random.normal(key_data, (POINTS, INPUTS))
    f = jax.nn.relu(X[:, 0]) - jax.nn.relu(-X[:, 1])
    train = Data(X, (f - f.mean()) / f.std())
    network = Network(MLP(1, "relu", width=params["width"]), INPUTS, "ntk", output_scale=params["scale"])
    start = network.init(key_start, "antisymmetric")
    part = SAFETY * jnp.minimum(1, params["scale"])  # in the rich regime the kernel grows by about 1/α
    eta = part * stable_step_size(network, start, train, rates=network.rates)
    options = DescentOptions(rates=network.rates, stop_below=ENOUGH)
    found = descend(network, start, train, steps=params["steps"], step_size=eta, options=options)
    W0, W = start[0].weight, found.params[0].weight
    M = agop(lambda x: network(found.params, x[None])[0], X)
    values, vectors = jnp.linalg.eigh(M)
    half = dot(vectors * jnp.sqrt(jnp.maximum(values, 0)), vectors.T)
    plane = jnp.eye(INPUTS)[:2]
    gram, before = dot(W, W.T), dot(W0, W0.T)  # a column is a neuron
    return {
        "half": traceless_correlation(gram, half), "one": traceless_correlation(gram, M),
        "start": traceless_correlation(before, half),
        "weights_overlap": top_overlap(gram, plane), "agop_overlap": top_overlap(M, plane),
        "gram": gram / jnp.trace(gram), "root": half / jnp.trace(half),
        "reached": found.status == STOPPED, "steps_taken": found.steps,
    }  # fmt: skip


def claims(records: Records) -> list[Claim]:
    """Claims on [D11], from the records."""
    rich, lazy = records.where(scale=RICH), records.where(scale=LAZY)

    def mean(part: Records, name: str) -> dict[str, float]:
        values = part.measure(name)
        return {"measured": float(values.mean()), "error": standard_error(values)}

    return [
        at_least("Share of runs that reach the training loss", "D11", float(np.mean(records.measure("reached"))), 1.0),
        at_least("Rich: correlation of W¹ᵀW¹ with AGOP^½ after training", "D11", bound=0.95, **mean(rich, "half")),
        at_least("Rich: overlap of the top two directions of W¹ with S*", "D11", bound=0.95,
                 **mean(rich, "weights_overlap")),
        at_least("Rich: overlap of the top two directions of the AGOP with S*", "D11", bound=0.95,
                 **mean(rich, "agop_overlap")),
        at_most("Lazy: correlation of W¹ᵀW¹ with AGOP^½ after training", "D11", bound=0.8, **mean(lazy, "half")),
        at_most("Rich: correlation of the initial W¹ᵀW¹ with AGOP^½", "D11", bound=0.5, **mean(rich, "start")),
    ]  # fmt: skip


def figure(records: Records) -> Figure:
    """Plot of correlation with W¹ᵀW¹ against output scale α (rich to lazy)."""
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(1, 3, figsize=(9.5, 3.4), width_ratios=(1, 1, 1.25))
    one = (records.where(scale=RICH) or records)[0]  # the sweep may be incomplete
    top = max(float(np.max(one.measures[name])) for name in ("gram", "root"))
    for axis, name, title in zip(axes, ("gram", "root"), ("W¹ᵀW¹ / trace, rich", "AGOP^½ / trace, rich")):
        image = axis.imshow(one.measures[name], vmin=-top, vmax=top, cmap="RdBu_r")
        axis.set(title=title, xlabel="input", ylabel="input")
    fig.colorbar(image, ax=axes[:2], shrink=0.8)
    scales = records.values("scale")
    for name, label in (("half", "AGOP^½"), ("one", "AGOP"), ("start", "initial W¹, AGOP^½")):
        values = np.array([records.where(scale=a).measure(name) for a in scales])
        axes[2].errorbar(scales, values.mean(1), values.std(1), marker="o", capsize=2, label=label)
    axes[2].set(xscale="log", xlabel="output scale α (rich to lazy)", ylim=(-0.5, 1.05))
    axes[2].set_ylabel("correlation with W¹ᵀW¹")
    axes[2].legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=2)
    return fig


experiment = Experiment(
    name="agop_is_gram",
    source="S2",
    tags=("D11",),
    question="Does the first layer of a network learn what recursive feature machines compute, the network's AGOP?",
    prediction="After rich training W¹ᵀW¹ ∝ AGOP^½ (two balanced layers); lazy training barely changes W¹.",
    protocol="f* = relu(x_1) - relu(-x_2), d = 10, n = 200, two-layer ReLU network of width 128 trained to loss 1e-3 "
    "at output scales from 0.001 (rich) to 30 (lazy); correlation of W¹ᵀW¹ and AGOP^s, minus their mean diagonals.",
    verdict="Rich: correlation with AGOP^½ and overlaps with S* at least 0.95; lazy: correlation at most 0.8; at "
    "initialization at most 0.5; with two standard errors.",
    trial=trial,
    claims=claims,
    figure=figure,
    version=2,
    quick=config({"scale": [RICH, 0.03, 1.0, LAZY]}, seeds=4, width=128, steps=20_000),
    full=config({"scale": [RICH, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, LAZY]}, seeds=12, width=128, steps=40_000),
    traced=("scale",),
    caveats="The relation is an identity for deep linear networks with balanced layers, but only an observation for "
    "ReLU, where each neuron is active on about half of the data. A correlation near 1 means that the matrices agree "
    "up to scale and trace, not that one causes the other.",
)
