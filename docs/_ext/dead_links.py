"""After the build: every link inside the site leads to a file that is there, and to a place in it that is there."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sphinx.errors import ExtensionError


class _Page(HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.places: set[str] = set()
        self.links: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.places.add(value)
            elif name in ("href", "src") and value:
                self.links.add(value)


def dead(folder: Path) -> list[str]:
    """Links that lead nowhere, as 'page → link'."""
    pages = {
        path: _Page(path.read_text(encoding="utf-8")) for path in folder.rglob("*.html") if path.name != "play.html"
    }
    found = []
    for path, page in pages.items():
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            place = unquote(parts.fragment)
            known = pages.get(target)
            if not target.exists() or (known and place and place not in known.places):
                found.append(f"{path.relative_to(folder)} → {link}")
    return found


def check(app, problem: Exception | None) -> None:
    if problem is None and app.builder.name == "html" and (found := dead(Path(app.outdir).resolve())):
        raise ExtensionError(f"{len(found)} dead links: " + "; ".join(found[:20]))


def setup(app) -> dict:
    app.connect("build-finished", check)
    return {"parallel_read_safe": True}
