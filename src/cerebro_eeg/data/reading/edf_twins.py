"""Settles which of several channels with one name is used in an EDF or BDF file: T3 beside T7, or a repeated label.

Both names stand for one electrode, so at most one of the channels can be it. Their samples decide: copies count once,
and a channel that never changes gives way to one that lives. Where two live and differ, nobody knows which of them is
the electrode, so none is used. The other channels of the file are not touched.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from cerebro_eeg.channels.report import ChannelMatch, listed
from cerebro_eeg.data.reading.edf_header import EdfHeader, EdfSignal, ReadBytes
from cerebro_eeg.data.reading.recording import ChannelPolicy, Fault
from cerebro_eeg.errors import RecordingError

_BLOCK = 1 << 22  # bytes of the file that are in memory at a time


def settle_twins(
    match: ChannelMatch, policy: ChannelPolicy, header: EdfHeader, read: ReadBytes
) -> tuple[ChannelMatch, tuple[Fault, ...]]:
    """Return the match with one or none of the channels of each name, and a Fault ``duplicate`` that says which.

    Other policies than ``duplicates="equal"`` have decided already, and nothing is changed.
    """
    if policy.duplicates != "equal":
        return match, ()
    groups: dict[int, list[int]] = {}
    for row in match.rows:
        if row.outcome == "duplicate" and row.twin is not None:
            groups.setdefault(row.twin, [row.twin]).append(row.index)
    rows, notes = list(match.rows), []
    for first, group in groups.items():
        channel, labels = rows[first].channel, listed([rows[index].label for index in group])
        if channel is None:  # left out as one too many
            continue
        chosen = _choose([header.signals[index] for index in group], header, read)
        if chosen is None:
            rows[first] = replace(rows[first], outcome="dropped", channel=None, note="another channel differs from it")
            notes.append(f"{labels} are all {channel.name} and differ; none was used")
            continue
        used = group[chosen]
        if used != first:
            kept, other = rows[used], rows[first]
            rows[used] = replace(kept, outcome="matched", channel=channel, note="the other one is flat", twin=None)
            note = "flat, another channel is used"
            rows[first] = replace(other, outcome="duplicate", channel=None, note=note, twin=used)
        notes.append(f"{labels} are all {channel.name}; {rows[used].label!r} was used, the others are copies or flat")
    result = ChannelMatch(tuple(rows))
    if not result.channels:
        raise RecordingError("no_signal", f"no EEG channel is left: {'; '.join(notes)}")
    return result, tuple(Fault("duplicate", note) for note in notes)


def _choose(signals: Sequence[EdfSignal], header: EdfHeader, read: ReadBytes) -> int | None:
    """Return the place of the channel to use, None if several live and differ."""
    alive, equal = _compare(signals, header, read)
    living = [place for place in range(len(signals)) if alive[place]] or [0]
    first = living[0]
    return first if all(place == first or equal[first, place] for place in living) else None


def _compare(
    signals: Sequence[EdfSignal], header: EdfHeader, read: ReadBytes
) -> tuple[list[bool], Mapping[tuple[int, int], bool]]:
    """Read the file once: which signals change at all, and which pairs of them have equal samples and scales."""
    alive = [False] * len(signals)
    pairs = [(a, b) for a in range(len(signals)) for b in range(a + 1, len(signals))]
    equal = {(a, b): _scale(signals[a]) == _scale(signals[b]) for a, b in pairs}
    starts: list[bytes | None] = [None] * len(signals)
    width, length = header.width, header.record_bytes
    together = max(1, _BLOCK // length)
    for record in range(0, header.records, together):
        count = min(together, header.records - record)
        data = np.frombuffer(read(header.start + record * length, count * length), np.uint8).reshape(count, length)
        parts = [data[:, s.offset : s.offset + s.samples * width] for s in signals]
        for place, part in enumerate(parts):
            if not part.size:
                continue
            samples = part.reshape(-1, width)
            if starts[place] is None:
                starts[place] = samples[0].tobytes()
            alive[place] = alive[place] or bool((samples != np.frombuffer(starts[place] or b"", np.uint8)).any())
        for a, b in pairs:
            equal[a, b] = equal[a, b] and bool(np.array_equal(parts[a], parts[b]))
    return alive, equal


def _scale(signal: EdfSignal) -> tuple[object, ...]:
    return signal.samples, signal.unit, signal.physical, signal.digital
