"""Pages written from the code: one reference page per public name, and the index of formulas by tag.

A tag such as [K8] in a docstring names a formula of a source; the index says where each is computed, and tags in the
reference link back to it. Docstrings contain characters such as ‖x‖ and |σ''|, so whatever reStructuredText would take
for markup is escaped before napoleon reads the NumPy sections.
"""

import ast
import inspect
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "unlazy"
sys.path.insert(0, str(ROOT / "tools"))

from public_api import PACKAGES, documented  # noqa: E402

TAG = re.compile(r"\[((?:[A-Z]\d{1,2})(?:[,–\- ]+[A-Z]\d{1,2})*)\]")
TALKS = {
    "K": "Kernels, random features, wide networks", "A": "What kernels cannot do, and one gradient step can", "D": "",
    "L": "Beyond linearization", "P": "Features that emerge from the inputs", "C": "Networks of any architecture",
    "M": "The rich limit", "G": "How risk falls with data", "E": "Found since",
    "W": "Networks in training", "T": "Transfer across width and depth",
    "I": "Trained networks: uncertainty and influence",
}  # fmt: skip
TAGS_FILE = SOURCE / "core" / "pages" / "tags.toml"


def write_pages(app) -> None:
    folder = Path(app.srcdir) / "reference"
    folder.mkdir(exist_ok=True)
    names = documented()
    pages = {f"{path}.md": _name_page(path, value) for path, value in names.items()}
    pages |= {"index.md": _index_page(names), "formulas.md": _formula_page(names)}
    for old in set(folder.glob("*.md")) - {folder / name for name in pages}:
        old.unlink()
    for name, text in pages.items():
        _write_if_changed(folder / name, text)


def _write_if_changed(path: Path, text: str) -> None:
    """Sphinx then rebuilds only what changed."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def _name_page(path: str, value: object) -> str:
    kind = "autoclass" if inspect.isclass(value) else "autofunction"
    members = "   :members:\n" if kind == "autoclass" else ""
    return f"# {path}\n\n```{{eval-rst}}\n.. {kind}:: {path}\n{members}```\n"


def _index_page(names: dict[str, object]) -> str:
    lines = ["# Reference", "", "Every public name, by the package that exports it.", ""]
    for package, title in PACKAGES.items():
        here = {path: value for path, value in names.items() if path.rpartition(".")[0] == package}
        if here:
            lines += [f"## {title}", "", "| name | summary |", "|---|---|"]
            lines += [f"| [{path}]({path}.md) | {_cell(_summary(value))} |" for path, value in here.items()]
            lines.append("")
    return "\n".join([*lines, "```{toctree}", ":hidden:", *names, "```", ""])


def _summary(value: object) -> str:
    return (inspect.getdoc(value) or "").partition("\n")[0]


def formulas() -> dict[str, list[tuple[str, str, str]]]:
    """tag → (module, name, first line of the docstring) of everything that names it."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        module = ".".join(["unlazy", *path.relative_to(SOURCE).with_suffix("").parts]).removesuffix(".__init__")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in [tree, *(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef))]:
            text = ast.get_docstring(node) or ""
            name = getattr(node, "name", "")
            for group in TAG.findall(text):
                for tag in _expanded(group):
                    row = (module, name, text.splitlines()[0])
                    if row not in found.setdefault(tag, []):
                        found[tag].append(row)
    return found


def _expanded(group: str) -> list[str]:
    """'K4, K5' and 'P1–P3' as single tags."""
    tags: list[str] = []
    for part in re.split(r",\s*", group):
        ends = re.findall(r"([A-Z])(\d+)", part)
        if len(ends) == 2 and ends[0][0] == ends[1][0]:
            tags += [f"{ends[0][0]}{i}" for i in range(int(ends[0][1]), int(ends[1][1]) + 1)]
        else:
            tags += [f"{letter}{number}" for letter, number in ends]
    return tags


