"""Pages from Jinja templates: text is escaped, figures are inside, nothing is fetched.

A page's template lies beside the module that fills it and extends `layout.html`.
"""

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from unlazy.core.files import written_whole
from unlazy.lab.report.marks import MOST, behind, marks
from unlazy.lab.report.math_html import typeset
from unlazy.lab.report.style import save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HERE = Path(__file__).parent


class Picture(NamedTuple):
    """A figure as a page shows it: what it says, its pixels in base64, the name of its PDF, what lies where."""

    text: str
    data: str
    pdf: str
    marks: str
    """JSON of `marks`."""
    behind: str = "{}"
    """JSON: the numbers of the claims behind each curve."""


def picture(
    figure: "Figure", folder: Path, name: str, text: str, statements: Sequence[str] = (), most: int = MOST
) -> Picture:
    """Write figures/NAME.png and .pdf into `folder` and close the figure; `statements` are the claims it is about,
    `most` the points of one curve that answer to the pointer."""
    from matplotlib import pyplot as plt

    try:
        png, pdf = save_figure(figure, folder / "figures", name)
        found = [json.dumps(part, ensure_ascii=False, separators=(",", ":"))
                 for part in (marks(figure, most), behind(figure, statements))]  # fmt: skip
    finally:
        plt.close(figure)
    return Picture(text, base64.b64encode(png.read_bytes()).decode(), pdf.name, *found)


def write(page: Path, template: Path, **values: Any) -> Path:
    """Fill the template and write the page; a name that the template uses and nobody gives is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    pages = Environment(
        loader=FileSystemLoader([template.parent, _HERE]), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    pages.filters["math"] = lambda text: Markup(typeset(text))
    text = pages.get_template(template.name).render(**values)
    with written_whole(page) as aside:
        aside.write_text(text, encoding="utf-8")
    return page
