"""The README's code runs, and it names every package."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page, flags=re.DOTALL)


def run_python(page, folder):
    code = "\n".join(blocks(page, "python"))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "(8, 192)" in done.stdout
    assert "(8, 5, 20, 192)" in done.stdout
    return done.stdout


def test_python_runs(tmp_path):
    simulate = next(line for line in command_lines() if "simulate" in line)
    assert run_command(simulate, tmp_path).returncode == 0
    said = run_python(README, tmp_path)
    assert "(4, 192)" in said
    assert "(12, 192)" in said  # a minute of the recording, with the weights that are shipped


@pytest.mark.docs
def test_python_of_the_docs_runs(tmp_path):
    assert "my-model: all 106 tensors loaded\n" in run_python(PYTHON, tmp_path)


def command_lines():
    return [line for block in blocks(README, "sh") for line in block.splitlines() if line.startswith("cerebro-eeg")]


def run_command(line, folder):
    command = line.partition("#")[0].split()
    return subprocess.run(
        [sys.executable, "-m", "cerebro_eeg", *command[1:]],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},  # several threads wait for each other on a busy machine
        capture_output=True,
        check=False,
    )


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
    from cerebro_eeg.cli import main

    monkeypatch.chdir(tmp_path)
    lines = command_lines()
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
    for path in [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "benchmarks").rglob("*.md"),
        *(ROOT / "src").rglob("*.md"),
    ]:
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            file = path.parent / link
            if link.startswith("examples/"):  # `make docs` writes this folder, from the scripts of the gallery
                file = ROOT / "docs" / "gallery" / {"index": "README.rst"}.get(file.name, f"{file.name}.py")
            assert link.startswith(("https://", "http://")) or file.exists(), (path.name, link)


def test_statement_of_independence():
    assert "not affiliated with the authors" in README
    assert re.search(r"not a\s*>?\s*medical device", README)
