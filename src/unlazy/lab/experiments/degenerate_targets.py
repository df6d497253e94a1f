"""Targets for which the first step must fail: the expected Hessian is zero [D7].

Question: what happens to Algorithm 1 without the non-degeneracy condition, that is for information exponent 3 or more?
Prediction [D7]: H = 0, so the first step contains no signal of order d^{-1/2}; with n ≈ d² samples it finds nothing,
and every correlational-query learner needs n ≳ d^{p/2}.
A complication: He_3 and He_4 are nevertheless partly learned at small d. Their labels are heavy-tailed along u, so the
*noise* of the gradient is larger in this direction: a share v/(v+d-1) of its energy, v = E y²(u·x)² = 7 and 9.
Multiplying the labels of the first step by random signs removes all signal but keeps that noise: if the effect is due
to noise, nothing changes. It decays like 1/d.
Protocol: bounded labels, for which y² ≡ 1 carries no information: sign(z³ - 2 ln 2·z) (exponent 3) against
sign(|z| - 0.6745) (exponent 2), n = 4 d²; He_3/√6, He_4/√24 and the control He_2/2 + He_4/√48 at n = 16 d², with true
and with random signs; width 512.
Verdict: median risk at least 0.97 (exponent 3) and at most 0.40 (exponent 2) at every d ≥ 16; the risk of He_3 and
He_4 increases from the smallest to the largest d while that of the control stays below 0.2; with random signs, the
share of the step's energy along u at the largest d is within 0.05 of v/(v+d-1), with v measured on each sample (with
such heavy tails it is typically below its mean), including two standard errors.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from unlazy.core.arrays import dot
from unlazy.core.dataset import Data
from unlazy.lab.claims import Claim, interval_claim, standard_error, within
from unlazy.lab.experiment import Experiment, Figure, Measures, Params, Records, config
from unlazy.lab.experiments import _baselines as fits
from unlazy.tasks.index_models import IndexModel, band_sign, cubic_sign, quadratic_plus, single_index
from unlazy.training.one_step.algorithm import Features

NAMES = {
    "cubic_sign": "sign(z³ - 2 ln 2·z), exponent 3",
    "band_sign": "sign(|z| - 0.67), exponent 2",
    "he3": "He_3/√6",
    "he4": "He_4/√24",
    "control": "He_2/2 + He_4/√48",
}
TAIL = {"he3": 7.0, "he4": 9.0}
"""v = E y² z² of the heavy-tailed degenerate targets, 2k + 1 for He_k/√k!."""


def target(name: str, d: int, key: PRNGKeyArray) -> IndexModel:
    """Target by name."""
    if name in TAIL:
        return single_index(d, {int(name[-1]): 1.0}, key=key)
    return {"cubic_sign": cubic_sign, "band_sign": band_sign, "control": quadratic_plus}[name](d, key=key)


def trial(params: Params, key: PRNGKeyArray) -> Measures:
    """One trial at a point of the grid."""
    key_task, key_data, key_start, key_signs, key_risk = jax.random.split(key, 5)
    d, width = params["d"], params["width"]
    task = target(params["target"], d, key_task)
    sample = fits.draw(task, key_data, params["ratio"] * d * d)
    honest = fits.learn(key_start, sample, width=width)
    signs = jax.random.rademacher(key_signs, sample.train.y.shape, sample.train.y.dtype)
    flipped = sample._replace(train=Data(sample.train.X, signs * sample.train.y, sample.train.weights))
    noise = fits.learn(key_start, flipped, width=width)
    # only the first layer uses randomized labels; the head and the linear part use the true ones
    blinded = Features(noise.W, noise.b, honest.alpha, honest.beta)
    X, y = sample.exact
    measures = {"tail": jnp.sum((y * dot(X, task.subspace.T)[:, 0]) ** 2) / jnp.sum(y**2)}
    for name, features in (("", honest), ("_signs", blinded)):
        measures[f"risk{name}"] = fits.risk(task, fits.fit_head(features, sample), key_risk)[0]
        measures[f"energy{name}"] = jnp.sum(dot(features.W, task.subspace.T) ** 2) / jnp.sum(features.W**2)
    return measures


def claims(records: Records) -> list[Claim]:
    """Claims on [D2, D7], from the records."""
    rows = []
    for name, side, bound in (("cubic_sign", "≥", 0.97), ("band_sign", "≤", 0.40)):
        part = records.where(target=name, ratio=4)
        for d in part.values("d"):
            middle, low, high = fits.median_with_interval(part.where(d=d).measure("risk"))
            holds = middle >= bound if side == "≥" else middle <= bound
            statement = f"{NAMES[name]}: median risk at n = 4 d², d = {d}"
            rows.append(interval_claim(statement, "D7", middle, low, high, holds, f"{side} {bound}", "95%, bootstrap"))
    for name in ("he3", "he4", "control"):
        part = records.where(target=name, ratio=16)
        if len(part.values("d")) > 1:
            rows.append(_trend(part, name))
    for name in TAIL:
        part = records.where(target=name, ratio=16)
        if len(part):
            d = part.values("d")[-1]
            energy, tail = (part.where(d=d).measure(key) for key in ("energy_signs", "tail"))
            gap = energy - tail / (tail + d - 1)
            rows.append(within(
                f"{NAMES[name]}, first step on random signs: share along u minus v/(v+d-1), d = {d}", "D7",
                float(gap.mean()), -0.05, 0.05, error=standard_error(gap),
                predicted="0 ± 0.05",
            ))  # fmt: skip
    return rows


def _trend(part: Records, name: str) -> Claim:
    """Claim about risk(largest d) - risk(smallest d) of a degenerate target, or the largest risk of the control."""
    d = part.values("d")
    first, last = part.where(d=d[0]).measure("risk"), part.where(d=d[-1]).measure("risk")
    if name == "control":
        worst = max((part.where(d=e).measure("risk") for e in d), key=np.median)
        middle, low, high = fits.median_with_interval(worst)
        return interval_claim(
            f"{NAMES[name]}: median risk at n = 16 d², worst d", "D7", middle, low, high, middle <= 0.2, "≤ 0.2",
            "95%, bootstrap",
        )  # fmt: skip
    rng = np.random.default_rng(0)
    draws = [np.median(rng.choice(last, len(last))) - np.median(rng.choice(first, len(first))) for _ in range(2000)]
    low, high = (float(q) for q in np.quantile(draws, [0.025, 0.975]))
    middle = float(np.median(last) - np.median(first))
    statement = f"{NAMES[name]}: increase of the median risk from d = {d[0]} to {d[-1]} at n = 16 d²"
    return interval_claim(statement, "D7", middle, low, high, low > 0, "> 0", "95%, bootstrap")


def figure(records: Records) -> Figure:
    """Plot of median risk (predicting zero: 1) against input dimension d."""
    import matplotlib.pyplot as plt

    fig, (left, right) = plt.subplots(1, 2, figsize=(7.6, 3.9), sharey=True)
    for i, name in enumerate(("cubic_sign", "band_sign")):
        part = records.where(target=name, ratio=4)
        if len(part):
            d, risk = part.over("d", "risk")
            left.plot(d, risk, "o-", color=f"C{i}", label=NAMES[name])
    for i, name in enumerate(("he3", "he4", "control")):
        part = records.where(target=name, ratio=16)
        if len(part):
            d, risk = part.over("d", "risk")
            right.plot(d, risk, "o-", color=f"C{i + 2}", label=NAMES[name])
            right.plot(d, part.over("d", "risk_signs")[1], "x:", color=f"C{i + 2}")
    for axis, title in ((left, "Bounded labels, n = 4 d²"), (right, "n = 16 d²; ×: first step on random signs")):
        axis.set(xlabel="input dimension d", title=title, ylim=(0, 1.15))
        axis.set_xticks(sorted({round(v) for line in axis.lines for v in line.get_xdata()}))
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17))
    left.set_ylabel("median risk (predicting zero: 1)")
    return fig


experiment = Experiment(
    name="degenerate_targets",
    source="S2",
    tags=("D2", "D7"),
    question="What does the first step find when the expected Hessian of the target is zero?",
    prediction="Nothing at n ≈ d². He_3 and He_4 are partly found through the noise of their heavy-tailed labels: a "
    "share v/(v+d-1) of it lies along u, which decays with d and persists with random signs.",
    protocol="Bounded labels of information exponent 3 and 2 at n = 4 d²; He_3, He_4 and the control He_2/2 + "
    "He_4/√48 at n = 16 d², first step on true and on sign-randomized labels.",
    verdict="Median risk ≥ 0.97 (exponent 3) and ≤ 0.40 (exponent 2) for d ≥ 16; the risks of He_3 and He_4 increase "
    "with d, that of the control stays ≤ 0.2; share along u with random signs, at the largest d, within 0.05 of "
    "v/(v+d-1), with v measured on the sample.",
    trial=trial,
    claims=claims,
    figure=figure,
    quick=config({"target": ["cubic_sign", "band_sign"], "d": [16, 32], "ratio": [4]},
                 {"target": ["he3", "he4", "control"], "d": [10, 16, 32], "ratio": [16]}, seeds=8, width=512),
    full=config({"target": ["cubic_sign", "band_sign"], "d": [16, 24, 32, 48, 64], "ratio": [4, 16]},
                {"target": ["he3", "he4", "control"], "d": [10, 16, 24, 32, 48], "ratio": [16]}, seeds=16, width=512),
    vectorized=False,
    version=2,
    caveats="Theorem 2 is about queries with adversarial errors; n ≳ d^{p/2} is its heuristic translation to samples. "
    "The experiment shows that Algorithm 1 fails at n of order d², not that no method could succeed. For He_4 part of "
    "what is learned is signal after all, from the next terms of the gradient: its risk is somewhat higher with "
    "random signs.",
)  # fmt: skip
