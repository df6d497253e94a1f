"""The page of a run: one self-contained HTML file, readable offline, on a phone and in print."""

import math
from pathlib import Path

from markupsafe import Markup

from unlazy._version import VERSION
from unlazy.core.errors import UnlazyError
from unlazy.core.pages import math_html, template
from unlazy.core.pages.figure_style import figure_style
from unlazy.diagnostics.advice import Advice
from unlazy.diagnostics.record import Check, LayerCheck, Record
from unlazy.diagnostics.report.figures import MAX_PANELS, Drawing, layer_panels, measure_plots
from unlazy.diagnostics.verdict import BROKEN_GAP, EARLY, LAZY_GAP, MIN_STEPS, MOVED, RICH_GAP, STILL, STUCK_LOSS

TITLES = {
    "lazy": "This run is lazy: a kernel machine",
    "intermediate": "This run is between lazy and rich",
    "rich": "This run is rich: it learns features",
    "broken": "This run is broken",
    "too early": "Too early to say",
}
"""The verdict as the title of the page."""
AHEAD = {
    "lazy": "This run is heading for the lazy regime",
    "intermediate": "This run is heading for a place between lazy and rich",
    "rich": "This run is heading for the rich regime",
}
"""The same while the run goes on."""
MEASURES = (
    ("gap", "linearization gap", "share of the change of the function that is not linear in the parameters [W1]"),
    ("change", "change of the outputs", "relative to the outputs at initialization"),
    ("loss", "loss", "mean cross-entropy or squared error on the probe points"),
    ("error", "error", "share of wrong labels, or squared error relative to that of a constant"),
    ("kernel_movement", "kernel movement", "change of the tangent kernel, relative to that at initialization [W2]"),
    ("kernel_distance", "kernel distance", "1 - cosine between the tangent kernels at initialization and now [W2]"),
    ("label_alignment", "alignment with labels", "of the centered tangent kernel [W3]"),
    ("residual_alignment", "alignment with the residual", "of the centered tangent kernel [W3]"),
    ("richness", "richness", "1 - alignment of the last features with the outputs [W4]"),
    ("sharpness", "sharpness", "largest eigenvalue of the Hessian of the loss on the probe points [W5]"),
    ("stability", "sharpness × step size", "gradient descent is unstable above 2 [W5]"),
)  # fmt: skip
"""Fields of a check, their names and what they are."""


def write_page(record: Record | str | Path, path: str | Path) -> Path:
    """Write the record of a run as a self-contained HTML page.

    The page has the verdict and the advice, plots of all measures over training steps, one panel per layer, the last
    check and the rules. It needs neither the network nor JAX nor a connection.

    Parameters
    ----------
    record : Record, str or Path
        The record, or the JSON file that `Monitor.save` wrote.
    path : str or Path
        HTML file to write.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    UnlazyError
        If the record cannot be read or the page cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from unlazy.diagnostics import Check, Record, write_page
    >>> record = Record((Check(step=100, points=64, gap=0.05, gap_error=0.01, change=1.0),), planned_steps=100)
    >>> page = write_page(record, Path(tempfile.mkdtemp()) / "page.html")
    >>> "linearization gap is 0.05 ± 0.01" in page.read_text(encoding="utf-8")
    True
    """
    record = record if isinstance(record, Record) else Record.load(record)
    path = Path(path)
    with figure_style():
        pictures = [_picture(drawing) for drawing in measure_plots(record)]
        panels = [_picture(drawing) for drawing in layer_panels(record)]
    verdict, advice = record.verdict, record.advise()
    texts = [*(text for _, _, text in MEASURES), "[W4], [W6]", str(advice)]
    try:
        return template.write(
            path, Path(__file__).with_name("watch.html"), title=page_title(record), text=verdict.text,
            facts=_facts(record), pictures=pictures, panels=panels, levers=_levers(advice), advice=advice,
            layers=_layers(record), last=_last_check(record), rules=rules(record), notes=record.notes,
            still=STILL, moved=MOVED, drawn=MAX_PANELS,
            progress=_progress(record), formulas=math_html.tags_in(texts), version=VERSION,
        )  # fmt: skip
    except OSError as error:
        why = error.strerror or error
        raise UnlazyError(f"cannot write the page to {path}: {why}; choose another file") from error


def page_title(record: Record) -> str:
    """The verdict in a few words."""
    verdict, end = record.verdict, record.planned_steps
    running = end is not None and verdict.step < end
    return AHEAD.get(verdict.word, TITLES[verdict.word]) if running else TITLES[verdict.word]


def _progress(record: Record) -> str:
    step = record.checks[-1].step if record.checks else record.step
    planned = f" of {record.planned_steps:,}" if record.planned_steps else ""
    count = len(record.checks)
    return f"step {step:,}{planned} · {count} check{'' if count == 1 else 's'}"


