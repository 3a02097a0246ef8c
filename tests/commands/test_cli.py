"""The command line from outside: what it prints where, what it loads and how it exits."""

import errno
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cerebro_eeg
from cerebro_eeg import cli, errors

ERRORS = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, errors.CerebroError)]

VERBS = '''
import os, signal, sys, warnings
from pathlib import Path
from dataclasses import dataclass
from cerebro_eeg import errors

@dataclass(frozen=True)
class Result:
    value: int = 1
    lines: int = 1
    def text(self): return "\\n".join([f"value {self.value}"] * self.lines)
    def to_dict(self): return {"value": self.value}

def fine(value: int = 1, lines: int = 1, half: bool = False) -> Result:
    """Return the value.

    Args:
        value: The value to return.
        lines: How often to say it.
        half: Whether to halve it.
    """
    return Result(value, lines)

def mistake(kind: str, /) -> Result:
    """Raise."""
    text = "given 1,\\n  expected 2: change it"
    raise errors.RecordingError("code", text) if kind == "RecordingError" else getattr(errors, kind)(text)

def bug() -> Result:
    """Raise."""
    raise ZeroDivisionError("one by\\nzero")

def interrupt() -> Result:
    """Interrupt."""
    signal.raise_signal(signal.SIGINT)

def warn() -> Result:
    """Warn."""
    warnings.warn("look\\nhere", stacklevel=1)
    return Result()

def no_memory() -> Result:
    """Ask for too much."""
    raise MemoryError

def deep() -> Result:
    """Go too deep."""
    return deep()

def no_file(out: Path, number: int) -> Result:
    """Fail as the system does."""
    raise OSError(number, os.strerror(number), str(out / "inner"))

def nan() -> Result:
    """Return what JSON cannot say."""
    return Result(float("nan"))
'''


@pytest.fixture
def run(tmp_path: Path):
    """Run the command line in a process of its own, with the verbs above added to it."""
    (tmp_path / "verbs.py").write_text(VERBS)
    code = "import sys\nfrom cerebro_eeg import cli\n" + "".join(
        f"cli.VERBS[{verb!r}] = ('verbs:{verb}', 'of the test')\n" for verb in re.findall(r"^def (\w+)", VERBS, re.M)
    )
    code += "code = cli.main()\nprint(*sys.modules, file=open('modules.txt', 'w'))\nsys.exit(code)"

    def run(*args: str, stdout: object = subprocess.PIPE, **env: str) -> subprocess.CompletedProcess[str]:
        paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | env
        command = [sys.executable, "-c", code, *args]
        return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=env, cwd=tmp_path)

    return run


def one_line(text: str) -> str:
    (line,) = text.splitlines()
    return line


def test_help(run) -> None:
    done = run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    for verb in cli.VERBS:
        assert f"\n  {verb}" in done.stdout
    for code in {0, 130, 141, *(c.exit_code for c in ERRORS)}:
        assert f"\n  {code} " in done.stdout


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["nothing"], []])
def test_plain_help_loads_nothing_heavy(run, tmp_path: Path, args: list[str]) -> None:
    run(*args)
    loaded = set((tmp_path / "modules.txt").read_text().split())
    assert "cerebro_eeg.cli" in loaded
    assert not {"torch", "numpy", "tyro", "argparse", "cerebro_eeg.commands"} & loaded


def test_a_verb_loads_no_torch_for_its_help(run, tmp_path: Path) -> None:
    for verb in cli.VERBS:
        done = run(verb, "--help")
        assert done.returncode == 0, done.stderr
        assert f"usage: cerebro-eeg {verb}" in done.stdout
        assert not {"torch", "numpy"} & set((tmp_path / "modules.txt").read_text().split()), verb


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["pretrain", "store", "--out", "run", "--readers", "-1"], "--readers is -1; it must be at least 0"),
        (["finetune", "store", "--task", "t", "--from", "none", "--out", "run", "--threads", "0"], "--threads is 0"),
        (["predict", "model", "a.edf", "--out", "said", "--mains", "-1"], "--mains is -1; expected a frequency"),
        (["embed", "model", "a.edf", "--out", "a.npz", "--mains", "2000"], "--mains is 2000; expected a frequency"),
    ],
)
def test_a_shared_setting_that_cannot_be_is_refused_before_any_work(run, args: list[str], words: str) -> None:
    done = run(*args)
    assert done.returncode == 2
    assert done.stderr.startswith(f"cerebro-eeg: error: {words}")
    assert done.stderr.count("\n") == 1


