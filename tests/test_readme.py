"""The README's code runs, and it names every package."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.timeout(900)  # a training on real cores, twice as long where they are shared
def test_commands_run(tmp_path):
    from cerebro_eeg import Cerebro

    Cerebro(2, config="tiny").save_pretrained(tmp_path / "my-model")
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("cerebro-eeg")]
    assert len(lines) >= 4
    for line in lines:
        command = line.partition("#")[0].split()
        done = subprocess.run(
            [sys.executable, "-m", "cerebro_eeg", *command[1:]], cwd=tmp_path, capture_output=True, check=False
        )
        assert done.returncode == 0, (line, done.stderr)


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
