"""Recorded claims: the results of the project's last runs, in recorded/NAME.json, written by docs/collect.py.

Pages show them for experiments that the user has not run; the user's own results take precedence.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from unlazy.lab.claims import BASES, Claim, Verdict, infer_basis

FOLDER = Path(__file__).with_name("recorded")


class ClaimSummary(NamedTuple):
    """A claim as shown on pages and stored in recorded/NAME.json."""

    statement: str
    predicted: str
    measured: str
    verdict: Verdict
    word: str
    """The verdict as text, with a remark if the interval crosses the bound."""
    basis: str = ""

    @property
    def basis_text(self) -> str:
        """Where the bound comes from."""
        return BASES[self.basis or infer_basis(self.predicted)]  # type: ignore[index]


def summarize_claim(claim: Claim) -> ClaimSummary:
    """The texts of a claim."""
    return ClaimSummary(
        claim.statement, claim.predicted, claim.measured_text, claim.verdict, claim.verdict_text, claim.basis
    )  # fmt: skip


def record(claims: Sequence[Claim], config: str, trials: int) -> dict[str, object]:
    """Contents of recorded/NAME.json."""
    return {"config": config, "trials": trials, "claims": [summarize_claim(c)._asdict() for c in claims]}


def recorded(name: str) -> tuple[list[ClaimSummary], str]:
    """Recorded claims of an experiment and how they were measured; empty if there are none."""
    path = FOLDER / f"{name}.json"
    if not path.exists():
        return [], ""
    found = json.loads(path.read_text(encoding="utf-8"))
    claims = [ClaimSummary(**{"word": c["verdict"], **c}) for c in found["claims"]]
    return claims, f"{found['trials']:,} trials of the {found['config']} configuration"