def test_version(run) -> None:
    assert run("--version").stdout == f"cerebro-eeg {cerebro_eeg.__version__}\n"


def test_no_verb_shows_the_help_on_stderr(run) -> None:
    done = run()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: cerebro-eeg VERB")


def test_unknown_verb(run) -> None:
    done = run("docter")
    assert (done.returncode, done.stdout) == (2, "")
    line = one_line(done.stderr)
    assert line.startswith("cerebro-eeg: error: unknown verb 'docter'; did you mean 'doctor'?")
    assert "info, doctor, demo" in line
    assert "did you mean" not in run("xyzzy").stderr
    assert "unknown option '--channels'" in run("--channels", "19").stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["fine", "--value", "abc"], "cannot read --value: 'abc' is not a whole number; see cerebro-eeg fine --help"),
        (["fine", "extra"], "Unrecognized options: extra; see cerebro-eeg fine --help"),
        (["fine", "--valeu", "3"], "Perhaps you meant: --value"),
        (["mistake"], "Missing from cerebro-eeg mistake: KIND"),
    ],
)
def test_wrong_usage_is_one_line(run, args: list[str], words: str) -> None:
    done = run(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in one_line(done.stderr)


def test_result_as_text_and_as_json(run) -> None:
    assert run("fine", "--value", "3").stdout == "value 3\n"
    for args in (["fine", "--value", "3", "--json"], ["--json", "fine", "--value", "3"]):
        assert json.loads(run(*args).stdout) == {"value": 3}


def test_help_of_a_verb_is_its_docstring(run) -> None:
    done = run("fine", "--help")
    assert done.returncode == 0
    for words in ("usage: cerebro-eeg fine", "Return the value.", "--value N", "How often to say it.", "--json"):
        assert words in done.stdout
    assert "--no-half" not in done.stdout


@pytest.mark.parametrize("args", [["--valu", "1"], ["--value", "x"], ["extra"]])
def test_wrong_usage_of_a_verb(run, args: list[str]) -> None:
    done = run("fine", *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert "cerebro-eeg fine --help" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("kind", ERRORS)
def test_a_mistake_is_one_line_and_its_exit_code(run, kind: type[errors.CerebroError]) -> None:
    done = run("mistake", kind.__name__)
    assert (done.returncode, done.stdout) == (kind.exit_code, "")
    assert done.stderr == "cerebro-eeg: error: given 1, expected 2: change it\n"


def test_a_bug_is_one_line(run) -> None:
    done = run("bug")
    assert (done.returncode, done.stdout) == (1, "")
    line = one_line(done.stderr)
    assert line.startswith("cerebro-eeg: internal error: ZeroDivisionError (run again with --debug")


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["no_memory"], 1, "the memory does not suffice"),
        (["deep"], 3, "something that was given is nested too deeply"),
        *(
            (["no_file", "--out", "x", "--number", str(number)], code, f"a file of --out could not be {words}")
            for number, code, words in (
                (errno.EACCES, 3, "read or written: you lack the permission"),
                (errno.EROFS, 3, "read or written: it is on a disk that is read-only"),
                (errno.ENOENT, 3, "read or written: it is not there"),
                (errno.EIO, 1, "read or written: Input/output error; see that its disk"),
            )
        ),
    ],
)
def test_errors_of_the_system_are_one_line(run, args: list[str], code: int, words: str) -> None:
    done = run(*args)
    assert (done.returncode, done.stdout) == (code, "")
    assert one_line(done.stderr).startswith(f"cerebro-eeg: error: {words}")


def test_nan_is_no_json(run) -> None:
    done = run("nan", "--json")
    assert (done.returncode, done.stdout) == (1, "")
    assert "internal error: ValueError" in one_line(done.stderr)


