"""Findings of a comparison: the verdict, the risk of each model, relevant directions and inputs, the chosen model.

Text, figures and page are derived from `Findings`.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pandas as pd
import scipy.stats

from unlazy.comparison.data.leakage import Suspect
from unlazy.comparison.data.table import split_rows
from unlazy.comparison.report.paired_ratios import paired_ratios, ratio_table
from unlazy.comparison.study.candidates import CANDIDATES
from unlazy.comparison.study.held_out import HeldOutPredictions, held_out_predictions
from unlazy.comparison.study.model import FinalModel, interval_radius
from unlazy.comparison.study.more_rows import MoreRowsLaw
from unlazy.comparison.study.partial_dependence import PartialDependence, partial_dependence
from unlazy.comparison.study.study import Study
from unlazy.comparison.study.suspect_errors import SuspectErrors, known_mean
from unlazy.comparison.study.verdict import Verdict, corrected_interval, inner_ratio
from unlazy.estimators.preprocessing.table_encoder import TableEncoder
from unlazy.measures.dependence import count_directions, gradient_directions
from unlazy.measures.learning_curve import RiskCurve
from unlazy.measures.scaling_fit import Interval
from unlazy.measures.spectra import participation_ratio

Character = Literal["low-dimensional", "smooth", "neither", "unknown"]
EQUAL_RISK = 1.1
"""Risks within this factor count as equal when the target is characterized."""
RELEVANT_SHARE = 0.02
"""An input matters if permuting it raises the risk significantly, by at least this share of the largest rise."""
EVERY_SPLIT_SHARE = 0.25
"""An input also matters if the rise is at least this share of the largest in every split, however much splits vary."""


@dataclass(frozen=True)
class Structure:
    """Dependence of the selected rich model on directions and inputs, averaged over splits at the largest size."""

    model: str
    eigenvalues: np.ndarray
    """Eigenvalues of the average gradient outer product, divided by its trace."""
    rank: float
    """Effective rank (participation ratio)."""
    count: int
    """Number of directions that account for 90% of the trace."""
    directions: np.ndarray | None
    """Leading directions as rows, in units of the encoded columns; None if splits encode differently."""
    rise: np.ndarray
    """Rise of the risk when an input is permuted, shape (splits, inputs)."""


@dataclass(frozen=True)
class Findings:
    """The verdict (`verdict.word`) and its evidence."""

    study: Study
    verdict: Verdict
    final: FinalModel | None
    """The fitted model; None if none was requested."""
    law: MoreRowsLaw | None = None
    """Predicted risk with twice the rows."""
    suspects: tuple[Suspect, ...] = ()
    """Likely leaks, identifiers and row numbers among the inputs."""
    suspects_kept: bool = False
    """Whether the models have the suspects as inputs: on request, or because there is no other input."""
    suspect_errors: SuspectErrors | None = None
    """Error of the chosen model with and without the suspects."""

    @cached_property
    def models(self) -> pd.DataFrame:
        """Each model at the largest size it was run at, finalists first, then by risk. A constant has risk 1; low and
        high are the ends of the 95% interval."""
        return models_table(self.study)

    @cached_property
    def chosen(self) -> str:
        """Name of the recommended model: the selected lazy or rich model, whichever has the lower risk."""
        return chosen_model(self.study, self.verdict)

    @cached_property
    def as_good(self) -> tuple[str, ...]:
        """The chosen model and the finalists that are not significantly different from it; without intervals only the
        chosen model."""
        return tuple(name for name, r in self.paired_ratios.items() if r.low <= 1 <= r.high or name == self.chosen)

    @cached_property
    def better(self) -> tuple[str, ...]:
        """Finalists that are significantly better than the chosen model, usually tree ensembles."""
        return tuple(name for name, r in self.paired_ratios.items() if r.high < 1 and name != self.chosen)

    @cached_property
    def paired_ratios(self) -> dict[str, Interval]:
        """Risk of each finalist over that of the chosen model, paired over splits."""
        return paired_ratios(self.study, self.chosen)

    @cached_property
    def ratio_table(self) -> pd.DataFrame:
        """Risk ratios of all models, including those that were only screened on few rows."""
        return ratio_table(self.study, self.chosen)

    @cached_property
    def curves(self) -> dict[str, RiskCurve]:
        """Learning curves by model."""
        return curves(self.study)

    @cached_property
    def curve_table(self) -> pd.DataFrame:
        """Each trial: model, n, split, risk, error estimated on training rows, CPU seconds."""
        names = {"candidate": "model", "inner": "training_error", "work": "seconds_of_work"}
        frame = self.study.records.frame().rename(columns=names)
        kept = ["model", "n", "split", "risk", "training_error", "seconds_of_work"]
        return frame[[*kept, *(["mistakes"] if "mistakes" in frame else [])]]

    @cached_property
    def structure(self) -> Structure | None:
        """Directions and inputs that the selected rich model depends on; None without such a model."""
        return structure(self.study, self.verdict)

    @cached_property
    def inputs(self) -> pd.DataFrame:
        """Each input: its share of the total permutation importance, and whether it matters significantly."""
        if self.structure is None:
            return pd.DataFrame({"input": [], "share": [], "low": [], "high": [], "matters": np.zeros(0, bool)})
        return inputs_table(self.study, self.structure)

    @cached_property
    def directions(self) -> pd.DataFrame:
        """Leading directions of the rich model, one column each, in units of standardized inputs."""
        if self.structure is None or self.structure.directions is None:
            return pd.DataFrame()
        V = self.structure.directions
        names = TableEncoder().fit(self.study.table.frame, self.study.table.y).names_
        index = names if len(names) == V.shape[1] else None
        return pd.DataFrame(V.T, index=index, columns=[f"direction {k + 1}" for k in range(len(V))])

    @cached_property
    def held_out(self) -> HeldOutPredictions | None:
        """Predictions of test rows by the chosen model at the largest size, and the true targets."""
        return held_out_predictions(self.study, self.chosen)

    def radius(self, level: float = 0.9) -> float | None:
        """Half the width of the saved model's prediction interval of this level; None if it has none."""
        return None if self.final is None else interval_radius(self.final, level)

    @cached_property
    def partial(self) -> tuple[PartialDependence, ...]:
        """Partial dependence of the saved model on its most important inputs and the first direction."""
        names = [str(name) for name in self.inputs["input"]] if self.structure is not None else []
        leading = None if self.structure is None else self.structure.directions
        return partial_dependence(self.final, self.study.table, names, None if leading is None else leading[0])

    @cached_property
    def isotropic(self) -> Interval:
        """Risk of the best isotropic kernel over that of the best rich model."""
        return isotropic_ratio(self.study)

    @cached_property
    def expected(self) -> Interval:
        """Expected risk of the best model, relative to a constant."""
        return expected_risk(self.study)

    @cached_property
    def character(self) -> Character:
        """Whether the target looks smooth, low-dimensional, or neither."""
        return character(self.study, self.verdict, self.models, self.structure)

    @property
    def notes(self) -> tuple[str, ...]:
        """Automatic corrections, dropped rows and columns, and limits set by the budget."""
        study = self.study
        left_out = () if study.measured == study.splits else (
            f"{study.splits - study.measured} of {study.splits} test sets have no row of the class "
            f"{str(study.rarest[0])!r} and are left out of its average precision and area under the ROC curve",
        )  # fmt: skip
        return (*study.table.notes, *study.notes, *left_out, *(self.final.notes if self.final else ()))

    @cached_property
    def constant_error(self) -> float:
        """Error of a constant prediction on the test rows of the chosen model, in familiar units, averaged over splits:
        RMSE of the mean, share of mistakes of the most frequent class, or average precision of a random order."""
        return constant_error(self.study, self.chosen)


