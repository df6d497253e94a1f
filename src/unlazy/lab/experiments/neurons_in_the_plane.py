"""Neurons embedded in the plane: scattered at initialization, at the two effective features after two steps [P4, P7].

Question: can the emergence of features be seen in a plane embedding of the neurons?
Prediction [P4]: at initialization the directions are random; after step 1 all neurons are close to ±Σ_{j∈A} M_j, after
step 2 even closer, half of them at each sign because of the antisymmetric pairs; on unstructured inputs they cluster
too, but elsewhere.
Protocol: the training runs of feature_emergence; 150 neurons (75 antisymmetric pairs) and the two features;
multidimensional scaling of the cosine distances 1 - cos at initialization, after step 1, after step 2 and at the end.
Verdict (structured): |cosine| with the closer feature: median ≤ 0.1 at initialization, every neuron ≥ 0.9 after step 1,
≥ 0.99 after step 2; each feature has between 40% and 60% of the neurons; the distances in the plane after step 2 have a
correlation above 0.95 with the cosine distances. Unstructured: the median is ≤ 0.35 at all stages.
"""

import numpy as np
from jaxtyping import PRNGKeyArray

from unlazy.lab.claims import Claim, at_least, at_most, within
from unlazy.lab.experiment import Experiment, Figure, Measures, Params, Records, config
from unlazy.lab.experiments._patterns import SIZES, STAGES, network_run
from unlazy.measures.neurons import plane_embedding

PAIRS = 75


def trial(params: Params, key: PRNGKeyArray) -> Measures:
    """Coordinates of the neurons, then of the two features, at the four stages; cosines with the feature."""
    found = network_run(params, key)
    half = params["width"] // 2
    chosen = np.r_[:PAIRS, half : half + PAIRS]
    feature = np.asarray(found["feature"])
    drawn = [plane_embedding(np.concatenate([W[chosen], [feature, -feature]])) for W in np.asarray(found["weights"])]
    return {
        "points": np.stack([p.points for p in drawn]), "faithful": np.array([p.fidelity for p in drawn]),
        "cosines": np.asarray(found["cosines"])[:, chosen],
    }  # fmt: skip


def claims(records: Records) -> list[Claim]:
    """Claims on [P4, P7], from the records."""
    rows = []
    good, bare = records.where(structured=True), records.where(structured=False)
    if len(good):
        cosines = good.measure("cosines")
        share = np.mean(cosines[:, 2] > 0, axis=1)
        rows += [
            at_most("structured: median |cosine| at initialization", "P7", float(np.median(np.abs(cosines[:, 0]))),
                    0.1),
            at_least("structured: smallest |cosine| after step 1", "P4", float(np.abs(cosines[:, 1]).min()), 0.9),
            at_least("structured: smallest |cosine| after step 2", "P4", float(np.abs(cosines[:, 2]).min()), 0.99),
            within("structured: smallest fraction of neurons at the first feature after step 2", "P7",
                   float(share.min()), 0.4, 0.6, predicted="1/2 ± 0.1"),
            within("structured: largest fraction of neurons at the first feature after step 2", "P7",
                   float(share.max()), 0.4, 0.6, predicted="1/2 ± 0.1"),
            at_least("structured: correlation of distances in the plane with cosine distances after step 2", "P7",
                     float(good.measure("faithful")[:, 2].min()), 0.95),
        ]  # fmt: skip
    if len(bare):
        middle = np.median(np.abs(bare.measure("cosines")), axis=2)
        rows.append(at_most("unstructured: largest median |cosine| of all stages", "P6", float(middle.max()), 0.35))
    return rows


def figure(records: Records) -> Figure:
    """Plot of the records."""
    import matplotlib.pyplot as plt

    kinds = [s for s in (True, False) if len(records.where(structured=s))]
    fig, axes = plt.subplots(len(kinds), 4, figsize=(9.6, 2.6 * len(kinds) + 0.3), squeeze=False, layout="constrained")
    for row, structured in zip(axes, kinds):
        record = records.where(structured=structured)[0]
        for i, (axis, name) in enumerate(zip(row, STAGES)):
            points, cosines = record.measures["points"][i], record.measures["cosines"][i]
            for star, sign, color in zip(points[-2:], "+-", ("C1", "C4")):
                label = rf"${sign}\Sigma_{{j\in A}} M_j$"
                axis.plot(*star, "*", ms=21, mfc="none", mec=color, mew=1.4, label=label, zorder=1)
            axis.scatter(*points[:-2].T, s=9, c="C0", alpha=0.5, lw=0, label="neurons", zorder=2)
            if np.abs(cosines).min() > 0.9:  # the neurons coincide: show their number
                for star, count in zip(points[-2:], (np.sum(cosines > 0), np.sum(cosines < 0))):
                    axis.annotate(f"{count} neurons", star, (11, -3), textcoords="offset points", fontsize=8)
            median, least = np.median(np.abs(cosines)), np.abs(cosines).min()
            axis.set_title(rf"{name}: $|\cos|$ {median:.3f}, min {least:.3f}", fontsize=8.5)
            reach = 1.25 * np.abs(points).max()
            axis.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
        row[0].set_ylabel("structured" if structured else "unstructured")
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return fig


experiment = Experiment(
    name="neurons_in_the_plane",
    source="S4",
    tags=("P4", "P7"),
    question="Can the emergence of features be seen in a plane embedding of the neurons?",
    prediction="Scattered at initialization; at ±Σ_A M_j after two steps, half at each; on unstructured inputs "
    "elsewhere [P4].",
    protocol="The runs of feature_emergence; 150 neurons and two features; multidimensional scaling of cosine "
    "distances.",
    verdict="Structured: every |cosine| ≥ 0.99 after step 2, 40–60% of the neurons at each feature, distances "
    "preserved. Unstructured: median |cosine| ≤ 0.35.",
    trial=trial,
    claims=claims,
    figure=figure,
    quick=config({"structured": [True, False]}, seeds=1, d=100, steps=300, batch=500, **SIZES),
    full=config({"structured": [True, False]}, seeds=3, d=500, steps=500, batch=1000, **SIZES),
    vectorized=False,
    precision="float32",
    caveats=(
        "A plane cannot represent 150 nearly orthogonal directions: at initialization its distances mean little. On "
        "unstructured inputs neurons cluster as well, around a direction given by the sampling noise of 20,000 points."
    ),
)
