"""Steps as CUDA graphs: batches are filled up to few shapes and learn the same, and graphs give the same bits.

On a CPU, graphs are recorded calls of operators (``recorded_calls.py``), which repeat as little Python as a CUDA graph.
"""

import gc
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import train_stores
from cerebro_eeg import Cerebro, fast
from cerebro_eeg.config import ObjectiveConfig
from cerebro_eeg.data.batching.filling import Filling
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import StoppedError, TrainingError
from cerebro_eeg.fast import Capture, capturing, one_behind
from cerebro_eeg.fast.capture import CudaGraphs
from cerebro_eeg.model import checkpoint
from cerebro_eeg.runs import finetune, pretrain
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.runs.store_predictions import BatchOutputs, predict_windows
from cerebro_eeg.runs.training import training_processes
from cerebro_eeg.runs.windows import find_splits, read_task
from cerebro_eeg.train import loop, step
from cerebro_eeg.train.log import read_lines
from recorded_calls import CallRecorder, recorded_calls
from train_stores import MONTAGES, make_store
from train_worker import MODEL, preset

ENGINE = Engine(device="cpu", readers=0, threads=1, precision="fp64")
PRETRAIN = pretrain.PretrainOptions(steps=4, seconds=1.0, paper=True)
FINETUNE = finetune.FinetuneOptions(task="alpha", steps=4, seconds=1.0, paper=True)
FURTHER = {"masking": "blocks", "spectrum": 1.0, "statistics": 0.5, "keep_channels": 0.5, "rereference": 0.5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("capture") / "store"
    make_store(folder, 6, 8)
    return folder


def losses(run):
    return [line["loss"] for line in read_lines(Path(run) / "metrics.jsonl") if "loss" in line]


def filled(monkeypatch, shapes, one_shape):
    """Fill up every batch of the next runs, and note the shapes that steps have."""

    def fill(windows, batch, arithmetic):
        channels = np.concatenate([of_source.channels for of_source in windows])
        filling = Filling.choose(channels, batch, one_shape)
        assert filling is not None  # the windows of the store have different channels
        return filling

    plain = loop.StepComputer.begin

    def begin(computer, micro_batches, asked, rate):
        shapes.add(tuple(computer._run.task.inputs(one).tensors[0].shape for one in micro_batches))
        plain(computer, micro_batches, asked, rate)

    for verb in (pretrain, finetune):
        monkeypatch.setattr(verb, "fill_batches", fill)
    monkeypatch.setattr(loop.StepComputer, "begin", begin)


@pytest.mark.parametrize("one_shape", [True, False], ids=["one shape", "few shapes"])
@pytest.mark.parametrize("objective", [{}, {"style": "vitmae"}, FURTHER], ids=["simmim", "vitmae", "further"])
def test_a_pre_training_of_filled_batches_learns_the_same(folder, tmp_path, monkeypatch, objective, one_shape):
    chosen = preset({"objective": objective})
    plain = pretrain.pretrain([folder], tmp_path / "plain", chosen, PRETRAIN, ENGINE)
    shapes = set()
    filled(monkeypatch, shapes, one_shape)
    full = pretrain.pretrain([folder], tmp_path / "full", chosen, PRETRAIN, ENGINE)
    assert losses(full.folder) == pytest.approx(losses(plain.folder), rel=1e-9)
    if chosen.objective.keep_channels == ObjectiveConfig().keep_channels and one_shape:
        assert len(shapes) == 1


def test_a_fine_tuning_of_filled_batches_learns_the_same(folder, tmp_path, monkeypatch):
    chosen = preset({"finetune": {"drop_path": 0.2}})
    finetune.finetune(folder, tmp_path / "plain", chosen, FINETUNE, ENGINE, None)
    shapes = set()
    filled(monkeypatch, shapes, True)
    finetune.finetune(folder, tmp_path / "full", chosen, FINETUNE, ENGINE, None)
    plain, other = (losses(next((tmp_path / name).rglob("metrics.jsonl")).parent) for name in ("plain", "full"))
    assert len(plain) == 4
    assert other == pytest.approx(plain, rel=1e-9)
    assert len(shapes) == 1


def test_filling_makes_every_batch_a_multiple_and_leaves_equal_windows_alone():
    rng = np.random.default_rng(0)
    channels = rng.integers(3, 20, 500)
    filling = Filling.choose(channels, 64)
    for _ in range(100):
        counts = rng.choice(channels, 64).tolist()
        empty = filling.counts(counts)
        assert (sum(counts) + sum(empty)) % filling.rows == 0
        assert len(empty) == filling.windows
        assert max(empty) <= filling.width
    assert Filling.choose(np.full(10, 14), 64) is None


# Recorded steps

RECORDED = Engine(device="cpu", readers=0, threads=1, kernels="stock")
LONGER = 14


def scores(run):
    """Everything that a run has logged, without the time that it took."""
    logged = [line for file in sorted(Path(run).rglob("metrics.jsonl")) for line in read_lines(file)]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in logged]


