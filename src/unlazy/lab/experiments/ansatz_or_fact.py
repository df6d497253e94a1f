"""Neural feature ansatz or FACT (first-order condition): which describes WᵀW of a trained layer? [E5]

Question: in networks of 2 to 4 layers trained with weight decay λ, how well does W_lᵀW_l correlate with AGOP_l^s (the
neural feature ansatz) and with FACT, layer by layer, as a function of training time and of λ?
Prediction [E5]: FACT holds at every critical point, so after a time of order 1/λ and not before; the ansatz is at best
an approximation.
Protocol: inputs N(0, I), d = 10, target of two directions (h_1(z_1) + h_2(z_2) + z_1 z_2)/√3, 200 points; GELU networks
of width 32 trained by gradient descent with momentum on ½ mean (f - y)² + ½λ‖θ‖²; Pearson correlation of the entries,
s the best of 1/2, 1, 1/L for every layer, seed and time. The last layer, whose AGOP is W_LᵀW_L, is excluded.
Verdict, on medians over seeds after training, in every layer: at the largest decay the correlation is at least 0.98 for
FACT and at least 0.8 for the ansatz, and higher for FACT; FACT at most 0.5 at initialization; 1 - FACT at the smallest
decay at least twice that at the largest.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import PRNGKeyArray

from unlazy.core.arrays import dot
from unlazy.core.dataset import Data
from unlazy.lab.claims import Claim, at_least, at_most
from unlazy.lab.experiment import Experiment, Figure, Measures, Params, Records, config
from unlazy.measures.alignment import entry_correlation
from unlazy.networks.mlp import Network
from unlazy.tasks import index_model
from unlazy.theory.feature_learning import feature_laws
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.training.descent.descend import descend
from unlazy.training.descent.recording import parameters
from unlazy.training.options import DescentOptions, Recording

D, POINTS, WIDTH = 10, 200, 32
RATE, MOMENTUM, RECORDS = 0.05, 0.9, 20
TARGET: dict[tuple[int, ...], float] = {(1, 0): 3**-0.5, (0, 2): 3**-0.5, (1, 1): 3**-0.5}


def trial(params: Params, key: PRNGKeyArray) -> Measures:
    """One trial; measures laws."""
    layers, decay, steps = params["layers"], params["decay"], params["steps"]
    one, two = jax.random.split(key)
    X = jax.random.normal(one, (POINTS, D))  # drawn at once: nested rows would take half of the compile time
    data = Data(X, index_model(D, TARGET).target(X))
    network = Network(MLP(depth=layers - 1, width=WIDTH, activation="gelu"), D, "standard")
    powers = sorted({0.5, 1.0, 1 / layers})

    def loss(theta: Any) -> Any:
        return jnp.mean(jnp.square(network(theta, data.X) - data.y)) / 2

    def laws(theta: Any) -> Any:
        """Correlations. Rows: all layers except the last; columns: FACT, then the ansatz with each power."""
        gradients = jax.grad(loss)(theta)
        weights = [scale.multiplier.weight * layer.weight for scale, layer in zip(network.scales, theta)]
        hidden = network.preactivations(theta, data.X)[:-1]
        inputs = feature_laws.input_gradients(weights, hidden, network.mlp.activation)
        raised = feature_laws.ansatz([dot(h.T, h) / POINTS for h in inputs[:-1]], powers)
        rows = []
        for layer, g, candidates in zip(theta, gradients, raised):
            gram = dot(layer.weight, layer.weight.T)
            held = entry_correlation(gram, feature_laws.fact(layer.weight, g.weight, decay))
            rows.append([held, *(entry_correlation(gram, M) for M in candidates)])
        return jnp.asarray(rows)

    options = DescentOptions(optax.sgd(RATE, MOMENTUM), decay=decay)
    recording = Recording({"params": parameters}, every=steps // RECORDS)
    found = descend(network, network.init(two), data, steps=steps, options=options, recording=recording)
    return {"laws": lax.map(laws, found.recorded["params"])}


def cells(records: Records, decay: float, time: int) -> dict[tuple[int, int], np.ndarray]:
    """Median correlations over seeds of FACT and of the ansatz at its best power, by depth and layer, at one time."""
    found: dict[tuple[int, int], np.ndarray] = {}
    for layers in records.values("layers"):
        laws = records.where(layers=layers, decay=decay).measure("laws")[:, time].astype(float)
        both = np.stack([laws[..., 0], laws[..., 1:].max(-1)], -1)
        found |= {(layers, l + 1): np.median(both[:, l], 0) for l in range(both.shape[1])}
    return found


def claims(records: Records) -> list[Claim]:
    """Claims on [E5], from the records."""
    if len(decays := records.values("decay")) < 2:
        return []
    when = ((decays[-1], -1), (decays[0], -1), (decays[-1], 0))
    strong, weak, start = (np.array(list(cells(records, *at).values())) for at in when)
    late = (1 - weak[:, 0]) / np.maximum(1 - strong[:, 0], 1e-6)
    where = f"λ = {decays[-1]:g}, {len(strong)} layers of networks with 2 to 4 layers"
    return [
        at_least(f"{where}: FACT, lowest correlation after training", "E5", float(strong[:, 0].min()), 0.98),
        at_least(f"{where}: ansatz, lowest correlation after training", "E5", float(strong[:, 1].min()), 0.8),
        at_least(f"{where}: smallest value of FACT - ansatz", "E5", float((strong[:, 0] - strong[:, 1]).min()), 0.0),
        at_most(f"{where}: FACT, highest correlation at initialization", "E5", float(start[:, 0].max()), 0.5),
        at_least(f"1 - FACT at λ = {decays[0]:g} / 1 - FACT at λ = {decays[-1]:g}, smallest ratio", "E5",
                 float(late.min()), 2.0),
    ]  # fmt: skip


def figure(records: Records) -> Figure:
    """Plot of the records."""
    import matplotlib.pyplot as plt

    networks, decays = records.values("layers"), records.values("decay")
    size = (3.6 * len(networks), 3.4)
    fig, axes = plt.subplots(1, len(networks), figsize=size, layout="constrained", sharey=True, squeeze=False)
    for axis, layers in zip(axes[0], networks):
        for decay, line in zip((decays[0], decays[-1]), (":", "-")):
            part = records.where(layers=layers, decay=decay)
            times = len(part.measure("laws")[0])
            at = np.arange(times) * part[0].params["steps"] * RATE / (1 - MOMENTUM) / (times - 1)
            paths = [cells(part, decay, i) for i in range(times)]
            for (_, l), color in zip(paths[0], ("C0", "C1", "C2")):
                for law, width in ((0, 2.0), (1, 0.8)):
                    axis.plot(at, [p[layers, l][law] for p in paths], line, color=color, lw=width)
        for l in range(1, layers):
            axis.plot([], [], color=f"C{l - 1}", label=f"layer {l}")
        axis.set(xlabel="time (steps × effective step size)", title=f"{layers} layers", ylim=(-0.6, 1.03))
    axes[0, 0].set_ylabel("correlation with $W^\\top W$")
    words = (
        ("FACT", 2.0, "-"),
        ("ansatz, best power", 0.8, "-"),
        (f"dotted: λ = {decays[0]:g}, solid: {decays[-1]:g}", 1.5, ":"),
    )
    for word, width, line in words:
        axes[0, 0].plot([], [], line, color="k", lw=width, label=word)
    for axis in axes[0]:
        axis.legend(loc="lower right")
    return fig


experiment = Experiment(
    name="ansatz_or_fact",
    source="general",
    tags=("E5",),
    question="Do the weights of a trained layer follow the neural feature ansatz or the first-order condition FACT?",
    prediction="FACT holds at convergence with weight decay, after a time of order 1/λ; the ansatz is an approximation "
    "without a theorem.",
    protocol="GELU networks of 2 to 4 layers, width 32, on 200 points of a target of two directions, d = 10; gradient "
    "descent with momentum and weight decay; correlation of WᵀW with FACT and with AGOP^s, s the best of 1/2, 1, 1/L.",
    verdict="Median correlations after training, every layer, largest decay: FACT at least 0.98, ansatz at least 0.8, "
    "FACT not below the ansatz; FACT at most 0.5 at initialization; 1 - FACT at least twice as large at the smallest "
    "decay.",
    trial=trial,
    claims=claims,
    figure=figure,
    quick=config({"layers": [2, 4], "decay": [1e-3, 1e-2]}, steps=3000, seeds=4),
    full=config({"layers": [2, 3, 4], "decay": [3e-4, 1e-3, 3e-3, 1e-2]}, steps=20_000, seeds=32),
    traced=("decay",),
    precision="float32",
    lanes=4,
    caveats="That FACT holds at a critical point is an identity; the experiment measures whether and when training "
    "comes close to one. A correlation near 1 says nothing about small eigenvalues. The power of the ansatz is chosen "
    "to maximize the measured correlation. One small target, smooth activation, full batches: no claim about large "
    "networks or training without decay.",
)  # fmt: skip
