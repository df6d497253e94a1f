"""Check that every public name has a NumPy-style docstring: numpydoc's own validation, and an example.

    python tools/check_docstrings.py [NAME ...]

Public methods of public classes need a docstring; functions and classes need the sections.
"""

import inspect
import sys

from numpydoc.validate import validate
from public_api import documented

CHECKS = {
    "GL01", "GL03", "GL05", "GL06", "GL07", "GL08", "SS01", "SS02", "SS03", "PR01", "PR02", "PR03", "PR04", "PR07",
    "RT01", "EX01",
}  # fmt: skip
"""Codes of numpydoc.validate that are errors here."""
RESULT_CHECKS = CHECKS - {"EX01", "PR01"}
"""Checks of classes that functions return: they document their attributes, and the function has the example."""


def problems(name: str, value: object) -> list[str]:
    """One line for each failed check of a public name and of its methods."""
    checks = RESULT_CHECKS if _is_result(value) else CHECKS
    found = [f"{name}: {code} {text}" for code, text in validate(_path(value))["errors"] if code in checks]
    if inspect.isclass(value):
        for method, member in vars(value).items():
            plain = inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod)
            if plain and not method.startswith("_") and not (inspect.getdoc(getattr(value, method)) or "").strip():
                found.append(f"{name}.{method}: no docstring")
    return found


def _is_result(value: object) -> bool:
    """Whether users do not construct the class: an exception, or a result with Attributes and no Parameters."""
    text = inspect.getdoc(value) or ""
    result = "Attributes\n---" in text and "Parameters\n---" not in text
    return inspect.isclass(value) and (result or issubclass(value, Exception))


def _path(value: object) -> str:
    """Where the name is defined: numpydoc imports that path."""
    return f"{value.__module__}.{value.__qualname__}"  # type: ignore[attr-defined]


def main(arguments: list[str]) -> int:
    names = documented()
    wanted = {name: names[name] for name in arguments} if arguments else names
    found = [line for name, value in wanted.items() for line in problems(name, value)]
    print("\n".join(found) if found else f"{len(wanted)} public names have their docstrings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