@pytest.mark.parametrize(
    ("args", "code", "last"),
    [
        (["bug", "--debug"], 1, "zero"),
        (["--debug", "bug"], 1, "zero"),
        (["mistake", "InputError", "--debug"], 3, "  expected 2: change it"),
        (["interrupt", "--debug"], 130, "KeyboardInterrupt"),
    ],
)
def test_debug_shows_the_traceback(run, args: list[str], code: int, last: str) -> None:
    done = run(*args)
    assert done.returncode == code
    assert done.stderr.startswith("Traceback (most recent call last):")
    assert done.stderr.splitlines()[-1] == last


def test_interrupt(run) -> None:
    done = run("interrupt")
    assert (done.returncode, done.stderr) == (130, "cerebro-eeg: interrupted\n")


def test_a_warning_is_one_line(run) -> None:
    done = run("warn")
    assert (done.returncode, done.stdout) == (0, "value 1\n")
    assert done.stderr == "cerebro-eeg: warning: look here\n"


@pytest.mark.parametrize("args", [["fine", "--lines", "1"], ["fine", "--lines", "100000"], ["fine", "--help"], ["-h"]])
def test_a_reader_that_went_away_is_quiet(run, args: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = run(*args, stdout=writing)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line(run) -> None:
    with open("/dev/full", "w") as full:
        done = run("fine", stdout=full)
    assert done.returncode == 1
    assert one_line(done.stderr).startswith(
        "cerebro-eeg: error: a file could not be read or written: No space left on device;"
    )


def test_output_that_lacks_a_letter_is_no_error(run) -> None:
    done = run("fine", "--help", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")


def test_doctor_text_as_a_module() -> None:
    command = [sys.executable, "-m", "cerebro_eeg", "doctor"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(rf"^  cerebro-eeg +{re.escape(cerebro_eeg.__version__)}$", done.stdout, re.M)
    for section in ("versions", "machine", "devices", "optional packages", "caches"):
        assert section in done.stdout.splitlines()


def test_doctor_json_names_neither_user_nor_machine(run, tmp_path: Path) -> None:
    home = tmp_path / "jane doe"
    done = run("doctor", "--json", HOME=str(home), USER="jane", LOGNAME="jane", HF_HOME="/data/jane")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert found["versions"]["cerebro-eeg"] == cerebro_eeg.__version__
    assert found["devices"][0]["name"] == "cpu"
    assert found["extras"]["mne"]["version"]
    assert found["caches"]["Hugging Face Hub"] == "chosen with HF_HOME"
    assert "jane" not in done.stdout
    assert "/" not in done.stdout.replace("~/.triton/cache", "")


def test_doctor_without_a_working_torch(run, tmp_path: Path) -> None:
    home = tmp_path / "jane doe"
    message = f"{home}/env/lib/libtorch.so: cannot open /opt/jane/x.so and C:\\jane\\y.dll"
    (tmp_path / "torch.py").write_text(f"raise OSError({message!r})")
    done = run("doctor", HOME=str(home))
    assert (done.returncode, done.stderr) == (1, "")
    assert "torch does not load  OSError: libtorch.so: cannot open x.so and y.dll" in done.stdout
    assert "jane" not in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["s", "--out", "o", "--without", "a", "b:test"],
        ["s", "--without", "a", "--out", "o", "--without", "b:test"],
        ["s", "--without=a", "--without=b:test", "--out", "o"],
        ["--without=a", "s", "--out", "o", "--without", "b:test"],
    ],
)
def test_a_list_that_is_given_twice_is_one_list(words) -> None:
    call = cli._read_arguments("pretrain", words)
    assert call.args == ((Path("s"),),)
    assert (call.keywords["without"], call.keywords["out"]) == (("a", "b:test"), Path("o"))


def test_lists_of_shared_settings_are_joined_too() -> None:
    words = ["s", "--out", "o", "--loggers", "wandb", "--loggers", "tensorboard", "--weights", "1", "--steps", "3"]
    call = cli._read_arguments("pretrain", words)
    assert call.keywords["engine"].loggers == ("wandb", "tensorboard")
    assert (call.keywords["weights"], call.keywords["steps"]) == ((1.0,), 3)
