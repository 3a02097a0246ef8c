"""The benchmark of fine-tuning: its step is that of ``finetune``, rivals run a plain loop, what fails is listed."""

import dataclasses
import sys
import types
import warnings

import pytest
import torch
from test_bench import TINY, tiny
from torch import nn

from cerebro_eeg.bench import braindecode_rivals, finetune
from cerebro_eeg.bench.clock import Timing
from cerebro_eeg.bench.noise_store import TASK, write_labelled_noise
from cerebro_eeg.bench.options import FinetuneBench
from cerebro_eeg.bench.run import run
from cerebro_eeg.errors import ConfigError, InputError, StoppedError, TrainingError
from cerebro_eeg.runs import finetune as real
from train_stores import make_store

CPU = torch.device("cpu")
ASKED = tiny(FinetuneBench)
ALL = dataclasses.replace(ASKED, without=())


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("noise")
    write_labelled_noise(folder, 3, 1.0, 40)
    return finetune.open_labelled(folder, TASK, 4)


class Network(nn.Module):
    """A stand-in with the arguments that braindecode documents."""

    def __init__(self, n_outputs, n_chans, n_times, sfreq):
        super().__init__()
        self.layer = nn.Linear(n_chans * n_times, n_outputs)

    def forward(self, x):
        return self.layer(x.flatten(1))


@pytest.fixture
def stand_in(monkeypatch):
    """A braindecode that has nothing but EEGNet."""
    models = types.ModuleType("braindecode.models")
    models.EEGNet = Network
    monkeypatch.setitem(sys.modules, "braindecode", types.ModuleType("braindecode"))
    monkeypatch.setitem(sys.modules, "braindecode.models", models)


@pytest.fixture(scope="module")
def braindecode():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if (error := braindecode_rivals.missing()) is not None:
            pytest.skip(f"needs braindecode: {error.partition(':')[0]}")


def _dicts(table):
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


# ---- ours ----------------------------------------------------------------------------------------------------------


def test_our_step_is_the_first_step_of_finetune(labelled, tmp_path):
    """The same bits of the loss and of the gradient's norm, so the same model, windows, noise and dropped paths."""
    chosen = finetune.of_size("tiny", 4)
    step = finetune.our_step(chosen, labelled, "plain", tmp_path / "step", CPU)
    found = step.call()
    reports = []
    real.finetune(
        labelled.folder,
        tmp_path / "run",
        chosen,
        real.FinetuneOptions(TASK, steps=1, paper=True),
        finetune.engine_of("whole", CPU),
        tell=lambda report, steps, batch: reports.append(report),
        rivals=False,
    )
    assert (found.loss, found.norm) == (reports[0].loss, reports[0].norm)
    assert step.call().loss < found.loss  # it updates the weights
    assert (step.samples, step.rival, step.form) == (256, "CEReBrO", "plain")


def test_labelled_noise_has_the_windows_of_a_run_and_no_shared_subject(labelled):
    train, validation = labelled.split.train, labelled.split.validation
    assert len(train) >= 40
    assert set(train.label.tolist()) == set(validation.label.tolist()) == {0, 1}
    assert len(validation) == len(train) / 4
    assert not {train.facts.subjects[n] for n in train.subject} & {
        validation.facts.subjects[n] for n in validation.subject
    }
    assert (labelled.channels, labelled.seconds) == (3, 1.0)


@pytest.mark.parametrize("windows", [1, 5000])
def test_labelled_noise_has_as_many_windows_as_asked_for(tmp_path, windows):
    write_labelled_noise(tmp_path, 1, 1.0, windows)
    assert len(finetune.open_labelled(tmp_path, TASK, 1).split.train) >= windows


def test_pace_is_of_the_second_half_without_validations():
    """Steps of 1 s; a validation of 5 s behind every third one; a slow beginning."""
    times, now = [], 100.0
    for step in range(1, 13):
        now += 1.0 + (5.0 if step % 3 == 1 and step > 1 else 0.0) + (30.0 if step < 5 else 0.0)
        times.append((step, now))
    assert finetune.pace_of(times, 3) == pytest.approx(1.0)
    assert finetune.pace_of(times, 100) == pytest.approx((times[-1][1] - times[5][1]) / 6)
    with pytest.raises(ConfigError, match="an epoch is one step"):
        finetune.pace_of(times, 1)


def test_a_run_that_does_not_capture_is_not_measured_as_captured(labelled, monkeypatch):
    def refuses(*given, say, tell, **more):
        say("note: steps are not captured as a CUDA graph (no memory), so small steps wait for Python")

    monkeypatch.setattr(real, "finetune", refuses)
    engine = finetune.engine_of("whole", CPU)
    with pytest.raises(TrainingError, match=r"^steps are not captured as a CUDA graph \(no memory\)"):
        finetune.whole_run(ASKED, finetune.of_size("tiny", 4), labelled, engine)


