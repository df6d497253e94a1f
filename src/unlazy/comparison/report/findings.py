"""What the records say: the verdict, every model's risk, which directions and inputs matter, what to use.

`Findings` is the whole answer as a value; words, figures and page read it.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from unlazy.comparison.data.leakage import Suspect
from unlazy.comparison.report.paired_ratios import gap_table, gaps
from unlazy.comparison.study.contestants import CONTESTANTS
from unlazy.comparison.study.held_out import HeldOut, held_out
from unlazy.comparison.study.model import Final, interval_radius
from unlazy.comparison.study.more_rows import Law
from unlazy.comparison.study.partial_dependence import Partial, partial
from unlazy.comparison.study.study import Study
from unlazy.comparison.study.verdict import Verdict, corrected, inner_ratio
from unlazy.measures.dependence import count_directions, directions_of
from unlazy.measures.learning_curve import Curve
from unlazy.measures.scaling_fit import Interval
from unlazy.measures.spectra import participation_ratio

if TYPE_CHECKING:
    import pandas as pd

Character = Literal["low-dimensional", "smooth", "neither", "unknown"]
ALIKE = 1.1
"""Risks within this factor count as equal when the target is described."""
RELEVANT = 0.02
"""An input matters if shuffling it surely raises the risk, by at least this share of the largest rise."""
EVERY = 0.25
"""Or by this share in every split: splits that differ in size, not in sign, do not make it doubtful."""


@dataclass(frozen=True)
class Structure:
    """What the chosen rich model depends on, averaged over splits at the largest size."""

    model: str
    eigenvalues: np.ndarray
    """Of the average gradient outer product, over its trace."""
    rank: float
    count: int
    """Directions that carry nine tenths of it."""
    directions: np.ndarray | None
    """Leading ones as rows, in units of the encoded columns; None where splits encode differently."""
    rise: np.ndarray
    """Rise of the risk when an input is shuffled: splits × inputs."""


@dataclass(frozen=True)
class Findings:
    """Does feature learning pay on this table? The answer is `verdict.word`; all else is its evidence."""

    study: Study
    verdict: Verdict
    final: Final | None
    """The fitted model that can be saved; None where none was asked for."""
    law: Law | None = None
    """What twice the rows would bring."""
    suspects: tuple[Suspect, ...] = ()
    """Inputs that may tell what no one would know: likely leaks, identifiers."""
    without: "Findings | None" = None
    """The findings without them."""

    @cached_property
    def models(self) -> "pd.DataFrame":
        """Every model at the largest size, best first. Risk 1 is the constant's; low and high its 95% interval."""
        return models_table(self.study)

    @cached_property
    def chosen(self) -> str:
        """The model to use: the lazy or the rich pick, whichever has the smaller risk."""
        return chosen_model(self.study, self.verdict)

    @cached_property
    def as_good(self) -> tuple[str, ...]:
        """Finalists that are neither surely better nor surely worse than the chosen model, itself among them; nobody
        else where too few splits have no interval."""
        return tuple(name for name, gap in self.gaps.items() if gap.low <= 1 <= gap.high or name == self.chosen)

    @cached_property
    def better(self) -> tuple[str, ...]:
        """Finalists that are surely better than the chosen model: outsiders, as a rule."""
        return tuple(name for name, gap in self.gaps.items() if gap.high < 1 and name != self.chosen)

    @cached_property
    def gaps(self) -> dict[str, Interval]:
        """Risk of every finalist over the chosen model's, paired over splits."""
        return gaps(self.study, self.chosen)

    @cached_property
    def gap_table(self) -> "pd.DataFrame":
        """The same for every model, also those that were tried on few rows only."""
        return gap_table(self.study, self.chosen)

    @cached_property
    def curves(self) -> dict[str, Curve]:
        """Learning curves by model."""
        return curves(self.study)

    @cached_property
    def curve_table(self) -> "pd.DataFrame":
        """Every trial's risk: model, n, split, risk, error estimated on training rows, seconds of work."""
        names = {"contestant": "model", "inner": "training_error", "work": "seconds_of_work"}
        frame = self.study.records.frame().rename(columns=names)
        kept = ["model", "n", "split", "risk", "training_error", "seconds_of_work"]
        return frame[[*kept, *(["mistakes"] if "mistakes" in frame else [])]]

    @cached_property
    def structure(self) -> Structure | None:
        return structure(self.study, self.verdict)

    @cached_property
    def inputs(self) -> "pd.DataFrame":
        """Every input: its share of the rise of the risk when inputs are shuffled, and whether it surely matters."""
        import pandas as pd

        if self.structure is None:
            return pd.DataFrame({"input": [], "share": [], "low": [], "high": [], "matters": np.zeros(0, bool)})
        return inputs_table(self.study, self.structure)

    @cached_property
    def directions(self) -> "pd.DataFrame":
        """Leading directions of the rich model, a column each, in units of standardized inputs."""
        import pandas as pd

        from unlazy.estimators.preprocessing.table_encoder import TableEncoder

        if self.structure is None or self.structure.directions is None:
            return pd.DataFrame()
        V = self.structure.directions
        names = TableEncoder().fit(self.study.table.frame, self.study.table.y).names_
        index = names if len(names) == V.shape[1] else None
        return pd.DataFrame(V.T, index=index, columns=[f"direction {k + 1}" for k in range(len(V))])

    @cached_property
    def held_out(self) -> HeldOut | None:
        """The chosen model's predictions of test rows at the largest size, and the truth."""
        return held_out(self.study, self.chosen)

    def radius(self, level: float = 0.9) -> float | None:
        """A new row's target lies within so much of the saved model's prediction, with this probability; None where
        that cannot be said."""
        return None if self.final is None else interval_radius(self.final, level)

    @cached_property
    def partial(self) -> tuple[Partial, ...]:
        """What the saved model predicts along its most important inputs and the first direction, others as they are."""
        names = [str(name) for name in self.inputs["input"]] if self.structure is not None else []
        leading = None if self.structure is None else self.structure.directions
        return partial(self.final, self.study.table, names, None if leading is None else leading[0])

    @cached_property
    def isotropic(self) -> Interval:
        """Risk of the best isotropic kernel over that of the best rich model."""
        return isotropic_ratio(self.study)

    @cached_property
    def expected(self) -> Interval:
        """Risk to expect of the best model, in units of the constant's."""
        return expected_risk(self.study)

    @cached_property
    def character(self) -> Character:
        """Whether the target is closer to smooth, low-dimensional, or neither."""
        return character(self.study, self.verdict, self.models, self.structure)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was mended, left out or cut short."""
        return (*self.study.table.notes, *self.study.notes, *(self.final.notes if self.final else ()))


def curves(study: Study) -> dict[str, Curve]:
    """Learning curves by contestant, over the splits that all of its sizes have; a size of fewer than two splits is
    left out, unless there is but one split."""
    found = {}
    for name in study.contestants:
        mine = study.records.where(contestant=name)
        rows = {n: {r.params["split"]: r.measures["risk"] for r in mine.where(n=n)} for n in study.sizes}
        sizes = tuple(n for n in study.sizes if len(rows[n]) >= min(2, study.splits))
        common = sorted(set.intersection(*(set(rows[n]) for n in sizes))) if sizes else []
        if common:
            found[name] = Curve(sizes, np.array([[rows[n][s] for s in common] for n in sizes]))
    return found


def models_table(study: Study) -> "pd.DataFrame":
    """A row a contestant at the largest size it was tried at, finalists first, then best first: risk in units of the
    constant's, with its interval."""
    import pandas as pd

    rows = []
    for name in study.contestants:
        mine = study.records.where(contestant=name)
        sizes = [n for n in mine.values("n") if n in study.sizes]
        if not sizes:
            continue
        n = sizes[-1]
        last = mine.where(n=n)
        risk = corrected(np.log(np.maximum(last.measure(study.judged_by), 1e-9)), study.overlap)
        row = {
            "model": CONTESTANTS[name].title, "name": name, "family": CONTESTANTS[name].family, "n": n,
            "finalist": name in study.finalists, "risk": risk.value,
            "low": risk.low, "high": risk.high, "seconds": float(np.median(last.measure("work"))),
        }  # fmt: skip
        if study.table.task == "classification":
            row["mistakes"] = float(np.mean(last.measure("mistakes")))
            if study.rare:
                row |= {
                    "auc": float(np.mean(last.measure("auc"))),
                    "precision": float(np.mean(last.measure("precision"))),
                }
        else:
            row["rmse"] = math.sqrt(float(np.mean(last.measure("risk") * last.measure("constant"))))
        rows.append(row)
    table = pd.DataFrame(rows)
    return table.sort_values(["finalist", "n", "risk"], ascending=[False, False, True], ignore_index=True)


