"""Sphinx directive {experiment}: question, prediction, claims with measured values, and figure of one experiment.

Texts come from the experiment itself, figures from docs/figures, and measurements from report/recorded. The latter two
are written by docs/collect.py from stored records, so every number on a page comes from a record.
"""

import re
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from unlazy.core.pages.math_html import typeset
from unlazy.lab.report.recorded_claims import FOLDER, ClaimSummary, recorded


class ExperimentDirective(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        from unlazy import lab

        name = self.arguments[0]
        experiment = lab.find(name)
        section = nodes.section(ids=[nodes.make_id(name)])
        section += nodes.title(text=experiment.question)
        section += _set(f"{experiment.prediction} [{', '.join(experiment.tags)}]", "Prediction.")
        self.env.note_dependency(str(FOLDER / f"{name}.json"))
        claims, how = recorded(name)
        if claims:
            image = nodes.image(uri=f"/figures/{name}.png", alt=f"Figure of {name}", width="100%")
            section += image
            section += _table(claims)
            section += nodes.caption(text=f"{how}.")
        section += _set(experiment.protocol, "Protocol.")
        section += _set(experiment.verdict, "Verdict rule.")
        if experiment.caveats:
            section += _set(experiment.caveats, "Limitations.")
        section += nodes.literal_block(text=f"unlazy run {name}", language="console")
        return [section]


def _table(claims: list[ClaimSummary]) -> nodes.table:
    heads = ("claim", "theory", "measured", "verdict")
    table, group = nodes.table(classes=["claims"]), nodes.tgroup(cols=len(heads))
    table += group
    for _ in heads:
        group += nodes.colspec(colwidth=1)
    group += nodes.thead("", _row(heads))
    rows = [(c.statement, f"{c.predicted} ({c.basis_text})", c.measured, c.word) for c in claims]
    group += nodes.tbody("", *map(_row, rows))
    return table


def _row(cells) -> nodes.row:
    return nodes.row("", *[nodes.entry("", _set(cell)) for cell in cells])


def _set(text: str, label: str = "") -> nodes.paragraph:
    """Paragraph with typeset math and tags linked to their formulas."""
    shown = typeset(text, links="../reference/formulas.html#")
    shown = re.sub(r'#([A-Z]\d+)"', lambda m: f'#{m[1].lower()}"', shown)  # heading anchors are lowercase
    return nodes.paragraph("", "", *([nodes.strong(text=label), nodes.Text(" ")] if label else []),
                           nodes.raw(text, shown, format="html"))  # fmt: skip


def write_claims(app) -> None:
    """Write the map of claims to the static files."""
    from unlazy.lab.report.map import write_map
    from unlazy.lab.runner.catalog import all_experiments

    write_map(all_experiments(), {}, Path(app.srcdir) / "_static")


def setup(app) -> dict:
    app.connect("builder-inited", write_claims)
    app.add_directive("experiment", ExperimentDirective)
    return {"parallel_read_safe": True}
