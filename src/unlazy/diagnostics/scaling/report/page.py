"""The page of a scaling check: one self-contained HTML file."""

import html
import math
from pathlib import Path

from unlazy._version import VERSION
from unlazy.core.errors import UnlazyError
from unlazy.core.pages import math_html, template
from unlazy.core.pages.figure_style import figure_style
from unlazy.diagnostics.scaling.exponents import Exponents
from unlazy.diagnostics.scaling.report.figure import exponents_figure, sizes_figure
from unlazy.diagnostics.scaling.rules import LIMITS
from unlazy.diagnostics.scaling.texts import describe, label


def write_scaling_page(check: Exponents, path: str | Path) -> Path:
    """Write verdict, what to change, plots and all exponents.

    Parameters
    ----------
    check : Exponents
        The result.
    path : str or Path
        HTML file to write.

    Returns
    -------
    Path

    Raises
    ------
    UnlazyError
        If the file cannot be written.
    """
    path = Path(path)
    with figure_style():
        pictures = _pictures(check)
    try:
        return template.write(
            path, Path(__file__).with_name("scaling.html"), title=page_title(check), verdict=check.verdict,
            advice=check.advice(), widths=", ".join(map(str, check.widths)), pictures=pictures, rows=_rows(check),
            runs=_runs(check), limits=LIMITS, formulas=math_html.tags_in(["[W1], [T1], [T2]"]), version=VERSION,
        )  # fmt: skip
    except OSError as error:
        why = error.strerror or error
        raise UnlazyError(f"cannot write the page to {path}: {why}; choose another file") from error


def scaling_fragment(check: Exponents) -> str:
    """The verdict and the errors as HTML, for notebooks."""
    items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in check.advice())
    return f"<p><b>{html.escape(check.verdict)}</b></p>" + (f"<ul>{items}</ul>" if items else "")


def page_title(check: Exponents) -> str:
    """The verdict in a few words."""
    if check.ok:
        return "This network scales"
    count = len(check.wrong)
    return f"This network does not scale: {count} wrong exponent{'' if count == 1 else 's'}"


def _pictures(check: Exponents) -> list[template.Picture]:
    from matplotlib import pyplot as plt

    shown = [(exponents_figure(check), "Exponents of the width, minus the right ones.", f"{check.verdict}")]
    if check.coordinates:
        shown += [
            (sizes_figure(check, "before"), "Sizes of the outputs of layers at initialization.", "lines over widths"),
            (sizes_figure(check, "changes"), "Change of the outputs of layers by training; flat if features are "
             "learned at every width.", "lines over widths"),
        ]  # fmt: skip
    try:
        return [template.embedded(figure, caption, alt) for figure, caption, alt in shown]
    finally:
        for figure, *_ in shown:
            plt.close(figure)


def _rows(check: Exponents) -> list[dict[str, str]]:
    return [
        {"parameter": f.name, "measured": label(f), "role": f.role,
         "exponent": f"{f.excess.value:+.2f}" + (f" ± {f.excess.error:.2f}" if math.isfinite(f.excess.error) else ""),
         "verdict": describe(f) if f.wrong else "right"}
        for f in check.findings if f.excess.known
    ]  # fmt: skip


def _runs(check: Exponents) -> list[dict[str, str]]:
    return [
        {"width": str(c.sizes["width"]), "output": f"{c.output:.3g}", "change": f"{c.output_change:.3g}",
         "gap": f"{c.gap:.2g}", "losses": ", ".join(f"{loss:.3g}" for loss in c.losses)}
        for c in check.coordinates
    ]  # fmt: skip
