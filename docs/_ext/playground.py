"""The directive {playground}: the page of `unlazy play` in a frame, at a given stage and setting.

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
            f'<iframe class="playground" src="{address}" title="Interactive page" loading="lazy"></iframe>'
            f'<p><a href="{address}">Open in a separate page</a></p>'
        )
        return [nodes.raw("", frame, format="html")]


def write_page(app) -> None:
    """Before static files are copied: every build writes the page again."""
    from unlazy.lab.play.page import write_play

    write_play(Path(app.srcdir) / PAGE)


def setup(app) -> dict:
    app.add_directive("playground", PlaygroundDirective)
    app.connect("builder-inited", write_page)
    return {"parallel_read_safe": True}
