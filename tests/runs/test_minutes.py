"""Training for so many minutes: the pace of the first steps plans the number, and the clock ends what takes longer."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cerebro_eeg.errors import ConfigError
from cerebro_eeg.runs import finetune, pretrain, training
from cerebro_eeg.runs.settings import Engine
from cerebro_eeg.train.log import read_lines
from cerebro_eeg.train.state import steps_done
from train_stores import make_store
from train_worker import preset

ENGINE = Engine(device="cpu", readers=0, threads=1)
OPTIONS = pretrain.PretrainOptions(minutes=0.1, seconds=1.0, paper=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("minutes") / "store"
    make_store(folder, 6, 8, pretrain=True)
    return folder


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still while the steps are timed, at 0.5 s a step; the test moves it on."""
    now = [100.0]
    monkeypatch.setattr(training.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(training, "_seconds_per_step", lambda *given: 0.5)
    return now


def test_the_pace_plans_the_steps_and_the_same_steps_repeat_the_run(folder, tmp_path, clock):
    lines = []
    timed = pretrain.pretrain([folder], tmp_path / "timed", preset({}), OPTIONS, ENGINE, say=lines.append)
    assert timed.steps == int(6 * training.FOR_STEPS / 0.5) == 10
    assert f"0.1 minutes: {timed.steps} steps at 0.5 s each (--steps {timed.steps} repeats them)" in lines
    options = replace(OPTIONS, minutes=None, steps=timed.steps)
    again = pretrain.pretrain([folder], tmp_path / "again", preset({}), options, ENGINE)
    assert again.sha256 == timed.sha256
    errors = [line for line in lines if "validation masked error" in line]
    assert (
        errors[-1] == f"step 10: validation masked error {timed.validation['validation_masked']:.4f} (lower is better)"
    )


def test_timing_really_runs_steps_and_leaves_the_weights_alone(folder, tmp_path):
    lines = []
    found = pretrain.pretrain(
        [folder], tmp_path / "timed", preset({}), replace(OPTIONS, minutes=0.01), ENGINE, say=lines.append
    )
    (line,) = [line for line in lines if "minutes:" in line]
    planned = int(line.split(": ")[1].split(" ")[0].replace(",", ""))
    assert 1 <= found.steps <= planned
    run = json.loads((tmp_path / "timed" / "run.json").read_text())
    assert (run["steps"], run["minutes"]) == (planned, 0.01)
    options = replace(OPTIONS, minutes=None, steps=planned)
    plain = pretrain.pretrain([folder], tmp_path / "plain", preset({}), options, ENGINE)
    first, other = (next(iter(read_lines(Path(one.folder) / "metrics.jsonl"))) for one in (found, plain))
    assert first["loss"] == other["loss"]


def test_the_clock_ends_a_training_that_is_slower_than_planned(folder, tmp_path, clock):
    lines = []

    def tell(report, steps, batch):
        clock[0] += 2.0

    found = pretrain.pretrain([folder], tmp_path / "run", preset({}), OPTIONS, ENGINE, say=lines.append, tell=tell)
    assert found.steps == 4  # 8 s of 6
    assert "the time is up after step 4 of 10, so training ends here" in lines
    assert found.validation  # it ends with a validation, though no epoch ends there
    again = pretrain.pretrain([folder], tmp_path / "run", preset({}), OPTIONS, ENGINE)
    assert (again.steps, again.sha256) == (4, found.sha256)


def test_a_stopped_run_keeps_its_plan(folder, tmp_path, clock):
    def stop(report, steps, batch):
        clock[0] += 0.001  # so that the state is saved after every step
        if report.step == 3:
            raise KeyboardInterrupt

    engine = replace(ENGINE, save_minutes=1e-9)
    whole = pretrain.pretrain([folder], tmp_path / "whole", preset({}), OPTIONS, ENGINE)
    with pytest.raises(KeyboardInterrupt):
        pretrain.pretrain([folder], tmp_path / "cut", preset({}), OPTIONS, engine, tell=stop)
    assert steps_done(tmp_path / "cut" / "state.safetensors") == 2
    cut = pretrain.pretrain([folder], tmp_path / "cut", preset({}), OPTIONS, ENGINE)
    assert (cut.steps, cut.sha256) == (whole.steps, whole.sha256)


def test_another_limit_makes_a_new_plan_from_where_the_run_stands(folder, tmp_path, clock):
    def stop(report, steps, batch):
        clock[0] += 0.001  # so that the state is saved after every step
        if report.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain.pretrain(
            [folder], tmp_path / "cut", preset({}), OPTIONS, replace(ENGINE, save_minutes=1e-9), tell=stop
        )
    lines = []
    options = replace(OPTIONS, minutes=0.05)
    found = pretrain.pretrain([folder], tmp_path / "cut", preset({}), options, ENGINE, say=lines.append)
    assert found.steps == 2 + int(3 * training.FOR_STEPS / 0.5)
    assert any("the length of the run changes: choices.minutes was 0.1 and is now 0.05" in line for line in lines)


def test_trainings_share_the_minutes_and_show_their_validation(folder, tmp_path, clock):
    lines = []
    options = finetune.FinetuneOptions(task="alpha", minutes=0.2, seeds=(0, 1), seconds=1.0, paper=True)
    found = finetune.finetune(folder, tmp_path / "run", preset({}), options, ENGINE, None, say=lines.append)
    assert [one.steps for one in found.trained] == [10, 10]  # of 6 s each
    scores = [line for line in lines if ": validation " in line and line.startswith("step ")]
    assert len(scores) >= 2
    assert scores[0].endswith("the best so far")


@pytest.mark.parametrize(
    ("options", "words"),
    [({"steps": 3}, "minutes is 0.1 and steps is 3; give one"), ({"minutes": -1.0}, "minutes is -1; expected more")],
)
def test_what_does_not_go_together_is_refused(folder, tmp_path, options, words):
    with pytest.raises(ConfigError, match=words):
        pretrain.pretrain([folder], tmp_path / "run", preset({}), replace(OPTIONS, **options), ENGINE)
    assert not (tmp_path / "run").exists()
