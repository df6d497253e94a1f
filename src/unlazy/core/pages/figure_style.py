"""Style of all figures: sized for a paper column, legible on a phone, with a color-blind safe palette."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unlazy.core.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The palette of Okabe and Ito, distinguishable with all common kinds of color vision.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C8C00")

_SETTINGS: dict[Any, Any] = {
    "figure.constrained_layout.use": True,
    "figure.dpi": 110,
    "savefig.dpi": 160,
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "pdf.fonttype": 42,
}


@contextmanager
def figure_style(fonts: Sequence[str] = ()) -> Iterator[None]:
    """Context manager that sets the matplotlib style of the package; `fonts` are fallbacks for characters that the
    default font lacks (see `fonts.drawable_names`)."""
    import matplotlib
    from cycler import cycler

    family = [*matplotlib.rcParams["font.family"], *fonts]
    with matplotlib.rc_context({**_SETTINGS, "axes.prop_cycle": cycler(color=COLORS), "font.family": family}):
        yield


def save_figure(figure: "Figure", folder: Path, name: str) -> tuple[Path, Path]:
    """Write NAME.png and NAME.pdf, and return both paths."""
    folder.mkdir(parents=True, exist_ok=True)
    png, pdf = folder / f"{name}.png", folder / f"{name}.pdf"
    for path, unsaid in ((png, "Software"), (pdf, "CreationDate")):  # the same figure is the same file
        with atomic_write(path) as aside:
            figure.savefig(aside, metadata={unsaid: None})
    return png, pdf
