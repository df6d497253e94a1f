"""The directive {playground}: the page of `unlazy play` inside a page, at a stage and a setting.

```{playground} stage=rich&task=step
```
"""

from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

PAGE = "_static/play.html"


class PlaygroundDirective(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        up = "../" * self.env.docname.count("/")
        address = f"{up}{PAGE}#{self.arguments[0]}".replace("&", "&amp;")
        frame = (
            f'<iframe class="playground" src="{address}" title="A page to play with" loading="lazy"></iframe>'
            f'<p><a href="{address}">The same on a page of its own</a></p>'
        )
        return [nodes.raw("", frame, format="html")]


def write_page(app) -> None:
    """Before static files are copied: the page is made anew by every build."""
    from unlazy.lab.play.page import write_play

    write_play(Path(app.srcdir) / PAGE)


def setup(app) -> dict:
    app.add_directive("playground", PlaygroundDirective)
    app.connect("builder-inited", write_page)
    return {"parallel_read_safe": True}
