"""verify finds any flipped bit in anything that we write, and calls nothing damaged that is not."""

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys

import numpy as np
import pytest

from cerebro_eeg import cli
from cerebro_eeg.commands.evaluate import evaluate
from cerebro_eeg.commands.predict import predict
from cerebro_eeg.config import FinetuneConfig, ObjectiveConfig, Preset, PretrainConfig
from cerebro_eeg.data.reading.recording import ChannelPolicy
from cerebro_eeg.data.storing import store_info
from cerebro_eeg.data.storing.mains import find_table, look_at
from cerebro_eeg.data.storing.skip_log import SkipLog, read_reasons, write_skipped
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.data.storing.writer import ShardWriter
from cerebro_eeg.errors import CheckpointError, InputError, StoreError
from cerebro_eeg.files import MARK, SUMS, begin_sums, read_sums
from cerebro_eeg.model import checkpoint
from cerebro_eeg.runs import finetune, pretrain
from cerebro_eeg.runs.features import FeatureFile
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.runs.verify import DAMAGED, verify
from predict_files import edf, make_model
from train_stores import make_store
from train_worker import MODEL, preset

ENGINE = Engine(device="cpu", readers=0)
TUNED = Preset(
    MODEL, ObjectiveConfig(), PretrainConfig(), FinetuneConfig(batch_size=16, peak_lr=3e-3, warmup_epochs=1, epochs=2)
)
FLIPS = 6


@pytest.fixture(autouse=True, scope="module")
def _no_waiting_for_the_disk():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


