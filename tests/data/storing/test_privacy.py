"""Canaries: names in every header field, annotation, file name and table of 200 files, and in none of what comes out.

The files are right or wrong in many ways, because it is errors that quote. The one exception is the private map.
"""

import base64
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from cerebro_eeg import cli
from cerebro_eeg.data.storing.store import Store
from edf_files import File, Notes, Wave, tal, timekeeping

STEM = "Zqanary7"
LABEL = "Zqlabel7"  # of a channel: the one thing of a file that may be shown of that file, and goes no further
DATES = ("13.07.51", "13-JUL-1951", "1951-07-13")
FILES = 200
RECORDS = 4


def forms(word):
    """The bytes that a word can hide in: as it is, as UTF-16, as hexadecimal digits, in base64 wherever it begins."""
    plain = word.encode()
    found = {plain.lower(), word.lower().encode("utf-16-le"), word.lower().encode("utf-16-be")}
    exact = {plain.hex().encode(), plain.hex().upper().encode()}
    for shift in range(3):
        coded = base64.b64encode(b"\0" * shift + plain)
        exact.add(coded[(0, 2, 3)[shift] : -4])  # without the letters that its neighbours have a part in
    return found, exact


WORDS = [forms(word) for word in (STEM, *DATES)]


def hits(data):
    lower = data.lower()
    return [
        form for loose, exact in WORDS for form in [f for f in loose if f in lower] + [f for f in exact if f in data]
    ]


def everything_in(folder):
    """Names and bytes of all that lies in a folder."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# 200 files


def canary(number, width):
    """A name of at most so many letters."""
    return f"{STEM} {number} Jane Doe born {DATES[1]} in ward 7 by Dr Who"[:width]


def clean_file(number, kind="EDF+C", **changes):
    samples, rng = 250, np.random.default_rng(number)
    waves = [
        Wave(
            label,
            rng.integers(-500, 500, samples * RECORDS),
            samples,
            transducer=canary(number, 80),
            prefilter=canary(number, 80),
            reserved=canary(number, 32),
        )
        for label in ("Fp1", "Cz", "O2")
    ]
    waves[2].label = LABEL if number % 5 == 4 else "O2"
    signals = list(waves)
    if "+" in kind:
        texts = timekeeping(
            [f"+{k}" for k in range(RECORDS)], {1: tal("+1.5", canary(number, 40)), 2: tal("+2", "rest")}
        )
        signals.append(Notes(texts, 60, transducer=canary(number, 80), reserved=canary(number, 32)))
    fields = {"patient": canary(number, 80), "recording": f"Startdate {DATES[1]} {canary(number, 40)}"}
    if "+" not in kind:
        fields["reserved"] = ("24BIT " if kind == "BDF" else "") + canary(number, 30)
    return File(signals, kind, RECORDS, **{**fields, "date": DATES[0], "time": "11.12.13", **changes})


def bytes_of(number):
    """File ``number``, its suffix with it; the first half of them sound."""
    kind = ("EDF+C", "EDF", "BDF", "BDF+C", "EDF+C")[number % 5]
    suffix = ".bdf" if kind.startswith("BDF") else ".edf"
    if number < FILES // 2:
        return suffix, bytes(clean_file(number, kind))
    file = clean_file(number, kind)
    whole = bytes(file)
    wave = file.signals[0]
    short = canary(number, 8)
    ways = [
        lambda: whole[:100],
        lambda: whole[:700],
        lambda: whole[:-333],
        lambda: whole[: len(whole) // 2],
        lambda: b"",
        lambda: canary(number, 80).encode() * 40,
        lambda: bytes(clean_file(number, kind, duration=short)),
        lambda: bytes(clean_file(number, kind, header_bytes=short)),
        lambda: bytes(clean_file(number, kind, stated_records=short)),
        lambda: bytes(clean_file(number, kind, stated_signals=short[:4])),
        lambda: bytes(clean_file(number, kind, version=short)),
        lambda: setattr(wave, "unit", short) or bytes(file),
        lambda: setattr(wave, "pmin", short) or bytes(file),
        lambda: setattr(wave, "dmax", short) or bytes(file),
        lambda: setattr(wave, "stated_samples", short) or bytes(file),
        lambda: setattr(wave, "label", f"{LABEL} {number}") or bytes(file),
        lambda: setattr(wave, "pmax", wave.pmin) or bytes(file),
        lambda: whole.replace(b"+1.5", b"+" + STEM[:3].encode()),
        lambda: whole.replace(b"\n", b"\r\n") + canary(number, 60).encode(),
        lambda: whole[:256] + whole[300:],
    ]
    others = {
        ".vhdr": f"Brain Vision Data Exchange Header File Version 1.0\n[Common Infos]\nDataFile={canary(number, 60)}\n",
        ".set": canary(number, 60) * 9,
        ".gdf": f"GDF 2.20{canary(number, 60)}" * 9,
        ".fif": canary(number, 60) * 9,
        ".csv": f"timestamps,TP9,AF7,AF8,TP10,Right AUX\n{canary(number, 60)},1,2,3,4,5\n",
    }
    if number % 10 == 9:
        suffix = list(others)[number // 10 % len(others)]
        return suffix, others[suffix].encode()
    return suffix, ways[number % len(ways)]()


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The tree and its table."""
    folder = tmp_path_factory.mktemp("canaries") / f"{STEM} hospital"
    rows = ["file,subject,label,remark"]
    for number in range(FILES):
        suffix, data = bytes_of(number)
        name = f"{STEM} ward {number % 7}/{STEM}_{number}_{DATES[2]}{suffix}"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
        if number % 3 == 0 and suffix in (".edf", ".bdf"):
            rows.append(f"{name},{STEM} person {number // 4},{'yes' if number % 2 else 'no'},{canary(number, 50)}")
    table = folder.parent / "answer.csv"
    table.write_text("\n".join(rows) + "\n")
    return folder, table


