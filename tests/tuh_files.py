"""Writes small trees with the layout, file names, labels and annotations of the Temple corpora. Knows nothing of ours.

Sources, by what they say (each page of docs/corpora has the list of its corpus):

- Paths: the AAREADME files of TUAB v2.0.0 and v3.0.1, TUSZ v1.5.0 and v2.0.3, TUEP v1.0.0 and v3.0.0, at
  https://isip.piconepress.com/projects/nedc/html/tuh_eeg/; TUEG v1.2.0 and v2.0.1 in
  https://github.com/braindecode/braindecode/issues/609; TUSL v2 in NeuroLM's and other public preprocessing code.
- Annotations: the same files for what each kind is and for .tse; the head of a .csv file as public code quotes it
  (comments, a lone "#", the columns), with TERM as the channel of .csv_bi.
- Channel labels: "The Temple University Hospital EEG Corpus: Electrode Location and Channel Labels" (2020).

Signals are noise. Patient, recording and date fields, session folders and reports hold CANARY, which must go nowhere.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edf_files import File, Wave

CANARY = "CANARY"
RATE = 250
TEN_TWENTY = "FP1 FP2 F3 F4 C3 C4 P3 P4 O1 O2 F7 F8 T3 T4 T5 T6 A1 A2 FZ CZ PZ T1 T2".split()
OTHERS = ["EEG EKG1-REF", "EMG-REF", "EEG ROC-REF", "EEG 26-REF", "EEG C3P-REF", "EEG SP1-REF", "PHOTIC-REF"]
SLOW = ["IBI", "BURSTS", "SUPPR"]  # not signals of an electrode; here with one value a record and no unit
MONTAGES = {
    "01_tcp_ar": [*(f"EEG {name}-REF" for name in TEN_TWENTY), *OTHERS],
    "02_tcp_le": [*(f"EEG {name}-LE" for name in TEN_TWENTY if name not in ("T1", "T2")), "EEG EKG-LE", "PHOTIC-REF"],
    "03_tcp_ar_a": [*(f"EEG {name}-REF" for name in TEN_TWENTY if name not in ("A1", "A2")), *OTHERS],
    "04_tcp_le_a": [f"EEG {name}-LE" for name in TEN_TWENTY if name not in ("A1", "A2", "T1", "T2")],
}


def write_edf(path: Path, seconds: int = 12, montage: str | None = None) -> Path:
    """A recording of records of one second, with the channels of the montage that its folders name."""
    montage = montage or next(name for name in MONTAGES if name in path.parts)
    signals = [Wave(label, samples=RATE, pmin=-500, pmax=500) for label in MONTAGES[montage]]
    signals += [Wave(label, samples=1, unit="", pmin=0, pmax=1) for label in SLOW]
    head = File(
        signals, records=0, stated_records=seconds, patient=f"{CANARY} M 01-JAN-1978 {CANARY}", recording=CANARY
    )
    rng = np.random.default_rng([*path.stem.encode()])
    records = [rng.integers(-400, 400, (seconds, signal.samples)) for signal in signals]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(head) + np.concatenate(records, axis=1).astype("<i2").tobytes())
    return path


def write_csv(path: Path, rows: Sequence[tuple[str, float, float, str]], seconds: int = 12) -> None:
    """``.csv`` or ``.csv_bi``: channel, start, stop, label."""
    lines = [
        "# version = csv_v1.0.0",
        f"# bname = {path.stem}",
        f"# duration = {seconds:.2f} secs",
        "# montage_file = $NEDC_NFC/lib/nedc_eas_default_montage.txt",
        "#",
        "channel,start_time,stop_time,label,confidence",
        *(f"{channel},{start:.4f},{stop:.4f},{label},1.0000" for channel, start, stop, label in rows),
    ]
    path.write_text("\n".join(lines) + "\n")


def write_tse(path: Path, rows: Sequence[tuple[float, float, str]]) -> None:
    """``.tse``, ``.tse_bi`` or ``.tse_agg``: start, stop, label."""
    lines = ["version = tse_v1.0.0", "", *(f"{start:.4f} {stop:.4f} {label} 1.0000" for start, stop, label in rows)]
    path.write_text("\n".join(lines) + "\n")


def write_tueg(folder: Path) -> Path:
    """v2: a folder of 000 to 149, the subject, the session with its year, the montage."""
    for path in (
        "000/aaaaaaaa/s001_2015/01_tcp_ar/aaaaaaaa_s001_t000",
        "000/aaaaaaaa/s002_2016/03_tcp_ar_a/aaaaaaaa_s002_t000",
        "000/aaaaaaab/s001_2012/02_tcp_le/aaaaaaab_s001_t000",
        "003/aaaaaalr/s001_2003/02_tcp_le/aaaaaalr_s001_t000",
        "003/aaaaaalr/s001_2003/02_tcp_le/aaaaaalr_s001_t001",
        "149/aaaaamye/s004_2016/04_tcp_le_a/aaaaamye_s004_t007",
    ):
        write_edf(folder / "edf" / f"{path}.edf")
    (folder / "AAREADME.txt").write_text(CANARY)
    return folder


def write_old_tueg(folder: Path) -> Path:
    """v1: the montage first, and subjects of eight digits."""
    write_edf(folder / "edf/01_tcp_ar/000/00000000/s001_2015_12_30/00000000_s001_t000.edf")
    write_edf(folder / "edf/03_tcp_ar_a/149/00014928/s004_2016_01_15/00014928_s004_t007.edf")
    (folder / "edf/01_tcp_ar/000/00000000/s001_2015_12_30/00000000_s001.txt").write_text(CANARY)
    return folder


def write_tuab(folder: Path) -> Path:
    """v3: no folders of subjects. aaaaaaab is normal in one session and abnormal in another, as 54 of train are."""
    for path, seconds in (
        ("train/normal/01_tcp_ar/aaaaaaaa_s001_t000", 12),
        ("train/normal/01_tcp_ar/aaaaaaab_s002_t001", 11),
        ("train/abnormal/01_tcp_ar/aaaaaaab_s004_t000", 10),
        ("eval/normal/01_tcp_ar/aaaaaaju_s001_t000", 12),
        ("eval/abnormal/01_tcp_ar/aaaaamye_s001_t000", 12),
    ):
        write_edf(folder / "edf" / f"{path}.edf", seconds)
    return folder


def write_old_tuab(folder: Path) -> Path:
    """v2: the session's folder has a date, and a report lies in it."""
    path = folder / "edf/train/normal/01_tcp_ar/101/00010194/s001_2013_01_09/00010194_s001_t001.edf"
    write_edf(path)
    path.with_name("00010194_s001.txt").write_text(CANARY)
    write_edf(folder / "edf/eval/abnormal/01_tcp_ar/003/00000355/s003_2013_01_04/00000355_s003_t000.edf")
    return folder


