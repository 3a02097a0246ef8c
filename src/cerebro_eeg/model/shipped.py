"""Weights that come with the package: their names, their files and their sums. Standard library only.

``src/cerebro_eeg/weights`` holds for each name a file of weights, a card and the card's picture, and one ``NOTICE.md``
with the attributions of all data. ``tools/ship_weights.py`` writes them from a run.
"""

import os
from pathlib import Path

from cerebro_eeg.errors import CheckpointError
from cerebro_eeg.files import file_sum

FOLDER = Path(__file__).parent.parent / "weights"
SHIPPED = {"small-open": "8a29248386a3fe96dbce1620f016a7e4908e16f20b8df287777f1a5979b07c8d"}
"""The SHA-256 of each file of weights, by name."""
NOTICE = "NOTICE.md"


def is_shipped(source: str | Path) -> bool:
    """Return whether these weights come with the package: a name of theirs, where nothing on the disk is called so."""
    return str(source) in SHIPPED and not os.path.lexists(source)


def shipped_weights(name: str) -> Path:
    """Return the file of weights of this name, after a check of its SHA-256."""
    path = FOLDER / f"{name}.safetensors"
    try:
        found = file_sum(path)
    except OSError as error:
        raise CheckpointError(
            f"the weights {name} that come with the package cannot be read ({error.strerror or error}); install "
            "cerebro-eeg again"
        ) from error
    if found != SHIPPED[name]:
        raise CheckpointError(
            f"the weights {name} that come with the package are damaged: their SHA-256 is {found[:16]}..., expected "
            f"{SHIPPED[name][:16]}...; install cerebro-eeg again"
        )
    return path


def shipped_names() -> str:
    """Return the names in words, for errors."""
    return ", ".join(SHIPPED)


def card_facts(name: str) -> list[str]:
    """Return the facts of a card: the points of its first list, each in one line."""
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    points = text.partition("## In short\n\n")[2].partition("\n\n")[0].removeprefix("- ").split("\n- ")
    return [" ".join(point.split()) for point in points]
