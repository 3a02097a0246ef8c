"""One way for a recording: prepare, predict, info and the picture see the same plan and the same samples."""

import numpy as np
import pytest

from cerebro_eeg.channels.names import Channel
from cerebro_eeg.commands.info_recording import info_recording
from cerebro_eeg.config import ModelConfig, SignalConfig
from cerebro_eeg.data.datasets import make_recipe
from cerebro_eeg.data.filtering.half import HalfSplitter
from cerebro_eeg.data.preprocess import preprocess
from cerebro_eeg.data.reading.formats import open_recording
from cerebro_eeg.data.reading.recording import ChannelPolicy
from cerebro_eeg.data.storing.prepare import prepare
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.report.recording import excerpt
from cerebro_eeg.runs.settings import Handling
from cerebro_eeg.runs.signals import open_signal
from predict_files import edf, edf_with_gaps, noise


def ids_of(names):
    return np.array([Channel(*name.split("-")).ids for name in names], np.int64).reshape(-1, 2)


def huge(path):
    """A file with values that half precision cannot hold."""
    data = noise(20, 3, 256, 4)
    data[2, 256 * 9 : 256 * 9 + 40] += 150_000.0
    return edf(path, rate=256, data=data)


@pytest.mark.parametrize(
    "write", [edf, lambda path: edf_with_gaps(path, [*range(12), *range(20, 40)]), huge], ids=["plain", "gaps", "huge"]
)
def test_prepare_predict_info_and_picture_see_the_same_plan_and_samples(tmp_path, write):
    file = write(tmp_path / "files" / "a.edf")
    prepare(make_recipe("folder", tmp_path / "files", {}), tmp_path / "store")
    store = Store(tmp_path / "store")
    (record,) = store.recordings
    stored = store.read(0, 0, record.samples)

    signal = open_signal(file, ModelConfig(), ids_of, Handling())
    rows = np.concatenate([piece.rows for piece in signal.pieces()])
    assert np.array_equal(rows.view(np.uint16), stored.view(np.uint16))
    assert [piece.onset for piece in signal.pieces() if piece.begins] == [s.onset for s in record.segments]
    assert signal.names == record.channels
    assert signal.faults[: len(record.faults)] == record.faults

    said = info_recording(file).plan
    assert (said.text, said.notch_hz) == (signal.plan.text(), record.mains)
    assert said.bytes >= stored.nbytes  # half precision may make gaps

    prepared = preprocess(open_recording(file, ChannelPolicy()), SignalConfig())
    assert prepared.plan == signal.plan
    pieces = excerpt(prepared, 0.0, prepared.recording.end)
    drawn = np.concatenate([drawn for _, drawn in pieces]).astype(np.float64)
    drawn = drawn[(np.abs(drawn) <= 65504).all(1)]
    assert np.array_equal(drawn.astype(np.float32).astype(np.float16), stored)


def test_what_does_not_fit_half_precision_becomes_a_gap_wherever_blocks_end():
    x = np.random.default_rng(0).normal(0, 50, (60, 2)).astype(np.float32)
    x[7:9, 1], x[20, 0], x[59, 0] = 70_000, np.nan, -np.inf
    for size in (1, 7, 9, 20, 60):
        splitter = HalfSplitter(10.0)
        splitter.begin(5.0, short=True)
        pieces = [piece for start in range(0, 60, size) for piece in splitter.push(x[start : start + size])]
        assert [piece.onset for piece in pieces if piece.begins] == [5.0, 5.9, 7.1]
        assert np.array_equal(
            np.concatenate([piece.rows for piece in pieces]), np.delete(x, [7, 8, 20, 59], 0).astype("f2")
        )
        assert (splitter.not_finite, splitter.too_large) == (2, 2)
        assert all(piece.short for piece in pieces)
