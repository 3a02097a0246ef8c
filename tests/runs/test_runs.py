"""What a run does when it is asked to stop, meets something that is not a number, or is started otherwise."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import fields, replace
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
import torch

from cerebro_eeg import Cerebro, MaskedCerebro
from cerebro_eeg.cli import main
from cerebro_eeg.commands import finetune as tuning
from cerebro_eeg.commands import pretrain as commands
from cerebro_eeg.data.batching.loader import Loader, lay_out
from cerebro_eeg.data.batching.order import Order, in_order
from cerebro_eeg.data.batching.windows import find_windows
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ChannelError, CheckpointError, ConfigError, InputError, StoppedError, TrainingError
from cerebro_eeg.runs import finetune, pretrain
from cerebro_eeg.runs.folder import RunFolder
from cerebro_eeg.runs.pretrain import MaskedTask
from cerebro_eeg.runs.settings import Engine, choose
from cerebro_eeg.runs.training import count_micro_batches, fit_batch, usual_channels
from cerebro_eeg.runs.windows import electrode_ids, find_splits, pretrain_sources, pretrain_windows, read_task
from cerebro_eeg.scores.predictions import Predictions
from cerebro_eeg.train import log, loop
from cerebro_eeg.train.distributed import ProcessGroup
from cerebro_eeg.train.log import read_lines
from train_stores import MONTAGES, make_store
from train_worker import preset

ENGINE = Engine(device="cpu", readers=0)
CHOICES = pretrain.PretrainOptions(steps=6, seconds=1.0, paper=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "store"
    make_store(folder, 6, 8, pretrain=True)
    return folder


@pytest.fixture(scope="module")
def store(folder):
    return Store(folder)


@pytest.fixture(scope="module")
def pretrained(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("pretrained") / "run"
    pretrain.pretrain([folder], out, preset({}), replace(CHOICES, steps=40), ENGINE)
    return out


# ---- pre-training ---------------------------------------------------------------------------------------------------


def test_weights_say_what_trained_them(store, pretrained):
    model = MaskedCerebro.from_pretrained(pretrained)
    record = model.training_record
    assert (record.steps, record.windows) == (40, 480)
    assert record.data[0].sha256 == store.hash()
    train, validation = pretrain_windows(store, 1.0, None)
    order = Order(0, [len(train)], 12)
    counted = dict.fromkeys(("Fp1", "Cz", "O1", "Fp2", "C3", "C4", "F7", "Pz"), 0)
    for step in range(40):
        for window in order.step(step).window:
            montage = train.facts.montages[train.facts.montage[train.recording[window]]]
            for name in {part for channel in montage for part in channel.split("-")}:
                counted[name] += 1
    assert record.electrode_windows == counted
    lines = read_lines(pretrained / "metrics.jsonl")
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 41))
    validated = [line for line in lines if "validation_masked" in line]
    assert len(validated) == 40 // order.steps(1) + (40 % order.steps(1) > 0)
    assert validated[-1]["validation_masked"] < validated[0]["validation_masked"]
    assert {validation.facts.ids[n] for n in validation.recording}.isdisjoint(
        {train.facts.ids[n] for n in train.recording}
    )


def test_the_stream_is_the_same_for_every_number_of_processes_and_readers(store):
    windows, _ = pretrain_windows(store, 1.0, None)
    model = preset({})
    streams = set()
    for size, readers, pieces in ((1, 0, 1), (2, 1, 2), (4, 3, 3), (1, 8, 5)):
        with Loader([(store, windows)], threads=readers) as loader:
            order = Order(3, [len(windows)], 12)
            seen = []
            tasks = [
                MaskedTask(
                    [(store, windows)], order, loader, model.model, model.objective, 0, ProcessGroup(rank, size), pieces
                )
                for rank in range(size)
            ]
            for parts in zip(*(task.micro_batches(2, 7) for task in tasks), strict=True):
                seen += [
                    name
                    for task, part in zip(tasks, parts, strict=True)
                    for piece in part
                    for name in task.window_names(piece)
                ]
        streams.add(tuple(seen))
    assert len(streams) == 1
    assert len(streams.pop()) == 60


def test_going_on_from_weights_adds_to_their_record(folder, pretrained, tmp_path):
    found = pretrain.pretrain([folder], tmp_path / "more", preset({}), CHOICES, ENGINE, pretrained)
    model = MaskedCerebro.from_pretrained(found.folder)
    assert (model.training_record.steps, len(model.training_record.data)) == (46, 2)
    first = next(line["loss"] for line in read_lines(pretrained / "metrics.jsonl") if "loss" in line)
    again = next(line["loss"] for line in read_lines(Path(found.folder) / "metrics.jsonl") if "loss" in line)
    assert again < 0.9 * first


def test_subjects_of_a_test_split_can_be_left_out(store):
    without, _ = pretrain_windows(store, 1.0, None, ["alpha:test"])
    everything, _ = pretrain_windows(store, 1.0, None)
    left = {everything.facts.subjects[n] for n in everything.subject} - {
        without.facts.subjects[n] for n in without.subject
    }
    assert left == {"sub4"}
    with pytest.raises(ConfigError, match=r"without is 'alpha'; expected a data set \(made\), task:split"):
        pretrain_windows(store, 1.0, None, ["alpha"])
    with pytest.raises(InputError, match="no recording of the store has task 'beta'"):
        pretrain_windows(store, 1.0, None, ["beta:test"])


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    """A store of the open-EEG pack's kind: gb has the numbers 0, 2, 4 and muse 1, 3, 5; number 3 validates."""
    folder = tmp_path_factory.mktemp("pack") / "store"
    make_store(folder, 6, 8, pretrain=True, dataset="openeeg", prefixes=("gb_", "muse_"))
    return folder


