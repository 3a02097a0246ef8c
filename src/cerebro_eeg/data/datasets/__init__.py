"""One file a corpus; ``RECIPES`` names them. A recipe is made for the folder that holds the corpus."""

from collections.abc import Callable, Mapping
from pathlib import Path

from cerebro_eeg.data.datasets.openeeg import openeeg
from cerebro_eeg.data.storing.recipe import Recipe

RECIPES: Mapping[str, Callable[[Path], Recipe]] = {
    "openeeg": openeeg,
}