def silent(*given):
    """Print nothing and show nothing."""


def weights(run):
    return {str(file.relative_to(run)): checkpoint.read(file)[1] for file in sorted(Path(run).rglob("model.*"))}


def assert_same_bits(run, other):
    assert scores(run) == scores(other)
    ours, theirs = weights(run), weights(other)
    assert ours.keys() == theirs.keys() != set()
    for file, tensors in ours.items():
        assert all(torch.equal(value, theirs[file][name]) for name, value in tensors.items())


@pytest.mark.parametrize(
    "job",
    [{}, {"objective": {"style": "vitmae"}}, {"objective": FURTHER}, {"model": {"attention": "standard"}}],
    ids=["simmim", "vitmae", "further", "standard"],
)
def test_recorded_steps_of_a_pre_training_give_the_bits_of_plain_ones(tmp_path, job):
    make_store(tmp_path / "store", 6, 8, pretrain=True)  # with windows for validation
    options = replace(PRETRAIN, steps=LONGER)
    lines: list[str] = []
    with recorded_calls() as calls:
        plain = pretrain.pretrain(
            [tmp_path / "store"], tmp_path / "plain", preset(job), options, replace(RECORDED, capture=False)
        )
        assert calls.recorded == calls.replays == 0
        found = pretrain.pretrain(
            [tmp_path / "store"], tmp_path / "found", preset(job), options, RECORDED, say=lines.append
        )
    assert not any("not captured" in line for line in lines)
    assert calls.replays > 2 * (LONGER - 6)  # gradients and update of all steps but the first ones
    assert found.validation
    assert_same_bits(plain.folder, found.folder)


TUNINGS = {
    "drop path": (FINETUNE, {}),
    "balanced": (replace(FINETUNE, balanced=True), {}),
    "regression": (replace(FINETUNE, task="level"), {}),
    "adapters": (replace(FINETUNE, lora=2), {}),
    "few": (replace(FINETUNE, few=True), {}),
    "read-out": (replace(FINETUNE, readout="moments"), {}),
    "micro-batches": (FINETUNE, {"micro_batch": 5}),
}


@pytest.mark.parametrize("name", TUNINGS)
def test_recorded_steps_of_a_fine_tuning_give_the_bits_of_plain_ones(folder, tmp_path, name):
    options, engine = replace(TUNINGS[name][0], steps=LONGER), replace(RECORDED, **TUNINGS[name][1])
    lines: list[str] = []
    start = None
    if name in ("adapters", "few"):
        start = Path(pretrain.pretrain([folder], tmp_path / "start", preset({}), PRETRAIN, RECORDED).folder)
        start /= "model.safetensors"
    with recorded_calls() as calls:
        for run, chosen in (("plain", replace(engine, capture=False)), ("found", engine)):
            finetune.finetune(
                folder, tmp_path / run, preset({}), options, chosen, start, rivals=False, say=lines.append
            )
    assert not any("not captured" in line for line in lines)
    assert calls.replays > 2 * (LONGER - 6)
    assert_same_bits(tmp_path / "plain", tmp_path / "found")