def write_features(path):
    rng = np.random.default_rng(0)
    with FeatureFile(path, (5,), channels=False) as file:
        for id in ("a", "b"):
            with file.recording():
                file.add(id, np.arange(20.0), rng.normal(0, 1, (20, 5)).astype(np.float32))
        file.finish()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One of everything that we write; tests damage copies."""
    folder = tmp_path_factory.mktemp("made")
    make_store(folder / "store", 6, 8, pretrain=True)
    with SkipLog(folder / "store", "w") as log:
        for number in range(3):
            log.add(f"bad{number}", "not-edf", "it is no EDF file, and says so in words" * (number > 0))
    write_skipped(folder / "store", read_reasons(folder / "store"))
    find_table(folder / "store", {}, ChannelPolicy(), look_at)
    choices = pretrain.PretrainOptions(steps=4, seconds=1.0, paper=True)
    pretrain.pretrain([folder / "store"], folder / "pretrained", preset({}), choices, ENGINE)
    choices = finetune.FinetuneOptions("alpha", seeds=(0,), steps=3)
    finetune.finetune(folder / "store", folder / "tuned", TUNED, choices, ENGINE)
    evaluate(folder / "tuned", folder / "store", device="cpu", resamples=100, events=True)
    make_model(folder / "checkpoint")
    edf(folder / "eeg" / "a.edf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        predict(str(folder / "checkpoint"), (folder / "eeg",), out=folder / "predictions", annotations=("edf", "bids"))
    (folder / "features").mkdir()
    for name in ("f.npz", "f.parquet"):
        write_features(folder / "features" / name)
    return folder


def look(*paths):
    """What the command line says: exit code and JSON."""
    done = verify([*paths])
    assert done.to_dict()["sound"] == (done.exit_code == 0)
    assert "\n" not in "".join(line for thing in done.things for line in (*thing.damaged, *thing.uncovered))
    done.text()
    return done


def flip(path, bit):
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock" and path.stat().st_size)


@pytest.mark.parametrize("kind", ["store", "pretrained", "tuned", "checkpoint", "predictions", "features"])
def test_any_flipped_bit_in_any_file_is_found(made, tmp_path, kind, capsys):
    shutil.copytree(made / kind, tmp_path / kind)
    given = files(tmp_path / kind) if kind == "features" else [tmp_path / kind]
    sound = look(*given)
    assert sound.exit_code == 0, sound.text()
    rng = random.Random(kind)
    for path in files(tmp_path / kind):
        good = path.read_bytes()
        bits = {0, 8 * len(good) - 1, 8 * len(good) - 8, *rng.choices(range(8 * len(good)), k=FLIPS)}
        for bit in bits:
            flip(path, bit)
            found = look(*given)
            name = path.relative_to(tmp_path / kind).as_posix()
            if path.name == "README.md" or (path.name == "skipped.csv" and not found.exit_code):  # words for people
                assert any(name in line for line in found.things[0].uncovered)
            else:
                assert found.exit_code == DAMAGED, (name, bit)
            path.write_bytes(good)
    assert look(*given).exit_code == 0
    if (tmp_path / kind / SUMS).exists():
        (tmp_path / kind / min(read_sums(tmp_path / kind))).unlink()
        assert "is missing" in look(*given).text()


def test_the_command_line(made, tmp_path, capsys):
    shutil.copytree(made / "store", tmp_path / "store")
    assert cli.main(["verify", str(tmp_path / "store"), str(made / "tuned")]) == 0
    said = capsys.readouterr().out
    assert "6 recordings: every line and every sample, against its SHA-256 and 6 sums of blocks" in said
    assert "seed-0/" in said
    flip(tmp_path / "store" / "w-0000.bin", 8 * 100)
    assert cli.main(["verify", str(tmp_path / "store"), str(made / "tuned"), "--json"]) == DAMAGED == 9
    found = json.loads(capsys.readouterr().out)
    assert not found["sound"]
    assert len(found["things"]) == 2
    first, second = found["things"]
    assert "samples of recording 's0' are damaged, from 0.00 to " in first["damaged"][0]
    assert second["damaged"] == []
    assert cli.main(["verify", str(tmp_path / "nothing")]) == 3
    assert cli.main(["verify", str(made / "eeg")]) == 3
    assert cli.main(["verify", str(made / "store"), str(made / "eeg" / "a.edf")]) == 3
    assert cli.main(["verify", str(made / "tuned" / "report.html")]) == 0
    assert cli.main(["verify", str(made / "pretrained" / "state.safetensors")]) == 0
    assert cli.main(["verify", str(made / "predictions" / "decisions.csv")]) == 0


def test_what_cannot_be_read_is_one_line(made, tmp_path, capsys):
    (tmp_path / "loop").symlink_to("loop")
    assert cli.main(["verify", str(tmp_path / "loop")]) == 3
    assert cli.main(["verify", str(tmp_path / ("x" * 300))]) == 3
    assert cli.main(["verify"]) == 2
    assert [line.count("cerebro-eeg: error: ") for line in capsys.readouterr().err.splitlines()] == [1, 1, 1]
    shutil.copytree(made / "checkpoint", tmp_path / "run")
    (tmp_path / "run" / "to-nowhere").symlink_to("nowhere")
    os.mkfifo(tmp_path / "run" / "pipe")
    assert look(tmp_path / "run").exit_code == 0
    (tmp_path / "run" / "config.json").unlink()
    os.mkfifo(tmp_path / "run" / "config.json")
    assert "config.json is missing or cannot be read" in look(tmp_path / "run").text()
    shutil.copytree(made / "store", tmp_path / "store")
    (tmp_path / "store" / "w-0000.sums").unlink()
    (tmp_path / "store" / "w-0000.sums").mkdir()
    assert look(tmp_path / "store").exit_code == DAMAGED


def test_sha256sum_agrees(made):
    if shutil.which("sha256sum") is None:
        pytest.skip("needs sha256sum")
    for folder in sorted({path.parent for path in made.rglob(SUMS)}):
        done = subprocess.run(["sha256sum", "-c", SUMS], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(done.stdout.splitlines()) == len(read_sums(folder)) > 0


def test_every_file_of_a_finished_run_is_covered(made):
    for kind in ("tuned", "pretrained", "predictions", "store"):
        assert look(made / kind).things[0].uncovered == []
    assert [line.split()[0] for line in look(made / "checkpoint").things[0].uncovered] == ["README.md"]


def test_loading_a_damaged_checkpoint_is_refused(made, tmp_path):
    """Also where the damage is in the version, which no sum covered."""
    path = tmp_path / "model.safetensors"
    good = (made / "checkpoint" / "model.safetensors").read_bytes()
    place = good.index(b'"version":"') + len(b'"version":"')
    rng = random.Random(0)
    for bit in (8 * place, 8 * place + 1, *(rng.randrange(8 * len(good)) for _ in range(20))):
        path.write_bytes(good)
        flip(path, bit)
        with contextlib.suppress(CheckpointError):  # or in the name of a field that only verify looks at
            checkpoint.read(path)
        assert look(path).exit_code == DAMAGED
    path.write_bytes(good[:place] + b"3" + good[place + 1 :])  # a version that is read, but not this one
    with pytest.raises(CheckpointError, match="metadata do not match"):
        checkpoint.read(path)


def test_training_and_scoring_stop_at_damaged_samples(made, tmp_path):
    shutil.copytree(made / "store", tmp_path / "store")
    shutil.copytree(made / "tuned", tmp_path / "tuned")
    data = bytearray((tmp_path / "store" / "w-0000.bin").read_bytes())
    data[:: 1 << 12] = bytes(byte ^ 1 for byte in data[:: 1 << 12])  # in every block
    (tmp_path / "store" / "w-0000.bin").write_bytes(data)
    assert Store(tmp_path / "store").hash() == Store(made / "store").hash()
    (tmp_path / "tuned" / "test.json").unlink()
    (tmp_path / "tuned" / "seed-0" / "test.json").unlink()
    (tmp_path / "tuned" / "seed-0" / "test.npz").unlink()
    choices = pretrain.PretrainOptions(steps=4, seconds=1.0, paper=True)
    tuning = finetune.FinetuneOptions("alpha", seeds=(0,), steps=3)
    store = tmp_path / "store"
    for call in (
        lambda: pretrain.pretrain([store], tmp_path / "a", preset({}), choices, Engine(device="cpu", readers=2)),
        lambda: finetune.finetune(store, tmp_path / "b", TUNED, tuning, ENGINE),
        lambda: evaluate(tmp_path / "tuned", store, device="cpu", resamples=100),
    ):
        with pytest.raises(StoreError, match=r"samples of recording 's\d' are damaged, from 0\.00 to"):
            call()


# Older releases, and commands that were killed


def test_older_stores_and_runs_are_not_called_damaged(made, tmp_path, monkeypatch):
    monkeypatch.setattr(store_info, "FORMAT", 2)
    make_store(tmp_path / "store", 2, 4)
    monkeypatch.undo()
    (tmp_path / "store" / "w.skipped.csv").write_text("bad0,not-edf\n")
    found = look(tmp_path / "store")
    assert found.exit_code == 0
    said = found.text()
    for words in ("2 recordings without sums of blocks (format 2)", "no sum of its own", "lines without a sum"):
        assert words in said
    flip(tmp_path / "store" / "w-0000.bin", 77)
    assert "do not match their SHA-256" in look(tmp_path / "store").text()
    shutil.copytree(made / "tuned", tmp_path / "run")
    for path in (tmp_path / "run").rglob(SUMS):
        path.unlink()
    found = look(tmp_path / "run")
    assert found.exit_code == 0
    assert f"the folder has no {SUMS}: an earlier release wrote it, or it is unfinished" in found.text()
    assert "run.json (no sum: an earlier release" in found.text()
    flip(tmp_path / "run" / "seed-0" / "model.safetensors", 8 * 5000)
    assert look(tmp_path / "run").exit_code == DAMAGED


def test_an_unfinished_store_is_not_called_damaged(tmp_path):
    make_store(tmp_path / "store", 2, 4)
    with ShardWriter(tmp_path / "store", "w") as writer:
        with writer.recording("x", ("Cz",), 256.0) as draft:
            draft.segment(0.0)
            draft.write(np.zeros((1000, 1)))
            found = look(tmp_path / "store")
        assert found.exit_code == 0
        assert "2 kB of recordings that were never finished" in found.text()
        assert "prepare has not ended" in found.text()


KILLED = """
import os, sys
from pathlib import Path
import cerebro_eeg.files as files
count = 0
os.fsync = lambda _: None
for at in range(40):
    folder = Path(sys.argv[1]) / str(at)
    folder.mkdir()
    if (pid := os.fork()) == 0:
        break
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0:
        sys.exit(at)