def chosen_model(study: Study, verdict: Verdict) -> str:
    """The lazy or the rich pick, whichever has the smaller mean risk at the largest size."""
    picks = [name for name in (verdict.picks["rich"], verdict.picks["lazy"]) if name]
    found = gaps(study, picks[0]) if picks else {}
    return min(picks, key=lambda name: found[name].value, default=study.finalists[0])


def structure(study: Study, verdict: Verdict) -> Structure | None:
    """Directions and inputs of the rich model that was chosen most often."""
    name = verdict.picks["rich"]
    records = study.records.where(contestant=name, n=study.sizes[-1]) if name else []
    if not len(records):
        return None
    spectra = [np.asarray(r.measures["eigenvalues"]) for r in records]
    rise = np.array([r.measures["rise"] for r in records])
    same = len({len(s) for s in spectra}) == 1
    values = np.mean(spectra, axis=0) if same else spectra[0]
    leading = directions_of(np.stack([_weighted(r.measures) for r in records]))[1] if same else None
    rank = float(np.mean([participation_ratio(s) for s in spectra]))
    return Structure(name, values, rank, count_directions(values), leading, rise)


def _weighted(measures: dict) -> np.ndarray:
    """Directions by the root of their eigenvalues: the outer products of these rows add up to the matrix."""
    V = np.asarray(measures["directions"])
    return np.sqrt(np.asarray(measures["eigenvalues"])[: len(V)])[:, None] * V


