"""What came of a preparation, counted over the store: how much there is, and what its owner should look at."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.data.storing.stored import WHOLE, StoredRecording


@dataclass(frozen=True)
class Prepared:
    """What came of a preparation: what the store holds now, and how much of it was there before."""

    recordings: int
    hours: float
    montages: dict[int, int]
    """Recordings by number of channels."""
    mains: dict[str, int]
    """Recordings by mains frequency, given or estimated; "none" where none was found or filtered."""
    upsampled: int
    """Recordings whose rate was lower than the store's."""
    faults: dict[str, int]
    """Recordings by what was wrong with the file and was mended or lived with."""
    quality: dict[str, tuple[int, int]]
    """Channels or samples by what is wrong with them (``scaled``, ``too_large``, ...), and in how many recordings."""
    copies: int
    """Recordings with the samples of another one: a file that was copied, or is linked to twice."""
    outside: int
    """Recordings of which a label lies mostly in time that was not recorded."""
    skipped: dict[str, str]
    """Reason by id."""
    sources: dict[str, str] = field(repr=False)
    """Names of the skipped sources by id; they may tell who was recorded, so show them only to who asks."""
    hash: str
    done_before: int


def summarise(store: Store, skipped: Mapping[str, str], names: Mapping[str, str], done_before: int) -> Prepared:
    """One pass over the lines of a store; ``names`` are those of the sources by id."""
    seconds, upsampled, outside = 0.0, 0, 0
    montages, mains, faults = Counter[int](), Counter[str](), Counter[str]()
    total, touched = Counter[str](), Counter[str]()
    samples = Counter[tuple[str, tuple[str, ...]]]()
    for record in store.recordings:
        seconds += record.seconds
        upsampled += record.upsampled
        outside += _has_labels_outside(record)
        montages[len(record.channels)] += 1
        mains["none" if record.mains is None else f"{record.mains:g}"] += 1
        faults.update(record.faults)
        total.update(record.quality)
        touched.update(name for name, count in record.quality.items() if count)
        samples[record.sha256, record.channels] += 1
    return Prepared(
        recordings=montages.total(),
        hours=seconds / 3600,
        montages=dict(sorted(montages.items())),
        mains=dict(sorted(mains.items())),
        upsampled=upsampled,
        faults=dict(sorted(faults.items())),
        quality={name: (total[name], touched[name]) for name in sorted(touched)},
        copies=montages.total() - len(samples),
        outside=outside,
        skipped=dict(skipped),
        sources={id: names[id] for id in skipped if id in names},
        hash=store.hash(),
        done_before=done_before,
    )


def _has_labels_outside(record: StoredRecording) -> bool:
    """Milliseconds taken for seconds look so. A label may end a little late; one for the whole recording has no end."""
    last = record.segments[-1]
    end = last.onset + (last.stop - last.start) / record.sfreq
    return any(
        2 * (min(i.stop, end) - max(i.start, 0.0)) < i.stop - i.start
        for intervals in record.labels.values()
        for i in intervals
        if i.stop < WHOLE
    )
