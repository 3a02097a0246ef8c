"""The verbs as functions of Python: the same words, files and numbers as the command line, and a process left in peace.

``python tests/test_api.py`` writes ``src/cerebro_eeg/api.pyi`` anew, which says the signatures to editors.
"""

import ast
import collections.abc
import inspect
import json
import os
import re
import signal
import threading
import time
import types
import typing
import warnings
from pathlib import Path

import pytest

import cerebro_eeg
from cerebro_eeg import cli
from cerebro_eeg.errors import (
    SWITCHES,
    CerebroWarning,
    ConfigError,
    InputError,
    StoppedError,
    in_python,
    on_command_line,
    python_words,
)
from cerebro_eeg.files import file_sum
from predict_files import edf
from train_stores import make_store

VERBS = (
    "compare",
    "embed",
    "evaluate",
    "finetune",
    "info",
    "predict",
    "prepare",
    "pretrain",
    "repair",
    "simulate",
    "verify",
)
STUB = Path(cerebro_eeg.__file__).with_name("api.pyi")
HOMES = {
    "Embedding": "cerebro_eeg.runs.embed",
    "FeatureTable": "cerebro_eeg.runs.features",
    "Prediction": "cerebro_eeg.runs.decisions",
    "PredictResult": "cerebro_eeg.commands.predict",
    "EmbedResult": "cerebro_eeg.commands.embed",
    "Repaired": "cerebro_eeg.runs.repair_result",
    "RepairResult": "cerebro_eeg.commands.repair",
}


STORE = "a-store"


# The signatures, as editors and type checkers know them


def stub_type(hint) -> str:
    """A type as the stub writes it."""
    if isinstance(hint, str):
        return hint
    if hint is types.NoneType or hint is None:
        return "None"
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(stub_type, inside))
    if origin is typing.Literal:
        return f"Literal[{', '.join(map(json.dumps, inside))}]"
    if origin is collections.abc.Sequence:
        return f"Sequence[{stub_type(inside[0])}]"
    return "PathLike[str]" if origin is os.PathLike else hint.__name__


def stub() -> str:
    """The stub of all verbs."""
    homes = dict(HOMES)
    functions = []
    for verb in VERBS:
        function = getattr(cerebro_eeg, verb)
        signature = inspect.signature(function)
        lines, keywords = [], False
        for one in signature.parameters.values():
            if one.kind is one.KEYWORD_ONLY and not keywords:
                keywords = True
                lines.append("    *,")
            default = "" if one.default is one.empty else f" = {stub_value(one.default)}"
            lines.append(f"    {one.name}: {stub_type(one.annotation)}{default},")
        result = signature.return_annotation
        for kind in typing.get_args(result) or ([] if isinstance(result, str) else [result]):
            homes[kind.__name__] = kind.__module__
        doc = function.__doc__.replace("\n", "\n    ").replace("    \n", "\n").rstrip()
        functions.append(f"def {verb}(\n" + "\n".join(lines) + f'\n) -> {stub_type(result)}:\n    """{doc}\n    """\n')
    imports = [f"from {home} import {name}" for name, home in homes.items()]
    imports += ["from collections.abc import Sequence", "from os import PathLike", "from typing import Any, Literal"]
    head = '"""The verbs as functions. `python tests/test_api.py` writes this file."""\n\n# ruff: noqa: E501\n\n'
    return head + "\n".join(sorted(imports)) + "\n\n" + "\n".join(functions)


def stub_value(value) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def test_the_stub_says_what_the_functions_take():
    written, made = (ast.parse(text) for text in (STUB.read_text(encoding="utf-8"), stub()))
    assert [ast.dump(node) for node in written.body[1:] if isinstance(node, ast.FunctionDef)] == [
        ast.dump(node) for node in made.body[1:] if isinstance(node, ast.FunctionDef)
    ], "write it anew with python tests/test_api.py"


