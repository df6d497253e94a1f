"""Links between the pages of the documentation are not dead: files, and tags behind anchors."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(p for p in DOCS.rglob("*.md") if not {"_build", "reference", "gallery"} & set(p.relative_to(DOCS).parts))


def links(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.findall(r"\]\(([^)\s]+)\)", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(DOCS)))
def test_links_are_not_dead(page):
    tags = {
        tag.lower() for tag in tomllib.loads((ROOT / "src/unlazy/core/pages/tags.toml").read_text(encoding="utf-8"))
    }
    for link in links(page):
        file, _, anchor = link.partition("#")
        if file.startswith("http"):
            continue
        if not file:
            assert anchor in tags, f"{link}: no such tag"
            continue
        target = (page.parent / file).resolve()
        room = target.relative_to(DOCS).parts[0] if target.is_relative_to(DOCS) else ""
        if room == "gallery" and target.stem != "index":
            target = ROOT / "examples" / f"{target.stem}.py"
        assert room == "reference" or target.stem == "index" or target.exists(), link


def test_every_page_is_in_a_table_of_contents():
    listed = {DOCS / "index.md"}
    for page in PAGES:
        for block in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            names = [line.strip() for line in block.splitlines() if line.strip() and not line.startswith(":")]
            listed |= {page.parent / f"{name}.md" for name in names}
    assert {p for p in PAGES} <= listed
