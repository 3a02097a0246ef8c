"""Write src/cerebro_eeg/channels/electrodes.csv: every electrode of the vocabulary and its place on the unit sphere.

The places follow from the definition of the 10-20 system and its refinements, not from a measured head:

- The head is a sphere; x points to the right ear, y to the nose, z to the vertex.
- The line from nasion over Cz to inion is divided in per cent. The ring Fpz-T7-Oz-T8 lies at 10 % and 90 % of it and is
  taken as the equator, so that 10 % are 22.5 degrees (and nasion and inion 22.5 degrees below the equator). On real
  heads a sphere fitted to the electrodes has its centre at about the height of this ring.
- A row (F, FC, C ...) at p per cent is the circle through three points: the ring at p per cent of Fpz-Oz on the left,
  the midline at p per cent, the ring on the right. 1, 3, 5, 7 divide each half in four equal arcs; `h` halves them.
- 9 and 10 are one step (10 %) straight below the ring, 11 and 12 two steps.
- Sites outside the system are placed by anatomy, see OTHER.

The order is the id of an electrode and is frozen: new names go to the end, nothing is moved or removed.
Run: python tools/make_electrodes.py [FILE]
"""

import argparse
import math
from pathlib import Path

Point = tuple[float, float, float]

STEP = 22.5  # degrees on the sphere for 10 % of the line from nasion to inion

# Rows between the two ends: per cent -> (letters for 1 to 6, letters for 7 to 10).
ROWS = {
    15: ("AFp", "AFp"),
    20: ("AF", "AF"),
    25: ("AFF", "AFF"),
    30: ("F", "F"),
    35: ("FFC", "FFT"),
    40: ("FC", "FT"),
    45: ("FCC", "FTT"),
    50: ("C", "T"),
    55: ("CCP", "TTP"),
    60: ("CP", "TP"),
    65: ("CPP", "TPP"),
    70: ("P", "P"),
    75: ("PPO", "PPO"),
    80: ("PO", "PO"),
    85: ("POO", "POO"),
}

# Rows that lie on a ring themselves: letters -> (per cent of the ring at z, towards which side it runs, elevation).
ENDS = {"Fp": (0, 1, 0.0), "O": (100, -1, 0.0), "OI": (100, -1, -STEP / 2), "I": (100, -1, -STEP)}

FIRST = "Fp1 Fp2 F7 F3 Fz F4 F8 T7 C3 Cz C4 T8 P7 P3 Pz P4 P8 O1 O2"  # the classical 10-20 sites have the ids 1 to 19

# Left-hand sites outside the rows: per cent of the ring (0 front, 50 ear, 100 back), elevation in degrees. 25 mm on a
# head of 95 mm radius are 15 degrees. O9 is another name for the place of I1. Pg sits at the roof of the pharynx and Sp
# below the cheek bone: no place on a scalp, their directions only keep them apart from everything else.
OTHER = {
    "A1": (50, -STEP - 15),  # earlobe, 25 mm below the ear canal (T9)
    "M1": (60, -STEP - 15),  # mastoid, as low, one step behind it
    "T1": (40, -STEP + 6),  # anterior temporal: a third of the way from ear canal to eye corner, 1 cm up
    "Sp1": (42.5, -STEP - 15),
    "Pg1": (5, -67.5),
    "Cb1": (85, -1.5 * STEP),  # cerebellar, between the inion ring and the neck
    "F11": (30, -2 * STEP),
    "FT11": (40, -2 * STEP),
    "T11": (50, -2 * STEP),
    "TP11": (60, -2 * STEP),
    "P11": (70, -2 * STEP),
    "PO11": (80, -2 * STEP),
    "O9": (90, -STEP),
}


def on_ring(percent: float, elevation: float) -> Point:
    """Return the point on the left, ``percent`` of the way from front to back, ``elevation`` degrees up."""
    azimuth, height = math.radians(1.8 * percent), math.radians(elevation)
    return (-math.sin(azimuth) * math.cos(height), math.cos(azimuth) * math.cos(height), math.sin(height))


def on_row(percent: float, steps: float) -> Point:
    """Return the point ``steps`` quarters down the left half of a row, from midline (0) to ring (4), or below."""
    if steps >= 4:
        return on_ring(percent, -(steps - 4) * STEP)
    along = math.radians((percent - 10) / 10 * STEP)
    middle, side = (0.0, math.cos(along), math.sin(along)), on_ring(percent, 0)
    # The circle through side, middle and the mirrored side: the chord from middle to the halfway point of the two sides
    # and half their distance give its radius; it is walked from middle, sideways and down along the chord.
    chord_y, chord_z = middle[1] - side[1], middle[2] - side[2]
    chord = math.hypot(chord_y, chord_z)
    radius = (chord * chord + side[0] * side[0]) / (2 * chord)
    full = math.atan2(-side[0], radius - chord)
    turn = full * steps / 4
    drop = radius * (1 - math.cos(turn)) / chord
    return (-radius * math.sin(turn), middle[1] - chord_y * drop, middle[2] - chord_z * drop)


def mirrored(name: str) -> str:
    """Return the mirror electrode: F7h -> F8h; odd numbers are left, the next even number is right."""
    head = name.rstrip("h").rstrip("0123456789")
    digits = name.rstrip("h")[len(head) :]
    return head + str(int(digits) + 1) + name[len(head) + len(digits) :]


def places() -> dict[str, Point]:
    """Return every electrode in its frozen order: 10-20, 10-10, 10-05 (each from front to back), then the others."""
    coarse: dict[str, Point] = {}
    fine: dict[str, Point] = {}

    def pair(table: dict[str, Point], name: str, place: Point) -> None:
        table[name] = place
        table[mirrored(name)] = (-place[0], place[1], place[2])

    def end(letters: str) -> None:
        start, side, elevation = ENDS[letters]
        table = fine if letters == "OI" else coarse
        table[letters + "z"] = (0.0, *on_ring(start, elevation)[1:])
        pair(table, letters + "1", on_ring(start + side * 10, elevation))
        pair(fine, letters + "1h", on_ring(start + side * 5, elevation))

    end("Fp")
    for percent, (inner, outer) in ROWS.items():
        table = coarse if percent % 10 == 0 else fine
        table[inner + "z"] = on_row(percent, 0)
        for half in range(1, 11):
            number = 2 * math.ceil(half / 2) - 1
            name = f"{inner if number < 7 else outer}{number}"
            if half % 2:
                pair(fine, name + "h", on_row(percent, half / 2))
            else:
                pair(table, name, on_row(percent, half / 2))
    for letters in ("O", "OI", "I"):
        end(letters)
    others: dict[str, Point] = {}
    for name, (percent_of_ring, elevation) in OTHER.items():
        pair(others, name, on_ring(percent_of_ring, elevation))
    others["Nz"] = (0.0, *on_ring(0, -STEP)[1:])
    return {name: coarse[name] for name in FIRST.split()} | coarse | fine | others


def csv_text() -> str:
    """Return the text of the whole file; adding 0.0 turns a rounded -0.0 into 0.0."""
    lines = ["name,x,y,z"]
    lines += [",".join([name, *(f"{round(v, 4) + 0.0:.4f}" for v in place)]) for name, place in places().items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(__file__).resolve().parent.parent / "src" / "cerebro_eeg" / "channels" / "electrodes.csv"
    parser.add_argument("file", nargs="?", type=Path, default=default, help="where to write the table")
    parser.parse_args().file.write_text(csv_text(), encoding="ascii", newline="\n")
