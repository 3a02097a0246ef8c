"""Small datasets in MOABB's shape: of its own base class where MOABB is installed, else of a stand-in for it.

The stand-in does what MOABB 1.7 documents of ``BaseDataset``: ``get_data`` gives {subject: {session: {run: Raw}}}, each
Raw annotated with its trials from event + interval[0] to event + interval[1] (moabb.neurotechx.com/docs,
"moabb.datasets.base.BaseDataset"; the annotation is its default step ``SetRawAnnotations``).
"""

import importlib.util
import socket
import types
from typing import Any

import numpy as np

RATE = 128
EVENTS = {"left_hand": 1, "right_hand": 2, "rest": 3}
TRIALS = ((2.0, "left_hand"), (6.0, "right_hand"), (9.0, "rest"))  # seconds of the cue


class StandIn:
    """The part of ``moabb.datasets.base.BaseDataset`` that a user meets."""

    def __init__(self, subjects, sessions_per_subject, events, code, interval, paradigm, unit_factor=1e6) -> None:  # type: ignore[no-untyped-def]
        self.subject_list = list(subjects)
        self.n_sessions = sessions_per_subject
        self.event_id, self.code, self.interval, self.paradigm = events, code, interval, paradigm
        self.unit_factor = unit_factor

    def get_data(self, subjects: list[int]) -> dict[int, Any]:
        data = {subject: self._get_single_subject_data(subject) for subject in subjects}  # type: ignore[attr-defined]
        for sessions in data.values():
            for runs in sessions.values():
                for raw in runs.values():
                    self._annotate(raw)
        return data

    def _annotate(self, raw: Any) -> None:
        import mne

        events = mne.find_events(raw, shortest_event=0, verbose=False)
        names = {code: name for name, code in self.event_id.items()}
        onsets = events[:, 0] / RATE + self.interval[0]
        length = self.interval[1] - self.interval[0]
        raw.set_annotations(mne.Annotations(onsets, length, [names[code] for code in events[:, 2]]))


def raw_of(seed: int, unit: float = 1e-6) -> Any:
    """12 s of three channels with 20 microvolts of noise and a stimulus channel with the trials."""
    import mne

    data = np.random.default_rng(seed).normal(0, 20, (4, 12 * RATE)) * unit
    data[3] = 0
    for second, name in TRIALS:
        data[3, round(second * RATE)] = EVENTS[name]
    info = mne.create_info(["C3", "Cz", "C4", "stim"], RATE, ["eeg"] * 3 + ["stim"], verbose="error")
    info["line_freq"] = 50.0
    return mne.io.RawArray(data, info, verbose="error")


def datasets() -> tuple[types.SimpleNamespace, bool]:
    """The classes Tiny, InMicrovolts, NotThere and OneSession, and whether their base is MOABB's own."""
    real = importlib.util.find_spec("moabb") is not None
    base: Any = importlib.import_module("moabb.datasets.base").BaseDataset if real else StandIn

    class Tiny(base):  # type: ignore[misc]
        unit = 1e-6
        sessions: tuple[str, ...] = ("0train", "1test")

        def __init__(self) -> None:
            factor = 1e-6 / self.unit * 1e6
            super().__init__(
                [1, 2, 3, 4, 10], 2, EVENTS, type(self).__name__, [0.5, 2.5], "imagery", unit_factor=factor
            )

        def _get_single_subject_data(self, subject: int) -> dict[str, dict[str, Any]]:
            runs = {"0train": ["0", "1"], "1test": ["0"]}
            return {
                session: {run: raw_of(100 * subject + 10 * place + int(run), self.unit) for run in runs[session]}
                for place, session in enumerate(self.sessions)
            }

        def data_path(self, subject, path=None, force_update=False, update_path=None, verbose=None) -> list[str]:  # type: ignore[no-untyped-def]
            return []

    class InMicrovolts(Tiny):
        unit = 1.0

    class OneSession(Tiny):
        sessions = ("0train",)

    class NotThere(Tiny):
        def _get_single_subject_data(self, subject: int) -> dict[str, dict[str, Any]]:
            socket.create_connection(("localhost", 9), timeout=1)
            return {}

    return types.SimpleNamespace(Tiny=Tiny, InMicrovolts=InMicrovolts, OneSession=OneSession, NotThere=NotThere), real