def counting(name):
    real = getattr(os, name)
    def call(*args, **options):
        global count
        if count == at:
            os._exit(9)
        count += 1
        return real(*args, **options)
    return call
for name in ("replace", "unlink"):
    setattr(os, name, counting(name))
files.begin_sums(folder, [])
for number in range(2):
    for name in ("a.json", "b.json"):
        files.write_text(folder / name, str(number))
files.write_text(folder / "log.json", "{}", summed=False)
(folder / "log.json").write_text("1")
files.add_sum(folder / "log.json")
files.remove(folder / "a.json")
"""


def test_a_kill_at_any_moment_leaves_no_wrong_sum(tmp_path):
    last = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)]).returncode
    assert 10 < last < 40
    for at in range(1, last + 1):
        found = look(tmp_path / str(at))
        assert found.exit_code == 0, (at, found.text())
    assert sorted(read_sums(tmp_path / str(last))) == ["b.json", "log.json"]


def test_a_resumed_run_has_the_sums_of_what_it_ends_with(made, tmp_path):
    choices = pretrain.PretrainOptions(steps=4, seconds=1.0, paper=True)
    run = tmp_path / "run"

    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain.pretrain([made / "store"], run, preset({}), choices, ENGINE, tell=stop)
    found = look(run)
    assert found.exit_code == 0, found.text()
    pretrain.pretrain([made / "store"], run, preset({}), choices, ENGINE)
    assert (run / "model.safetensors").read_bytes() == (made / "pretrained" / "model.safetensors").read_bytes()
    found = look(run)
    assert (found.exit_code, found.things[0].uncovered) == (0, []), found.text()


def test_a_list_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / SUMS).write_text("not ours\n")
    begin_sums(tmp_path, [])
    write_features(tmp_path / "f.npz")
    assert (tmp_path / SUMS).read_text() == "not ours\n"
    with pytest.raises(ValueError, match="not ours"):
        read_sums(tmp_path)
    assert look(tmp_path / "f.npz").exit_code == 0
    assert MARK.startswith("#")


def test_features_of_older_releases(tmp_path):
    np.savez(tmp_path / "old.npz", features=np.zeros((3, 2), np.float32))
    found = look(tmp_path / "old.npz")
    assert found.exit_code == 0
    assert "has no sum of its whole content" in found.text()
    flip(tmp_path / "old.npz", 8 * 200)
    assert look(tmp_path / "old.npz").exit_code == DAMAGED
    with pytest.raises(InputError, match="nothing at"):
        verify([tmp_path / "gone.npz"])
