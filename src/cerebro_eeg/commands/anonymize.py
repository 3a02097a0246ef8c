"""``cerebro-eeg anonymize``: a copy of an EDF or BDF file without the identity of the subject."""

from dataclasses import dataclass
from pathlib import Path

from cerebro_eeg.errors import ConfigError


@dataclass(frozen=True)
class AnonymizeResult:
    """What the copy keeps of the file, and what was removed."""

    kind: str
    signals: int
    records: int
    seconds: float
    kept: dict[str, int]
    """Annotations that stayed, by text."""
    not_found: tuple[str, ...]
    """Texts of ``--events`` that no annotation has."""
    blanked: int
    broken: int
    renamed: int
    cleared: int
    mended: tuple[str, ...]
    """Codes of faults of the file that the copy does not have."""

    def to_dict(self) -> dict[str, object]:
        return {
            "kind": self.kind,
            "signals": self.signals,
            "records": self.records,
            "seconds": self.seconds,
            "events_kept": self.kept,
            "events_not_found": list(self.not_found),
            "annotations_blanked": self.blanked,
            "annotations_broken": self.broken,
            "labels_replaced": self.renamed,
            "fields_cleared": self.cleared,
            "mended": list(self.mended),
        }

    def text(self) -> str:
        kept = ", ".join(f"{name} ({count:,})" for name, count in self.kept.items()) or "none"
        lines = [
            f"{self.kind}: {self.signals} signals, {self.records:,} records, {self.seconds:,g} s; samples as they were",
            "  header       patient, recording, date, time, transducers and free text removed; "
            f"{self.cleared} fields of signals cleared, {self.renamed} labels not understood and replaced",
            f"  annotations  kept: {kept}; {self.blanked:,} texts blanked, {self.broken:,} broken ones removed",
        ]
        if self.not_found:
            lines.append(f"  not found    no annotation is called {', '.join(self.not_found)}")
        if self.mended:
            lines.append(f"  mended       {', '.join(self.mended)}")
        lines.append("  still there  channel labels, the times of annotations, and the name that you gave the copy")
        return "\n".join(lines)


def anonymize(source: Path, out: Path, /, *, events: tuple[str, ...] = ()) -> AnonymizeResult:
    """Copy an EDF or BDF file with identity removed: header, date and annotations; the samples stay as they are.

    Patient, recording, date, time and free text leave the header. Annotations keep their times; their texts become
    blank unless they are listed. Nothing is overwritten, and the copy is there whole or not at all.

    Try, for example:
      cerebro-eeg anonymize patient.edf a01.edf
      cerebro-eeg anonymize patient.edf a01.edf --events seizure "eyes closed"

    Args:
        source: The EDF, EDF+, BDF or BDF+ file; it is only read.
        out: The copy, a new file of the same kind (.edf or .bdf); choose a name that says nothing.
        events: Annotation texts that may stay, each exactly as it is in the file.
    """
    from cerebro_eeg.data.reading.anonymize import copy_anonymous
    from cerebro_eeg.files import replacing

    if out.exists() or out.is_symlink():
        raise ConfigError("the copy's name is taken; nothing is overwritten: choose another name")
    if out.suffix.lower() not in (".edf", ".bdf") or out.suffix.lower() != source.suffix.lower():
        raise ConfigError("the copy must have the suffix of the source, .edf or .bdf; other formats cannot be copied")
    if any(not event.strip() for event in events):
        raise ConfigError("one of the events is empty; expected texts of annotations, such as seizure")
    wanted = tuple(dict.fromkeys(event.strip() for event in events))
    with replacing(out) as temporary:
        done = copy_anonymous(source, temporary, wanted)
    return AnonymizeResult(
        kind=done.kind,
        signals=done.signals,
        records=done.records,
        seconds=done.seconds,
        kept={name: done.kept[name] for name in wanted if name in done.kept},
        not_found=tuple(name for name in wanted if name not in done.kept),
        blanked=done.blanked,
        broken=done.broken,
        renamed=done.renamed,
        cleared=done.cleared,
        mended=tuple(fault.code for fault in done.faults),
    )