def test_a_run_of_recorded_steps_that_is_stopped_goes_on_with_the_same_bits(folder, tmp_path, monkeypatch):
    options = replace(PRETRAIN, steps=LONGER)
    plain, begun = loop.StepComputer.begin, []

    def begin(computer, micro_batches, asked, rate):
        begun.append(1)
        plain(computer, micro_batches, (len(begun) == 8, False), rate)

    with recorded_calls() as calls:
        whole = pretrain.pretrain([folder], tmp_path / "whole", preset({}), options, RECORDED)
        monkeypatch.setattr(loop.StepComputer, "begin", begin)
        with pytest.raises(StoppedError, match="step 8"):
            pretrain.pretrain([folder], tmp_path / "parts", preset({}), options, RECORDED)
        before = calls.replays
        parts = pretrain.pretrain([folder], tmp_path / "parts", preset({}), options, RECORDED)
        assert calls.replays > before
    assert_same_bits(whole.folder, parts.folder)


def test_not_a_number_in_a_recorded_step_names_the_windows_and_changes_no_weight(folder, tmp_path, monkeypatch):
    original, bad = pretrain.MaskedTask._inputs, 11

    def poisoned(task, raw, counts):
        found, chosen = original(task, raw, counts), task._order.step(bad - 1)
        if (raw.step.window[0], raw.step.epoch[0]) == (chosen.window[0], chosen.epoch[0]):
            found.tensors[0][0, 0] = float("nan")
        return found

    options, engine = replace(PRETRAIN, steps=LONGER), replace(RECORDED, save_minutes=1e-9)
    with recorded_calls() as calls:
        with monkeypatch.context() as patch:
            patch.setattr(pretrain.MaskedTask, "_inputs", poisoned)
            with pytest.raises(TrainingError, match=rf"step {bad} is not a number: windows s\d@\ds; nothing"):
                pretrain.pretrain([folder], tmp_path / "run", preset({}), options, engine)
        assert calls.replays > 0
        assert len(losses(tmp_path / "run")) == bad - 1
        pretrain.pretrain([folder], tmp_path / "run", preset({}), options, engine)
        pretrain.pretrain([folder], tmp_path / "whole", preset({}), options, engine)
    assert_same_bits(tmp_path / "run", tmp_path / "whole")


def test_steps_that_wait_for_the_device_are_computed_plainly_and_told(folder, tmp_path, monkeypatch):
    gradients, options = step.gradients, replace(PRETRAIN, steps=6)

    def waits(run, *given):
        found = gradients(run, *given)
        found[0].item()
        return found

    lines: list[str] = []
    with recorded_calls() as calls:
        plain = pretrain.pretrain([folder], tmp_path / "plain", preset({}), options, replace(RECORDED, capture=False))
        monkeypatch.setattr(step, "gradients", waits)
        found = pretrain.pretrain([folder], tmp_path / "found", preset({}), options, RECORDED, say=lines.append)
    assert calls.replays == 0
    assert sum("not captured as a CUDA graph (_local_scalar_dense waits" in line for line in lines) == 1
    assert_same_bits(plain.folder, found.folder)


def test_a_graph_that_gives_something_else_is_not_used(folder, tmp_path, monkeypatch):
    """A graph repeats a number of Python; the plain step has another one in every call."""
    gradients, options, turn = step.gradients, replace(PRETRAIN, steps=6), []

    def moody(run, *given):
        turn.append(1)
        return gradients(run, *given) + (len(turn) % 2)

    lines: list[str] = []
    with recorded_calls() as calls:
        monkeypatch.setattr(step, "gradients", moody)
        pretrain.pretrain([folder], tmp_path / "found", preset({}), options, RECORDED, say=lines.append)
    assert calls.recorded == 2
    assert calls.replays == 1  # the one that was compared
    assert sum("a graph did not give what the plain computation gives" in line for line in lines) == 1


