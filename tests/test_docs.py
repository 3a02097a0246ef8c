"""docs/paper.md names only fields and tests that exist and explains every setting; every command in the docs exists."""

import dataclasses
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from cerebro_eeg import cli, config

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
CONFIGS = {name: cls for name, cls in vars(config).items() if dataclasses.is_dataclass(cls)}
# Settings that need no explanation beyond the paper: dimensions, names.
PLAIN = {"ModelConfig.width", "ModelConfig.heads", "ModelConfig.norm_eps", "ModelConfig.patches", "ModelConfig.signal"}
PLAIN |= {"HeadConfig.names"}


def test_every_field_that_is_named_exists():
    named = re.findall(r"`([A-Z]\w+)\.(\w+)`", PAGE)
    assert len(named) > 30
    for cls, name in named:
        assert name in {f.name for f in dataclasses.fields(CONFIGS[cls])}, f"{cls}.{name}"


@pytest.mark.parametrize("cls", ["ModelConfig", "PatchConfig", "SignalConfig", "ObjectiveConfig", "HeadConfig"])
def test_every_setting_is_explained(cls):
    missing = (
        {f"{cls}.{f.name}" for f in dataclasses.fields(CONFIGS[cls])}
        - PLAIN
        - set(re.findall(r"`([A-Z]\w+\.\w+)`", PAGE))
    )
    assert missing == set()


def test_every_test_that_is_named_exists():
    named = re.findall(r"`(test_\w+\.py)::(\w+)`", PAGE)
    assert len(named) > 30
    for file, name in named:
        assert f"def {name}(" in next((ROOT / "tests").rglob(file)).read_text(encoding="utf-8"), f"{file}::{name}"


# Commands

PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.md"), *ROOT.glob("[br]*/README.md")]
)
OTHERS = {  # flags of other programs, of scripts and of every verb
    *("nproc-per-node", "nworkers", "nthreads", "help", "json", "debug", "version", "mini", "tueg", "tuab", "neonate"),
    *("nv", "nnodes", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "no-cache-dir"),  # of a container and of torchrun
    "signals-to-handle",
    *("job-name", "array", "cpus-per-task", "mem", "time", "nodes", "gpus-per-node", "ntasks-per-node"),  # of Slurm
    *("signal", "requeue"),
    *("page", "section", "csv", "found", "query-gpu", "format", "print-source", "windows", "draws"),
}


def command_lines() -> list[tuple[str, str]]:
    """Every line of a block of shell commands that calls us, with its page."""
    found = []
    for page in PAGES:
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            found += [(page.name, line) for line in block.replace("\\\n", " ").splitlines() if "cerebro" in line]
    return found


@pytest.mark.parametrize(("page", "line"), command_lines())
def test_every_command_has_a_verb_and_options_that_exist(page, line):
    words = shlex.split(line, comments=True)
    starts = [k for k, word in enumerate(words) if word in ("cerebro-eeg", "cerebro_eeg")]
    for start in starts[:1]:
        verb, *rest = words[start + 1 :]
        if verb.startswith("--") or "--help" in rest:
            assert verb in cli.VERBS or verb in ("--help", "--version")
        else:
            cli._read_arguments(verb, cli._take_flags(rest)[0])  # reads them, and runs nothing


def test_every_script_is_one_that_a_shell_understands():
    scripts = [
        block
        for page in PAGES
        for block in re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    ]
    assert len(scripts) >= 2
    for script in scripts:
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_every_flag_that_is_named_exists():
    known = {
        option.replace("_", "-").rstrip("-") for verb in cli.VERBS for option in cli._options(cli._function(verb), "")
    }
    for page in PAGES:
        if page.name == "CHANGELOG.md":  # it also tells of flags that are gone
            continue
        for flag in re.findall(r"(?<![\w-])--([a-z][a-z-]*[a-z])", page.read_text(encoding="utf-8")):
            assert flag.removeprefix("no-") in known or flag in OTHERS, f"{page.name}: --{flag}"


# Of BioFoundation, the code of the paper's group.
SCRIPTS = {f"make_{name}.py" for name in ("mobi_dataset", "neonate", "seed", "seed_v", "tuab", "tueg")}
SCRIPTS |= {"process_raw_eeg.py", "run_class_finetuning.py", "finetune_main.py"}  # and of LaBraM and CBraMod
FILES = re.compile(r"`(?:src/cerebro_eeg/|cerebro_eeg/)?((?:[\w.-]+/)*[\w-]+\.py)(?:::\w+)?`")


def test_every_file_of_code_that_is_named_exists():
    names = [path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py") if ".venv" not in path.parts]
    for page in PAGES:
        if page.name == "CHANGELOG.md":
            continue
        for file in FILES.findall(page.read_text(encoding="utf-8")):
            ours = any(name == file or name.endswith(f"/{file}") for name in names)
            assert ours or file in SCRIPTS, f"{page.name}: {file}"