def curves(study: Study) -> dict[str, RiskCurve]:
    """Learning curves by model, over the splits that all of its sizes have; sizes with fewer than two splits are
    omitted, unless there is only one split."""
    found = {}
    for name in study.candidates:
        mine = study.records.where(candidate=name)
        rows = {
            n: {r.params["split"]: v for r in mine.where(n=n) if not math.isnan(v := r.measures[study.risk_measure])}
            for n in study.sizes
        }
        sizes = tuple(n for n in study.sizes if len(rows[n]) >= min(2, study.splits))
        common = sorted(set.intersection(*(set(rows[n]) for n in sizes))) if sizes else []
        if common:
            found[name] = RiskCurve(sizes, np.array([[rows[n][s] for s in common] for n in sizes]))
    return found


def models_table(study: Study) -> pd.DataFrame:
    """One row per model at the largest size it was run at, finalists first, then by risk: the risk relative to a
    constant, with its interval."""
    rows = []
    for name in study.candidates:
        mine = study.records.where(candidate=name)
        sizes = [n for n in mine.values("n") if n in study.sizes]
        if not sizes:
            continue
        n = sizes[-1]
        last = mine.where(n=n)
        risks = last.measure(study.risk_measure)
        risk = corrected_interval(np.log(np.maximum(risks[~np.isnan(risks)], 1e-9)), study.overlap)
        row = {
            "model": CANDIDATES[name].title, "name": name, "family": CANDIDATES[name].family, "n": n,
            "finalist": name in study.finalists, "risk": risk.value,
            "low": risk.low, "high": risk.high, "seconds": float(np.median(last.measure("work"))),
        }  # fmt: skip
        if study.table.task == "classification":
            row["mistakes"] = float(np.mean(last.measure("mistakes")))
            shown = {"average_precision": ("auc", "precision"), "log_loss": ("log_loss",)}.get(study.metric.name, ())
            row |= {key: known_mean(last.measure(key)) for key in shown}
        else:
            row["rmse"] = math.sqrt(float(np.mean(last.measure("risk") * last.measure("constant"))))
        rows.append(row)
    table = pd.DataFrame(rows)
    return table.sort_values(["finalist", "n", "risk"], ascending=[False, False, True], ignore_index=True)