def _formula_page(names: dict[str, object]) -> str:
    about = "What each tag names, and where it is computed. Letters are those of [the notation](../notation.md)."
    lines = ["# Formulas, by their tag", "", about, ""]
    tags = tomllib.loads(TAGS_FILE.read_text(encoding="utf-8"))
    pages = {f"{value.__module__}.{value.__qualname__}": path for path, value in names.items()}
    found, letter = formulas(), ""
    if unknown := set(found) - set(tags):
        raise ValueError(f"docstrings name {sorted(unknown)}, which {TAGS_FILE.name} does not have: write them there")
    for tag, entry in tags.items():
        if tag[0] != letter and TALKS[tag[0]]:
            lines += [f"## {TALKS[tag[0]]}", ""]
        letter = tag[0]
        lines += [f"({tag.lower()})=", f"### {tag}: {entry['name']}", "", _linked(entry["text"]), ""]
        lines += ["$$", entry["formula"], "$$", ""]
        if tag in found:
            lines += ["| where | summary |", "|---|---|"]
        for module, name, first in found.get(tag, ()):
            where = f"{module}.{name}" if name else module
            shown = f"[`{pages[where]}`]({pages[where]}.md)" if where in pages else f"`{where}`"
            lines.append(f"| {shown} | {_cell(first)} |")
        lines.append("")
    return "\n".join(lines)


def _linked(text: str) -> str:
    """Tags in Markdown as links to their place on the same page."""
    return re.sub(r"\[([A-Z]\d+)\]", lambda m: f"[{m[1]}](#{m[1].lower()})", text)


def _cell(text: str) -> str:
    return re.sub(r"([|*_\[\]`<>\\])", r"\\\1", text)


def escape_docstring(app, what, name, obj, options, lines: list[str]) -> None:
    """Plain text to reStructuredText: `code` becomes literal, tags become links, everything else is escaped."""
    if lines and lines[0].startswith("Alias for field number"):  # Python's own text for a field of a named tuple
        lines.clear()
    first_section = _first_section(lines)
    verbatim = False
    for i, line in enumerate(lines):  # examples and tables are reStructuredText already
        verbatim = line.lstrip().startswith((">>>", "===")) or (verbatim and bool(line.strip()))
        if verbatim or re.fullmatch(r"\s*-{3,}\s*", line):
            continue
        parts = re.split(r"(``?[^`]+``?)", line)
        lines[i] = "".join("``" + part.strip("`") + "``" if k % 2 else _escaped(part) for k, part in enumerate(parts))
        bare = lines[i].lstrip()
        if bare.startswith(("- ", "+ ", ":")):
            lines[i] = lines[i].replace(bare[0], "\\" + bare[0], 1)
        elif i < first_section and line.startswith("    "):
            lines[i] = "| " + line.strip()  # an indented formula: a line block, not a quotation


def _escaped(text: str) -> str:
    escaped = re.sub(r"([\\*|_])", r"\\\1", text).replace("`", r"\`")
    return TAG.sub(lambda m: re.sub(r"([A-Z]\d{1,2})", lambda t: f":ref:`{t[1]} <{t[1].lower()}>`", m[0]), escaped)


def _first_section(lines: list[str]) -> int:
    """Index of the first NumPy section header; the number of lines where there is none."""
    underlines = [i for i, line in enumerate(lines) if re.fullmatch(r"-{3,}", line)]
    return underlines[0] - 1 if underlines else len(lines)


def without_new(app, what, name, obj, skip, options) -> bool | None:
    """`__init__` documents how an object is made; `__new__` does not."""
    return True if name == "__new__" else None


def setup(app) -> dict:
    app.connect("builder-inited", write_pages, priority=100)
    app.connect("autodoc-process-docstring", escape_docstring, priority=400)  # before napoleon
    app.connect("autodoc-skip-member", without_new)
    return {"parallel_read_safe": True}
