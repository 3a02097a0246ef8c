"""Match: from the labels of a recording to channels that the model knows, with a report on every label.

``match`` reads each label (``names.py``), applies the policies that the caller names, and reports what it did. An
electrode is identified by its name, never by its place in a list. Standard library only.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from cerebro_eeg.channels.alignment import cap_names, identify, identify_net, net_names
from cerebro_eeg.channels.electrodes import (
    GRID,
    IDS,
    OFF_SCALP,
    POSITIONS,
    VOCABULARY,
    Point,
    angle,
    assign,
    distance_mm,
    fit_sphere,
    spread_out,
)
from cerebro_eeg.channels.names import ALIASES, Channel, Reading, biosemi_blocks, clean, is_eye_e, parse, read_label
from cerebro_eeg.channels.report import ChannelMatch, LabelMatch, as_labels, listed, suggest
from cerebro_eeg.errors import ChannelError, offered

__all__ = [
    "POSITIONS",
    "VOCABULARY",
    "Channel",
    "ChannelMatch",
    "LabelMatch",
    "Reading",
    "match",
    "parse",
    "positions_matter",
    "spread",
]

NEAREST_MM = 25.0  # an electrode without a usable name becomes a named one within this distance, on a 95 mm head
# Trained electrodes may be as sparse as the 10-20 system: every place of the 10-05 grid has one of its sites within
# this distance.
UNTRAINED_MM = 50.0


def match(
    labels: Sequence[str],
    *,
    positions: Sequence[Sequence[float] | None] | None = None,
    kinds: Sequence[str | None] | None = None,
    bads: Collection[str] = (),
    unknown: str = "error",
    untrained: str = "error",
    trained: Mapping[str, int] | None = None,
    bipolar_ears: bool = False,
    duplicates: str = "error",
    pick: Sequence[str] | None = None,
    max_channels: int = 64,
    too_many: str = "error",
    limit_mm: float = NEAREST_MM,
) -> ChannelMatch:
    """Match the labels of one recording to channels.

    Parameters
    ----------
    labels : all labels as found in the file; those that are known not to be EEG are left out and reported.
    positions : (x, y, z) of each label in metres, x right, y front, z up, as MNE has them; None, NaN or zeros where it
        is missing.
    kinds : the kind that the file gives each label; a label is left out, whatever its name, unless it is "eeg" or None.
    bads : labels that somebody marked as bad, as ``info["bads"]`` of MNE; they are left out and reported.
    unknown : policy for a label that is not understood. "error"; "drop"; "nearest": the electrode of the 10-05 grid at
        its position, within ``limit_mm`` and none twice (the nearest trained one if ``trained`` is given, unless
        untrained="as_is"), and an error if that is not certain (``alignment.py``); "nearest_or_drop": the same, but
        without an error the label is dropped.
    untrained : policy for a channel with an electrode that ``trained`` (name -> windows) counts as 0 or lacks.
        "error"; "nearest": the nearest free trained electrode within 50 mm; "drop"; "as_is".
    bipolar_ears : read C3-M2 as a pair, not as C3 against a reference.
    duplicates : "error"; "first" to keep the first of the labels that mean one channel; "equal" as "first", for readers
        that go on to compare the samples and keep none if they differ (EDF and BDF).
    pick : the labels or channels to keep, in any spelling; all others are left out before any policy is applied.
    max_channels, too_many : more channels than this are an "error", or are reduced ("nearest") to the ones that are
        nearest to as many electrodes spread over the head.
    """
    check_policies(unknown, untrained, duplicates, too_many, max_channels, limit_mm)
    rows = _read_all(as_labels("labels", labels), bipolar_ears)
    _drop_other_kinds(rows, kinds)
    named = {row.index: row.channel.anode for row in rows if row.channel is not None and row.channel.cathode is None}
    _drop_bads(rows, bads)
    by_position = unknown.startswith("nearest")
    points, no_point = _read_points(positions, len(rows), strict=by_position and any(map(_is_lost, rows)))
    counts = _read_trained(trained)
    late = pick is not None and not _apply_pick(rows, pick, bipolar_ears, last=not by_position)
    if by_position:
        usable = None if counts is None or untrained == "as_is" else counts
        _place_by_position(rows, points, no_point, named, usable, limit_mm)
        if pick is not None and late:
            _apply_pick(rows, pick, bipolar_ears, last=True)
    _handle_unknown(rows, unknown, points, no_point, limit_mm)
    _handle_duplicates(rows, duplicates)
    if counts is not None:
        _handle_untrained(rows, untrained, counts)
    _handle_too_many(rows, max_channels, too_many)
    result = ChannelMatch(tuple(rows))
    if not result.channels:
        _check_bads(rows)
        notes = {row.note for row in rows if row.outcome == "dropped"}
        why = f" ({notes.pop()})" if len(notes) == 1 else ""
        raise ChannelError(
            f"no EEG channel is left of {len(rows)} labels: {result.summary()}{why}; check the labels or pick"
        )
    return result


def positions_matter(labels: Sequence[str], unknown: str = "nearest", bipolar_ears: bool = False) -> bool:
    """Return whether a match of these labels by this policy reads positions: they place labels not understood."""
    rows = _read_all(as_labels("labels", labels), bipolar_ears)
    return unknown.startswith("nearest") and any(map(_is_lost, rows))


def check_policies(
    unknown: str, untrained: str, duplicates: str, too_many: str, max_channels: int, limit_mm: float = NEAREST_MM
) -> None:
    """Raise for a policy that does not exist, before the first label is read."""
    _check_choice("unknown", unknown, ("error", "drop", "nearest", "nearest_or_drop"))
    _check_choice("untrained", untrained, ("error", "nearest", "drop", "as_is"))
    _check_choice("duplicates", duplicates, ("error", "first", "equal"))
    _check_choice("too_many", too_many, ("error", "nearest"))
    if isinstance(max_channels, bool) or not isinstance(max_channels, int) or max_channels < 1:
        raise ChannelError(f"max_channels must be a whole number of at least 1, got {max_channels!r}")
    if not limit_mm > 0:
        raise ChannelError(f"limit_mm must be a distance above 0 in millimetres, got {limit_mm!r}")


def spread(channels: Sequence[Channel], n: int = 64) -> tuple[Channel, ...]:
    """Return the ``n`` channels nearest to ``n`` electrodes spread over the head; a pair lies at its middle."""
    if n < 1:
        raise ChannelError(f"n must be at least 1, got {n!r}")
    distinct = {channel.name: channel for channel in channels}
    if len(distinct) <= n:
        return tuple(distinct.values())
    targets = spread_out(n)
    taken = {name for name, _ in assign({(name, 0): _middle(channel) for name, channel in distinct.items()}, targets)}
    # The grid has fewer places than n only for a huge n; then fill up in the given order.
    rest = [name for name in distinct if name not in taken]
    taken.update(rest[: n - len(taken)])
    return tuple(channel for name, channel in distinct.items() if name in taken)


def _middle(channel: Channel) -> Point:
    a = POSITIONS[channel.anode]
    b = POSITIONS[channel.cathode or channel.anode]
    middle = (a[0] + b[0], a[1] + b[1], a[2] + b[2])
    return middle if math.hypot(*middle) > 1e-3 else a


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ChannelError(f"{name}={value!r} is not a policy; use one of {', '.join(map(repr, choices))}")


def _read_all(labels: list[str], bipolar_ears: bool) -> list[LabelMatch]:
    blocks = biosemi_blocks(labels)
    readings = [read_label(label, blocks, bipolar_ears) for label in labels]
    # E1 and E2 are eyes if the file names electrodes and has no third E; in an EGI net they are numbers.
    named = any(reading.channel for reading in readings)
    nets = any(r.outcome == "positional" and not is_eye_e(r.label) for r in readings)
    rows = []
    for index, reading in enumerate(readings):
        if named and not nets and is_eye_e(reading.label):
            reading = Reading(reading.label, "not_eeg", note="eye")
        rows.append(LabelMatch(index, reading.label, reading.outcome, reading.channel, reading.reference, reading.note))
    return rows


def _is_lost(row: LabelMatch) -> bool:
    """Return whether a label was not understood, so that only its position can tell its electrode."""
    return row.outcome in ("unknown", "positional")


def _drop_other_kinds(rows: list[LabelMatch], kinds: Sequence[str | None] | None) -> None:
    if kinds is None:
        return
    if len(kinds) != len(rows):
        raise ChannelError(f"kinds must have one entry for each of the {len(rows)} labels, got {len(kinds)}")
    for row, kind in zip(list(rows), kinds, strict=True):
        if kind not in (None, "eeg") and row.outcome != "not_eeg":
            rows[row.index] = LabelMatch(row.index, row.label, "not_eeg", note=f"the file says {kind}")


def _drop_bads(rows: list[LabelMatch], bads: Collection[str]) -> None:
    marked = {clean(label) for label in as_labels("bads", list(bads))} if bads else set()
    for row in list(rows):
        if row.label in marked and row.outcome != "not_eeg":
            rows[row.index] = LabelMatch(row.index, row.label, "bad", note="marked as bad")


def _check_bads(rows: list[LabelMatch]) -> None:
    """Raise if a recording has EEG channels and all of them are marked as bad."""
    eeg = [row for row in rows if row.outcome != "not_eeg"]
    if eeg and all(row.outcome == "bad" for row in eeg):
        raise ChannelError(
            f"all {len(eeg)} EEG channels are marked as bad; expected a good one; take those that are good off the list"
        )


def _read_points(
    positions: Sequence[Sequence[float] | None] | None, count: int, *, strict: bool
) -> tuple[dict[int, Point], dict[int, str]]:
    """Return the usable positions by index, and the reason for each that is not; ``strict`` refuses another unit."""
    if positions is None:
        return {}, dict.fromkeys(range(count), "no position")
    if len(positions) != count:
        raise ChannelError(f"positions must have one entry for each of the {count} labels, got {len(positions)}")
    points: dict[int, Point] = {}
    missing: dict[int, str] = {}
    for index, position in enumerate(positions):
        if position is None:
            missing[index] = "no position"
            continue
        values = [float(value) for value in position]
        if len(values) != 3:
            raise ChannelError(f"a position must be (x, y, z) in metres, got {len(values)} numbers for label {index}")
        if not all(map(math.isfinite, values)):
            missing[index] = "its position is NaN"
        elif not any(values):
            missing[index] = "no position (all zero)"
        else:
            points[index] = (values[0], values[1], values[2])
    if points and strict:
        size = sorted(math.hypot(*point) for point in points.values())[len(points) // 2]
        if not 0.02 <= size <= 0.3:
            raise ChannelError(
                f"positions must be in metres, about 0.1 from the middle of the head, got {size:.3g}; "
                "convert them (millimetres / 1000; a unit sphere * 0.095), or give positions=None"
            )
    return points, missing


def _read_trained(trained: Mapping[str, int] | None) -> set[str] | None:
    if trained is None:
        return None
    strange = sorted(set(trained) - set(IDS))
    if strange:
        raise ChannelError(f"trained must have canonical electrode names, got {listed(strange)}")
    return {name for name, windows in trained.items() if windows > 0}


def _apply_pick(rows: list[LabelMatch], pick: Sequence[str], bipolar_ears: bool, *, last: bool) -> bool:
    """Mark rows that were not picked. If a name is not found, raise with ``last``, otherwise change nothing: False."""
    keep: set[int] = set()
    absent: list[str] = []
    for name in as_labels("pick", pick):
        text = clean(name)
        same = [row.index for row in rows if row.label.casefold() == text.casefold()]
        if not same:
            wanted = parse(name, bipolar_ears=bipolar_ears).channel
            same = [row.index for row in rows if wanted is not None and row.channel == wanted]
        if not same:
            absent.append(name)
        elif any(rows[index].outcome == "bad" for index in same):
            raise ChannelError(
                f"pick asks for {name!r}, which is marked as bad; take it out of pick, or off the list of bad channels"
            )
        elif any(rows[index].outcome == "not_eeg" for index in same):
            raise ChannelError(f"pick asks for {name!r}, which is not EEG ({rows[same[0]].note}); take it out of pick")
        keep.update(same)
    if absent and not last:
        return False
    if absent:
        here = [row.channel.name if row.channel else row.label for row in rows if row.outcome != "not_eeg"]
        hints = suggest(absent, [*here, *(row.label for row in rows)])
        raise ChannelError(
            f"pick asks for {listed(absent, hints)}, which this recording does not have; it has {', '.join(here)}"
        )
    for row in rows:
        if row.index not in keep and row.outcome not in ("not_eeg", "bad"):
            rows[row.index] = replace(row, outcome="not_picked", channel=None, note="not in pick")
    return True


def _place_by_position(
    rows: list[LabelMatch],
    points: Mapping[int, Point],
    no_point: Mapping[int, str],
    named: Mapping[int, str],
    usable: Collection[str] | None,
    limit_mm: float,
) -> None:
    """Assign electrodes by position to labels that are not understood; ``named`` are those of all other labels."""
    lost = [row for row in rows if _is_lost(row)]
    if not lost:
        return
    head = {row.index: points[row.index] for row in rows if row.index in points and row.outcome != "not_eeg"}
    anchors = {index: name for index, name in named.items() if index in head and name in GRID}
    _check_frame(head, anchors)
    labels, wanted = [row.label for row in rows], [row.index for row in lost]
    net = {index: name for index, name in net_names(labels).items() if name not in named.values()}
    placed = identify_net(head, net, wanted) if net else {}
    if not placed:
        placed = identify(head, anchors, wanted, set(named.values()), limit_mm, cap_names(labels))
    found = {index: (place.name, place.distance) for index, place in placed.items() if place.name is not None}
    why = {**no_point, **{index: place.why for index, place in placed.items()}}
    if usable is not None:
        # The certain ones that the model knows stay; the others go to the nearest free electrode that it knows.
        kept = {index: entry for index, entry in found.items() if entry[0] in usable}
        taken = {*named.values(), *(name for name, _ in kept.values())}
        rest = {(name, index): POSITIONS[name] for index, (name, _) in found.items() if index not in kept}
        near = assign(rest, [name for name in GRID if name in usable and name not in taken], limit_mm)
        why |= dict.fromkeys((index for _, index in rest), f"no free trained electrode within {limit_mm:.0f} mm")
        found = {**kept, **{index: entry for (_, index), entry in near.items()}}
    for row in lost:
        if row.index in found:
            name, distance = found[row.index]
            note = f"{distance:.0f} mm from {name} by position"
            rows[row.index] = replace(row, outcome="nearest", channel=Channel(name), note=note)
        else:
            rows[row.index] = replace(row, note=why[row.index])


def _check_frame(head: Mapping[int, Point], anchors: Mapping[int, str]) -> None:
    """Check by electrodes with a name and a position that x is right and y is front; 35 degrees off is refused."""
    centre, _ = fit_sphere(list(head.values()))
    angles = sorted(
        angle((p[0] - centre[0], p[1] - centre[1], p[2] - centre[2]), POSITIONS[name])
        for index, name in anchors.items()
        for p in (head[index],)
    )
    if len(angles) >= 3 and angles[len(angles) // 2] > math.radians(35):
        off = math.degrees(angles[len(angles) // 2])
        raise ChannelError(
            f"positions of the named electrodes are {off:.0f} degrees off; expected x right, y front, z up, as MNE has "
            "them; turn the axes, or use unknown='drop'"
        )


def _handle_unknown(
    rows: list[LabelMatch], unknown: str, points: Mapping[int, Point], no_point: Mapping[int, str], limit_mm: float
) -> None:
    lost = [row for row in rows if _is_lost(row)]
    if not lost:
        return
    if unknown in ("drop", "nearest_or_drop"):
        for row in lost:
            rows[row.index] = replace(row, outcome="dropped", note=f"not understood: {row.note}")
        return
    names = [row.label for row in lost]
    start = f"{len(lost)} of {len(rows)} channel labels were not understood: "
    if unknown == "nearest":
        without = sum(row.index in no_point for row in lost)
        raise ChannelError(
            f"{start}{listed(names, {row.label: row.note for row in lost})}; unknown='nearest' needs a position in "
            f"metres for each ({without} of them have none) and one free electrode within {limit_mm:g} mm that "
            "is plainly the nearest; rename them, or use unknown='nearest_or_drop' or unknown='drop'"
        )
    hints = suggest(names, [*VOCABULARY, *ALIASES])
    hints |= {row.label: row.note for row in lost if row.outcome == "positional" or row.note != "not a known name"}
    have = sum(row.index in points for row in lost)
    raise ChannelError(
        f"{start}{listed(names, hints)}; expected 10-20, 10-10 or 10-05 names such as Fp1, T7, AFF1h or pairs such as "
        f"Fp1-F7; rename them, or use unknown='drop' or unknown='nearest' (by electrode position; {have} have one)"
    )


def _handle_duplicates(rows: list[LabelMatch], duplicates: str) -> None:
    first: dict[Channel, LabelMatch] = {}
    clashes = []
    for row in rows:
        if row.channel is None:
            continue
        if row.channel not in first:
            first[row.channel] = row
            continue
        clashes.append(f"{first[row.channel].label!r} and {row.label!r} are both {row.channel.name}")
        note = f"the same channel as {first[row.channel].label} (label {first[row.channel].index})"
        rows[row.index] = replace(row, outcome="duplicate", channel=None, note=note, twin=first[row.channel].index)
    if clashes and duplicates == "error":
        raise ChannelError(
            f"{'; '.join(clashes)}; expected each channel once; rename or remove one of them"
            + (", or use duplicates='first'" if offered("duplicates") else "")
        )


def _handle_untrained(rows: list[LabelMatch], untrained: str, trained: Collection[str]) -> None:
    lost = [row for row in rows if row.channel is not None and not set(_electrodes(row.channel)) <= set(trained)]
    if not lost or untrained == "as_is":
        for row in lost:
            rows[row.index] = replace(row, outcome="untrained", note=_joined(row.note, "never trained, used as it is"))
        return
    replaced: dict[int, tuple[Channel, str]] = {}
    if untrained == "nearest":
        replaced = _nearest_trained(rows, lost, trained)
    left = [row for row in lost if row.index not in replaced]
    if left and untrained != "drop":
        names = [row.label for row in left]
        hints = {
            row.label: "no training of " + " and ".join(n for n in _electrodes(row.channel) if n not in trained)
            for row in left
            if row.channel is not None
        }
        reason = (
            f"and no free trained electrode is within {UNTRAINED_MM:.0f} mm; use untrained='drop' or untrained='as_is'"
            if untrained == "nearest"
            else "so their rows are random; use untrained='nearest', untrained='drop' or untrained='as_is'"
        )
        raise ChannelError(
            f"{len(left)} of {len(rows)} channels have an electrode that the model never saw: {listed(names, hints)}; "
            f"expected electrodes with training windows, {reason}"
        )
    for row in lost:
        if row.index in replaced:
            channel, note = replaced[row.index]
            rows[row.index] = replace(row, outcome="nearest", channel=channel, note=_joined(row.note, note))
        else:
            rows[row.index] = replace(row, outcome="dropped", channel=None, note=_joined(row.note, "never trained"))


def _nearest_trained(
    rows: list[LabelMatch], lost: list[LabelMatch], trained: Collection[str]
) -> dict[int, tuple[Channel, str]]:
    """Return, for channels with an untrained electrode, a channel of trained electrodes and a note about it.

    A scalp electrode is never replaced by an ear, a mastoid or a needle. No channel is used twice: single electrodes
    come first, the closest ones before others; pairs follow in the order of their names.
    """
    gone = {row.index for row in lost}
    present = {row.channel for row in rows if row.channel is not None and row.index not in gone}
    result: dict[int, tuple[Channel, str]] = {}
    singles = {row.index: row.channel.anode for row in lost if row.channel is not None and row.channel.cathode is None}
    free = [name for name in trained if Channel(name) not in present]
    for off_scalp in (False, True):
        group = {(name, i): POSITIONS[name] for i, name in singles.items() if (name in OFF_SCALP) == off_scalp}
        allowed = [name for name in free if off_scalp or name not in OFF_SCALP]
        for (name, index), (target, distance) in assign(group, allowed, UNTRAINED_MM).items():
            result[index] = Channel(target), f"{name} never trained, {target} is, {distance:.0f} mm away"
            free.remove(target)
    pairs = [(row.channel.name, row.index, row.channel) for row in lost if row.channel and row.channel.cathode]
    for name, index, channel in sorted(pairs, key=lambda entry: entry[:2]):
        sides: list[str] = []
        for side in _electrodes(channel):
            near = (
                other
                for other in trained
                if (side in OFF_SCALP or other not in OFF_SCALP)
                and other not in sides
                and distance_mm(POSITIONS[side], POSITIONS[other]) <= UNTRAINED_MM
            )
            best = min(
                near, key=lambda other: (distance_mm(POSITIONS[side], POSITIONS[other]), IDS[other]), default=None
            )
            if side in trained:
                sides.append(side)
            elif best is not None:
                sides.append(best)
        if len(sides) == 2 and sides[0] != sides[1] and Channel(*sides) not in present:
            result[index] = Channel(*sides), f"{name} never trained, {sides[0]}-{sides[1]} is nearest"
            present.add(Channel(*sides))
    return result


def _handle_too_many(rows: list[LabelMatch], max_channels: int, too_many: str) -> None:
    kept = [row for row in rows if row.channel is not None]
    if len(kept) <= max_channels:
        return
    if too_many == "error":
        raise ChannelError(
            f"{len(kept)} channels, at most {max_channels} were expected; "
            + (f"use max_channels={len(kept)}, or " if offered("max_channels") else "")
            + ("pick=[...] with the names, or " if offered("pick") else "")
            + f"too_many='nearest' to keep those nearest to {max_channels} spread-out electrodes"
        )
    chosen = set(spread([row.channel for row in kept if row.channel is not None], max_channels))
    for row in kept:
        if row.channel not in chosen:
            note = f"not among the {max_channels} nearest to spread-out electrodes"
            rows[row.index] = replace(row, outcome="too_many", channel=None, note=note)


def _electrodes(channel: Channel | None) -> tuple[str, ...]:
    if channel is None:
        return ()
    return (channel.anode,) if channel.cathode is None else (channel.anode, channel.cathode)


def _joined(*notes: str) -> str:
    return "; ".join(note for note in notes if note)
