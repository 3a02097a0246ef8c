"""The help of every verb is frozen: a flag that goes, comes or changes its meaning is a change that users must be told.

``python tests/commands/test_help.py`` writes the frozen texts (``help/`` beside it) anew when they are meant to change.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cerebro_eeg.cli import VERBS, _function
from cerebro_eeg.commands.help_text import can_help, grouped, help_text, options_of

FROZEN = Path(__file__).with_name("help")


def help_of(verb):
    """The words of ``cerebro-eeg VERB --help``, whatever box tyro draws and wherever it breaks lines."""
    env = os.environ | {"COLUMNS": "200", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-m", "cerebro_eeg", verb, "--help"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=True, env=env)
    words = re.sub(r"[\u2500-\u257f]+", " ", done.stdout)
    if "╭" in done.stdout:
        return re.sub(r"\s(--?[a-z][\w-]*)", r"\n\1", " ".join(words.split())) + "\n"
    return done.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_help_is_frozen(verb):
    frozen = (FROZEN / f"{verb}.txt").read_text(encoding="utf-8")
    assert help_of(verb) == frozen, (
        "write it anew with python tests/commands/test_help.py, and tell users in CHANGELOG.md"
    )


def test_no_help_is_left_over():
    assert {path.stem for path in FROZEN.iterdir()} == set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_is_in_one_group_and_has_a_text(verb):
    function = _function(verb)
    if not can_help(function):  # bench: tyro makes its help
        assert verb == "bench"
        return
    options = list(options_of(function))
    groups = grouped(function, options)
    names = [option.name for members in groups.values() for option in members]
    assert sorted(names) == sorted(option.name for option in options if not option.positional)
    if hasattr(sys.modules[function.__module__], "GROUPS"):
        assert "options" not in groups, f"{[option.name for option in groups['options']]} are in no group of {verb}"
    assert all(option.text for option in options)
    shown = help_text(verb, function)
    assert "None" not in shown
    assert "(default" not in shown


if __name__ == "__main__":
    FROZEN.mkdir(exist_ok=True)
    for verb in VERBS:
        (FROZEN / f"{verb}.txt").write_text(help_of(verb), encoding="utf-8")
