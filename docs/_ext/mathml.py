"""Mathematics as MathML: browsers set it by themselves, so that pages need no script and no network.

Tables of claims and predictions go through `unlazy.core.pages.math_html`; $formulas$ of the pages through this.
"""

import sys
from pathlib import Path

from docutils import nodes

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from typeset import typeset


def inline(writer, node: nodes.math) -> None:
    writer.body.append(typeset(node.astext()))
    raise nodes.SkipNode


def display(writer, node: nodes.math_block) -> None:
    writer.body.append(f'<div class="display">{typeset(node.astext(), "block")}</div>')
    raise nodes.SkipNode


def setup(app) -> dict:
    app.add_html_math_renderer("mathml", (inline, None), (display, None))
    return {"parallel_read_safe": True}
