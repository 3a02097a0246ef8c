"""The README's code runs, and it names every package."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
    from cerebro_eeg import MaskedCerebro
    from cerebro_eeg.channels.electrodes import VOCABULARY
    from cerebro_eeg.config import Training

    simulate = next(line for line in command_lines() if "simulate" in line)
    assert run_command(simulate, tmp_path).returncode == 0
    model = MaskedCerebro("tiny")  # in place of the run that the commands below would train
    model.training_record = Training(windows=1, steps=1, electrode_windows=dict.fromkeys(VOCABULARY, 1))
    model.save_pretrained(tmp_path / "my-run")
    assert "(12, 64)" in run_python(README, tmp_path)


def test_python_of_the_docs_runs(tmp_path):
    assert "tensors loaded; 0 reshaped" in run_python(PYTHON, tmp_path)


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


@pytest.mark.timeout(900)  # a training on real cores, twice as long where they are shared
def test_commands_run(tmp_path):
    lines = command_lines()
    assert len(lines) >= 4
    for line in lines:
        done = run_command(line, tmp_path)
        assert done.returncode == 0, (line, done.stderr)


def test_the_organisation_names_every_package():
    named = re.findall(r"^\| `(\w+)/`", README.partition("## How the code is organised")[2], flags=re.MULTILINE)
    source = ROOT / "src" / "cerebro_eeg"
    assert sorted(named) == sorted(path.name for path in source.iterdir() if (path / "__init__.py").exists())


def test_links_lead_somewhere():
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            assert link.startswith(("https://", "http://")) or (path.parent / link).exists(), (path.name, link)


def test_statement_of_independence():
    assert "not affiliated with the authors" in README
    assert re.search(r"not a\s*>?\s*medical device", README)