TUSZ: dict[str, tuple[list[tuple[str, float, float, str]], list[tuple[str, float, float, str]]]] = {
    "train/aaaaaaac/s001_2002/02_tcp_le/aaaaaaac_s001_t000": (  # the type by channel, from here on to there on others
        [("TERM", 0, 3.2, "bckg"), ("TERM", 3.2, 9.5, "seiz"), ("TERM", 9.5, 12, "bckg")],
        [
            *[("FP1-F7", 0, 3.8868, "bckg"), ("FP1-F7", 3.8868, 9, "cpsz"), ("FP1-F7", 9, 12, "bckg")],
            *[("F7-T3", 0, 3.2, "bckg"), ("F7-T3", 3.2, 9.5, "cpsz"), ("F7-T3", 9.5, 12, "bckg")],
        ],
    ),
    "train/aaaaaaac/s001_2002/02_tcp_le/aaaaaaac_s001_t001": (
        [("TERM", 0, 12, "bckg")],
        [("FP1-F7", 0, 12, "bckg"), ("F7-T3", 0, 12, "bckg")],
    ),
    "dev/aaaaaaju/s003_2015/03_tcp_ar_a/aaaaaaju_s003_t002": (  # two types at once from 6 to 8; nothing from 10 on
        [("TERM", 0, 2, "bckg"), ("TERM", 2, 8, "seiz"), ("TERM", 8, 10, "bckg")],
        [("C3-CZ", 2, 8, "fnsz"), ("CZ-C4", 6, 8, "gnsz"), ("FP1-F7", 0, 10, "bckg")],
    ),
    "eval/aaaaaqvx/s003_2015/01_tcp_ar/aaaaaqvx_s003_t000": (
        [("TERM", 0, 5, "seiz"), ("TERM", 5, 12, "bckg")],
        [("T3-C3", 0, 5, "tcsz"), ("T3-C3", 5, 12, "bckg")],
    ),
}


