"""Cerebro in pipelines of MOABB, on its own data set of noise; `make soak` runs this with the newest MOABB."""

import numpy as np
import pytest
import torch
from test_zoo import braindecode, run_page  # noqa: F401 (a fixture)

from cerebro_eeg import Cerebro

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """MOABB writes data and results to folders that the environment names."""
    pytest.importorskip("moabb.datasets.fake", reason="needs MOABB (extra: moabb), as `make soak` installs it")
    for name in ("MNE_DATA", "MOABB_RESULTS", "HOME", "_MNE_FAKE_HOME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))


def test_the_lines_of_the_page_run(tmp_path, monkeypatch, capsys):
    found = run_page("benchmarks-of-others.md", "## MOABB", tmp_path, monkeypatch)
    shown = capsys.readouterr().out
    assert found["model"].channels.names == ["C3", "Cz", "C4"]
    assert all(f"{subject}" in shown for subject in (1, 2, 3))
    assert not found["model"].training


def test_a_network_is_fine_tuned_for_each_left_out_subject(braindecode, tmp_path):  # noqa: F811
    from moabb.datasets.fake import FakeDataset
    from moabb.evaluations import CrossSubjectEvaluation
    from moabb.paradigms import LeftRightImagery
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    names = ["C3", "Cz", "C4"]
    length = {"n_subjects": 2, "n_sessions": 1, "n_runs": 1, "duration": 60, "n_events": 24}
    dataset = FakeDataset(["left_hand", "right_hand"], channels=tuple(names), **length)
    torch.manual_seed(0)
    net = braindecode.EEGClassifier(
        Cerebro, module__config="tiny", module__ch_names=names, module__sfreq=256.0, max_epochs=1, train_split=None,
        verbose=0,
    )  # fmt: skip
    pipeline = make_pipeline(FunctionTransformer(np.ndarray.astype, kw_args={"dtype": np.float32}), net)
    evaluation = CrossSubjectEvaluation(
        paradigm=LeftRightImagery(resample=256), datasets=[dataset], overwrite=True, hdf5_path=str(tmp_path)
    )
    rows = evaluation.process({"cerebro": pipeline})
    assert sorted(rows["subject"].astype(int)) == [1, 2]
    assert rows["score"].between(0, 1).all()
