"""Signals: what a model is given of a recording, and what is said about the rest."""

import logging

import mne
import numpy as np
import pytest

from cerebro_eeg.channels.names import Channel
from cerebro_eeg.config import preset
from cerebro_eeg.errors import ChannelError
from cerebro_eeg.runs.settings import Handling
from cerebro_eeg.runs.signals import open_signal


def ids_of(names):
    return np.array([Channel(*name.split("-")).ids for name in names]).reshape(-1, 2)


def open_it(source):
    return open_signal(source, preset("small").model, ids_of, Handling())


def test_channels_that_are_marked_as_bad_are_left_out_and_said(tmp_path, caplog):
    labels = ["Fp1", "C3", "O2"]
    x = np.random.default_rng(0).normal(0, 20e-6, (3, 256 * 8))
    raw = mne.io.RawArray(x, mne.create_info(labels, 256.0, "eeg"), verbose="error")
    alone = [piece.rows for piece in open_it(raw.copy().pick(["Fp1", "O2"])).pieces()]
    raw.info["bads"] = ["C3"]
    raw.save(tmp_path / "a_raw.fif", verbose="error")
    for source in (raw, tmp_path / "a_raw.fif"):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "cerebro_eeg"):
            signal = open_it(source)
        assert signal.names == ("Fp1", "O2")
        assert signal.faults == ("bads",)
        assert [record.getMessage() for record in caplog.records] == [
            "1 channel is marked as bad and was left out: 'C3'"
        ]
        if source is raw:
            np.testing.assert_array_equal([piece.rows for piece in signal.pieces()], alone)
    raw.info["bads"] = labels
    with pytest.raises(ChannelError, match="all 3 EEG channels are marked as bad"):
        open_it(raw)
