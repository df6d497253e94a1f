"""The interactive page: three stages in one HTML file that needs no network and no build step.

The scripts under js/ are modules with JSDoc types. The page contains their concatenation, without import and export
statements, in the order of `MODULES`: each module imports only from earlier ones, and names are unique.
"""

import json
import re
from pathlib import Path

from markupsafe import Markup

from unlazy._version import VERSION
from unlazy.core.errors import UnlazyError
from unlazy.core.pages import math_html, template

HERE = Path(__file__).parent
MODULES = (
    "random", "linear", "kernels", "flow", "network", "picture", "controls", "points", "stage_kernel", "tasks",
    "training", "rich_pictures", "stage_rich", "one_step", "stage_samples", "main",
)  # fmt: skip
STAGES = (("kernel", "A kernel machine"), ("rich", "Lazy to rich"), ("samples", "How many samples?"))

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./\w+\.js";\n', re.M)
_EXPORT = re.compile(r"^export (?=(?:async )?function|const|class)", re.M)


def script() -> str:
    """All modules as one script, in the order of `MODULES`."""
    texts = ((HERE / "js" / f"{name}.js").read_text("utf-8") for name in MODULES)
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", text)) for text in texts)


def formulas() -> list[math_html.Tag]:
    """The formulas whose tags appear in the stages."""
    return math_html.tags_in((HERE / f"stage_{name}.html").read_text("utf-8") for name, _ in STAGES)


def write_play(page: Path) -> Path:
    """Write the page and return its path."""
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
        raise UnlazyError(f"cannot write the page to {page}: {why}; choose another path with --out") from error
