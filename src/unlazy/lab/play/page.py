"""One page to play with: three stages in one HTML file that needs no network and no build step.

The scripts under js/ are modules with JSDoc types. The page holds them one after the other, without the lines that
import and export, in the order of `MODULES`: each imports only from those before it, and a name stands in one of them.
"""

import json
import re
from pathlib import Path

from unlazy._version import VERSION
from unlazy.core.errors import UnlazyError
from unlazy.lab.report import math_html, template

HERE = Path(__file__).parent
MODULES = (
    "random", "linear", "kernels", "flow", "network", "picture", "controls", "points", "stage_kernel", "tasks",
    "training", "rich_pictures", "stage_rich", "one_step", "stage_samples", "main",
)  # fmt: skip
STAGES = (("kernel", "A kernel machine"), ("rich", "Lazy to rich"), ("samples", "How many samples?"))

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./\w+\.js";\n', re.M)
_EXPORT = re.compile(r"^export (?=(?:async )?function|const|class)", re.M)


def script() -> str:
    """All modules as one, in the order in which they need each other."""
    texts = ((HERE / "js" / f"{name}.js").read_text("utf-8") for name in MODULES)
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", text)) for text in texts)


def formulas() -> list[math_html.Tag]:
    """The tags that the stages name."""
    return math_html.named((HERE / f"stage_{name}.html").read_text("utf-8") for name, _ in STAGES)


def write_play(page: Path) -> Path:
    """Write the page; returns its path."""
    from markupsafe import Markup

    page = Path(page)
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        grid = json.loads((HERE / "samples.json").read_text("utf-8"))
        return template.write(
            page, HERE / "play.html", script=Markup(script()), stages=STAGES, grid=grid,
            numbers=lambda values: [(str(v), str(v)) for v in values], version=VERSION,
            formulas=formulas(),
        )  # fmt: skip
    except OSError as error:
        why = error.strerror or error
        raise UnlazyError(f"cannot write the page to {page}: {why}; choose another place with --out") from error