def test_what_cannot_be_recorded_is_known_beforehand(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(train_stores, "MONTAGES", MONTAGES[:1])  # a read-out of fixed channels needs the same ones
    make_store(tmp_path / "alike", 6, 8)
    tried = []
    monkeypatch.setattr(Capture, "_try", lambda *given: tried.append(1))
    chosen = preset({"objective": {"style": "vitmae"}, "model": {"attention": "standard"}})
    tuning = replace(FINETUNE, steps=6, readout="narrow")
    with recorded_calls():
        pretrain.pretrain([folder], tmp_path / "visible", chosen, replace(PRETRAIN, steps=6), RECORDED)
        finetune.finetune(tmp_path / "alike", tmp_path / "narrow", preset({}), tuning, RECORDED, None, rivals=False)
        assert tried == []
        pretrain.pretrain([folder], tmp_path / "masked", preset({}), replace(PRETRAIN, steps=6), RECORDED)
    assert tried != []


def test_outputs_of_a_store_are_recorded_with_the_same_bits(folder):
    store = Store(folder)
    task = read_task(store, "alpha", 1.0, None, None)
    windows = next(iter(find_splits(store, task, None))).train
    model = Cerebro(2, config=MODEL)
    with (
        recorded_calls() as calls,
        training_processes(None, RECORDED, silent, silent) as (processes, _, _),
        torch.no_grad(),
    ):
        outputs = BatchOutputs(model, processes)
        rounds = [predict_windows(model, store, windows, processes, batch_size=4, outputs=outputs) for _ in range(3)]
        before = calls.replays
        assert before > 0
        model.final_layer.weight.add_(1.0)  # in place: graphs read it
        changed = predict_windows(model, store, windows, processes, batch_size=4, outputs=outputs)
        assert calls.replays > before
        recorded = calls.recorded
        model.reset_head(2)  # other tensors: graphs would read the old ones
        fresh = predict_windows(model, store, windows, processes, batch_size=4, outputs=outputs)
        with capturing(False):
            plain = predict_windows(model, store, windows, processes, batch_size=4)
    assert calls.recorded > recorded
    np.testing.assert_array_equal(rounds[0], rounds[1])
    np.testing.assert_array_equal(rounds[0], rounds[2])
    assert not np.array_equal(changed, rounds[0])
    np.testing.assert_array_equal(fresh, plain)


# The machinery

CPU = torch.device("cpu")


def test_a_computation_is_recorded_the_second_time_and_replayed_from_then_on():
    calls_of_python = []

    def compute(form, tensors):
        calls_of_python.append(form)
        return tensors[0] * 2

    with recorded_calls() as calls:
        capture = Capture(compute, CPU)
        for number in range(5):
            assert capture("a", [torch.full((3,), float(number))]).tolist() == [2.0 * number] * 3
        assert calls_of_python == ["a"] * 3  # plain, plain and recorded, then never again
        assert calls.replays == 1 + 4
        assert capture("a", [torch.ones(4)]).tolist() == [2.0] * 4  # another shape is another graph
        assert calls_of_python == ["a"] * 4
        with capturing(False):
            assert capture("a", [torch.ones(3)]).tolist() == [2.0] * 3
        assert calls_of_python == ["a"] * 5
    assert capture.refused is None


def test_without_memory_for_a_further_graph_computations_are_plain():
    full = [False]

    def compute(form, tensors):
        if full[0] and len(tensors[0]) == 4:
            full[0] = False
            raise torch.OutOfMemoryError("CUDA out of memory")
        return tensors[0] * 2

    with recorded_calls() as calls:
        capture = Capture(compute, CPU)
        for _ in range(3):
            capture("a", [torch.ones(3)])
        before, full[0] = calls.replays, True
        assert capture("a", [torch.ones(4)]).tolist() == [2.0] * 4
        assert capture.refused == "the GPU has too little memory for graphs of several shapes"
        assert capture("a", [torch.ones(3)]).tolist() == [2.0] * 3
        assert calls.replays == before
        full[0] = True
        with pytest.raises(torch.OutOfMemoryError):  # there is nothing left to give up
            capture("a", [torch.ones(4)])


def test_graphs_are_given_up_together_and_a_new_place_is_taken_for_the_next():
    """A graph that is freed may take memory with it that others of its stream use."""
    layer = torch.nn.Linear(2, 2)
    wrong = [False]

    def compute(form, tensors):
        found = layer(tensors[0])
        return found + torch.rand(1) if wrong[0] else found

    with recorded_calls() as calls, torch.no_grad():
        capture = Capture(compute, CPU, module=layer)
        for _ in range(3):
            capture(None, [torch.ones(1, 2)])
        first = weakref.ref(next(iter(capture._recorded.values())))
        assert calls.places == 1
        layer.weight = torch.nn.Parameter(torch.zeros(2, 2))
        capture(None, [torch.ones(1, 2)])
        assert first() is None  # before the new graph is recorded
        capture(None, [torch.ones(1, 2)])
        assert calls.places == 2
        wrong[0] = True
        for _ in range(2):
            capture(None, [torch.ones(3, 2)])
        assert capture.refused == "a graph did not give what the plain computation gives"
        assert capture._recorded == {}
        assert capture._now is None


@pytest.mark.parametrize(("failures", "replayed"), [(1, True), (2, True), (3, False)])
def test_a_recording_that_is_disturbed_is_tried_again(failures, replayed, monkeypatch):
    """Another thread that gives up a tensor of the GPU, such as a profiler, makes a recording fail."""
    record, asked = CallRecorder.record, []

    def disturbed(recorder, compute):
        asked.append(recorder)
        if len(asked) <= failures:
            raise RuntimeError("operation failed due to a previous error during capture")
        return record(recorder, compute)

    monkeypatch.setattr(CallRecorder, "record", disturbed)
    with recorded_calls() as calls:
        capture = Capture(lambda form, tensors: tensors[0] * 2, CPU)
        for number in range(6):
            assert capture("a", [torch.full((3,), float(number))]).tolist() == [2.0 * number] * 3
        assert (calls.replays > 0) is replayed
    assert len(set(asked)) == min(failures + 1, 3)  # each try has a place of its own
    assert (capture.refused is None) is replayed


def test_forms_beyond_a_dozen_are_computed_plainly(monkeypatch):
    monkeypatch.setattr(fast.capture, "MOST_FORMS", 2)
    with recorded_calls() as calls:
        capture = Capture(lambda form, tensors: tensors[0] * 2, CPU)
        for _ in range(3):
            for size in (1, 2, 3):
                assert capture(None, [torch.ones(size)]).tolist() == [2.0] * size
    assert calls.recorded == 2
    assert capture.refused is None


def test_an_error_while_a_graph_is_compared_leaves_plain_computation(monkeypatch):
    def full(graph, inputs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with recorded_calls(), monkeypatch.context() as patch:
        capture = Capture(lambda form, tensors: tensors[0] * 2, CPU)
        patch.setattr(fast.capture._Recorded, "__call__", full)
        for _ in range(3):
            assert capture(None, [torch.ones(2)]).tolist() == [2.0, 2.0]
    assert capture.refused == "CUDA out of memory"


def test_nothing_of_a_run_keeps_its_graphs_alive(folder, tmp_path, monkeypatch):
    """Not even until Python collects garbage: no memory of a GPU would be asked for meanwhile."""
    kept, record = [], CallRecorder.record

    def noting(recorder, compute):
        replay, found = record(recorder, compute)
        kept.append(weakref.ref(replay))
        return replay, found

    monkeypatch.setattr(CallRecorder, "record", noting)
    store = Store(folder)
    windows = next(iter(find_splits(store, read_task(store, "alpha", 1.0, None, None), None))).train
    gc.collect()
    gc.disable()
    try:
        with recorded_calls():
            for number in range(2):
                pretrain.pretrain([folder], tmp_path / f"p{number}", preset({}), replace(PRETRAIN, steps=6), RECORDED)
            finetune.finetune(
                folder, tmp_path / "f", preset({}), replace(FINETUNE, steps=6, seeds=(0, 1)), RECORDED, rivals=False
            )
            trained = len(kept)
            assert trained > 6
            model = Cerebro(2, config=MODEL)
            with training_processes(None, RECORDED, silent, silent) as (processes, _, _):
                for _ in range(2):
                    outputs = BatchOutputs(model, processes)
                    for _ in range(2):
                        predict_windows(model, store, windows, processes, batch_size=4, outputs=outputs)
            del outputs
        assert len(kept) > trained
        assert [ref() for ref in kept] == [None] * len(kept)
    finally:
        gc.enable()


def test_a_model_with_a_hook_is_not_recorded():
    layer, seen = torch.nn.Linear(2, 2), []
    with recorded_calls() as calls, torch.no_grad():
        capture = Capture(lambda form, tensors: layer(tensors[0]), CPU, module=layer)
        for _ in range(3):
            capture(None, [torch.ones(1, 2)])
        replays = calls.replays
        layer.register_forward_hook(lambda *given: seen.append(1))
        for _ in range(4):
            capture(None, [torch.ones(1, 2)])
    assert calls.replays == replays > 0
    assert len(seen) == 4
    assert capture.refused == "the model has got a hook, which would not be called"


def test_a_result_is_waited_for_once_the_next_one_has_begun():
    told = []

    def begun(count):
        for number in range(count):
            told.append(f"begin {number}")
            yield number, lambda number=number: (told.append(f"wait {number}"), torch.tensor(number))[1]

    assert [(one, int(found)) for one, found in one_behind(begun(3))] == [(0, 0), (1, 1), (2, 2)]
    assert told == ["begin 0", "begin 1", "wait 0", "begin 2", "wait 1", "wait 2"]
    assert list(one_behind(begun(0))) == []


def test_recordings_repeat_numbers_of_the_host_and_compute_nothing_by_themselves():
    """What the tests above rely on: a recording is as blind as a CUDA graph."""
    weight, rate = torch.ones(2), 0.5

    def update():
        weight.mul_(rate)
        return weight + 1

    with recorded_calls() as calls:
        replay, found = calls(CPU).record(update)
        assert weight.tolist() == [1.0, 1.0]
        rate = 100.0
        replay()
        assert (weight.tolist(), found.tolist()) == ([0.5, 0.5], [1.5, 1.5])
        for wrong in (lambda: weight.sum().item(), lambda: torch.tensor([1.0]), lambda: weight[weight > 0]):
            with pytest.raises(RuntimeError, match="waits for the device or copies from the host"):
                calls(CPU).record(wrong)


# The same on a GPU

CUDA = Engine(device="cuda", deterministic=True, readers=2)


@pytest.fixture
def replays(monkeypatch):
    """Counts how often something recorded was repeated on a GPU."""
    found, record = [], CudaGraphs.record

    def counting(graphs, compute):
        replay, result = record(graphs, compute)
        return (lambda: (found.append(1), replay())[1]), result

    monkeypatch.setattr(CudaGraphs, "record", counting)
    return found


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("job", [{}, {"objective": {"style": "vitmae"}}, {"objective": FURTHER}])
def test_captured_steps_of_a_pre_training_give_the_bits_of_plain_ones(tmp_path, replays, job, precision):
    make_store(tmp_path / "store", 6, 8, pretrain=True)
    options, engine = replace(PRETRAIN, steps=LONGER), replace(CUDA, precision=precision)
    lines: list[str] = []
    for run, chosen in (("plain", replace(engine, capture=False)), ("found", engine)):
        assert len(replays) == 0
        pretrain.pretrain([tmp_path / "store"], tmp_path / run, preset(job), options, chosen, say=lines.append)
    assert not any("not captured" in line for line in lines)
    assert len(replays) > 2 * (LONGER - 6)
    assert_same_bits(tmp_path / "plain", tmp_path / "found")


@pytest.mark.gpu
@pytest.mark.parametrize("name", TUNINGS)
def test_captured_steps_of_a_fine_tuning_give_the_bits_of_plain_ones(folder, tmp_path, replays, name):
    options, engine = replace(TUNINGS[name][0], steps=LONGER), replace(CUDA, **TUNINGS[name][1])
    lines: list[str] = []
    start = None
    if name in ("adapters", "few"):
        run = pretrain.pretrain([folder], tmp_path / "start", preset({}), PRETRAIN, replace(CUDA, capture=False))
        start = Path(run.folder) / "model.safetensors"
    for run, chosen in (("plain", replace(engine, capture=False)), ("found", engine)):
        assert len(replays) == 0
        finetune.finetune(folder, tmp_path / run, preset({}), options, chosen, start, rivals=False, say=lines.append)
    assert not any("not captured" in line for line in lines)
    assert len(replays) > 2 * (LONGER - 6)
    assert_same_bits(tmp_path / "plain", tmp_path / "found")


@pytest.mark.gpu
def test_captured_steps_that_are_not_deterministic_learn_the_same(folder, tmp_path, replays):
    """Sums over tokens may have another order each time, so the last bits differ."""
    engine = replace(CUDA, deterministic=False)
    for run, chosen in (("plain", replace(engine, capture=False)), ("found", engine)):
        pretrain.pretrain([folder], tmp_path / run, preset({}), replace(PRETRAIN, steps=LONGER), chosen)
    assert len(replays) > 2 * (LONGER - 6)
    assert losses(tmp_path / "found") == pytest.approx(losses(tmp_path / "plain"), rel=1e-3)


@pytest.mark.gpu
def test_graphs_that_are_given_up_leave_those_of_others_alone():
    device = torch.device("cuda")
    layers = [torch.nn.Linear(512, 512, device=device) for _ in range(3)]
    x = torch.rand(64, 512, device=device)
    with torch.no_grad():
        plain = [layer(x) for layer in layers]
        captures = [Capture(lambda form, tensors, layer=layer: layer(tensors[0]), device) for layer in layers]
        for _ in range(3):
            for capture, expected in zip(captures, plain, strict=True):
                torch.testing.assert_close(capture(None, [x]), expected)
        del captures[0]
        torch.cuda.empty_cache()
        filler = [torch.full((1 << 20,), float("nan"), device=device) for _ in range(64)]
        for capture, expected in zip(captures, plain[1:], strict=True):
            torch.testing.assert_close(capture(None, [x]), expected)
        assert len(filler) == 64


@pytest.mark.gpu
def test_a_capture_that_fails_leaves_the_gpu_usable():
    device, waits = torch.device("cuda"), [True]
    noise = torch.rand(8, 8, device=device)

    def compute(form, tensors):
        found = tensors[0] @ noise
        return found + found.sum().item() if waits[0] else found

    capture, x = Capture(compute, device), torch.rand(4, 8, device=device)
    plain = x @ noise
    for _ in range(4):
        torch.testing.assert_close(capture(None, [x]), plain + plain.sum())
    assert capture.refused is not None
    assert torch.rand(3, device=device).shape == (3,)  # the generator is not left in the capture
    waits[0] = False
    again = Capture(compute, device)
    for _ in range(4):
        torch.testing.assert_close(again(None, [x]), plain)
    assert again.refused is None
    del again, capture
    torch.cuda.synchronize()
