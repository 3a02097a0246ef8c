"""A store goes on after its sources were replaced, touched, copied or lost, and does not reveal its sources."""

import hashlib
import json
import os
import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from cerebro_eeg.channels.match import match
from cerebro_eeg.data.datasets.bids import bids
from cerebro_eeg.data.datasets.folder import folder
from cerebro_eeg.data.datasets.openeeg import openeeg
from cerebro_eeg.data.reading.recording import Recording, Segment
from cerebro_eeg.data.storing import fingerprint, privacy, store_info
from cerebro_eeg.data.storing.prepare import _belongs, prepare
from cerebro_eeg.data.storing.recipe import Item, Recipe
from cerebro_eeg.data.storing.store import Store
from cerebro_eeg.errors import ConfigError
from folder_files import edf, write
from openeeg_files import write_pack

REPLACED = "another source in the place of the one that was stored"
GONE = "the source is not there any more, or holds something else"


def flip(path: Path, place: int = -3) -> None:
    """Another file of the same size in the place of this one, as `mv` would put it there."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    new = path.with_name("new")
    new.write_bytes(data)
    os.replace(new, path)
    later(path)


def later(path: Path) -> None:
    """Give a file another time; clocks of file systems may be too coarse for a test."""
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 10_000_000_000))


def tree(top: Path) -> Path:
    for number in range(3):
        edf(top / f"s{number}" / "a.edf", seed=number)
    return top


def record(pack: Path, name: str) -> Path:
    (path,) = pack.rglob(f"{name}.npz")
    return path


def run(recipe: Recipe, tmp_path: Path, **more):
    own = {} if recipe.own_ids else {"key_file": tmp_path / "key", "map_file": tmp_path / "map"}
    return prepare(recipe, tmp_path / "store", **own, **more)


def refusal(recipe: Recipe, tmp_path: Path, **more) -> str:
    before = {path.name: path.read_bytes() for path in (tmp_path / "store").iterdir()}
    with pytest.raises(ConfigError) as caught:
        run(recipe, tmp_path, **more)
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "store").iterdir()}
    text = str(caught.value)
    assert "\n" not in text
    assert str(tmp_path) not in text
    return text


def ids_of(tmp_path: Path) -> dict[str, str]:
    return {name: id for id, name in json.loads((tmp_path / "map").read_text())["recordings"].items()}


# What is noticed


def test_a_source_replaced_by_one_of_equal_size_is_named(tmp_path):
    recipe = folder(tree(tmp_path / "eeg"), subject="parent")
    run(recipe, tmp_path)
    flip(tmp_path / "eeg" / "s1" / "a.edf")
    assert f"{GONE} (1: {ids_of(tmp_path)['s1/a.edf']}); give it" in refusal(recipe, tmp_path)
    assert "s1" not in refusal(recipe, tmp_path)


def test_corpora_with_their_own_ids_are_checked_alike(tmp_path):
    pack = write_pack(tmp_path / "pack")
    run(openeeg(pack), tmp_path)
    flip(record(pack, "a_01"))
    assert f"{REPLACED} (1: a_01)" in refusal(openeeg(pack), tmp_path)


def test_files_beside_the_one_that_is_opened_count(tmp_path):
    import mne

    info = mne.create_info(["Fp1", "Cz"], 128.0, "eeg")
    raw = mne.io.RawArray(np.random.default_rng(0).normal(0, 2e-5, (2, 1280)), info, verbose="error")
    (tmp_path / "eeg").mkdir()
    mne.export.export_raw(tmp_path / "eeg" / "a.vhdr", raw, verbose="error")
    recipe = folder(tmp_path / "eeg")
    assert run(recipe, tmp_path).recordings == 1
    flip(tmp_path / "eeg" / "a.eeg")
    assert GONE in refusal(recipe, tmp_path)


def test_what_sidecars_say_of_the_samples_counts(tmp_path):
    top = tmp_path / "bids"
    write(top / "dataset_description.json", "{}")
    edf(top / "sub-1" / "eeg" / "sub-1_task-x_eeg.edf")
    table = ["name\ttype\tunits", "Fp1\tEEG\tuV", "Cz\tEEG\tuV", "O2\tEEG\tuV"]
    path = write(top / "sub-1" / "eeg" / "sub-1_task-x_channels.tsv", *table)
    run(bids(top), tmp_path)
    write(path, *table[:2], "Cz\tEOG\tuV", table[3])
    assert REPLACED in refusal(bids(top), tmp_path)
    write(path, *table)
    assert run(bids(top), tmp_path).recordings == 1


def test_a_source_that_is_gone_is_said_to_be(tmp_path):
    pack = write_pack(tmp_path / "pack")
    run(openeeg(pack), tmp_path)
    record(pack, "a_01").unlink()
    assert "the source cannot be read any more (1: a_01)" in refusal(openeeg(pack), tmp_path)


def test_a_part_answers_for_its_own_recordings(tmp_path):
    """Otherwise each job of an array would read what all of them have stored."""
    for number in range(3):
        edf(tmp_path / "eeg" / f"s{number}" / "a.edf", seconds=1200, seed=number)  # large: ids are made from some bytes
    recipe = folder(tmp_path / "eeg")
    run(recipe, tmp_path)
    path = tmp_path / "eeg" / "s1" / "a.edf"
    flip(path, 100_000)
    number = 1 if _belongs(ids_of(tmp_path)["s1/a.edf"], (1, 2)) else 2
    assert run(recipe, tmp_path, part=(3 - number, 2)).recordings == 3
    assert REPLACED in refusal(recipe, tmp_path, part=(number, 2))


# What is not complained of


def test_a_source_that_was_touched_is_read_and_is_fine(tmp_path):
    recipe = folder(tree(tmp_path / "eeg"))
    first, told = run(recipe, tmp_path), []
    assert run(recipe, tmp_path, comparing=lambda *found: told.append(found)).hash == first.hash
    assert told == []  # nothing is read where sizes and times are as they were
    path = tmp_path / "eeg" / "s1" / "a.edf"
    later(path)
    assert run(recipe, tmp_path, comparing=lambda *found: told.append(found)).hash == first.hash
    assert told == [(1, path.stat().st_size)]


def test_a_copy_of_store_and_sources_goes_on(tmp_path):
    first = run(folder(tree(tmp_path / "eeg")), tmp_path)
    shutil.copytree(tmp_path / "eeg", tmp_path / "elsewhere", copy_function=shutil.copyfile)
    for path in (tmp_path / "elsewhere").rglob("*.edf"):
        later(path)
    edf(tmp_path / "elsewhere" / "s9" / "a.edf", seed=9)
    second = run(folder(tmp_path / "elsewhere"), tmp_path)
    assert (second.recordings, second.done_before, second.skipped) == (first.recordings + 1, 3, {})


def test_the_hash_of_a_store_does_not_see_times(tmp_path):
    recipe = folder(tree(tmp_path / "eeg"))
    first = prepare(recipe, tmp_path / "one", key_file=tmp_path / "key")
    for path in (tmp_path / "eeg").rglob("*.edf"):
        later(path)
    assert prepare(recipe, tmp_path / "two", key_file=tmp_path / "key").hash == first.hash
    one, two = Store(tmp_path / "one"), Store(tmp_path / "two")
    for record in one.recordings:
        (look, content), (other_look, other_content) = (
            fingerprint.halves(store.fingerprint(record.id)) for store in (one, two)
        )
        assert look != other_look
        assert content == other_content


def test_stores_of_format_1_go_on_as_they_are(tmp_path, monkeypatch):
    recipe = folder(tree(tmp_path / "eeg"))
    monkeypatch.setattr(store_info, "FORMAT", 1)
    run(recipe, tmp_path)
    monkeypatch.undo()
    edf(tmp_path / "eeg" / "s9" / "a.edf", seed=9)
    assert run(folder(tmp_path / "eeg"), tmp_path).recordings == 4
    lines = b"".join(path.read_bytes() for path in (tmp_path / "store").glob("*.jsonl"))
    assert lines.count(b'"id":"') == 8  # once in front and once in the recording
    assert b'"source":' not in lines
    assert json.loads((tmp_path / "store" / "store.json").read_text())["format"] == 1


def test_a_folder_that_was_renamed_or_given_by_a_part_of_it_has_the_same_ids(tmp_path):
    first = run(folder(tree(tmp_path / "eeg")), tmp_path)
    (tmp_path / "eeg" / "s1" / "a.edf").rename(tmp_path / "eeg" / "s1" / "renamed.edf")
    (tmp_path / "eeg").rename(tmp_path / "moved")
    again = run(folder(tmp_path / "moved"), tmp_path)
    assert (again.done_before, again.hash) == (3, first.hash)
    prepare(folder(tmp_path / "moved" / "s1"), tmp_path / "part", key_file=tmp_path / "key")
    assert Store(tmp_path / "part").recordings[0].id in {record.id for record in Store(tmp_path / "store").recordings}


def test_a_bad_file_that_was_mended_is_prepared(tmp_path):
    """It has another id then, and the old one must not stay in the list of what was skipped."""
    path = edf(tree(tmp_path / "eeg") / "s3" / "a.edf", seed=3)
    sound = path.read_bytes()
    path.write_bytes(sound[:1000])
    assert len(run(folder(tmp_path / "eeg"), tmp_path).skipped) == 1
    path.write_bytes(sound)
    done = run(folder(tmp_path / "eeg"), tmp_path)
    assert (done.recordings, done.skipped) == (4, {})


# What is stored


def test_a_source_that_changes_while_it_is_read_is_not_stored(tmp_path):
    path = write(tmp_path / "a.bin", "one")

    def opened(_) -> Recording:
        write(path, "two")
        later(path)
        signal = np.random.default_rng(0).normal(0, 20, (2560, 1)).astype(np.float32)
        return Recording(256.0, match(["Cz"]), (Segment(0, 2560, 0.0),), lambda start, stop: signal[start:stop])

    found = [Item("a", opened, files=(path,)), Item("b", opened)]
    done = prepare(Recipe("moving", "", lambda: iter(found), own_ids=True, mains=50.0), tmp_path / "store")
    assert (done.recordings, done.skipped) == (1, {"a": "changed"})
    assert Store(tmp_path / "store").fingerprint("b") == ""


def test_fingerprints_say_nothing_without_the_key(tmp_path):
    """Neither a known file nor a known time can be looked up in a store, and equal files are not equal in it."""
    top = tree(tmp_path / "eeg")
    shutil.copy2(top / "s1" / "a.edf", top / "s1" / "b.edf")
    with pytest.warns(UserWarning, match="1 recording has the content of another"):
        run(folder(top), tmp_path)
    store = Store(tmp_path / "store")
    prints = [half for r in store.recordings for half in fingerprint.halves(store.fingerprint(r.id))]
    assert len(set(prints)) == 8
    assert all(re.fullmatch("[0-9a-f]{32}", half) for half in prints)
    held = b"".join(path.read_bytes() for path in (tmp_path / "store").glob("*.json*"))
    for path in top.rglob("*.edf"):
        for name in ("md5", "sha1", "sha256", "sha512", "blake2b"):
            assert hashlib.new(name, path.read_bytes()).hexdigest()[:32].encode() not in held
        assert str(path.stat().st_mtime_ns).encode() not in held
        assert str(int(path.stat().st_mtime)).encode() not in held
    files = [top / "s1" / "a.edf"]
    seals = [privacy.seal(bytes(32)), privacy.seal(bytes(31) + b"1"), privacy.seal(None)]
    assert len({fingerprint.take(seal, "id", files, "") for seal in seals}) == 3
    assert bytes(32) not in seals[0]


@pytest.mark.parametrize("change", ["bytes", "id", "told", "order", "edges"])
def test_a_fingerprint_sees_every_byte_and_what_belongs_to_which_file(tmp_path, change):
    one, two = write(tmp_path / "one", "a" * 3_000_000), write(tmp_path / "two", "b")
    content = partial(fingerprint.content, b"k")
    first = content("id", [one, two], "told")
    again = {
        "bytes": lambda: (flip(one, 2_999_999), content("id", [one, two], "told"))[1],
        "id": lambda: content("other", [one, two], "told"),
        "told": lambda: content("id", [one, two], "Told"),
        "order": lambda: content("id", [two, one], "told"),
        "edges": lambda: (
            one.write_bytes(one.read_bytes() + b"b"),
            two.write_bytes(two.read_bytes()[1:]),
            content("id", [one, two], "told"),
        )[2],
    }[change]()
    assert first != again
    assert fingerprint.content(b"k", "id", [tmp_path], "") == fingerprint.content(b"k", "id", [one, two], "")