def _picture(drawing: Drawing) -> template.Picture:
    from matplotlib import pyplot as plt

    try:
        return template.embedded(drawing.figure, _typeset(drawing.caption), drawing.alt)
    finally:
        plt.close(drawing.figure)


def _facts(record: Record) -> list[tuple[str, str]]:
    """What stands beside the verdict: probabilities, loss, cost of the checks."""
    verdict, found = record.verdict, []
    if verdict.forecast is not None and verdict.word not in ("too early", "broken"):
        chances = ", ".join(f"{name} {chance:.0%}" for name, chance in verdict.forecast.probabilities.items())
        found.append(("Probability", f"{chances} at the {'end' if record.planned_steps else 'last check'}"))
    last = record.checks[-1] if record.checks else None
    if last is not None and math.isfinite(record.initial_loss) and math.isfinite(last.loss):
        error = f", error {last.error:.3g}" if math.isfinite(last.error) else ""
        text = f"{record.initial_loss:.3g} at initialization, {last.loss:.3g} at step {last.step:,}{error}"
        found.append(("Loss on the probe points", text))
    if math.isfinite(record.overhead):
        found.append(("Cost of the checks", f"{record.overhead:.1%} of the training time"))
    return found


def _levers(advice: Advice) -> list[dict[str, Markup]]:
    """Rows of the table of advice."""
    return [
        {"change": _typeset(_capital(lever.change)), "why": _typeset(lever.law), "cost": _typeset(lever.cost)}
        for lever in advice.levers
    ]


def _typeset(text: str) -> Markup:
    return Markup(math_html.typeset(text))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _last_check(record: Record) -> list[dict[str, object]]:
    """The latest value of every measure: what costs much is not taken at every check."""
    rows: list[dict[str, object]] = []
    for name, title, meaning in MEASURES:
        taken = [c for c in record.checks if math.isfinite(getattr(c, name))]
        if taken:
            check = taken[-1]
            value, error = getattr(check, name), _standard_error(check, name)
            shown = f"{value:.3g}" + (f" ± {error:.1g}" if math.isfinite(error) and error > 0 else "")
            rows.append({"measure": title, "value": shown, "step": f"{check.step:,}", "meaning": _typeset(meaning)})
    return rows


def _standard_error(check: Check, name: str) -> float:
    if name.endswith("_alignment"):  # a relative error of both
        return check.alignment_error * abs(getattr(check, name))
    return getattr(check, f"{name}_error", math.nan) if name != "error" else math.nan


def _layers(record: Record) -> list[dict[str, str]]:
    """Rows of the table of layers, at the last check that measured them."""
    measured = [c for c in record.checks if c.layers]
    if not measured:
        return []
    states = record.verdict.layers
    words = {"still": "has not moved", "moving": "has moved a little", "moved": "learned features"}
    return [
        {
            "layer": name,
            "verdict": "readout" if name in record.output_layers else words.get(states.get(name, ""), ""),
            "outputs": _number(layer.movement),
            "parameters": _number(layer.parameters),
            "similarity": _number(layer.similarity),
            "effective rank": _ranks(layer),
        }
        for name, layer in measured[-1].layers.items()
    ]


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3g}"


def _ranks(layer: LayerCheck) -> str:
    if math.isnan(layer.effective_rank):
        return ""
    before = "" if math.isnan(layer.initial_rank) else f"{layer.initial_rank:.3g} → "
    return f"{before}{layer.effective_rank:.3g}"


def rules(record: Record) -> list[str]:
    """How the verdict was reached, with its thresholds."""
    points = [c.points for c in record.checks if c.points]
    wait = f"{EARLY:.0%} of the planned steps" if record.planned_steps else f"{MIN_STEPS} steps"
    found = [
        f"Regime: the linearization gap g at the end of the run. Lazy below {LAZY_GAP}, rich above {RICH_GAP}, "
        "intermediate between them.",
        f"No verdict before {wait}: every run looks lazy at first.",
        "Forecast: log g/(1 - g) is extrapolated in the logarithm of the step from the last checks, with an error that "
        "grows with the distance. Probabilities of the regimes are those of the forecast.",
        f"Broken: outputs or parameters that are not finite, or a gap above {BROKEN_GAP} while the loss on the probe "
        f"points is above {STUCK_LOSS:.0%} of that at initialization.",
        f"A layer has not moved if its outputs changed by less than {STILL} relative to initialization; it learned "
        f"features if they changed by more than {MOVED}.",
    ]
    if points:
        found.append(
            f"The gap is exact on {points[-1]} probe points; its standard error is that over points. The tangent "
            "kernel is sketched by random vectors, whose standard errors are given."
        )
    facts = []
    if record.step_size is not None:
        facts.append(f"learning rate {record.step_size:g}")
    if record.scale != 1:
        facts.append(f"output scale α = {record.scale:.3g}")
    facts.append("planned steps unknown" if record.planned_steps is None else f"{record.planned_steps:,} planned steps")
    return [*found, f"Run: {', '.join(facts)}."]
