"""Damaged samples are noticed when they are read, wherever they lie and whoever reads them."""

import json
import os
import pickle
import random
import zlib

import numpy as np
import pytest

from cerebro_eeg import cli
from cerebro_eeg.config import SignalConfig
from cerebro_eeg.data.batching.loader import Loader
from cerebro_eeg.data.batching.order import Order
from cerebro_eeg.data.batching.windows import find_windows
from cerebro_eeg.data.storing import store_info
from cerebro_eeg.data.storing.block_sums import BLOCK, BlockSummer
from cerebro_eeg.data.storing.skip_log import write_skipped
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.data.storing.store_info import create_store, read_info
from cerebro_eeg.data.storing.writer import ShardWriter
from cerebro_eeg.errors import StoreError
from cerebro_eeg.schema import to_dict

SECONDS = 40
CHANNELS = ("Fp1", "Fp2", "F3", "F4", "C3", "C4", "P3", "P4", "O1", "O2")


def make(folder):
    """A store of three recordings in two shards, each of 40 s with a gap, in several blocks."""
    create_store(folder, "test", {"signal": to_dict(SignalConfig())})
    rng = np.random.default_rng(0)
    with ShardWriter(folder, "w", shard_bytes=300_000) as writer:
        for number, count in enumerate((10, 7, 9)):
            with writer.recording(f"r{number}", CHANNELS[:count], 256.0) as draft:
                for onset in (0.0, 100.0):
                    draft.segment(onset)
                    draft.write(rng.normal(0, 30, (SECONDS // 2 * 256, count)))
                draft.commit(native_sfreq=256.0)
    write_skipped(folder, {})
    return folder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    return make(tmp_path / "store")


def flip(path, bit):
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def windows_of(store):
    return find_windows(store, seconds=2.0)


def read_all(store, **options):
    """Read every window once."""
    windows = windows_of(store)
    order = Order(0, [len(windows)], 8)
    with Loader([(store, windows)], **options) as loader:
        for number in range(-(-len(windows) // 8)):
            loader.read(order.step(number))


def test_sums_do_not_depend_on_the_pieces():
    rng = random.Random(0)
    data = rng.randbytes(3 * BLOCK + 17)
    expected = b"".join(zlib.crc32(data[at : at + BLOCK]).to_bytes(4, "little") for at in range(0, len(data), BLOCK))
    for _ in range(20):
        cuts = sorted(rng.choices(range(len(data) + 1), k=rng.randrange(6)))
        summer = BlockSummer()
        for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True):
            summer.add(memoryview(data)[start:stop])
        assert summer.finish() == expected
    assert BlockSummer().finish() == b""


def test_every_flipped_bit_is_noticed_where_it_is_read_and_only_there(folder):
    store = Store(folder)
    rng = random.Random(0)
    for number in range(3):
        record = store.recordings[number]
        shard, offset, channels, samples, _ = store._places[number]
        path = store.files[shard]
        good = path.read_bytes()
        for place in (0, record.bytes - 1, *rng.choices(range(record.bytes), k=20)):
            flip(path, 8 * (offset + place) + rng.randrange(8))
            damaged = Store(folder)
            row = place // (2 * channels)
            start, stop = max(0, row - rng.randrange(9)), min(samples, row + 1 + rng.randrange(9))
            with pytest.raises(StoreError, match=f"samples of recording 'r{number}' are damaged") as caught:
                damaged.read(number, start, stop)
            assert f"{path.name} from byte {offset + place // BLOCK * BLOCK}" in str(caught.value)
            assert "restore it from a copy, or remove all files of this shard" in str(caught.value)
            with pytest.raises(StoreError, match="damaged"):
                damaged.read_into(number - 3, start, stop, np.empty((stop - start, channels), np.float16))
            damaged.read((number + 1) % 3, 0, 1)
            far = 0 if row > samples // 2 else samples - 1
            damaged.read(number, far, far + 1)
            with pytest.raises(StoreError, match=rf"1 of 3 recordings are damaged \(r{number}\)"):
                damaged.verify(full=True)
            path.write_bytes(good)
    store.verify(full=True)


def test_the_error_names_the_seconds_of_the_recording(folder):
    """Its 20 s behind the gap began 100 s after its start."""
    store = Store(folder)
    flip(store.files[0], 8 * (2 * 10 * 256 * 30))  # half a minute of signal
    with pytest.raises(StoreError, match=r"'r0' are damaged, from 105\.60 to 112\.00 s"):
        store.read(0, 0, 40 * 256)


@pytest.mark.parametrize("options", [{"threads": 0}, {"threads": 2}, {"threads": 2, "processes": True}])
def test_the_loader_notices_damage(folder, options):
    store = Store(folder)
    read_all(store, **options)
    flip(store.files[1], 8 * 40_000)
    read_all(store, **options)  # its blocks were sound when this process first read them
    with pytest.raises(StoreError, match=r"samples of recording 'r2' are damaged"):
        read_all(Store(folder), **options)
    store.forget_checks()
    with pytest.raises(StoreError, match=r"samples of recording 'r2' are damaged"):
        read_all(store, **options)


@pytest.mark.parametrize("processes", [False, True])
def test_every_block_is_checked_once(folder, processes, monkeypatch):
    store = Store(folder)
    seen = []
    monkeypatch.setattr(store, "_bytes", lambda *place, of=store._bytes: (seen.append(place), of(*place))[1])
    for _ in range(2):
        read_all(store, threads=1, processes=processes)
    assert (
        store._blocks.flags.count(1) == len(store._blocks.flags) == sum(-(-r.bytes // BLOCK) for r in store.recordings)
    )
    assert len(seen) == len(set(seen)) == (0 if processes else len(store._blocks.flags))


def test_a_spawned_process_checks_for_itself(folder):
    store = Store(folder)
    store.read(0, 0, 10)
    copy = pickle.loads(pickle.dumps(store))
    assert copy._blocks.flags.count(1) == 0
    flip(store.files[0], 0)
    store.read(0, 0, 10)
    with pytest.raises(StoreError, match="damaged"):
        copy.read(0, 0, 10)


def test_damaged_sums_are_told_from_damaged_samples(folder):
    path = folder / "w-0000.sums"
    good = path.read_bytes()
    for bit in range(0, 8 * len(good), 13):
        flip(path, bit)
        store = Store(folder)
        with pytest.raises(StoreError, match=r"w-0000\.sums of the store is damaged"):
            read_all(store, threads=0)
        path.write_bytes(good)
    path.write_bytes(good[:-1])
    with pytest.raises(StoreError, match=r"w-0000\.sums is missing or ends before"):
        Store(folder)
    path.unlink()
    with pytest.raises(StoreError, match=r"w-0000\.sums is missing or ends before"):
        Store(folder)


def test_a_command_ends_with_code_5_and_one_line(folder, capsys):
    for bit in range(0, 8 * 300_000, 8 * BLOCK):
        flip(next(folder.glob("w-0000.bin")), bit)
    assert cli.main(["info", str(folder), "--plot", str(folder.parent / "p.png")]) == 5
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert "samples of recording" in said.err
    assert "internal" not in said.err


def test_every_bit_of_store_json_counts(folder):
    path = folder / "store.json"
    good = path.read_bytes()
    for bit in range(0, 8 * len(good), 11):
        flip(path, bit)
        try:
            read_info(folder)
        except StoreError:
            pass
        else:
            assert not store_info.has_own_form(path)
        path.write_bytes(good)
    assert store_info.has_own_form(path)
    flip(path, 8 * good.index(b'"format": 3') + 80)  # format 2 has no sum, but then it has no field for one, either
    assert b'"format": 2' in path.read_bytes()
    with pytest.raises(StoreError, match=r"store\.json of the store is damaged"):
        read_info(folder)


@pytest.mark.parametrize("version", [1, 2])
def test_stores_without_sums_are_read_and_continued_without_them(tmp_path, monkeypatch, version, capsys):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    with monkeypatch.context() as patch:
        patch.setattr(store_info, "FORMAT", version)
        make(tmp_path / "old")
    make(tmp_path / "new")
    assert not [*(tmp_path / "old").glob("*.sums")]
    assert "sha256" not in json.loads((tmp_path / "old" / "store.json").read_text())
    assert Store(tmp_path / "old").hash() == Store(tmp_path / "new").hash()  # sums are no part of it
    store = Store(tmp_path / "old")
    store.verify(full=True)
    flip(store.files[0], 0)
    read_all(store, threads=1, processes=True)  # nothing notices this
    with pytest.raises(StoreError, match="1 of 3"):
        store.verify(full=True)
    assert cli.main(["info", str(tmp_path / "old")]) == 0
    assert "no sums of blocks" in capsys.readouterr().out
    assert cli.main(["info", str(tmp_path / "new")]) == 0
    assert "no sums of blocks" not in capsys.readouterr().out
