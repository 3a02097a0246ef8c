"""A path that cannot be used, as any path of any verb: one clear line with a documented exit code, and no traceback."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from cerebro_eeg import cli
from predict_files import edf, make_model
from train_stores import make_store

DEEP = "[" * 100_000 + "]" * 100_000
LONG = "n" * 300
# The command, with @ for the path. What else it names exists, so nothing but the path is wrong.
INPUTS = {
    "info": ["info", "@"],
    "verify": ["verify", "@"],
    "prepare": ["prepare", "folder", "@", "--out", "new"],
    "prepare bids": ["prepare", "bids", "@", "--out", "new"],
    "prepare openeeg": ["prepare", "openeeg", "@", "--out", "new"],
    "prepare --labels": ["prepare", "folder", "eeg", "--out", "new", "--labels", "@"],
    "prepare --key": ["prepare", "folder", "eeg", "--out", "new", "--workers", "0", "--key", "@"],
    "prepare --exclude": ["prepare", "tueg", "eeg", "--out", "new", "--exclude", "@"],
    "anonymize": ["anonymize", "@", "new.edf"],
    "pretrain": ["pretrain", "@", "--out", "new", "--steps", "1"],
    "pretrain --config": ["pretrain", "store", "--out", "new", "--steps", "1", "--config", "@"],
    "pretrain --from": ["pretrain", "store", "--out", "new", "--steps", "1", "--from", "@"],
    "finetune": ["finetune", "@", "--task", "alpha", "--from", "none", "--out", "new"],
    "finetune --from": ["finetune", "store", "--task", "alpha", "--from", "@", "--out", "new"],
    "finetune --config": ["finetune", "store", "--task", "alpha", "--from", "none", "--out", "new", "--config", "@"],
    "evaluate": ["evaluate", "@", "store"],
    "evaluate the store": ["evaluate", "model", "@"],
    "predict": ["predict", "@", "eeg/a.edf", "--out", "new"],
    "predict the files": ["predict", "model", "@", "--out", "new"],
    "embed": ["embed", "@", "eeg/a.edf", "--out", "new.npz"],
    "embed the files": ["embed", "model", "@", "--out", "new.npz"],
}
OUTPUTS = {
    "info --plot": ["info", "eeg/a.edf", "--plot", "@.png"],
    "prepare --out": ["prepare", "folder", "eeg", "--out", "@", "--workers", "0"],
    "prepare --map": ["prepare", "folder", "eeg", "--out", "new", "--workers", "0", "--map", "@"],
    "simulate": ["simulate", "@", "--subjects", "1", "--minutes", "0.1", "--tasks", "eyes"],
    "anonymize the copy": ["anonymize", "eeg/a.edf", "@.edf"],
    "pretrain --out": ["pretrain", "store", "--out", "@", "--steps", "1", "--preset", "tiny", "--batch-size", "2"],
    "finetune --out": ["finetune", "store", "--task", "alpha", "--from", "none", "--out", "@", "--preset", "tiny"],
    "predict --out": ["predict", "model", "eeg/a.edf", "--out", "@", "--device", "cpu"],
    "embed --out": ["embed", "model", "eeg/a.edf", "--out", "@.npz", "--device", "cpu"],
    "demo --out": ["demo", "--out", "@", "--quick"],
    "bench --out": ["bench", "prepare", "--out", "@", "--minutes", "0.01", "--rounds", "1", "--cases", "1x256"],
}


@pytest.fixture(scope="module")
def place():
    """A folder that other users may enter, too, with a store, a model and a recording."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    make_store(folder / "store")
    make_model(folder / "model")
    edf(folder / "eeg" / "a.edf")
    (folder / "file").write_text("x")
    (folder / "loop").symlink_to("loop")
    for end in ("", ".png", ".edf", ".npz"):
        (folder / f"dangling{end}").symlink_to("nowhere")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def run(place, monkeypatch, capsys):
    """Run a command in that folder; the result is its exit code and what it wrote to stderr."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place / "config"))

    def run(template, path):
        code = cli.main([word.replace("@", path) for word in template])
        return code, capsys.readouterr().err

    return run


def said(found, name, allowed):
    """The one line of an error; any lines before it say what was found so far."""
    code, err = found
    assert code in allowed, (name, err)
    line = err.splitlines()[-1]
    assert line.startswith("cerebro-eeg: error: "), name
    assert not {"internal", "Traceback", "nnnn", "Errno"} & set(line.replace(":", " ").split()), line
    return line


@pytest.mark.parametrize("name", [*INPUTS, *OUTPUTS])
def test_a_path_that_leads_nowhere(run, name):
    template = {**INPUTS, **OUTPUTS}[name]
    bad = {"loop/x": "a link that leads back to itself", LONG: "longer than", f"{LONG}/x": "longer than"}
    bad["dangling"] = "a link to something that does not exist"
    if name in INPUTS:
        bad["loop"] = "a link that leads back to itself"
    for path, words in bad.items():
        assert words in said(run(template, path), name, {3}), path
    assert "a file stands where a folder" in said(run(template, "file/x"), name, {3})
    assert "null character" in said(run(template, "nu\0l"), name, {2})
    if "@" in template:  # a suffix behind it makes it a name
        line = said(run(template, ""), name, {2, 3})
        assert name == "info" or "is empty; give a path" in line
    assert not {"new", "new.edf", "new.npz"} & {path.name for path in Path().iterdir()}


def test_json_that_is_nested_too_deeply(run, place):
    for name, file in (("store", "store.json"), ("model", "config.json"), ("run", "run.json"), ("deep.json", "")):
        with contextlib.suppress(FileNotFoundError):
            shutil.copytree(name, place / f"deep-{name}")
        (place / f"deep-{name}").mkdir(exist_ok=True)
        (place / f"deep-{name}" / (file or name)).write_text('{"model": ' + DEEP + "}")
    given = {
        "deep-store": ["info", "prepare --out", "pretrain", "finetune", "evaluate the store"],
        "deep-model": ["info"],
        "deep-run": ["evaluate", "pretrain --out", "finetune --out"],
        "deep-deep.json/deep.json": ["pretrain --config", "finetune --config"],
    }
    for path, names in given.items():
        for name in names:
            said(run({**INPUTS, **OUTPUTS}[name], path), f"{name} {path}", {2, 3, 4, 5})


@contextlib.contextmanager
def without_rights():
    """Be a user whom permissions hold back; root they do not."""
    if os.geteuid() == 0:
        os.seteuid(65534)
        try:
            yield
        finally:
            os.seteuid(0)
    else:
        yield


@pytest.mark.skipif(os.name == "nt", reason="Windows has other permissions")
def test_what_may_not_be_read_or_written(run, place, monkeypatch):
    for name in ("store", "model", "eeg"):
        shutil.copytree(place / name, place / f"closed-{name}")
    closed = [
        place / "closed-store" / "store.json",
        place / "closed-model" / "model.safetensors",
        place / "closed-eeg" / "a.edf",
        place / "closed.json",
        place / "closed",
        place / "read-only",
    ]
    closed[3].write_text("{}")
    closed[4].mkdir()
    closed[5].mkdir()
    for name in ("prepare --out", "anonymize the copy", "predict --out", "embed --out"):
        run(OUTPUTS[name], f"warm {name}")  # modules are imported with all rights
    for name in ("pretrain --out", "finetune --out"):
        run(OUTPUTS[name], "file")
    for path in closed:
        path.chmod(0o555 if path == closed[5] else 0)
    shutil.copytree(place / "config", place / "other-config")
    for path in (place / "other-config", *(place / "other-config").rglob("*")):
        if os.geteuid() == 0:
            os.chown(path, 65534, 65534)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place / "other-config"))
    read = {
        "closed-store": ["info", "pretrain", "finetune", "evaluate the store"],
        "closed-model": ["info", "pretrain --from", "finetune --from", "predict", "embed"],
        "closed-eeg/a.edf": ["info", "anonymize"],
        "closed.json": ["pretrain --config", "finetune --config", "prepare --labels"],
        "closed/x": list(INPUTS),
    }
    written = [name for name in OUTPUTS if name not in ("demo --out", "bench --out", "info --plot", "simulate")]
    try:
        with without_rights():
            for path, names in read.items():
                for name in names:
                    said(run(INPUTS[name], path), f"{name} {path}", {2, 3, 4, 5})
            for name in written:
                assert "permission" in said(run(OUTPUTS[name], "read-only/x"), name, {2, 3, 5}).lower()
                said(run(OUTPUTS[name], "closed/x"), name, {2, 3, 5})
    finally:
        for path in closed:
            path.chmod(0o700)


def test_links_that_loop_inside_of_a_folder_are_no_recordings(run, place):
    shutil.copytree(place / "eeg", place / "tree")
    (place / "tree" / "inner").symlink_to("inner")
    (place / "tree" / "inner.edf").symlink_to("inner.edf")
    code, err = run(INPUTS["predict the files"], "tree")
    assert code == 6
    assert "internal" not in err
    code, err = run(["prepare", "folder", "@", "--out", "new-store", "--workers", "0"], "tree")
    assert (code, "internal" in err) == (6, False)
