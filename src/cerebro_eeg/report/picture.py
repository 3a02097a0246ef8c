"""What all pictures share: colours that most eyes tell apart, a figure, and how it gets to the disk.

Matplotlib is an optional package, imported when a picture is asked for. Its ``Figure`` is used without ``pyplot``, so
nothing opens a window and no state is left behind.
"""

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cerebro_eeg.errors import ConfigError
from cerebro_eeg.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Of the palette of Okabe and Ito, which is safe for the common kinds of colour blindness.
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
GREY, DARK = "#9A9A9A", "#333333"
KINDS = (".png", ".svg")
_STYLE: Any = {
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": DARK,
    "svg.hashsalt": "cerebro-eeg",  # the same picture has the same bytes
    "svg.fonttype": "none",
    "text.parse_math": False,  # a label of a file may have dollar signs
}


def check_picture(path: Path) -> None:
    """Refuse what cannot become a picture before any work is done for it."""
    if path.suffix.casefold() not in KINDS:
        raise ConfigError(f"a picture ends in {' or '.join(KINDS)}; give such a file name after --plot")
    if path.is_dir():
        raise ConfigError("--plot names a folder; give the name of a file in it, such as picture.png")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError("a picture needs the package matplotlib, which is not here; install matplotlib") from None


@contextlib.contextmanager
def drawing(path: Path, width: float, height: float) -> Iterator["Figure"]:
    """An empty figure of this size in inches; what is drawn on it lies at ``path`` when the block ends well."""
    import matplotlib
    from matplotlib.figure import Figure

    kind = path.suffix.casefold().removeprefix(".")
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # a label's letter that the font lacks becomes a box
        figure = Figure((width, height), dpi=150, layout="constrained")
        yield figure
        metadata = {"Software": None} if kind == "png" else {"Date": None, "Creator": None}
        with replacing(path) as temporary:
            figure.savefig(temporary, format=kind, metadata=metadata)


def plain(value: float, _: float) -> str:
    """A tick of a logarithmic axis in plain figures; matplotlib's own would need the mathematics we switched off."""
    return f"{value:g}"


def say(axes: "Axes", words: str) -> None:
    """Words in the middle of a panel that has nothing to show."""
    axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center", color=GREY)
    axes.set_xticks([])
    axes.set_yticks([])