def recordings(windows):
    return {windows.facts.ids[n] for n in windows.recording.tolist()}


def test_a_data_set_can_be_left_out(pack, store):
    whole = Store(pack)
    train, validation = pretrain_windows(whole, 1.0, None, ["gb"])
    assert recordings(train) == {"muse_s1", "muse_s5"}
    assert recordings(validation) == {"muse_s3"}
    train, validation = pretrain_windows(whole, 1.0, None, ["muse"])
    assert recordings(train) == {"gb_s0", "gb_s2", "gb_s4"}
    assert len(validation) == 0  # its only recording is of muse
    train, _ = pretrain_windows(whole, 1.0, None, ["muse", "alpha:test"])
    assert recordings(train) == {"gb_s0", "gb_s2"}
    sources, validated = pretrain_sources([whole, store], 1.0, None, ["muse"])  # only one of the stores has it
    assert recordings(sources[0][1]) == {"gb_s0", "gb_s2", "gb_s4"}
    assert len(sources[1][1]) == len(pretrain_windows(store, 1.0, None)[0])
    assert [one for one, _ in validated] == [store]


@pytest.mark.parametrize(
    ("without", "words"),
    [
        (["muze"], r"without is 'muze'; expected a data set \(gb, muse\), task:split such as eyes:test"),
        (["gb", ""], r"without is ''; expected a data set"),
        (["gb", "muse"], r"without is gb, muse, which leaves nothing of store 1"),
    ],
)
def test_a_data_set_that_cannot_be_left_out_is_one_line(pack, without, words):
    with pytest.raises(ConfigError, match=words) as refused:
        pretrain_windows(Store(pack), 1.0, None, without)
    assert refused.value.exit_code == 2
    assert "\n" not in str(refused.value)


def test_a_run_keeps_which_data_set_it_left_out(pack, tmp_path):
    options, out = replace(CHOICES, without=("muse",)), tmp_path / "run"
    pretrain.pretrain([pack], out, preset({}), options, ENGINE)
    settings = json.loads((out / "run.json").read_text())["settings"]
    assert settings["choices"]["without"] == ["muse"]
    assert settings["windows"] == [24]
    record = MaskedCerebro.from_pretrained(out).training_record
    assert (record.data[0].windows, len(record.data[0].subjects)) == (24, 3)
    with pytest.raises(ConfigError, match=r"choices.without was .*muse.* and is now"):
        pretrain.pretrain([pack], out, preset({}), CHOICES, ENGINE)
    again = pretrain.pretrain([pack], out, preset({}), options, ENGINE)
    assert again.steps == 6


