"""Claims as they were measured when the project last ran an experiment: recorded/NAME.json, written by docs/collect.py.

Pages show them where a reader has not run the experiment; what a reader has run always comes first.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from unlazy.lab.claims import BASES, Claim, Verdict, basis_of

FOLDER = Path(__file__).with_name("recorded")


class Told(NamedTuple):
    """A claim as a page tells it."""

    statement: str
    predicted: str
    measured: str
    verdict: Verdict
    word: str
    """The verdict, with a word where the interval crosses the bound."""
    basis: str = ""

    @property
    def basis_text(self) -> str:
        return BASES[self.basis or basis_of(self.predicted)]  # type: ignore[index]


def told(claim: Claim) -> Told:
    return Told(
        claim.statement, claim.predicted, claim.measured_text, claim.verdict, claim.verdict_text, claim.basis
    )  # fmt: skip


def record(claims: Sequence[Claim], config: str, trials: int) -> dict[str, Any]:
    """What recorded/NAME.json holds."""
    return {"config": config, "trials": trials, "claims": [told(c)._asdict() for c in claims]}


def recorded(name: str) -> tuple[list[Told], str]:
    """The recorded claims of an experiment and how they were measured; none where it was never recorded."""
    path = FOLDER / f"{name}.json"
    if not path.exists():
        return [], ""
    found = json.loads(path.read_text(encoding="utf-8"))
    claims = [Told(**{"word": c["verdict"], **c}) for c in found["claims"]]
    return claims, f"{found['trials']} trials of the {found['config']} configuration"