@pytest.mark.filterwarnings("ignore:.* the content of another")  # some of the broken files are equal
def test_nobody_is_named(source, tmp_path, capfd):
    folder, table = source
    store, key, map = (tmp_path / name for name in ("store", "key", "map.json"))
    assert all(hits(data) for path, data in everything_in(folder).items() if data)  # the search finds what is there
    args = ["prepare", "folder", str(folder), "--out", str(store), "--labels", str(table), "--events", "rest"]
    args += ["--key", str(key), "--map", str(map), "--mains", "50"]
    env = os.environ | {"XDG_CONFIG_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "cerebro_eeg", *args, "--workers", "2"]
    done = subprocess.run(command, capture_output=True, env=env, cwd=tmp_path)
    assert done.returncode == 6, done.stderr
    assert f"{FILES}/{FILES} recordings".encode() in done.stderr
    said = [done.stdout, done.stderr]

    # Again: all that was skipped, in this process, with libraries that might print
    assert cli.main([*args, "--workers", "0", "--retry", "--json"]) == 6
    again = capfd.readouterr()
    summary = json.loads(again.out)
    assert cli.main(["info", str(store)]) == 0
    assert cli.main(["info", str(store), "--json"]) == 0
    said += [text.encode() for text in (*again, *capfd.readouterr())]
    assert LABEL.encode() not in b"".join(said)
    codes = {cli.main(["info", str(path)]) for path in sorted(folder.rglob("*.*"))[::14]}
    assert {0, 3} <= codes
    said += [text.encode() for text in capfd.readouterr()]
    assert cli.main([*args[:4], str(tmp_path / "other"), *args[5:-2], "--labels", str(folder)]) != 0
    said += [text.encode() for text in capfd.readouterr()]
    for text in said:
        shown = text.decode()
        assert not hits(text), [line for line in shown.splitlines() if hits(line.encode())][:5]

    written = everything_in(tmp_path)
    assert [str(name) for name, data in written.items() if hits(str(name).encode() + data)] == ["map.json"]
    assert not [name for name, data in written.items() if LABEL.encode() in data]

    found = Store(store)
    skipped = found.skipped()
    assert len(found.recordings) + len(skipped) == FILES == summary["done"] + summary["done_before"]
    assert FILES // 2 <= len(found.recordings) < FILES
    assert len(set(skipped.values())) >= 10  # the files are wrong in different ways
    names = json.loads(map.read_text())
    assert set(names["recordings"]) == {record.id for record in found.recordings} | set(skipped)
    assert {(folder / name).is_file() for name in names["recordings"].values()} == {True}
    assert all(name.startswith(STEM) for name in names["subjects"].values())
    assert {record.subject for record in found.recordings} - {None} <= set(names["subjects"])
    assert {event.name for record in found.recordings for event in record.events} == {"rest"}
