"""Writes a small Helsinki corpus: its file names, channel labels and annotation tables. Knows no reader.

From zenodo.org/record/4940267, Stevenson et al. (Scientific Data 6, 190039) and public code that reads the real files:
``eeg1.edf`` ... with 19 electrodes at 256 Hz, ``EEG Fp1-REF`` in some files and ``EEG Fp1-Ref`` in others, ECG and
respiration behind them; ``annotations_2017_A.csv``, ``_B``, ``_C``: the numbers of the newborns, then a row a second,
columns shorter than the longest filled up with blanks or NaN.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from edf_files import File, Wave, ramp

ELECTRODES = "Fp1 Fp2 F3 F4 C3 C4 P3 P4 O1 O2 F7 F8 T3 T4 T5 T6 Fz Cz Pz".split()


def write_edf(path: Path, seconds: int, number: int) -> Path:
    """Odd numbers have the one spelling of the labels, even ones the other."""
    odd = number % 2
    labels = [f"EEG {name}-{'REF' if odd else 'Ref'}" for name in ELECTRODES]
    labels += ["ECG EKG-REF", "Resp Effort-REF"] if odd else ["ECG EKG", "Resp Effort"]
    waves = [Wave(label, ramp(256 * seconds, seed=number + i), samples=256) for i, label in enumerate(labels)]
    path.write_bytes(bytes(File(waves, records=seconds)))
    return path


def write_marks(path: Path, marks: Mapping[int, str], blank: str = "") -> Path:
    """A text of 0 and 1 for each newborn, one letter a second; a dot is a second without a mark."""
    rows = [",".join(map(str, marks))]
    for second in range(max(map(len, marks.values()))):
        cells = (text[second] if second < len(text) else "." for text in marks.values())
        rows.append(",".join(blank if cell == "." else cell for cell in cells))
    path.write_text("\n".join(rows) + "\n")
    return path


def write_neonate(folder: Path, seconds: Mapping[int, int], marks: Sequence[Mapping[int, str]]) -> Path:
    """Recordings of these lengths, and what the experts A, B and C say."""
    folder.mkdir(parents=True)
    for number, length in seconds.items():
        write_edf(folder / f"eeg{number}.edf", length, number)
    for expert, of_expert, blank in zip("ABC", marks, ("", "NaN", ""), strict=True):
        write_marks(folder / f"annotations_2017_{expert}.csv", of_expert, blank)
    (folder / "clinical_information.csv").write_text("ID,EEG file\n" + "".join(f"{n},eeg{n}\n" for n in seconds))
    return folder