def inputs_table(study: Study, found: Structure) -> "pd.DataFrame":
    """A row an input, most important first: the rise of the risk when it is shuffled, as a share of all inputs' mean
    rises, and whether it surely matters. The rise itself is tested, not its share, which the rises of others move: its
    interval over splits lies above zero, or every single split shows a good part of the largest rise."""
    import pandas as pd
    from scipy.stats import t

    rise, r = found.rise, study.overlap
    J, mean = len(rise), rise.mean(0)
    error = np.sqrt((1 / J + r / (1 - r)) * rise.var(0, ddof=1)) if J > 1 else np.full(len(mean), np.inf)
    reach = float(t.ppf(0.975, max(1, J - 1))) * error
    largest, total = max(float(mean.max(initial=0)), 1e-12), max(float(np.maximum(mean, 0).sum()), 1e-12)
    matters = (mean - reach > 0) & (mean >= RELEVANT * largest)
    if J > 1:
        matters |= (rise.min(0) >= EVERY * largest) & (rise.min(0) > 0)
    shares = {"share": mean / total, "low": (mean - reach) / total, "high": (mean + reach) / total}
    table = {"input": list(study.table.frame.columns), **shares, "matters": matters}
    return pd.DataFrame(table).sort_values("share", ascending=False, ignore_index=True)


def isotropic_ratio(study: Study) -> Interval:
    """Risk of the best isotropic kernel over the best rich model's, both chosen on training rows, at the largest
    size."""
    mine = [name for name in study.finalists if CONTESTANTS[name].isotropic]
    rich = [name for name in study.finalists if CONTESTANTS[name].family == "rich"]
    return inner_ratio(study, study.sizes[-1], mine, rich)


def character(study: Study, verdict: Verdict, models: "pd.DataFrame", found: Structure | None) -> Character:
    """Closer to smooth, to low-dimensional, or to neither; unknown where the verdict does not tell, or one split."""
    if verdict.word == "noise" or study.splits < 2 or not len(models):
        return "unknown"
    few = found is not None and found.count <= max(1, len(found.eigenvalues) / 2)
    if verdict.word == "pays" and few:
        return "low-dimensional"
    last = models[models["finalist"]]
    best = last["risk"].min()
    if last[last["name"].map(lambda name: CONTESTANTS[name].isotropic)]["risk"].min() <= ALIKE * best:
        return "smooth"
    if few and last[last["family"] == "rich"]["risk"].min() <= ALIKE * best:
        return "low-dimensional" if verdict.word == "does not pay" else "unknown"
    return "unknown" if verdict.word == "undecided" else "neither"


def expected_risk(study: Study) -> Interval:
    """Risk of the best model at the largest size, chosen for each split by the other splits: the choice's own optimism
    is not in it."""
    last = study.records.where(n=study.sizes[-1])
    risks = {(r.params["contestant"], r.params["split"]): r.measures["risk"] for r in last}
    logs = np.log(np.maximum([[risks[c, s] for s in range(study.splits)] for c in study.finalists], 1e-9))
    J = logs.shape[1]
    if J < 2:
        return Interval(float(np.exp(logs.min())), math.nan, math.nan)
    picked = [logs[np.argmin(np.delete(logs, s, 1).mean(1)), s] for s in range(J)]
    return corrected(np.array(picked), study.overlap)
