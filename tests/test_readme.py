"""The README's code runs, and its map is the tree."""

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


def test_map_is_the_tree():
    tree = README.partition("## The map")[2].partition("```\n")[2].partition("```")[0]
    named = {name.rpartition("/")[2] for name in re.findall(r"[\w/.]+", tree) if name.endswith(".py")}
    real = {path.name for path in (ROOT / "src").rglob("*.py")} - {"__main__.py", "info.py", "doctor.py", "demo.py"}
    assert real <= named | {"__init__.py"}
    places = [path.name for folder in ("src", "tests", "tools", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    assert named <= set(places)


def test_links_lead_somewhere():
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert link.startswith("https://") or (ROOT / link).exists(), link


def test_statement_of_independence():
    assert "not affiliated with the authors" in README
    assert re.search(r"not a\s*>?\s*medical device", README)