def write_tusz(folder: Path) -> Path:
    """v2: train, dev and eval; a .csv and a .csv_bi beside each recording."""
    for name, (binary, multi) in TUSZ.items():
        path = write_edf(folder / "edf" / f"{name}.edf")
        write_csv(path.with_suffix(".csv_bi"), binary)
        write_csv(path.with_suffix(".csv"), multi)
    return folder


def write_old_tusz(folder: Path) -> Path:
    """v1.5: dev_test and train, the montage first; .tse and .tse_bi, .lbl files and a report beside each recording."""
    sessions = (("dev_test", "00000258", "s002_2003_07_21"), ("train", "00002991", "s001_2010_01_02"))
    for split, subject, session in sessions:
        top = folder / "edf" / split / "01_tcp_ar" / f"0{subject[4:6]}" / subject / session
        path = write_edf(top / f"{subject}_{session[:4]}_t000.edf")
        write_tse(path.with_suffix(".tse_bi"), [(0, 4, "bckg"), (4, 9, "seiz"), (9, 12, "bckg")])
        write_tse(path.with_suffix(".tse"), [(0, 4, "bckg"), (4, 9, "fnsz"), (9, 12, "bckg")])
        path.with_suffix(".lbl").write_text("version = lbl_v1.0.0\n")
        path.with_name(f"{subject}_{session[:4]}.txt").write_text(CANARY)
    return folder


def write_tuep(folder: Path) -> Path:
    """v2 and v3: two folders without edf on top; v3 has annotations of seizures, some of two seconds only."""
    for name in (
        "00_epilepsy/aaaaaanr/s001_2003/02_tcp_le/aaaaaanr_s001_t001",
        "00_epilepsy/aaaaaaju/s001_2010/01_tcp_ar/aaaaaaju_s001_t000",
        "01_no_epilepsy/aaaaaaba/s001_2012/03_tcp_ar_a/aaaaaaba_s001_t000",
    ):
        path = write_edf(folder / f"{name}.edf")
        write_csv(path.with_suffix(".csv_bi"), [("TERM", 0, 2.002, "bckg")])
    return folder


def write_old_tuep(folder: Path) -> Path:
    """v1: epilepsy and no_epilepsy, which have the number of letters of a subject."""
    write_edf(folder / "edf/epilepsy/01_tcp_ar/003/00000355/s003_2013_01_04/00000355_s003_t000.edf")
    write_edf(folder / "edf/no_epilepsy/02_tcp_le/002/00000258/s001_2003_02_05/00000258_s001_t000.edf")
    return folder


TUSL = {
    "aaaaaaju/s005_2010/01_tcp_ar/aaaaaaju_s005_t000": [(1, 11, "slow")],
    "aaaaaanr/s001_2003/02_tcp_le/aaaaaanr_s001_t000": [(0, 5, "bckg"), (6, 12, "seiz")],
}


def write_tusl(folder: Path) -> Path:
    """v2: a .tse_agg beside each recording, with one .tse and .lbl an event. One EDF kept its subject's old number."""
    for name, rows in TUSL.items():
        path = write_edf(folder / "edf" / f"{name}.edf")
        write_tse(path.with_suffix(".tse_agg"), rows)
        for number, row in enumerate(rows):
            write_tse(path.with_name(f"{path.stem}_{number:02d}.tse"), [row])
            path.with_name(f"{path.stem}_{number:02d}.lbl").write_text("version = lbl_v1.0.0\n")
    old = write_edf(folder / "edf/aaaaamoa/s003_2012/01_tcp_ar/00008476_s003_t010.edf")
    write_tse(old.with_name("aaaaamoa_s003_t010.tse_agg"), [(2, 12, "bckg")])
    return folder
