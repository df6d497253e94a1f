"""HTML pages from Jinja templates: text is escaped, figures are embedded, and no network is needed.

The template of a page is next to the module that fills it and extends `layout.html`.
"""

import base64
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from unlazy.core.files import atomic_write
from unlazy.core.pages.figure_style import save_figure
from unlazy.core.pages.math_html import typeset
from unlazy.core.pages.tooltips import MAX_POINTS, claims_by_curve, figure_marks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HERE = Path(__file__).parent


class Picture(NamedTuple):
    """A figure on a page: caption, PNG in base64, name of its PDF if it has one, positions of its points."""

    text: str
    data: str
    pdf: str
    marks: str
    """JSON of `figure_marks`."""
    claims: str = "{}"
    """JSON of `claims_by_curve`."""
    alt: str = ""
    """What the picture shows, for those who do not see it; the caption by default."""


def picture(
    figure: "Figure", folder: Path, name: str, text: str, statements: Sequence[str] = (), most: int = MAX_POINTS
) -> Picture:
    """Write figures/NAME.png and .pdf into `folder` and close the figure; `statements` are the claims it shows, `most`
    is the maximum number of points per curve with a tooltip."""
    from matplotlib import pyplot as plt

    try:
        png, pdf = save_figure(figure, folder / "figures", name)
        found = [json.dumps(part, ensure_ascii=False, separators=(",", ":"))
                 for part in (figure_marks(figure, most), claims_by_curve(figure, statements))]  # fmt: skip
    finally:
        plt.close(figure)
    return Picture(text, base64.b64encode(png.read_bytes()).decode(), pdf.name, *found)


def embedded(figure: "Figure", text: str, alt: str, most: int = MAX_POINTS) -> Picture:
    """The figure as part of the page alone, without a PDF beside it."""
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    marks = json.dumps(figure_marks(figure, most), ensure_ascii=False, separators=(",", ":"))
    return Picture(text, base64.b64encode(file.getvalue()).decode(), "", marks, alt=alt)


def write(page: Path, template: Path, **values: object) -> Path:
    """Fill the template and write the page; a missing value raises an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    pages = Environment(
        loader=FileSystemLoader([template.parent, _HERE]), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    pages.filters["math"] = lambda text: Markup(typeset(text))
    text = pages.get_template(template.name).render(**values)
    with atomic_write(page) as aside:
        aside.write_text(text, encoding="utf-8")
    return page
