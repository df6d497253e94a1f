"""Pages written from the code: one reference page for each room, and the index of formulas by their tag.

A tag such as [K8] in a docstring names a formula of a source talk; the index says where each is computed. Docstrings
here are plain text with letters like ‖x‖ and |σ''|, so what reStructuredText would take for markup is escaped.
"""

import ast
import inspect
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "unlazy"
ROOMS = {
    "core": "Shared values", "theory": "Every formula", "tasks": "Distributions that know their answer",
    "layers": "Architectures as values", "kernels": "Entry formulas as objects",
    "products": "Gram matrices and products", "networks": "Finite networks",
    "measures": "What is measured", "solvers": "Kernel fixed, find coefficients", "training": "Features move",
    "estimators": "scikit-learn faces", "comparison": "Does feature learning pay here?", "lab": "Sweeps and stores",
    "report": "Records to pages", "play": "A page to play with", "cli": "The command line",
}  # fmt: skip
TAG = re.compile(r"\[((?:[A-Z]\d{1,2})(?:[,–\- ]+[A-Z]\d{1,2})*)\]")
TALKS = {
    "K": "Kernels, random features, wide networks", "A": "What kernels cannot do, and one gradient step can", "D": "",
    "L": "Beyond linearization", "P": "Features that emerge from the inputs", "C": "Networks of any architecture",
    "M": "The rich limit", "G": "How risk falls with data", "E": "Found since",
}  # fmt: skip


def write_pages(app) -> None:
    folder = Path(app.srcdir) / "reference"
    folder.mkdir(exist_ok=True)
    rooms = [room for room in ROOMS if (SOURCE / room).is_dir() or (SOURCE / f"{room}.py").exists()]
    for room in rooms:
        _keep(folder / f"{room}.md", _room_page(room))
    _keep(folder / "top.md", _top_page())
    listing = "\n".join(["```{toctree}", "top", *rooms, "```", ""])
    about = "First the names that `import unlazy` gives, each with an example; then a page for each room."
    _keep(folder / "index.md", f"# Reference\n\n{about}\n\n{listing}")
    _keep(folder / "formulas.md", _formula_page())


def _keep(path: Path, text: str) -> None:
    """Write only what changed: Sphinx then rebuilds only that."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def _modules(room: str) -> list[str]:
    """Of a room, its closets included; what begins with an underscore stays inside."""
    if (SOURCE / f"{room}.py").exists():
        return [f"unlazy.{room}"]
    paths = [p.relative_to(SOURCE).with_suffix("").parts for p in (SOURCE / room).rglob("*.py")]
    return sorted(".".join(["unlazy", *parts]) for parts in paths if not any(part.startswith("_") for part in parts))


def _top_page() -> str:
    """Every name of `unlazy` itself, by the room it comes from; the index leads here."""
    import unlazy

    taken = "Examples take points `X` with labels `y`, new points `Z`, `kernel = Gaussian(1.0)` and a random `key`."
    parts = ["# unlazy: the names at the top\n", f"{taken}\n"]
    named = [(name, getattr(unlazy, name)) for name in sorted(unlazy.__all__)]
    for room, about in ROOMS.items():
        here = [(n, o) for n, o in named if callable(o) and o.__module__.split(".")[1] == room]
        if here:
            parts.append(f"## {about}\n\nMore of them: [{room}]({room}.md).\n")
        for name, thing in here:
            kind = "autoclass" if inspect.isclass(thing) else "autofunction"
            parts.append(f"```{{eval-rst}}\n.. {kind}:: unlazy.{name}\n```\n")
    return "\n".join(parts)


def _room_page(room: str) -> str:
    parts = [f"# {room}: {ROOMS[room].lower()}\n"]
    for module in _modules(room):
        more = "   :imported-members:\n" if module == "unlazy.layers" else ""
        body = f".. automodule:: {module}\n   :members:\n{more}   :no-index:\n"
        parts.append(f"## {module}\n\n```{{eval-rst}}\n{body}```\n")
    return "\n".join(parts)


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


def _formula_page() -> str:
    about = "What each tag names, and where it is computed. Letters are those of [the notation](../notation.md)."
    lines = ["# Formulas, by their tag", "", about, ""]
    tags = tomllib.loads((SOURCE / "report" / "tags.toml").read_text(encoding="utf-8"))
    found, letter = formulas(), ""
    if unknown := set(found) - set(tags):
        raise ValueError(f"docstrings name {sorted(unknown)}, which report/tags.toml does not have: write them there")
    for tag, entry in tags.items():
        if tag[0] != letter and TALKS[tag[0]]:
            lines += [f"## {TALKS[tag[0]]}", ""]
        letter = tag[0]
        lines += [f"({tag.lower()})=", f"### {tag}: {entry['name']}", "", _linked(entry["text"]), ""]
        lines += ["$$", entry["formula"], "$$", ""]
        if tag in found:
            lines += ["| where | what it says |", "|---|---|"]
        for module, name, first in found.get(tag, ()):
            where = f"{module}.{name}" if name else module
            lines.append(f"| `{where}` | {_cell(first)} |")
        lines.append("")
    return "\n".join(lines)


def _linked(text: str) -> str:
    """Tags in Markdown as links to their place on the same page."""
    return re.sub(r"\[([A-Z]\d+)\]", lambda m: f"[{m[1]}](#{m[1].lower()})", text)


def _cell(text: str) -> str:
    return re.sub(r"([|*_\[\]`<>\\])", r"\\\1", text)


def escape_docstring(app, what, name, obj, options, lines: list[str]) -> None:
    """Plain text to reStructuredText: `code` becomes literal, everything else is taken as it stands."""
    if lines and lines[0].startswith("Alias for field number"):  # Python's own words for a field of a named tuple
        lines.clear()
    verbatim = False
    for i, line in enumerate(lines):  # examples and tables already are what they should be
        verbatim = line.lstrip().startswith((">>>", "===")) or (verbatim and bool(line.strip()))
        if verbatim:
            continue
        parts = re.split(r"(``?[^`]+``?)", line)
        lines[i] = "".join(
            "``" + part.strip("`") + "``" if k % 2 else re.sub(r"([\\*|_])", r"\\\1", part).replace("`", r"\`")
            for k, part in enumerate(parts)
        )
        if lines[i].lstrip().startswith(("- ", "+ ", ":")):
            lines[i] = lines[i].replace(lines[i].lstrip()[0], "\\" + lines[i].lstrip()[0], 1)
    indent_is_text(lines)


def indent_is_text(lines: list[str]) -> None:
    """Indented formulas become line blocks, so that no indentation is taken for a quotation that ends badly."""
    for i, line in enumerate(lines):
        if line.startswith("    ") and ">>>" not in line:
            lines[i] = "| " + line.strip()


def without_new(app, what, name, obj, skip, options) -> bool | None:
    """How Python makes an object is nobody's business; `__init__` says what it is made from."""
    return True if name == "__new__" else None


def setup(app) -> dict:
    app.connect("builder-inited", write_pages, priority=100)
    app.connect("autodoc-process-docstring", escape_docstring)
    app.connect("autodoc-skip-member", without_new)
    return {"parallel_read_safe": True}
