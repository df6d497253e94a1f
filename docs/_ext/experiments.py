"""The directive {experiment}: question, prediction, claims with what was measured, and the figure of one experiment.

Words come from the experiment itself, figures and measurements from docs/figures (written by docs/collect.py from
stored records), so a page never shows a number that no record has.
"""

import json
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

FIGURES = Path(__file__).resolve().parent.parent / "figures"


class ExperimentDirective(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        from unlazy import lab

        name = self.arguments[0]
        experiment = lab.find(name)
        section = nodes.section(ids=[nodes.make_id(name)])
        section += nodes.title(text=experiment.question)
        section += _labelled("Prediction.", f"{experiment.prediction} [{', '.join(experiment.tags)}]")
        kept = FIGURES / f"{name}.json"
        self.env.note_dependency(str(kept))
        if kept.exists():
            found = json.loads(kept.read_text(encoding="utf-8"))
            image = nodes.image(uri=f"/figures/{name}.png", alt=f"Figure of {name}", width="100%")
            section += image
            section += _table(found["claims"])
            section += nodes.caption(text=f"{found['trials']} trials of the {found['config']} configuration.")
        section += _labelled("Protocol.", experiment.protocol)
        section += _labelled("Verdict rule.", experiment.verdict)
        if experiment.caveats:
            section += _labelled("What this does not show.", experiment.caveats)
        section += nodes.literal_block(text=f"unlazy run {name}", language="console")
        return [section]


def _labelled(label: str, text: str) -> nodes.paragraph:
    return nodes.paragraph("", "", nodes.strong(text=label), nodes.Text(" " + text))


def _table(claims: list[dict]) -> nodes.table:
    heads = ("claim", "theory", "measured", "verdict")
    table, group = nodes.table(classes=["claims"]), nodes.tgroup(cols=len(heads))
    table += group
    for _ in heads:
        group += nodes.colspec(colwidth=1)
    group += nodes.thead("", _row(heads))
    group += nodes.tbody("", *[_row([c["statement"], c["predicted"], c["measured"], c["verdict"]]) for c in claims])
    return table


def _row(cells) -> nodes.row:
    return nodes.row("", *[nodes.entry("", nodes.paragraph(text=cell)) for cell in cells])


def setup(app) -> dict:
    app.add_directive("experiment", ExperimentDirective)
    return {"parallel_read_safe": True}
