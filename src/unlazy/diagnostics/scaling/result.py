"""What `unlazy.check_scaling` returns: exponents that can be saved, drawn and written as a page."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from unlazy.core.errors import UnlazyError
from unlazy.diagnostics.scaling.exponents import Exponents

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class ScalingCheck(Exponents):
    """Exponents of the width for all parameters, and the verdict.

    Attributes
    ----------
    widths : tuple of int
        Widths that were trained.
    findings : tuple of Finding
        All exponents, errors first.
    coordinates : tuple of Coordinates
        Sizes of layers in every run.
    linear : bool
        Whether the optimizer's changes are proportional to the gradient.
    depths : tuple of int
        Depths that were trained.

    Examples
    --------
    >>> from unlazy import ScalingCheck
    >>> check = ScalingCheck((64, 512), (), (), linear=False)
    >>> print(check.verdict)
    Feature learning at every width from 64 to 512.
    """

    def save(self, path: str | Path) -> Path:
        """Write everything as JSON.

        Parameters
        ----------
        path : str or Path
            File.

        Returns
        -------
        Path
        """
        path = Path(path)
        try:
            path.write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise UnlazyError(f"cannot write {path}: {error.strerror or error}; choose another file") from error
        return path

    def page(self, path: str | Path) -> Path:
        """Write a page with the verdict, all exponents and plots; it needs no network.

        Parameters
        ----------
        path : str or Path
            File, usually with the ending ``.html``.

        Returns
        -------
        Path
        """
        from unlazy.diagnostics.scaling.report.page import write_scaling_page

        return write_scaling_page(self, path)

    def figure(self) -> "Figure":
        """Exponents with their errors, and the coordinate check.

        Returns
        -------
        matplotlib.figure.Figure
        """
        from unlazy.diagnostics.scaling.report.figure import scaling_figure

        return scaling_figure(self)

    def _repr_html_(self) -> str:
        from unlazy.diagnostics.scaling.report.page import scaling_fragment

        return scaling_fragment(self)
