"""The study of first steps: trainings in processes of their own, turns, medians, verdict. No time is checked."""

import dataclasses
import subprocess

import pytest
import torch

import first_step
from cerebro_eeg.bench.__main__ import main_of
from cerebro_eeg.bench.run import measure
from cerebro_eeg.errors import ConfigError, InputError, TrainingError

ASKED = first_step.FirstStep(
    rounds=1, trainings=("finetune",), forms=("eager",), steps=16, channels=2, readers=1, device="cpu"
)
CASE = first_step.TrainingCase("finetune", "tiny", 4, "eager", "store", "cpu", 16, 1)


def _dicts(rows):
    return [dict(zip(first_step.COLUMNS, row, strict=True)) for row in rows]


def _one(first=1.0, begin=2.0, step=0.01, kernels=None):
    return first_step.MeasuredTraining(first, begin, step, kernels)


@pytest.mark.soak
def test_a_training_in_a_process_of_its_own(tmp_path):
    ((table, place),) = measure(first_step.run, ASKED, tmp_path, print)
    rows = _dicts(table.rows)
    assert [(row["form"], row["caches"]) for row in rows] == [("eager", "empty"), ("eager", "full")]
    for row in rows:
        assert row["first_step_s"] > 0
        assert row["ms"] == pytest.approx(4e3 / row["windows_per_s"])
        assert row["over_compiled"] is row["kernels_ms"] is None
    assert table.notes[-1].startswith("verdict: none")
    assert place.command.startswith("python benchmarks/first_step.py --rounds 1 --trainings finetune --forms eager")


@pytest.mark.parametrize("training", first_step.TRAININGS)
def test_reports_of_a_training_are_timed_in_this_process(training, tmp_path, monkeypatch):
    """Of both trainings; the store of pre-training is smaller than the study's."""
    monkeypatch.setattr(first_step, "RECORDINGS", 2)
    monkeypatch.setattr(first_step, "RECORDED_SECONDS", 40)
    first_step.write_store(tmp_path, training, 4, ASKED)
    case = dataclasses.replace(CASE, training=training, store=str(tmp_path))
    before = torch.get_num_threads()
    found = first_step.measure_one(case)
    assert torch.get_num_threads() == before
    assert found.step > 0
    assert found.first_step > 0
    assert found.kernels is None


def test_times_of_a_training_from_its_reports():
    """The call comes at 10 s, the first report at 15; two slow steps follow, and all others take 2 s."""
    at = [15.0, 20.0, 25.0, *(25.0 + 2 * n for n in range(1, 10))]
    found = first_step.measured(10.0, list(enumerate(at, 1)), 0.5)
    assert (found.first_step, found.step, found.kernels) == (5.0, 2.0, 0.5)
    assert found.begin == pytest.approx(3 * (5 - 2))


def test_each_process_has_caches_of_its_own_which_the_second_finds_full(monkeypatch, tmp_path):
    seen = []

    def run(words, env, **given):
        folders = [env[name] for name in first_step.CACHE_FOLDERS]
        seen.append((words[-2:], folders))
        return subprocess.CompletedProcess(
            words, 0, 'a warning\n{"first_step": 1, "begin": 2, "step": 3, "kernels": 4}\n'
        )

    monkeypatch.setattr(first_step.subprocess, "run", run)
    results = {}
    assert not list(first_step.in_turns([CASE], 2, results))
    key = ("finetune", "tiny", 4), "eager"
    assert results == {(*key, state): [_one(1, 2, 3, 4)] * 2 for state in first_step.CACHES}
    folders = [found for _, found in seen]
    assert folders[0] == folders[1] != folders[2] == folders[3]
    assert len({*folders[0]}) == 3
    assert all(words[0] == "one" and '"preset": "tiny"' in words[1] for words, _ in seen)


def test_a_process_that_fails_gives_its_last_line(tmp_path):
    with pytest.raises(TrainingError, match="no preset 'huge'"):
        first_step.in_own_process(dataclasses.replace(CASE, preset="huge"), tmp_path)


