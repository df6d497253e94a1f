"""The formulas of every tag as MathML: src/unlazy/core/pages/tags.json, from tags.toml beside it.

    python docs/typeset.py

Browsers show MathML by themselves, so a page needs neither the network nor a script; readers need no converter, since
what it wrote lies in the package.
"""

import html
import json
import re
import tomllib
from pathlib import Path

PAGES = Path(__file__).resolve().parents[1] / "src" / "unlazy" / "core" / "pages"


def typeset(formula: str, display: str = "inline") -> str:
    from latex2mathml.converter import convert

    found = convert(formula, display=display)
    if "\\" in found or "merror" in found:
        raise ValueError(f"latex2mathml does not know all of {formula!r}; write it with other commands")
    return found.replace(' xmlns="http://www.w3.org/1998/Math/MathML"', "")


def typeset_text(text: str) -> str:
    """Words with $formulas$ between them, as HTML."""
    parts = re.split(r"\$(.+?)\$", text)
    return "".join(typeset(part) if k % 2 else html.escape(part, quote=False) for k, part in enumerate(parts))


def typeset_tags(source: Path = PAGES / "tags.toml") -> dict[str, dict[str, str]]:
    """Of every tag: its name, what it says and its formula, as HTML."""
    tags = tomllib.loads(source.read_text(encoding="utf-8"))
    return {
        tag: {"name": html.escape(entry["name"], quote=False), "text": typeset_text(entry["text"]),
              "formula": typeset(entry["formula"], "block")}
        for tag, entry in tags.items()
    }  # fmt: skip


if __name__ == "__main__":
    path = PAGES / "tags.json"
    path.write_text(json.dumps(typeset_tags(), ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    print(path)
