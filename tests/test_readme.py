"""The README's code runs, and it names every package."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_python_runs(tmp_path):
    code = "\n".join(blocks("python"))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "(8, 192)" in done.stdout
    assert "(8, 5, 20, 192)" in done.stdout
    assert "tensors loaded; 0 reshaped" in done.stdout


SMALLER = {"--steps": "2", "--rounds": "1"}
"""Values that take less time than the README's; every word and flag of a line stays as it is printed."""
MORE = {
    "bench": {"--preset": "tiny", "--channels": "2", "--seconds": "1", "--gemm": "64"},
    "pretrain": {"--batch-size": "8"},
    "finetune": {"--batch-size": "8"},
}
"""Options that are added to a verb where the README leaves them at their large defaults."""


def smaller(line):
    """Return the arguments of a line of the README, with smaller sizes."""
    words = shlex.split(line.partition("#")[0])[1:]
    words = [SMALLER.get(before, word) for before, word in zip(["", *words], words, strict=False)]
    more = {flag: value for flag, value in MORE.get(words[0], {}).items() if flag not in words}
    return [*words, *(word for pair in more.items() for word in pair)]


@pytest.fixture
def threads():
    """Commands set the number of torch's threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_commands_run(tmp_path, monkeypatch, capsys):
    """All in this process, where torch is loaded once; the last one, which does little, also as a user starts it."""
    from cerebro_eeg import Cerebro
    from cerebro_eeg.cli import main

    monkeypatch.chdir(tmp_path)
    Cerebro(2, config="tiny").save_pretrained(tmp_path / "my-model")
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("cerebro-eeg")]
    assert len(lines) >= 4
    for line in lines:
        assert main(smaller(line)) == 0, (line, capsys.readouterr().err)
    command = [sys.executable, "-m", "cerebro_eeg", *smaller(lines[-1])]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_organisation_names_every_package():
    named = re.findall(r"^\| `(\w+)/`", README.partition("## How the code is organised")[2], flags=re.MULTILINE)
    source = ROOT / "src" / "cerebro_eeg"
    assert sorted(named) == sorted(path.name for path in source.iterdir() if (path / "__init__.py").exists())


def test_links_lead_somewhere():
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert link.startswith("https://") or (ROOT / link).exists(), link


def test_statement_of_independence():
    assert "not affiliated with the authors" in README
    assert re.search(r"not a\s*>?\s*medical device", README)