def test_without_on_the_command_line(pack, tmp_path, capsys):
    words = ["pretrain", str(pack), "--out", str(tmp_path / "run"), "--preset", "tiny", "--steps", "1"]
    words += ["--batch-size", "4", "--seconds", "1", "--device", "cpu"]
    assert main([*words, "--without", "muze"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("cerebro-eeg: error: --without is 'muze'; expected a data set (gb, muse), task:split")
    assert main([*words, "--without", "muse", "--without", "alpha:test"]) == 0
    settings = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]
    assert settings["choices"]["without"] == ["muse", "alpha:test"]
    assert settings["windows"] == [16]


def test_another_run_in_the_folder_is_refused_with_what_differs(folder, pretrained, tmp_path):
    before = {path.name: path.read_bytes() for path in pretrained.iterdir() if path.is_file()}
    changed = replace(preset({}), pretrain=replace(preset({}).pretrain, peak_lr=0.1))
    with pytest.raises(ConfigError, match=r"pretrain.peak_lr was 0.003 and is now 0.1; use another --out"):
        pretrain.pretrain([folder], pretrained, changed, replace(CHOICES, steps=40), ENGINE)
    assert {path.name: path.read_bytes() for path in pretrained.iterdir() if path.is_file()} == before
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not empty and holds no run"):
        pretrain.pretrain([folder], full, preset({}), CHOICES, ENGINE)


def test_a_done_run_does_nothing_again(folder, pretrained):
    again = pretrain.pretrain([folder], pretrained, preset({}), replace(CHOICES, steps=40), ENGINE)
    assert again.steps == 40
    assert again.sha256 == pretrain.checkpoint.hash_tensors(
        pretrain.checkpoint.read(pretrained / "model.safetensors")[1]
    )


def test_a_damaged_state_is_refused(folder, tmp_path):
    out = tmp_path / "run"
    pretrain.pretrain([folder], out, preset({}), CHOICES, ENGINE)
    state = out / "state.safetensors"
    good = state.read_bytes()
    state.write_bytes(good[:-5] + b"\0\1\2\3\4")
    with pytest.raises(CheckpointError, match="does not match its SHA-256"):
        pretrain.pretrain([folder], out, preset({}), CHOICES, ENGINE)
    state.write_bytes(good[:200])
    with pytest.raises(CheckpointError, match="damaged"):
        pretrain.pretrain([folder], out, preset({}), CHOICES, ENGINE)


def test_two_trainings_in_one_folder_are_refused(folder, tmp_path):
    with RunFolder(tmp_path / "run").locked(), pytest.raises(ConfigError, match="another process is training"):
        pretrain.pretrain([folder], tmp_path / "run", preset({}), CHOICES, ENGINE)


def raw_of_inputs(monkeypatch):
    """Return a function that tells which windows the inputs of a micro-batch were made from."""
    made, original = {}, MaskedTask._inputs

    def inputs(self, raw, counts):
        found = original(self, raw, counts)
        made[id(found)] = found, raw  # kept, so that no other object gets its address
        return found

    monkeypatch.setattr(MaskedTask, "_inputs", inputs)
    return lambda given: made[id(given)][1]


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_not_a_number_stops_before_the_update_and_names_the_windows(folder, tmp_path, monkeypatch, where):
    out, stop = tmp_path / "run", 3
    original, raw_of = MaskedTask.share, raw_of_inputs(monkeypatch)

    def poisoned(self, module, inputs):
        share, values = original(self, module, inputs)
        number, step = self._order.step(stop), raw_of(inputs).step
        if step.window[0] == number.window[0] and step.epoch[0] == number.epoch[0]:
            share = share * float("nan") if where == "loss" else share + (share - share.detach()).abs().sqrt()
        return share, values

    monkeypatch.setattr(MaskedTask, "share", poisoned)
    engine = replace(ENGINE, save_minutes=1e-9)
    with pytest.raises(TrainingError, match=r"step 4 is not a number: (windows s\d+@\d+s|the gradient)") as caught:
        pretrain.pretrain([folder], out, preset({}), CHOICES, engine)
    assert caught.value.exit_code == 8
    assert ("number: windows s" in str(caught.value)) == (where == "loss")
    monkeypatch.setattr(MaskedTask, "share", original)
    pretrain.pretrain([folder], out, preset({}), CHOICES, engine)
    whole = pretrain.pretrain([folder], tmp_path / "whole", preset({}), CHOICES, ENGINE)
    lines = [line for line in read_lines(out / "metrics.jsonl") if "loss" in line]
    assert [line["loss"] for line in lines] == [
        line["loss"] for line in read_lines(Path(whole.folder) / "metrics.jsonl") if "loss" in line
    ]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_one_bad_window_is_found(folder, tmp_path, monkeypatch, strategy):
    """Each window of a micro-batch is computed alone, so that only the bad ones are named."""
    original, raw_of = MaskedTask._reconstruct, raw_of_inputs(monkeypatch)

    def poisoned(self, module, inputs):
        found = original(self, module, inputs)
        bad = any(self._windows[0].ids([w])[0][1] == 512 for w in raw_of(inputs).step.window.tolist())
        return replace(found, masked_sum=found.masked_sum * float("inf")) if bad else found

    monkeypatch.setattr(MaskedTask, "_reconstruct", poisoned)
    with pytest.raises(TrainingError, match=r"windows (s\d@2s, )*s\d@2s; nothing was updated"):
        pretrain.pretrain([folder], tmp_path / "run", preset({}), CHOICES, replace(ENGINE, strategy=strategy))


def test_out_of_memory_is_one_line(folder, tmp_path, monkeypatch):
    def hungry(self, module, piece):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80.00 GiB")

    monkeypatch.setattr(MaskedTask, "share", hungry)
    with pytest.raises(TrainingError, match="out of memory on the device; the last state is intact; say --micro-batch"):
        pretrain.pretrain([folder], tmp_path / "run", preset({}), CHOICES, ENGINE)


def test_computing_blocks_again_changes_nothing(folder, pretrained, tmp_path):
    found = pretrain.pretrain(
        [folder], tmp_path / "run", preset({}), replace(CHOICES, steps=40), replace(ENGINE, recompute=True)
    )
    whole, again = (
        pretrain.checkpoint.read(path / "model.safetensors")[1] for path in (pretrained, Path(found.folder))
    )
    assert all(torch.equal(value, again[name]) for name, value in whole.items())


def test_loggers_get_what_the_file_gets(folder, tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    engine = replace(ENGINE, loggers=("tensorboard",))
    found = pretrain.pretrain([folder], tmp_path / "run", preset({}), CHOICES, engine)
    events = EventAccumulator(str(Path(found.folder) / "tensorboard")).Reload()
    logged = [(event.step, event.value) for event in events.Scalars("loss")]
    lines = [line for line in read_lines(Path(found.folder) / "metrics.jsonl") if "loss" in line]
    assert logged == [(line["step"], pytest.approx(line["loss"], rel=1e-6)) for line in lines]
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    with pytest.raises(
        ConfigError, match="--loggers needs the package wandb, which is not installed; pip install wandb"
    ):
        pretrain.pretrain([folder], tmp_path / "other", preset({}), CHOICES, replace(ENGINE, loggers=("wandb",)))


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")  # torch 2.11's compiler warns of itself
def test_a_stopped_run_on_a_gpu_ends_bitwise_equal(folder, tmp_path, monkeypatch):
    """In deterministic mode, with bf16 and compiled blocks, as a user would have it."""
    engine = Engine(device="cuda", deterministic=True, readers=2)
    chosen = replace(CHOICES, steps=12)
    whole = pretrain.pretrain([folder], tmp_path / "whole", preset({}), chosen, engine)
    begin = loop.StepComputer.begin

    def interrupted(computer, micro_batches, asked, rate):
        begin(computer, micro_batches, (computer._run.progress.step == 5, False), rate)

    monkeypatch.setattr(loop.StepComputer, "begin", interrupted)
    with pytest.raises(StoppedError):
        pretrain.pretrain([folder], tmp_path / "cut", preset({}), chosen, engine)
    monkeypatch.setattr(loop.StepComputer, "begin", begin)
    cut = pretrain.pretrain([folder], tmp_path / "cut", preset({}), chosen, engine)
    assert cut.sha256 == whole.sha256
    assert [line.get("loss") for line in read_lines(Path(whole.folder) / "metrics.jsonl")] == [
        line.get("loss") for line in read_lines(Path(cut.folder) / "metrics.jsonl")
    ]


@pytest.mark.parametrize("name", loop.SIGNALS)
def test_a_signal_saves_and_exits_with_seven(folder, tmp_path, name):
    """Real processes: the signal comes in the middle of training, and the same command goes on to the same end."""
    command = [sys.executable, "-m", "cerebro_eeg", "pretrain", str(folder), "--preset", "tiny", "--seconds", "1"]
    command += ["--steps", "300", "--batch-size", "8", "--paper", "--device", "cpu", "--threads", "1", "--readers", "0"]
    command += ["--set", "model.depth=2", "model.width=16", "model.heads=2", "model.window=256"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    out = tmp_path / "run"
    with subprocess.Popen([*command, "--out", str(out)], env=env, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 300
        while len(read_lines(out / "metrics.jsonl")) < 3 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.Signals[name])
        said = process.communicate(timeout=300)[1]
    assert process.returncode == 7, said
    assert "stopped after step" in said.splitlines()[-1]
    assert "Traceback" not in said
    done = [line["step"] for line in read_lines(out / "metrics.jsonl") if "loss" in line]
    assert 3 <= done[-1] < 300  # so many that a busy machine is not done before the signal comes
    if name == "SIGUSR1":
        again = subprocess.run([*command, "--out", str(out)], env=env, capture_output=True, text=True, timeout=600)
        assert again.returncode == 0, again.stderr
        assert f"going on after step {done[-1]}" in again.stderr
        assert [line["step"] for line in read_lines(out / "metrics.jsonl") if "loss" in line] == list(range(1, 301))


def test_pieces_and_threads_are_kept_however_often_a_run_goes_on(folder, tmp_path, monkeypatch):
    save = loop.save
    threads = torch.get_num_threads()

    def stop(run):
        save(run)
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "save", stop)
    quick = replace(ENGINE, save_minutes=1e-9)
    for engine in (replace(quick, micro_batch=3, threads=1), quick, quick):
        with pytest.raises(KeyboardInterrupt):
            pretrain.pretrain([folder], tmp_path / "run", preset({}), CHOICES, engine)
        kept = RunFolder(tmp_path / "run").read()["engine"]
        assert (kept["pieces"], kept["threads"]) == (4, 1)
        torch.set_num_threads(threads)


def test_new_parts_of_a_checkpoint_come_from_the_seed(folder, pretrained, tmp_path):
    """A fine-tuned checkpoint has no head to reconstruct with; the same command must find the same one again."""
    tuned = Path(tune(folder, tmp_path / "tuned", pretrained, steps=2).trained[0].folder)
    choices = replace(CHOICES, steps=2)
    first, again = (pretrain.pretrain([folder], tmp_path / "run", preset({}), choices, ENGINE, tuned) for _ in "ab")
    assert first.sha256 == again.sha256


def test_a_full_disk_is_one_line_and_leaves_the_state(folder, tmp_path):
    """A limit on the size of a file stands for the disk: safetensors then fails as it does on a full one."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000)); "
        "from cerebro_eeg.cli import main; sys.exit(main())"
    )
    command = [
        sys.executable,
        "-c",
        code,
        "pretrain",
        str(folder),
        "--preset",
        "tiny",
        "--seconds",
        "1",
        "--steps",
        "2",
    ]
    command += ["--batch-size", "8", "--paper", "--device", "cpu", "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 8, done.stderr
    assert "make room" in done.stderr.splitlines()[-1]
    assert sorted(os.listdir(tmp_path / "run")) == [".lock", "SHA256SUMS", "metrics.jsonl", "run.json"]


@pytest.mark.parametrize("steps", [0, -3])
def test_no_steps_are_refused(folder, tmp_path, steps):
    with pytest.raises(ConfigError, match=f"steps is {steps}"):
        pretrain.pretrain([folder], tmp_path / "run", preset({}), replace(CHOICES, steps=steps), ENGINE)


def test_what_the_checkpoint_decides_cannot_be_asked_for(folder, pretrained, tmp_path):
    with pytest.raises(ConfigError, match=r"objective\.style cannot be changed with --from"):
        commands.pretrain((folder,), out=tmp_path / "run", from_=pretrained, style="vitmae")
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model": {"patches": {"length": 32}}, "pretrain": {"clip": 2.0}, "objective": {}}))
    with pytest.raises(ConfigError, match=r"^model\.patches\.length, model\.depth cannot be changed with --from"):
        commands.pretrain((folder,), out=tmp_path / "run", from_=pretrained, config=file, set=("model.depth=4",))
    assert not (tmp_path / "run").exists()


def test_epochs_leave_the_schedule_of_the_file_alone(folder, tmp_path, monkeypatch):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"pretrain": {"max_epochs": 40, "warmup_epochs": 1}}))
    seen = []

    def look(stores, out, chosen, *_, **__):
        seen.append(chosen.pretrain)
        raise KeyboardInterrupt

    monkeypatch.setattr(pretrain, "pretrain", look)
    for epochs in (20, 60):
        with pytest.raises(KeyboardInterrupt):
            commands.pretrain((folder,), out=tmp_path / "run", preset="tiny", config=file, epochs=epochs)
    assert [(table.stop_epoch, table.max_epochs) for table in seen] == [(20, 40), (60, 60)]


def test_every_run_has_an_identity_of_its_own(tmp_path):
    """Folders of many runs are called seed-0; Weights & Biases would draw them as one."""
    paths = [tmp_path / name / "seed-0" / "wandb-id" for name in ("a", "b")]
    first, second = (log._identity(path) for path in paths)
    assert first != second
    assert log._identity(paths[0]) == first


def test_of_several_processes_the_first_one_speaks(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert main(["info", "tiny", "--json"]) == 0
    assert capsys.readouterr().out == ""


# ---- fine-tuning ----------------------------------------------------------------------------------------------------


def tune(folder, out, start, **choices):
    lr = choices.pop("lr", 3e-3)
    table = replace(preset({}).finetune, peak_lr=lr)
    chosen = finetune.FinetuneOptions(**{"task": "alpha", "steps": 40, "paper": True, **choices})
    return finetune.finetune(folder, out, replace(preset({}), finetune=table), chosen, ENGINE, start)


@pytest.mark.parametrize("how", ["full", "scratch", "probe", "adamw"])
def test_finetuning_learns_what_there_is_to_learn(folder, pretrained, tmp_path, how):
    more = {
        "full": {},
        "scratch": {},
        "probe": {"freeze": True},
        "adamw": {"freeze": True, "solver": "adamw", "steps": 200, "patience": 99, "lr": 0.3},
    }[how]
    seeds = (0, 1) if how == "probe" else (0,)
    found = tune(folder, tmp_path / "run", None if how == "scratch" else pretrained, seeds=seeds, **more)
    assert {one.metric for one in found.trained} == {"auroc"}
    assert min(one.validation for one in found.trained) > (0.9 if how in ("full", "scratch") else 0.7)
    model = Cerebro.from_pretrained(found.trained[0].folder)
    assert model.head.names == ("slow", "fast")
    assert model.head.threshold == found.trained[0].threshold
    assert model.head.threshold_level == "window"  # recordings have windows of both classes
    kept = Predictions.load(Path(found.trained[0].folder) / "validation.npz")
    assert set(kept.subject) == {"sub3"}
    encoder = MaskedCerebro.from_pretrained(pretrained).encoder.state_dict()
    same = [torch.equal(value, encoder[name]) for name, value in model.encoder.state_dict().items()]
    assert all(same) if how in ("probe", "adamw") else not all(same)


def test_regression_answers_in_the_unit_of_its_targets(folder, store, tmp_path):
    found = tune(folder, tmp_path / "run", None, task="level", steps=60)
    kept = Predictions.load(Path(found.trained[0].folder) / "validation.npz")
    assert found.trained[0].metric == "r2"
    assert abs(kept.output[:, 0].mean() - 102.5) < 1
    model = Cerebro.from_pretrained(found.trained[0].folder)
    windows = find_windows(store, seconds=1.0, task="level", split="val")
    with Loader([(store, windows)], threads=0) as loader, torch.no_grad():
        output = model(lay_out(loader.read(next(in_order([len(windows)], len(windows)))), "cpu"))
    np.testing.assert_allclose(output.numpy(), kept.output, rtol=1e-4)


def test_a_probe_answers_in_the_unit_of_its_targets(folder, store, pretrained, tmp_path):
    """What is reported, kept and saved is what scikit-learn's ridge was chosen by."""
    found = tune(folder, tmp_path / "run", pretrained, task="level", freeze=True).trained[0]
    tried = json.loads((Path(found.folder) / "probe.json").read_text())
    assert found.validation == pytest.approx(tried["scores"][f"{tried['strength']:g}"], abs=1e-4)
    assert abs(Predictions.load(Path(found.folder) / "validation.npz").output[:, 0].mean() - 102.5) < 2.5


def test_folds_test_every_subject_once(folder, store, tmp_path):
    cut = read_task(store, "alpha", None, None, None)
    splits = list(find_splits(store, cut, 3))
    tested = [s for split in splits for s in sorted({split.test.facts.subjects[n] for n in split.test.subject})]
    assert sorted(tested) == [f"sub{n}" for n in range(6)]
    own = list(find_splits(store, read_task(store, "folded", None, None, None), 3))
    assert [sorted({s.test.facts.subjects[n] for n in s.test.subject}) for s in own] == [
        ["sub0", "sub3"],
        ["sub1", "sub4"],
        ["sub2", "sub5"],
    ]
    assert {own[0].validation.facts.subjects[n] for n in own[0].validation.subject} == {"sub1", "sub4"}
    found = tune(folder, tmp_path / "run", None, task="folded", folds=3, steps=2)
    assert [(one.fold, one.seed) for one in found.trained] == [("fold-1", 0), ("fold-2", 0), ("fold-3", 0)]
    with pytest.raises(ConfigError, match="divided into 3 folds; say --folds 3"):
        tune(folder, tmp_path / "other", None, task="folded")


def test_electrodes_that_were_never_trained_need_a_policy(store, tmp_path):
    trained = {"Fp1": 5, "Cz": 5, "O1": 5}
    with pytest.raises(ChannelError, match=r"3 of 5 channels .* 'Fp2' .* 'C3' .* 'C4'"):
        electrode_ids(trained, "error")(MONTAGES[1])
    plain = electrode_ids(dict.fromkeys(("Fp1", "Fp2", "C3", "C4", "O1"), 1), "error")(MONTAGES[1])
    dropped = electrode_ids(trained, "drop")(MONTAGES[1])
    assert (dropped[[0, 4]] == plain[[0, 4]]).all()
    assert (dropped[1:4] == 0).all()
    windows = find_windows(store, seconds=1.0)
    windows = windows.take(windows.channels > 2)
    step = next(in_order([len(windows)], len(windows)))
    with Loader([(store, windows)], threads=0, electrodes=electrode_ids(trained, "drop")) as loader:
        raw = loader.read(step)
    batch = lay_out(raw, "cpu")
    with Loader([(store, windows)], threads=0) as loader:
        whole = lay_out(loader.read(step), "cpu")
    kept = raw.channels_R2[:, 0] != 0
    assert 0 < kept.sum() < len(kept)
    assert torch.equal(batch.signal_RT, whole.signal_RT[kept])
    assert torch.equal(batch.channels_R2, raw.channels_R2[kept])
    assert int(batch.layout.counts(torch.device("cpu")).sum()) == int(kept.sum())


def test_a_finished_training_is_not_repeated(folder, tmp_path):
    first = tune(folder, tmp_path / "run", None, steps=3)
    weights = Path(first.trained[0].folder) / "model.safetensors"
    stamp = weights.stat().st_mtime_ns
    assert tune(folder, tmp_path / "run", None, steps=3) == first
    assert weights.stat().st_mtime_ns == stamp


# ---- settings -------------------------------------------------------------------------------------------------------


def test_flags_win_over_the_file_and_the_file_over_the_preset(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model": {"depth": 6, "width": 96}, "pretrain": {"batch_size": 7}}))
    found = choose(
        "tiny", file, {"model.depth": 2, "model.attention": None}, ["pretrain.peak_lr=0.5", "model.norm=post"]
    )
    assert (found.model.depth, found.model.width, found.model.norm) == (2, 96, "post")
    assert (found.pretrain.batch_size, found.pretrain.peak_lr) == (7, 0.5)
    for change, line in (
        ("model.dept=2", "did you mean 'depth'"),
        ("depth", "name=value"),
        ("model.depth=x", "expected int"),
    ):
        with pytest.raises(ConfigError, match=line):
            choose("tiny", None, {}, [change])
    file.write_text("{")
    with pytest.raises(ConfigError, match="is not JSON"):
        choose("tiny", file, {}, [])


@pytest.mark.parametrize(
    ("batch", "windows", "paper", "wanted"),
    [
        (4096, 408, False, 32),
        (4096, 408, True, 4096),
        (4096, 12140, False, 512),
        (4096, 90_000, False, 4096),
        (16, 20, False, 16),
    ],
)
def test_the_batch_falls_to_give_twenty_steps(batch, windows, paper, wanted):
    said = []
    assert fit_batch(batch, windows, paper, said.append) == wanted
    assert bool(said) == (batch != wanted)


def test_memory_is_reckoned_by_usual_windows(store):
    windows = find_windows(store, seconds=1.0)
    assert usual_channels([windows]) == 5  # windows of 3, 5 and 2 channels: mean 3.3, deviation 1.2
    assert usual_channels([windows.take(windows.channels == 2)]) == 2


def test_pieces_are_as_many_as_memory_asks_and_never_empty():
    model = preset({}).model
    assert count_micro_batches(replace(ENGINE, micro_batch=5), ProcessGroup(0, 2), model, 3, 256, 24) == 3
    assert count_micro_batches(replace(ENGINE, micro_batch=1), ProcessGroup(0, 5), model, 3, 256, 12) == 2
    assert count_micro_batches(ENGINE, ProcessGroup(), model, 3, 256, 12) == 1
    with pytest.raises(ConfigError, match="cannot be shared by 13 processes"):
        count_micro_batches(ENGINE, ProcessGroup(0, 13), model, 3, 256, 12)


def test_every_option_of_a_run_is_a_flag_of_its_command():
    """The command explains the options, and ``run.json`` keeps them: the two lists must not drift apart."""
    for verb, options in ((commands.pretrain, pretrain.PretrainOptions), (tuning.finetune, finetune.FinetuneOptions)):
        only_python = {"strength"} if verb is tuning.finetune else set()  # an estimator's C
        assert {field.name for field in fields(options)} - only_python <= {*signature(verb).parameters}


def test_folder_names_are_paths(pretrained):
    assert Path(pretrained, "run.json").exists()
    assert not list(pretrained.glob(".*.tmp"))


def test_what_is_wrong_with_the_next_step_shows_when_it_is_its_turn():
    """Reading runs ahead of the update: the step before must still be done."""

    def stream():
        yield 1
        yield 2
        raise OSError("gone")

    ahead = loop._Prefetch(stream())
    assert ahead.take() == 1  # nothing had been fetched
    ahead.fetch()
    assert ahead.take() == 2
    ahead.fetch()
    with pytest.raises(OSError, match="gone"):
        ahead.take()
