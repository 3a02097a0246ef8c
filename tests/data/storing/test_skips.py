"""What is skipped is said in words with a remedy; faults of disk, network or memory pass and are tried again."""

import csv
import errno
import json
from functools import partial

import pytest

import bids_files
import tuh_files
from cerebro_eeg import cli
from cerebro_eeg.commands.info_store import info_store
from cerebro_eeg.data.datasets.bids import bids
from cerebro_eeg.data.datasets.folder import folder
from cerebro_eeg.data.datasets.openeeg import openeeg
from cerebro_eeg.data.datasets.seed import seed
from cerebro_eeg.data.datasets.tuh import tusz
from cerebro_eeg.data.storing.prepare import ENOUGH, prepare
from cerebro_eeg.data.storing.remedies import remedy_of
from cerebro_eeg.data.storing.skip_log import TRANSIENT, Skip, SkipLog, read_reasons, read_skipped, write_skipped
from cerebro_eeg.errors import InputError, StoreError
from failing_files import FailingFiles
from folder_files import edf, write
from openeeg_files import write_pack
from seed_files import write_seed

FAULTS = (OSError(errno.EIO, "Input/output error"), FileNotFoundError(errno.ENOENT, "No such file"), MemoryError())


def write_folder(top):
    for number in range(3):
        edf(top / f"s{number}" / "a.edf", seed=number)
    return top


CORPORA = {
    "openeeg": (openeeg, write_pack),
    "seed": (seed, lambda top: write_seed(top, {1: "djc"})),
    "bids": (partial(bids, label="group"), bids_files.tree),
    "tusz": (tusz, tuh_files.write_tusz),
    "folder": (folder, write_folder),
}


@pytest.mark.filterwarnings("ignore:.* the content of another")  # trees of tests hold one file several times
@pytest.mark.parametrize("corpus", CORPORA)
def test_a_passing_fault_at_any_moment_changes_nothing_in_the_end(tmp_path, monkeypatch, corpus):
    """The fault: 826 of 833 recordings were skipped for ever, because a folder was away for a moment."""
    make, build = CORPORA[corpus]
    top = build(tmp_path / "source") or tmp_path / "source"
    keyed = {} if make(top).own_ids else {"key_file": tmp_path / "key"}
    with monkeypatch.context() as patch:
        files = FailingFiles(patch, top)
        whole = prepare(make(top), tmp_path / "whole", **keyed)
        total = files.opened
    assert total > 3
    places = sorted({number * (total - 1) // 5 for number in range(6)})
    for turn, place in enumerate(places[1::3] if corpus == "seed" else places):  # its files are large
        store = tmp_path / f"store{turn}"
        with monkeypatch.context() as patch:
            files = FailingFiles(patch, top)
            files.places = range(place, place + 1 if turn % 2 else 10**9)
            files.error = FAULTS[turn % len(FAULTS)]
            try:
                met = prepare(make(top), store, **keyed)
                assert {code for id, code in met.skipped.items() if id not in whole.skipped} <= TRANSIENT, met.why
            except (InputError, MemoryError):
                pass  # while the corpus was listed: nothing was done
        again = prepare(make(top), store, **keyed)
        assert (again.hash, again.skipped) == (whole.hash, whole.skipped), (turn, place)


def test_when_nearly_everything_fails_it_stops_early(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for number in range(ENOUGH + 10):
        edf(tmp_path / "eeg" / f"{number}.edf", seconds=4, seed=number)
    args = ["prepare", "folder", str(tmp_path / "eeg"), "--out", str(tmp_path / "store"), "--workers", "0"]
    with monkeypatch.context() as patch:
        files = FailingFiles(patch, tmp_path / "eeg")
        files.places, files.error = range(10**9), OSError(errno.EIO, "Input/output error")
        assert cli.main(args) == 5
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("cerebro-eeg: error: 20 of the first 20 recordings cannot be read at present")
    assert cli.main([*args, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recordings"] == ENOUGH + 10


def test_the_reason_and_the_remedy_are_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    edf(tmp_path / "eeg" / "Jane1.edf", unit="", seed=1)
    edf(tmp_path / "eeg" / "Jane2.edf", labels=("Fp1", "Nonsense"), seed=2)
    (tmp_path / "eeg" / "Jane3.edf").symlink_to(tmp_path / "nowhere.edf")
    edf(tmp_path / "eeg" / "good.edf", seed=3)
    args = ["prepare", "folder", str(tmp_path / "eeg"), "--out", str(tmp_path / "store"), "--workers", "0"]
    assert cli.main(args) == 6
    out = capsys.readouterr().out
    assert "unit 1: say the unit with --unit uV" in out
    assert "1 recording could not be read this time; run the same command again" in out
    rows = {row["reason"]: row for row in csv.DictReader((tmp_path / "store" / "skipped.csv").read_text().splitlines())}
    assert set(rows) == {"unit", "channels", "unreadable"}
    assert rows["channels"]["why"] == "1 of 3 channel labels were not understood"  # the label stays with its file
    assert rows["unit"]["why"].startswith("channel 'Fp1': ")
    assert "No such file" in rows["unreadable"]["why"]
    assert all(row["remedy"] == remedy_of(code) for code, row in rows.items())
    held = b"".join(path.read_bytes() for path in (tmp_path / "store").iterdir()).decode("latin-1") + out
    assert "Jane" not in held.replace(str(tmp_path), "")
    found = info_store(tmp_path / "store")
    for code in rows:
        assert f"1 {code}" in found.text()
        assert remedy_of(code) in found.text()
    assert cli.main([*args, "--show-paths"]) == 6
    shown = capsys.readouterr().out
    assert "Jane1.edf: unit: " in shown
    assert "(--retry tries the" not in shown  # the link is tried again, so there was something to do
    (tmp_path / "eeg" / "Jane3.edf").unlink()
    assert cli.main(args) == 6
    assert "(--retry tries the 2 skipped ones again)" in capsys.readouterr().out


def test_sentences_keep_to_their_line_and_old_logs_are_read(tmp_path):
    write(tmp_path / "old.skipped.csv", "a,format", "b,unit")
    with SkipLog(tmp_path, "new") as log:
        log.add("c", "channels", 'two, "quoted"\nlines\x1b[31m and ü')
        log.add("c", "channels", 'two, "quoted"\nlines\x1b[31m and ü')  # said once
    assert read_reasons(tmp_path) == {
        "a": Skip("format"),
        "b": Skip("unit"),
        "c": Skip("channels", 'two, "quoted" lines [31m and ü'),
    }
    assert len((tmp_path / "new.skipped.csv").read_text().splitlines()) == 1
    assert read_skipped(tmp_path, {"a"}) == {"b": "unit", "c": "channels"}
    write_skipped(tmp_path, read_reasons(tmp_path))
    rows = list(csv.reader((tmp_path / "skipped.csv").read_text(encoding="utf-8").splitlines()))
    assert rows[0] == ["id", "reason", "why", "remedy"]
    assert rows[3][2] == 'two, "quoted" lines [31m and ü'


def test_a_disk_that_is_gone_stops_workers_too(tmp_path):
    top = tmp_path / "eeg"
    for number in range(ENOUGH + 10):
        (top / f"{number}.edf").parent.mkdir(exist_ok=True)
        (top / f"{number}.edf").symlink_to(tmp_path / "unmounted" / f"{number}.edf")
    with pytest.raises(StoreError, match="so prepare stops"):
        prepare(folder(top), tmp_path / "store", workers=1, key_file=tmp_path / "key")