@pytest.mark.parametrize("verb", VERBS)
def test_a_function_has_the_words_of_the_command_line(verb):
    ours = set(inspect.signature(getattr(cerebro_eeg, verb)).parameters)
    flags = set(cli._options(cli._function(verb), ""))
    assert flags <= ours
    others = {name for name in inspect.signature(cli._function(verb)).parameters if name not in ("engine", "handling")}
    assert ours - flags == {"recordings" if name == "files" else name for name in others - flags}


@pytest.mark.parametrize("verb", VERBS)
def test_the_documentation_speaks_python(verb):
    doc = getattr(cerebro_eeg, verb).__doc__
    assert not re.search(
        r"(?<![\w-])--[a-z]|cerebro-eeg (evaluate|info|p|fi)|exit code|torchrun|fields are flags", doc
    ), doc
    examples = re.findall(rf"^  (cerebro_eeg\.{verb}\(.*)$", doc, re.MULTILINE)
    assert examples
    for text in examples:
        call = ast.parse(text, mode="eval").body
        while not isinstance(call, ast.Call) or ast.unparse(call.func) != f"cerebro_eeg.{verb}":
            call = call.func if isinstance(call, ast.Call) else call.value
        named = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
        inspect.signature(getattr(cerebro_eeg, verb)).bind(*map(ast.literal_eval, call.args), **named)
    documented = set(re.findall(r"^    ([a-z_]+): ", doc, re.MULTILINE))
    assert documented == set(inspect.signature(getattr(cerebro_eeg, verb)).parameters)


def test_every_switch_is_one_wherever_it_is():
    for verb in cli.VERBS:
        for name, one in inspect.signature(cli._function(verb)).parameters.items():
            if name.replace("_", "-") in SWITCHES:
                assert one.default is False, (verb, name)


# Messages


def test_messages_speak_python():
    words = {
        "say --folds N": "say folds=N",
        "say --rate as_is to feed": "say rate='as_is' to feed",
        "--again scores again": "again=True scores again",
        "choose --no-centring if": "choose centring=False if",
        "with --from: model": "with from_: model",
        "--micro-batch with fewer windows, or --recompute": "micro_batch with fewer windows, or recompute=True",
        "(--key FILE)": "(key=FILE)",
        "try --workers 0": "try workers=0",
        "cerebro-eeg prepare, and cerebro-eeg doctor": "cerebro_eeg.prepare, and cerebro-eeg doctor",
        "the same command goes on": "the same call goes on",
        "a--b x-y --": "a--b x-y --",
        "use unknown='drop'": "use unknown='drop'",
    }
    for text, python in words.items():
        assert python_words(text) == python
        with pytest.raises(ConfigError) as caught, in_python():
            raise ConfigError(text)
        assert str(caught.value) == python
        assert str(ConfigError(text)) == text
        with on_command_line(["unknown"]):
            assert str(ConfigError(text)) == text.replace("unknown='drop'", "--unknown drop")


