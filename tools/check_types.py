"""Fail where more than 5% of the public signatures contain `Any`.

    python tools/check_types.py [FOLDER ...]

A public signature is a function or method without leading underscore, in a module without leading underscore. It counts
if the annotation of a parameter or of the result contains `Any`, also inside `dict[str, Any]` or `Callable[..., Any]`.
Functions inside functions are not public.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ALLOWED = 0.05
"""The share of public signatures that may contain `Any`."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def public_functions(node: ast.Module | ast.ClassDef, path: str) -> Iterator[tuple[str, Function]]:
    """Public functions of a module and public methods of its public classes, with their dotted names."""
    for child in node.body:
        if isinstance(child, Function | ast.ClassDef) and not child.name.startswith("_"):
            name = f"{path}.{child.name}"
            if isinstance(child, ast.ClassDef):
                yield from public_functions(child, name)
            else:
                yield name, child


def annotations(function: Function) -> Iterator[tuple[str, ast.expr]]:
    """The annotated parameters of a function and its result, by name."""
    signature = function.args
    named = [*signature.posonlyargs, *signature.args, *signature.kwonlyargs, signature.vararg, signature.kwarg]
    for parameter in named:
        if parameter is not None and parameter.annotation is not None:
            yield parameter.arg, parameter.annotation
    if function.returns is not None:
        yield "return", function.returns


def contains_any(annotation: ast.expr) -> bool:
    """Whether an annotation, possibly a string, contains `Any`."""
    for node in ast.walk(annotation):
        if (isinstance(node, ast.Name) and node.id == "Any") or (
            isinstance(node, ast.Attribute) and node.attr == "Any"
        ):
            return True
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = node.value.replace("[", " ").replace("]", " ").replace(",", " ").replace("|", " ").split()
            if "Any" in words:
                return True
    return False


def count(folder: Path) -> tuple[int, list[str]]:
    """The number of public signatures under a folder, and one line for each that contains `Any`."""
    total, offenders = 0, []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        if any(part.startswith("_") and part != "__init__" for part in parts):
            continue
        module = ".".join(part for part in parts if part != "__init__")
        for name, function in public_functions(ast.parse(path.read_text(encoding="utf-8")), module):
            total += 1
            found = [which for which, annotation in annotations(function) if contains_any(annotation)]
            if found:
                offenders.append(f"{path}:{function.lineno}: {name} ({', '.join(found)})")
    return total, offenders


def main(arguments: list[str]) -> int:
    counted = [count(Path(folder)) for folder in arguments or [str(ROOT / "src" / "unlazy")]]
    total = sum(number for number, _ in counted)
    offenders = [line for _, lines in counted for line in lines]
    if len(offenders) > ALLOWED * total:
        print("\n".join(offenders))
    print(f"{len(offenders)} of {total} public signatures contain Any ({len(offenders) / max(total, 1):.1%})")
    return 1 if len(offenders) > ALLOWED * total else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
