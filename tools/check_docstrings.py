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
WITHOUT_EXAMPLE = {"EX01"}
"""Checks that methods and error classes are exempt from."""


def problems(name: str, value: object) -> list[str]:
    """One line for each failed check of a public name and of its methods."""
    exempt = WITHOUT_EXAMPLE if inspect.isclass(value) and issubclass(value, Exception) else set()
    found = [f"{name}: {code} {text}" for code, text in validate(_path(value))["errors"]
             if code in CHECKS and code not in exempt]  # fmt: skip
    if inspect.isclass(value):
        for method, member in vars(value).items():
            plain = inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod)
            if plain and not method.startswith("_") and not (inspect.getdoc(getattr(value, method)) or "").strip():
                found.append(f"{name}.{method}: no docstring")
    return found


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
