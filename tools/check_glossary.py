"""Fail where a retired word of docs/glossary.md appears in code, tests' names, pages or command-line texts.

    python tools/check_glossary.py [FILE ...]

Without arguments every tracked source and documentation file is checked. In tests only names are: a test may quote an
old word that the library must still understand.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GLOSSARY = ROOT / "docs" / "glossary.md"
FOLDERS = ("src", "docs", "examples", "benchmarks", "tests", "tools")
SUFFIXES = {".py", ".md", ".html", ".js", ".toml"}
OFF, ON = "glossary: off", "glossary: on"
"""Comments around lines that are not checked, because they hold names that older files contain."""
SKIPPED = {"docs/glossary.md", "CHANGELOG.md", "tools/check_glossary.py"}


def retired_words(text: str) -> list[str]:
    """Words in backticks in the last column of the glossary's table."""
    rows = [line.strip().strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [word for row in rows[2:] for word in re.findall(r"`([^`]+)`", row[-1])]


def pattern_of(words: list[str]) -> re.Pattern:
    """Whole words in any case; parts of snake_case names count as words."""
    return re.compile(
        rf"(?<![A-Za-z])({'|'.join(map(re.escape, sorted(words, key=len, reverse=True)))})(?![a-z])", re.I
    )


def checked_text(path: Path) -> str:
    """What is read of a file: all of it, or of a test the names it defines, line by line."""
    text = path.read_text(encoding="utf-8")
    if "tests" not in path.parts or path.suffix != ".py":
        return text
    lines = [""] * (text.count("\n") + 1)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            lines[node.lineno - 1] = node.name
    return "\n".join(lines)


def findings(path: Path, pattern: re.Pattern) -> list[str]:
    """'file:line: word' for every retired word in the file or its name."""
    name = path.resolve().relative_to(ROOT) if path.resolve().is_relative_to(ROOT) else path
    found = [f"{name}: {match[1]} (file name)" for match in pattern.finditer(path.stem)]
    checked = True
    for number, line in enumerate(checked_text(path).splitlines(), 1):
        checked = (checked or ON in line) and OFF not in line
        if checked:
            found += [f"{name}:{number}: {match[1]}" for match in pattern.finditer(line)]
    return found


def tracked_files() -> list[Path]:
    """Source and documentation files known to git, or all of them outside a checkout."""
    asked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    names = asked.stdout.splitlines() or [str(p.relative_to(ROOT)) for p in ROOT.rglob("*") if p.is_file()]
    wanted = [n for n in names if n.split("/")[0] in FOLDERS or "/" not in n]
    return [ROOT / n for n in wanted if n not in SKIPPED and Path(n).suffix in SUFFIXES and (ROOT / n).exists()]


def main(arguments: list[str]) -> int:
    pattern = pattern_of(retired_words(GLOSSARY.read_text(encoding="utf-8")))
    paths = [Path(a) for a in arguments] or tracked_files()
    found = [line for path in paths for line in findings(path, pattern)]
    print("\n".join(found) if found else f"no retired word in {len(paths)} files")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
