"""One file per corpus; ``RECIPES`` names them.

A recipe is a function of the folder that holds the corpus; its options are keyword-only parameters. Its module is
imported on demand. To add a corpus, write the function and add one line here.
"""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

from cerebro_eeg.data.storing.recipe import Recipe, source_errors
from cerebro_eeg.errors import ConfigError
from cerebro_eeg.schema import did_you_mean

_HERE = "cerebro_eeg.data.datasets"
RECIPES: dict[str, tuple[str, str]] = {
    "openeeg": (f"{_HERE}.openeeg:openeeg", "any folder in the format of the open-EEG pack"),
    "folder": (f"{_HERE}.folder:folder", "any tree of EEG files; labels and subjects from a table or from the paths"),
    "bids": (f"{_HERE}.bids:bids", "EEG in the Brain Imaging Data Structure"),
    "moabb": (f"{_HERE}.moabb:moabb", "a dataset of MOABB, downloaded before"),
    "tueg": (f"{_HERE}.tuh:tueg", "Temple University Hospital: all of its EEG, for pre-training"),
    "tuab": (f"{_HERE}.tuh:tuab", "Temple: normal or abnormal"),
    "tusz": (f"{_HERE}.tuh:tusz", "Temple: seizures"),
    "tuep": (f"{_HERE}.tuh:tuep", "Temple: epilepsy"),
    "tusl": (f"{_HERE}.tuh:tusl", "Temple: slowing"),
    "seed": (f"{_HERE}.seed:seed", "SEED: emotions while watching films"),
    "neonate": (f"{_HERE}.neonate:neonate", "Helsinki: seizures of newborns"),
    "mobi": (f"{_HERE}.mobi:mobi", "MoBI: joint angles while walking"),
}
"""The function, and a description of the corpus."""


def make_recipe(name: str, folder: Path, options: Mapping[str, object]) -> Recipe:
    """Make the recipe of this name for a folder; an unknown option is refused."""
    function = _load(name)
    known = options_of(name)
    unknown = [option for option in options if option not in known]
    if unknown:
        taken = f"it takes {', '.join('--' + option for option in known)}" if known else "it takes none of its own"
        raise ConfigError(f"recipe {name!r} has no option --{unknown[0]}; {taken}")
    with source_errors():
        return function(folder, **options)


def options_of(name: str) -> tuple[str, ...]:
    """Return the options of a recipe beside its folder."""
    parameters = inspect.signature(_load(name)).parameters.values()
    return tuple(parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY)


def _load(name: str) -> Callable[..., Recipe]:
    if name not in RECIPES:
        raise ConfigError(
            f"there is no recipe {name!r}{did_you_mean(name, RECIPES)}; the recipes are {', '.join(RECIPES)}"
        )
    module, _, function = RECIPES[name][0].partition(":")
    found: Callable[..., Recipe] = getattr(import_module(module), function)
    return found