@pytest.mark.parametrize(
    ("call", "error", "line"),
    [
        (lambda: cerebro_eeg.simulate("x", subjects="4"), ConfigError, "subjects is '4'; expected a whole number"),
        (lambda: cerebro_eeg.simulate("x", subjects=True), ConfigError, "subjects is True; expected a whole number"),
        (lambda: cerebro_eeg.simulate("x", minutes="2"), ConfigError, "minutes is '2'; expected a number"),
        (lambda: cerebro_eeg.simulate("x", mains=55), ConfigError, "mains is 55; choose 50 or 60"),
        (lambda: cerebro_eeg.simulate(None), ConfigError, "out is None; expected a path"),
        (lambda: cerebro_eeg.simulate(""), ConfigError, "out is empty; give a path, or '.' for the folder that you"),
        (lambda: cerebro_eeg.pretrain(3, out="x"), ConfigError, "stores is of type int; expected a path"),
        (lambda: cerebro_eeg.pretrain([], out="x"), ConfigError, "no store was given"),
        (lambda: cerebro_eeg.pretrain("s", out="x", paper=1), ConfigError, "paper is 1; expected True or False"),
        (lambda: cerebro_eeg.pretrain("s", out="x", readers=-1), ConfigError, "readers is -1"),
        (lambda: cerebro_eeg.info("tiny", seconds=5, start=3), ConfigError, "start was given with a preset"),
        (lambda: cerebro_eeg.prepare("folder", "a\0b", out="x"), ConfigError, "source holds a null character"),
        (lambda: cerebro_eeg.predict(STORE, "m"), ConfigError, "a store was given, and predict reads recordings"),
        (lambda: cerebro_eeg.predict([b"x"], "m"), ConfigError, "recordings hold an object of type bytes"),
        (lambda: cerebro_eeg.predict("a.edf", "m", plot=True), ConfigError, "plot: without effect on one recording"),
        (lambda: cerebro_eeg.embed("a.edf", "m", task="eyes"), ConfigError, "task: without effect on one recording"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(call, error, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "a store was given" in line:
        make_store(tmp_path / STORE)
    with pytest.raises(error, match=f"^{re.escape(line)}") as caught:
        call()
    assert "--" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir() if path.name != STORE] == []


def test_an_unknown_name_is_a_type_error_as_everywhere_in_python():
    with pytest.raises(TypeError, match="unexpected keyword argument 'steeps'"):
        cerebro_eeg.pretrain("store", out="x", steeps=3)
    with pytest.raises(TypeError, match="missing a required argument: 'out'"):
        cerebro_eeg.pretrain("store")


def test_a_file_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match=r"^out cannot be used: a file stands where a folder should be"):
        cerebro_eeg.simulate(tmp_path / "file" / "inside", subjects=1, minutes=0.2)


# The whole way, by functions and by the command line


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Files, store, weights, a fine-tuned run and features, made by functions."""
    folder = tmp_path_factory.mktemp("api")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        eeg = cerebro_eeg.simulate("eeg", subjects=6, minutes=0.4, tasks="eyes", montages=["10-20", "32"])
        store = cerebro_eeg.prepare("folder", eeg, out="store", labels="eeg/labels/eyes.csv", workers=0)
        run = cerebro_eeg.pretrain(store, out="run", **PRETRAIN)
        tuned = cerebro_eeg.finetune(store, task="eyes", from_=run, out=Path("tuned"), **FINETUNE)
        yield {"folder": folder, "eeg": eeg, "store": store, "run": run, "tuned": tuned}


PRETRAIN = {"preset": "tiny", "steps": 2, "batch_size": 8, "device": "cpu", "set": {"model.depth": 2}}
FINETUNE = {"freeze": True, "readout": "mean", "rivals": False, "device": "cpu"}


def weights(folder):
    """The SHA-256 of weights."""
    return file_sum(Path(folder, "model.safetensors"))


def test_the_command_line_gives_the_same(work, tmp_path, monkeypatch, capfd):
    """The same hash of a store, the same weights bit by bit, the same scores, tables and features."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(work["folder"] / "config"))
    monkeypatch.chdir(tmp_path)

    def run(*words):
        assert cli.main([*words, "--json"]) == 0
        return json.loads(capfd.readouterr().out)

    capfd.readouterr()
    run("simulate", "eeg", *"--subjects 6 --minutes 0.4 --tasks eyes --montages 10-20 32".split())
    made = run("prepare", "folder", "eeg", "--out", "store", "--labels", "eeg/labels/eyes.csv", "--workers", "0")
    assert made["hash"] == work["store"].found.hash
    trained = run("pretrain", "store", "--out", "run", *"--preset tiny --steps 2 --batch-size 8 --device cpu".split(),
                  "--set", "model.depth=2")  # fmt: skip
    assert trained["sha256"] == work["run"].sha256
    options = "--task eyes --from run --out tuned --freeze --readout mean --no-rivals --device cpu".split()
    run("finetune", "store", *options)
    assert weights("tuned/seed-0") == weights(Path(work["folder"], "tuned", "seed-0"))
    scores = run("evaluate", "tuned", "store", "--no-rivals", "--device", "cpu", "--resamples", "100")
    run("predict", "tuned", "eeg", "--out", "said", "--device", "cpu")
    run("embed", "run", "store", "--task", "eyes", "--out", "f.parquet", "--device", "cpu")
    monkeypatch.chdir(work["folder"])
    found = cerebro_eeg.evaluate(work["tuned"], work["store"], rivals=False, device="cpu", resamples=100)
    assert json.loads(json.dumps(found.to_dict()["summary"])) == scores["summary"]
    cerebro_eeg.predict(work["eeg"], work["tuned"], out="said", device="cpu")
    cerebro_eeg.embed(work["store"], work["run"], task="eyes", out="f.parquet", device="cpu")
    for name in ("said/predictions.csv", "said/decisions.csv", "f.parquet"):
        assert Path(name).read_bytes() == (tmp_path / name).read_bytes(), name
    assert capfd.readouterr().out == ""  # functions print nothing on stdout
    assert repr(cerebro_eeg.verify([work["store"], work["run"], work["tuned"], "said", "f.parquet"])) == (
        "<VerifyResult: 5 paths sound>"
    )


def test_results_are_paths_and_show_themselves(work, monkeypatch):
    monkeypatch.chdir(work["folder"])
    for name in ("eeg", "store", "run", "tuned"):
        assert Path(work[name]) == Path(name)
        assert "\n" not in repr(work[name])
        assert len(repr(work[name])) < 200
    assert repr(work["store"]) == "<PrepareResult: store: 6 recordings, 0.04 h>"
    assert work["run"].to_frame()["step"].tolist() == [1, 2]
    assert work["tuned"].to_frame()[["seed", "metric"]].to_numpy().tolist() == [[0, "auroc"]]
    frame = work["store"].to_frame()
    assert (len(frame), set(frame["channels"]), frame["skipped"].isna().all()) == (6, {19, 32}, True)
    about = cerebro_eeg.info(work["store"])
    assert about.to_frame()["windows"].sum() == len(work["store"].arrays("eyes", channels=["Fz"]).X)
    assert cerebro_eeg.info("tiny").to_frame()["parameters"].sum() > 1e5
    (file, *_) = sorted(Path("eeg").rglob("*.edf"))
    assert cerebro_eeg.info(file).to_frame()["channel"].notna().sum() == 19
    for result in (*list(work.values())[1:], about, cerebro_eeg.info("tiny"), cerebro_eeg.info(file)):
        html = result._repr_html_()
        assert html.startswith(f"<div><p><b>{type(result).__name__}</b>: ")
        assert "<table>" in html


def test_what_was_skipped_or_not_used_is_warned_of_and_kept(work, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(work["folder"] / "config"))
    file = sorted((work["folder"] / "eeg").rglob("*.edf"))[0]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "Jane.edf").write_bytes(file.read_bytes())
    (tmp_path / "in" / "Zqanary.edf").write_bytes(b"bad")
    model, inside = work["folder"] / "tuned", tmp_path / "in"
    with pytest.warns(CerebroWarning, match="1 recording of 2 could not be used") as caught:
        found = cerebro_eeg.predict(inside, model)
    assert Path(caught[0].filename) == Path(__file__)  # the line of the user, not one of ours
    assert [failure.input.number for failure in found.failures] == [2]
    assert (found.exit_code, len(found.predictions)) == (6, 1)
    assert found.to_frame()["code"].tolist() == ["", found.failures[0].code]
    with pytest.warns(CerebroWarning, match="1 recording of 2 could not be used"):
        table = cerebro_eeg.embed([inside / "Jane.edf", inside / "Zqanary.edf"], work["folder"] / "run")
    assert len(table.failures) == 1
    with pytest.warns(CerebroWarning, match="1 recording skipped"):
        store = cerebro_eeg.prepare("folder", inside, out=tmp_path / "store", workers=0)
    assert list(store.skipped.values()) == [1]
    assert store.to_frame()["why"].notna().sum() == 1
    shown = [repr(found), found._repr_html_(), repr(table), table._repr_html_(), store._repr_html_(), str(caught[0])]
    assert not [text for text in shown if "Zqanary" in text or "Jane" in text]
    with pytest.warns(CerebroWarning, match="Zqanary"):
        named = cerebro_eeg.predict(inside, model, show_paths=True)
    assert named.to_frame()["path"].tolist() == ["Jane.edf", "Zqanary.edf"]
    with pytest.raises(ConfigError, match=r"^no recording could be used: file 1"):
        cerebro_eeg.embed([inside / "Zqanary.edf"], work["folder"] / "run")
    (tmp_path / "broken").mkdir()
    features = tmp_path / "broken" / "f.npz"
    cerebro_eeg.embed(work["folder"] / "store", work["folder"] / "run", out=features)
    data = bytearray(features.read_bytes())
    data[len(data) // 2] ^= 1
    features.write_bytes(data)
    with pytest.warns(CerebroWarning, match="damage was found"):
        assert cerebro_eeg.verify(features).exit_code == 9


def test_a_recording_that_is_refused_is_warned_of_in_words_of_python(tmp_path):
    file = edf(tmp_path / "a.edf", ("Fp1", "Blob"), seconds=3)
    with pytest.warns(CerebroWarning, match="the recording is refused as it is: .*use unknown='drop'"):
        found = cerebro_eeg.info(file)
    assert found.exit_code == 3
    assert cerebro_eeg.info(file, unknown="drop").trouble is None


def test_lines_of_progress_speak_python(work, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(work["folder"])
    cerebro_eeg.finetune(work["store"], task="eyes", from_=work["run"], out=tmp_path / "a", **FINETUNE)
    said = capsys.readouterr().err
    assert "the preset nearest to these weights (2 blocks of width 64); preset chooses" in said
    assert "--" not in said


# The process


def state_of_the_process():
    import torch

    return (
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_rng_state().tolist(),
        [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)],
        sorted(thread.name for thread in threading.enumerate()),
        dict(os.environ),
        list(warnings.filters),
        signal.pthread_sigmask(signal.SIG_BLOCK, []),
    )


def test_the_process_is_left_as_it_was(work, tmp_path, monkeypatch):
    monkeypatch.chdir(work["folder"])
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    before = state_of_the_process()
    cerebro_eeg.pretrain(work["store"], out=tmp_path / "run", **PRETRAIN, threads=1, deterministic=True)
    cerebro_eeg.embed(work["store"], work["run"], threads=1, device="cpu")
    with pytest.raises(ConfigError):
        cerebro_eeg.predict(work["eeg"], work["run"], threads=1, mains=-3)
    assert state_of_the_process() == before


def test_another_thread_may_train(work, tmp_path, monkeypatch):
    monkeypatch.chdir(work["folder"])
    found = []
    thread = threading.Thread(
        target=lambda: found.append(cerebro_eeg.pretrain(work["store"], out=tmp_path / "run", **PRETRAIN))
    )
    thread.start()
    thread.join()
    assert found[0].sha256 == work["run"].sha256


def test_an_interrupt_saves_the_state_and_the_kernel_goes_on(work, tmp_path, monkeypatch):
    """As a notebook interrupts its kernel: SIGINT while the main thread trains. The same call goes on."""
    monkeypatch.chdir(work["folder"])
    many = PRETRAIN | {"steps": 40}
    log = tmp_path / "run" / "metrics.jsonl"

    def interrupt():
        while not (log.exists() and log.read_text().count("\n") > 3):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(StoppedError, match=r"^stopped after step \d+ of 40; the same call goes on$"):
        cerebro_eeg.pretrain(work["store"], out=tmp_path / "run", **many)
    thread.join()
    assert (tmp_path / "run" / "state.safetensors").exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    again = cerebro_eeg.pretrain(work["store"], out=tmp_path / "run", **many)  # goes on
    assert again.to_frame().query("loss == loss")["step"].tolist() == list(range(1, 41))


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
    os.system(f"ruff check -q --fix {STUB}; ruff format -q {STUB}")