def test_a_signal_ends_the_benchmark(labelled, monkeypatch):
    def stopped(*given, **more):
        raise StoppedError("stopped after step 2")

    monkeypatch.setattr(real, "finetune", stopped)
    with pytest.raises(KeyboardInterrupt):
        finetune.whole_run(ASKED, finetune.of_size("tiny", 4), labelled, finetune.engine_of("whole", CPU))


def test_row_has_rates_and_the_sum_of_kernels(labelled):
    step = finetune.MeasuredStep("CEReBrO", "plain", print, 256, 7)
    row = finetune.as_row("tiny", step, 8, labelled, Timing((0.004, 0.002, 0.003)), 1.5, 0.002)
    assert row[:7] == ["tiny", "CEReBrO", "plain", 8, 3, 256, 7]
    assert row[7:] == pytest.approx([3.0, 2 / 3, 8 / 0.003, 1.5, 2.0, 1.5, None])
    failed = finetune.as_row("tiny", step, 8, labelled, None, None, None)
    assert failed[7:] == [None] * 7
    assert len(row) == len(failed) == len(finetune.COLUMNS)


def test_a_graph_has_the_kernels_of_its_plain_form(labelled, monkeypatch):
    """The profiler sees plain steps only."""
    seconds = {"plain": 0.5}

    def made(rival, form, *given):
        return finetune.MeasuredStep(rival, form, lambda: None, 1, 1)

    monkeypatch.setattr(finetune, "our_step", lambda chosen, labelled, form, folder, device: made("CEReBrO", form))
    monkeypatch.setattr(finetune, "rival_step", made)
    monkeypatch.setattr(finetune, "kernels_of", lambda step, device: seconds[step.form])
    rows = []
    finetune.measure(ASKED, "tiny", 4, labelled, ("plain", "captured"), ["EEGNet"], rows, CPU)
    assert [row[1:3] + row[11:12] for row in rows] == [
        ["CEReBrO", "plain", 500.0],
        ["CEReBrO", "captured", 500.0],
        ["EEGNet", "plain", 500.0],
        ["EEGNet", "captured", 500.0],
    ]


# ---- rivals --------------------------------------------------------------------------------------------------------


