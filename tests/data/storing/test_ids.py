"""The id of a recording depends on what it holds: not on the folder that was given, on its name, or on who asks."""

import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

from cerebro_eeg.data.datasets.bids import bids
from cerebro_eeg.data.datasets.folder import folder
from cerebro_eeg.data.storing.ids import make_ids
from cerebro_eeg.data.storing.prepare import _find
from cerebro_eeg.runs.predict import find_inputs
from folder_files import edf, write

KEY = bytes(range(32))


@pytest.fixture
def key(tmp_path) -> Path:
    path = write(tmp_path / "key", KEY.hex())
    path.chmod(0o600)
    return path


def stored(recipe) -> dict[str, str]:
    """Id by name, as a store would have them."""
    return {name: id for id, name in _find(recipe, KEY)[1]["recordings"].items()}


def asked(key: Path, *files: Path) -> list[str]:
    """The ids that predict and embed give."""
    return [one.id for one in find_inputs(files, key)]


def write_recording(path: Path, seed: int = 0) -> Path:
    """A recording in the format of its suffix, with all the files that belong to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".edf":
        return edf(path, seed=seed)
    import mne

    info = mne.create_info(["Fp1", "Cz"], 128.0, "eeg")
    raw = mne.io.RawArray(np.random.default_rng(seed).normal(0, 2e-5, (2, 128 * 600)), info, verbose="error")
    if path.suffix == ".vhdr":
        mne.export.export_raw(path, raw, verbose="error")
    elif path.suffix == ".set":
        from scipy.io import savemat

        savemat(path, {"EEG": {"data": "x.fdt", "nbchan": 2, "srate": 128.0}}, appendmat=False)
        path.with_suffix(".fdt").write_bytes(np.random.default_rng(seed).bytes(900_000))
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # MNE would like another name
            raw.save(path, verbose="error")
    return path


def rename(path: Path, name: str) -> Path:
    """Rename a recording with its files, as people do it: text headers are edited, too."""
    for file in list(path.parent.iterdir()):
        if file.stem == path.stem:
            if file.suffix in (".vhdr", ".vmrk"):
                file.write_bytes(file.read_bytes().replace(f"={path.stem}.".encode(), f"={name}.".encode()))
            file.rename(file.with_name(name + file.suffix))
    return path.with_name(name + path.suffix)


@pytest.mark.parametrize("suffix", [".edf", ".vhdr", ".set", ".fif"])
def test_a_file_has_one_id_however_it_is_given(tmp_path, key, suffix):
    top = tmp_path / "eeg"
    path = write_recording(top / "sub-01" / f"a{suffix}")
    other = write_recording(top / "sub-02" / f"a{suffix}", seed=1)
    (id, second) = (stored(folder(top))[f"sub-0{n}/a{suffix}"] for n in (1, 2))
    assert id != second
    assert stored(folder(top / "sub-01")) == {f"a{suffix}": id}
    assert asked(key, top) == [id, second]
    assert asked(key, top / "sub-01") == asked(key, path) == [id]
    assert asked(key, other, path) == [second, id]
    assert asked(key, path.parent / ".." / "sub-01" / path.name) == [id]
    write(path.with_suffix(".txt"), "notes of somebody")
    write(path.with_name("a_channels.tsv"), "name")
    shutil.copytree(top / "sub-01", tmp_path / "copy")
    assert asked(key, rename(tmp_path / "copy" / path.name, "renamed")) == [id]
    assert asked(key, tmp_path / "copy") == [id]


def test_a_corpus_in_bids_has_the_ids_of_its_files(tmp_path, key):
    top = tmp_path / "bids"
    write(top / "dataset_description.json", "{}")
    for number, suffix in ((1, ".edf"), (2, ".vhdr")):
        name = f"sub-0{number}/eeg/sub-0{number}_task-x_eeg{suffix}"
        write_recording(top / name, seed=number)
        write(top / f"sub-0{number}" / "eeg" / f"sub-0{number}_task-x_eeg.json", '{"PowerLineFrequency": 50}')
    found = stored(bids(top))
    assert found == stored(folder(top))
    assert list(found.values()) == asked(key, *(top / name for name in found))


def test_parts_of_a_split_file_count(tmp_path, key):
    import mne

    info = mne.create_info(["Fp1", "Cz"], 128.0, "eeg")
    for name, last in (("one", 0.0), ("two", 1e-5)):
        signal = np.random.default_rng(0).normal(0, 2e-5, (2, 400_000))
        signal[:, -1000:] += last  # only the second part differs
        raw = mne.io.RawArray(signal, info, verbose="error")
        (tmp_path / name).mkdir()
        raw.save(tmp_path / name / "a_raw.fif", split_size="2MB", verbose="error")
        assert len(list((tmp_path / name).iterdir())) > 1
    one, two = (list(stored(folder(tmp_path / name)).values()) for name in ("one", "two"))
    assert len(one) == len(two) == 1
    assert one != two
    assert asked(key, tmp_path / "one" / "a_raw.fif") == one


def test_copies_are_numbered_and_said(tmp_path, key):
    path = edf(tmp_path / "eeg" / "a.edf")
    for name in ("b.edf", "c.edf"):
        shutil.copy(path, tmp_path / "eeg" / name)
    with pytest.warns(UserWarning, match=r"2 recordings have the content of another one here .* ends in \.2"):
        found = stored(folder(tmp_path / "eeg"))
    assert found == {"a.edf": found["a.edf"], "b.edf": f"{found['a.edf']}.2", "c.edf": f"{found['a.edf']}.3"}
    assert asked(key, tmp_path / "eeg" / "b.edf") == [found["a.edf"]]
    for name in ("empty.edf", "also.edf"):
        (tmp_path / "none" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "none" / name).write_bytes(b"")
    assert len(set(asked(key, tmp_path / "none"))) == 2  # without a word about copies: there is nothing in them


def test_large_files_are_not_read_whole_and_never_confused(tmp_path):
    one, two = tmp_path / "one.edf", tmp_path / "two.edf"
    data = bytearray(np.random.default_rng(0).bytes(5_000_000))
    one.write_bytes(data)
    for place in (0, 70_000, 4_999_999):
        changed = bytearray(data)
        changed[place] ^= 1
        two.write_bytes(changed)
        if place == 70_000:  # a byte that nobody looks at
            with pytest.warns(UserWarning, match="1 recording has the content"):
                ids = make_ids(KEY, [[one], [two]])
            assert ids[1] == f"{ids[0]}.2"
        else:
            assert len(set(make_ids(KEY, [[one], [two]]))) == 2
    two.write_bytes(data + b"x")
    assert len(set(make_ids(KEY, [[one], [two]]))) == 2
    assert make_ids(KEY, [[one]]) != make_ids(bytes(32), [[one]])


def test_what_cannot_be_read_is_an_error_of_its_own(tmp_path):
    sound = edf(tmp_path / "a.edf")
    lost, id = make_ids(KEY, [[tmp_path / "gone.edf"], [sound]])
    assert isinstance(lost, FileNotFoundError)
    assert isinstance(id, str)