def constant_error(study: Study, name: str) -> float:
    """Error of a constant learned from the training rows of each split, on the test rows of a model's largest
    trials."""
    last = study.records.where(candidate=name, n=study.sizes[-1])
    if study.table.task == "regression":
        return math.sqrt(float(np.mean(last.measure("constant"))))
    errors, labels = [], study.table.y
    for r in last:
        train, test = split_rows(study.table, r.params["split"], r.params.get("draw", 0))
        if study.rare:
            errors.append(float(np.mean(labels[test] == study.rarest[0])) or math.nan)  # a split without it is left out
        else:
            classes, counts = np.unique(labels[train[: r.params["n"]]], return_counts=True)
            errors.append(float(np.mean(labels[test] != classes[np.argmax(counts)])))
    return known_mean(np.array(errors))


def chosen_model(study: Study, verdict: Verdict) -> str:
    """The selected lazy or rich model, whichever has the lower mean risk at the largest size."""
    picks = [name for name in (verdict.picks["rich"], verdict.picks["lazy"]) if name]
    found = paired_ratios(study, picks[0]) if picks else {}
    return min(picks, key=lambda name: found[name].value, default=study.finalists[0])


def structure(study: Study, verdict: Verdict) -> Structure | None:
    """Directions and inputs of the rich model that was selected most often."""
    name = verdict.picks["rich"]
    records = study.records.where(candidate=name, n=study.sizes[-1]) if name else []
    if not len(records):
        return None
    spectra = [np.asarray(r.measures["eigenvalues"]) for r in records]
    rise = np.array([r.measures["rise"] for r in records])
    same = len({len(s) for s in spectra}) == 1
    values = np.mean(spectra, axis=0) if same else spectra[0]
    leading = gradient_directions(np.stack([_weighted(r.measures) for r in records]))[1] if same else None
    rank = float(np.mean([participation_ratio(s) for s in spectra]))
    return Structure(name, values, rank, count_directions(values), leading, rise)


