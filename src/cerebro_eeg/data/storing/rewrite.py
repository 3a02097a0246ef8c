"""Rewrite: the shards of a store with other lines and without some recordings, as new files on the stage of a swap.

Samples stay in their file where a shard loses no recording. Otherwise those that it keeps are copied, and checked, into
a shard with a new number. So the name of a file with samples never gets other samples, and a training that still reads
the store finds what it opened, or an error.
"""

import hashlib
import zlib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from cerebro_eeg.data.storing.records import ShardLine, StoredRecording, decode, join_line, split_line, to_line
from cerebro_eeg.data.storing.shards import MEND, Shard, disk_errors, read_shard, shard_names, sums_size
from cerebro_eeg.errors import StoreError
from cerebro_eeg.files import replacing

_PIECE = 1 << 23  # bytes that are copied at a time

Lines = Mapping[str, StoredRecording | None]
"""New lines by id; None for a recording that leaves the store."""


def stage_shards(folder: Path, stage: Path, new: Lines) -> tuple[list[str], list[str]]:
    """Write the shards that change to the stage; return the names of new files, and of those that they replace."""
    put: list[str] = []
    remove: list[str] = []
    writers = defaultdict(list)
    for name in shard_names(folder):
        writers[name.rpartition("-")[0]].append(name)
    for writer, names in writers.items():
        last = int(names[-1].rpartition("-")[2])
        number = last
        for name in names:
            shard = read_shard(folder, name)
            if any(new.get(entry.id, entry) is None for entry in shard.entries):
                kept = [entry for entry in shard.entries if new.get(entry.id, entry) is not None]
                if kept or name == names[-1]:  # without a newer shard its number would be given again
                    number += 1
                    put += _stage_copy(folder, stage, shard, f"{writer}-{number:04d}", kept, new)
                remove += [f"{name}{end}" for end in (".bin", ".sums", ".jsonl")]
            elif any(entry.id in new for entry in shard.entries):
                lines = b"".join(_line(entry, entry.offset, new) for entry in shard.entries)
                put.append(_write(stage, f"{name}.jsonl", lines))
    return put, remove


def _stage_copy(folder: Path, stage: Path, shard: Shard, name: str, kept: list[ShardLine], new: Lines) -> list[str]:
    """Copy the recordings that a shard keeps into a new one, and return the names of its files."""
    places, sums_at = {}, 0
    for entry in shard.entries:
        places[entry.offset] = sums_at
        sums_at += sums_size(entry)
    lines, sums, end = [], b"", 0
    with disk_errors(), (folder / f"{shard.name}.bin").open("rb", buffering=0) as source:
        with replacing(stage / f"{name}.bin") as draft, draft.open("wb", buffering=0) as target:
            for entry in kept:
                source.seek(entry.offset)
                found, left = hashlib.sha256(), entry.bytes
                while left:
                    data = source.read(min(left, _PIECE))
                    if not data:
                        break
                    found.update(data)
                    target.write(data)
                    left -= len(data)
                if found.hexdigest() != decode(entry).sha256:
                    raise StoreError(f"the samples of recording {entry.id!r} in {shard.name}.bin are damaged; {MEND}")
                lines.append(_line(entry, end, new))
                end += entry.bytes
        if shard.sum_bytes:
            data = (folder / f"{shard.name}.sums").read_bytes()
            for entry in kept:
                part = data[places[entry.offset] :][: sums_size(entry)]
                if entry.sums and f"{zlib.crc32(part):08x}" != entry.sums:
                    raise StoreError(f"{shard.name}.sums of the store is damaged; {MEND}")
                sums += part
    return [f"{name}.bin", _write(stage, f"{name}.sums", sums), _write(stage, f"{name}.jsonl", b"".join(lines))]


def _line(entry: ShardLine, offset: int, new: Lines) -> bytes:
    record = new.get(entry.id)
    if record is None:
        return join_line(entry._replace(offset=offset))
    line = to_line(record, offset, entry.source, entry.sums)
    found = split_line(line[:-1])
    assert found is not None
    assert found.bytes == entry.bytes
    return line


def _write(stage: Path, name: str, data: bytes) -> str:
    with disk_errors(), replacing(stage / name) as draft:
        draft.write_bytes(data)
    return name