def test_a_rivals_step_is_the_plain_loop(stand_in):
    names, given = ("Fp1", "Fp2"), (2, 1.0, 64.0, 6, CPU)
    rival = braindecode_rivals.make("EEGNet", names, *given)
    assert (rival.samples, rival.parameters) == (64, 2 * 64 * 2 + 2)
    other = braindecode_rivals.make("EEGNet", names, *given).module
    other.load_state_dict(rival.module.state_dict())
    step = braindecode_rivals.plain_step(rival, half=False)
    seen = []
    rival.module.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    optimizer = torch.optim.AdamW(other.parameters(), lr=braindecode_rivals.LEARNING_RATE)
    for _ in range(3):
        step()
        optimizer.zero_grad()
        logits_BK = other(seen[-1])
        loss = (logits_BK.logsumexp(1) - logits_BK[torch.arange(6), torch.arange(6) % 2]).mean()
        loss.backward()
        norm = torch.stack([p.grad.norm() for p in other.parameters()]).norm()
        for p in other.parameters():
            p.grad *= min(1.0, 1.0 / norm)
        optimizer.step()
    for mine, theirs in zip(rival.module.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert norm > 1  # clipping had something to do


def test_rivals_that_fail_are_listed_with_their_error(stand_in, tmp_path):
    given = dataclasses.replace(ALL, forms=("plain", "captured"))
    ((table, _),) = run(given, tmp_path, print)
    assert [(row["rival"], row["form"]) for row in _dicts(table)] == [("CEReBrO", "plain"), ("EEGNet", "plain")]
    ours, theirs = _dicts(table)
    assert ours["times"] == 1.0
    assert theirs["times"] == pytest.approx(theirs["ms"] / ours["ms"])
    failing = [note for note in table.notes if note.startswith("fails")]
    assert sum("has no attribute" in note for note in failing) == 2 * 3
    assert sum("captured" in note for note in failing) == 5
    assert "fails: EEGNet, captured, tiny, 2 x 2: RuntimeError: CUDA graphs need a CUDA device" in failing


def test_without_braindecode_ours_alone_is_measured_and_a_line_says_so(tmp_path, monkeypatch):
    for name in ("braindecode", "braindecode.models"):
        monkeypatch.setitem(sys.modules, name, None)
    said = []
    ((table, _),) = run(dataclasses.replace(ALL, forms=("plain",)), tmp_path, said.append)
    assert [row["rival"] for row in _dicts(table)] == ["CEReBrO"]
    assert sum("braindecode is not here" in note for note in table.notes) == 1
    assert any("braindecode is not here" in line for line in said)


@pytest.mark.filterwarnings("ignore")
def test_labram_with_its_places_given_once_is_labram(braindecode):
    names = ("Cz", "Fp1", "O2")
    rival = braindecode_rivals.make("LaBraM", names, 2, 1.0, 256.0, 4, CPU)
    rival.module.eval()
    seen = []
    rival.module.patch_embed.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    found = rival.forward()
    torch.testing.assert_close(found, rival.module(seen[0], ch_names=list(names)))
    assert not torch.equal(found, rival.module(seen[0], ch_names=["Pz", "Fp1", "O2"]))


@pytest.mark.filterwarnings("ignore")
def test_every_rival_of_braindecode_runs_and_learns(braindecode, tmp_path):
    ((table, _),) = run(dataclasses.replace(ALL, forms=("plain",)), tmp_path, print)
    assert [row["rival"] for row in _dicts(table)] == ["CEReBrO", *braindecode_rivals.MODELS]
    assert [row["samples"] for row in _dicts(table)] == [256, 256, 256, 200, 200]
    assert not any(note.startswith("fails") for note in table.notes)


@pytest.mark.gpu
@pytest.mark.parametrize("fails", [False, True])
def test_a_captured_rival_learns_and_a_failed_capture_spoils_nothing(fails, stand_in):
    device = torch.device("cuda")
    rival = braindecode_rivals.make("EEGNet", ("Fp1",), 2, 1.0, 64.0, 4, device)
    if fails:
        waits = dataclasses.replace(rival, forward=lambda: rival.forward() * rival.forward().sum().item())
        with pytest.raises(Exception, match="captur"):
            braindecode_rivals.captured_step(waits, half=False)
    else:
        replay = braindecode_rivals.captured_step(rival, half=False)
        before = [p.detach().clone() for p in rival.module.parameters()]
        replay()
        torch.cuda.synchronize()
        assert not any(torch.equal(a, b) for a, b in zip(before, rival.module.parameters(), strict=True))
    assert nn.functional.dropout(torch.ones(99, device=device)).sum().item() > 0


@pytest.mark.gpu
def test_our_forms_run_on_a_gpu(labelled, tmp_path):
    chosen = finetune.of_size("tiny", 4)
    for form in finetune.STEPS:
        step = finetune.our_step(chosen, labelled, form, tmp_path / form, torch.device("cuda"))
        losses = [step.call().loss for _ in range(5)]
        assert losses[-1] < losses[0]


# ---- options -------------------------------------------------------------------------------------------------------


def test_a_store_of_ones_own(tmp_path):
    make_store(tmp_path / "store")
    given = FinetuneBench(
        presets=("tiny",), windows=(2,), steps=4, rounds=1, store=tmp_path / "store", task="alpha", device="cpu",
        without=tuple(braindecode_rivals.MODELS), forms=("plain",),
    )  # fmt: skip
    ((table, place),) = run(given, tmp_path / "out", print)
    assert place.command.startswith(
        "cerebro-eeg bench finetune --rounds 1 --presets tiny --windows 2 --steps 4 --store STORE"
    )
    assert [(row["windows"], row["channels"]) for row in _dicts(table)] == [(2, 3)]  # 2, 3 and 5 channels
    with pytest.raises(ConfigError, match="'level' is a regression; bench finetune compares classifiers"):
        run(dataclasses.replace(given, task="level"), tmp_path / "out", print)
    with pytest.raises(ConfigError, match="'folded' has no split called train, and bench finetune takes no folds"):
        run(dataclasses.replace(given, task="folded"), tmp_path / "out", print)
    with pytest.raises(InputError, match="has 32 windows to train on; take fewer --windows than 99"):
        run(dataclasses.replace(given, windows=(99,)), tmp_path / "out", print)


def test_options_that_make_no_sense_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="--steps is 3; expected at least 4"):
        FinetuneBench(steps=3)
    for alone in ({"task": "alpha"}, {"store": tmp_path}):
        with pytest.raises(ConfigError, match="--store and --task belong together"):
            FinetuneBench(**alone)
    for wrong, line in (
        ({"forms": ("fast",)}, "--forms has fast; choose of plain, compiled, captured, whole"),
        ({"without": ("BENDR",)}, "--without has BENDR; choose of EEGNet, EEGConformer, LaBraM, CBraMod"),
        ({"channels": (400,)}, "400 channels were asked for; there are 362 electrodes"),
    ):
        with pytest.raises(ConfigError, match=line):
            run(dataclasses.replace(ASKED, **wrong), tmp_path, print)
    assert TINY[FinetuneBench]