def test_forms_take_turns_and_one_that_fails_takes_no_more():
    calls = []

    def measure(case, caches):
        calls.append(case.form)
        if case.form == "captured":
            raise TrainingError("steps were not captured")
        return _one()

    cases = [dataclasses.replace(CASE, form=form) for form in first_step.FORMS]
    results = {}
    failing = list(first_step.in_turns(cases, 2, results, measure))
    assert calls == [*["eager"] * 2, *["compiled"] * 2, "captured", *["compiled"] * 2, *["eager"] * 2]
    assert failing == [("finetune, tiny, 4 windows, captured", "steps were not captured")]
    assert {form for _, form, _ in results} == {"eager", "compiled"}


def test_steps_that_were_not_captured_are_an_error(monkeypatch):
    monkeypatch.setattr(
        first_step, "train", lambda case, say, tell: say("note: steps were not captured as a CUDA graph")
    )
    with pytest.raises(TrainingError, match="not captured"):
        first_step.measure_one(CASE)


def _rows(steps, case=("finetune", "small", 64)):
    results = {}
    for form, step in steps.items():
        for state in first_step.CACHES:
            first = {"empty": 9.0, "full": 3.0}[state] + (form == "compiled")
            kernels = {"eager": 0.008, "compiled": 0.004}.get(form)
            results[case, form, state] = [_one(first, 1.0, step * k, kernels) for k in (0.5, 1.0, 3.0)]
    return list(first_step.rows_of(case, first_step.FORMS, results))


def test_rows_are_medians_and_a_graph_has_the_kernels_of_eager_steps():
    rows = {
        (row["form"], row["caches"]): row for row in _dicts(_rows({"eager": 0.03, "compiled": 0.01, "captured": 0.012}))
    }
    captured = rows["captured", "full"]
    assert captured["first_step_s"] == 3.0
    assert captured["ms"] == pytest.approx(12)
    assert captured["spread"] == pytest.approx(2.5)
    assert captured["windows_per_s"] == pytest.approx(64 / 0.012)
    assert captured["over_compiled"] == pytest.approx(1.2)
    assert (captured["kernels_ms"], captured["over_kernels"]) == pytest.approx((8.0, 1.5))
    assert rows["compiled", "empty"]["over_kernels"] == pytest.approx(2.5)
    missing = _dicts(_rows({"eager": 0.03}))[-1]
    assert (missing["form"], missing["ms"], missing["over_kernels"]) == ("captured", None, None)


def test_verdict_names_the_cases_where_graphs_alone_are_enough():
    near = _rows({"eager": 0.03, "compiled": 0.0100, "captured": 0.0105})
    far = _rows({"compiled": 0.0100, "captured": 0.0106}, ("pretrain", "base", 2048))
    lines = first_step.verdict([*near, *far, *_rows({"compiled": 1.0}, ("pretrain", "small", 1))])
    first = "first step 9.0 s against 10.0 s with empty caches; first step 3.0 s against 4.0 s with full caches"
    assert lines == [
        f"finetune small 64: a captured step takes 1.050 times as long as a compiled one; {first}",
        f"pretrain base 2,048: a captured step takes 1.060 times as long as a compiled one; {first}",
        "verdict: capture alone is within 5% of compiled in 1 of 2 cases: finetune small 64; "
        "not in pretrain base 2,048",
    ]


def test_options_that_make_no_sense_are_refused(tmp_path):
    for wrong, line in (
        ({"steps": 15}, "--steps is 15; expected at least 16"),
        ({"forms": ("fast",)}, "--forms has fast; choose of eager, compiled, captured"),
        ({"trainings": ("probe",)}, "--trainings has probe; choose of finetune, pretrain"),
    ):
        with pytest.raises(ConfigError, match=line):
            dataclasses.replace(ASKED, **wrong)
    for cases in ("small", "small:", "small:-1", "small:many"):
        with pytest.raises(ConfigError, match="expected a preset with its windows per step"):
            measure(first_step.run, dataclasses.replace(ASKED, cases=(cases,)), tmp_path, print)
    with pytest.raises(ConfigError, match="there is no preset 'huge'"):
        first_step.read_case("huge:4")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so_in_one_line(tmp_path, capsys):
    assert main_of(first_step.FirstStep, first_step.run, ["--out", str(tmp_path / "out")]) == InputError.exit_code
    line = capsys.readouterr().err
    assert line.startswith("error: benchmarks/first_step.py measures a CUDA GPU, and torch sees none here")
    assert line.count("\n") == 1
    assert not (tmp_path / "out").exists()