def _weighted(measures: dict) -> np.ndarray:
    """Directions times the square roots of their eigenvalues; the outer products of the rows sum to the matrix."""
    V = np.asarray(measures["directions"])
    return np.sqrt(np.asarray(measures["eigenvalues"])[: len(V)])[:, None] * V


def inputs_table(study: Study, found: Structure) -> pd.DataFrame:
    """One row per input, most important first: the rise of the risk when it is permuted, as a share of the total rise,
    and whether it matters. The rise itself is tested, because its share depends on the other inputs: its interval over
    splits must lie above zero, or every split must show a good part of the largest rise."""
    rise, r = found.rise, study.overlap
    J, mean = len(rise), rise.mean(0)
    error = np.sqrt((1 / J + r / (1 - r)) * rise.var(0, ddof=1)) if J > 1 else np.full(len(mean), np.inf)
    reach = float(scipy.stats.t.ppf(0.975, max(1, J - 1))) * error
    largest, total = max(float(mean.max(initial=0)), 1e-12), max(float(np.maximum(mean, 0).sum()), 1e-12)
    matters = (mean - reach > 0) & (mean >= RELEVANT_SHARE * largest)
    if J > 1:
        matters |= (rise.min(0) >= EVERY_SPLIT_SHARE * largest) & (rise.min(0) > 0)
    shares = {"share": mean / total, "low": (mean - reach) / total, "high": (mean + reach) / total}
    table = {"input": list(study.table.frame.columns), **shares, "matters": matters}
    return pd.DataFrame(table).sort_values("share", ascending=False, ignore_index=True)


def isotropic_ratio(study: Study) -> Interval:
    """Risk of the best isotropic kernel over that of the best rich model at the largest size, both selected on training
    rows."""
    mine = [name for name in study.finalists if CANDIDATES[name].isotropic]
    rich = [name for name in study.finalists if CANDIDATES[name].family == "rich"]
    return inner_ratio(study, study.sizes[-1], mine, rich)


def character(study: Study, verdict: Verdict, models: pd.DataFrame, found: Structure | None) -> Character:
    """Smooth, low-dimensional or neither; unknown if the verdict is undecided or noise, or with one split."""
    if verdict.word == "noise" or study.splits < 2 or not len(models):
        return "unknown"
    few = found is not None and found.count <= max(1, len(found.eigenvalues) / 2)
    if verdict.word == "pays" and few:
        return "low-dimensional"
    last = models[models["finalist"]]
    best = last["risk"].min()
    if last[last["name"].map(lambda name: CANDIDATES[name].isotropic)]["risk"].min() <= EQUAL_RISK * best:
        return "smooth"
    if few and last[last["family"] == "rich"]["risk"].min() <= EQUAL_RISK * best:
        return "low-dimensional" if verdict.word == "does not pay" else "unknown"
    return "unknown" if verdict.word == "undecided" else "neither"


def expected_risk(study: Study) -> Interval:
    """Risk of the best model at the largest size, selected for each split on the other splits to avoid selection
    bias."""
    last = study.records.where(n=study.sizes[-1])
    risks = {(r.params["candidate"], r.params["split"]): r.measures[study.risk_measure] for r in last}
    logs = np.log(np.maximum([[risks[c, s] for s in range(study.splits)] for c in study.finalists], 1e-9))
    logs = logs[:, ~np.isnan(logs).any(0)]
    J = logs.shape[1]
    if J < 2:
        return Interval(float(np.exp(logs.min())) if J else math.nan, math.nan, math.nan)
    picked = [logs[np.argmin(np.delete(logs, s, 1).mean(1)), s] for s in range(J)]
    return corrected_interval(np.array(picked), study.overlap)
