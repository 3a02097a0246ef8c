"""Electrodes: the vocabulary of names with ids and directions on the head, and which electrodes are near each other.

``electrodes.csv`` beside this file is written by ``tools/make_electrodes.py`` from the geometry of the 10-20, 10-10 and
10-05 systems. Its order is frozen: the id of ``VOCABULARY[i]`` is ``i + 1`` in every checkpoint ever written, so names
may only be appended. Id 0 is the pad, and the missing second electrode of a referential channel.

Directions are unit vectors: x to the right ear, y to the nose, z to the vertex. Standard library only.
"""

import math
import os
from collections.abc import Iterable, Mapping, Sequence

Point = tuple[float, float, float]
Key = tuple[str, int]  # a label, and a number that tells equal labels apart


def _read_table() -> dict[str, Point]:
    # Not pathlib: its import would take a tenth of the time that this module may take.
    with open(os.path.join(os.path.dirname(__file__), "electrodes.csv"), encoding="ascii") as file:
        rows = [line.rstrip().split(",") for line in file][1:]
    return {name: (float(x), float(y), float(z)) for name, x, y, z in rows}


POSITIONS: Mapping[str, Point] = _read_table()
VOCABULARY: tuple[str, ...] = tuple(POSITIONS)
IDS: Mapping[str, int] = {name: number for number, name in enumerate(VOCABULARY, 1)}

HEAD_MM = 95.0  # radius of the head on which angles are expressed in millimetres
DEFAULT_CENTRE: Point = (0.0, 0.0, 0.04)  # centre of a head in metres, for too few positions to fit a sphere

# Not on the scalp, or (ears and mastoids) usually the reference: a scalp electrode is never mapped to these.
OFF_SCALP = frozenset({"A1", "A2", "M1", "M2", "Sp1", "Sp2", "Pg1", "Pg2"})
# Sites that an unnamed electrode may be mapped to by position: the 10-05 grid down to the ring through nasion, ears and
# inion. Left out are the sites above, those that share or crowd a grid point (T1 T2 Cb1 Cb2 O9 O10 Nz), and the rows 11
# and 12 on cheek and neck, whose place on a sphere is mostly a convention.
GRID = tuple(
    name
    for name in VOCABULARY
    if name not in OFF_SCALP
    and name not in {"T1", "T2", "Cb1", "Cb2", "O9", "O10", "Nz"}
    and not name.endswith(("11", "12"))
)
# The first 19 names are the classical 10-20 sites; the 10-10 sites follow and end at the first 10-05 name.
TEN_TWENTY = VOCABULARY[:19]
TEN_TEN = VOCABULARY[: VOCABULARY.index("Fp1h")]


def angle(a: Point, b: Point) -> float:
    """Return the angle between two directions in radians; it is exact for small angles, too."""
    cross = (a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])
    return math.atan2(math.hypot(*cross), a[0] * b[0] + a[1] * b[1] + a[2] * b[2])


def distance_mm(a: Point, b: Point) -> float:
    """Return the distance along the scalp between two directions, on a head of 95 mm radius."""
    return HEAD_MM * angle(a, b)


def fit_sphere(points: Sequence[Point]) -> tuple[Point, bool]:
    """Return the centre of the least-squares sphere through ``points`` (metres), and whether it was fitted.

    ``DEFAULT_CENTRE`` is returned for fewer than four points, points (nearly) in one plane, or a sphere that is no head
    (radius outside 4 to 14 cm, or centre more than 6 cm from the default).
    """
    count = len(points)
    if count < 4:
        return DEFAULT_CENTRE, False
    mean = [sum(point[axis] for point in points) / count for axis in range(3)]
    # About the mean, |p|^2 = 2 c.p + k splits into k = mean |p|^2 and three normal equations for c.
    centred = [[point[axis] - mean[axis] for axis in range(3)] for point in points]
    squares = [sum(value * value for value in point) for point in centred]
    matrix = [[2 * sum(p[i] * p[j] for p in centred) for j in range(3)] for i in range(3)]
    right = [sum(square * p[i] for square, p in zip(squares, centred, strict=True)) for i in range(3)]
    size = sum(matrix[i][i] for i in range(3)) / 3
    determinant = _determinant(matrix)
    if size == 0 or abs(determinant) < 1e-4 * size**3:
        return DEFAULT_CENTRE, False
    solved = []
    for axis in range(3):
        replaced = [[right[i] if j == axis else matrix[i][j] for j in range(3)] for i in range(3)]
        solved.append(_determinant(replaced) / determinant)
    radius = math.sqrt(sum(squares) / count + sum(value * value for value in solved))
    centre = (solved[0] + mean[0], solved[1] + mean[1], solved[2] + mean[2])
    if not 0.04 <= radius <= 0.14 or math.dist(centre, DEFAULT_CENTRE) > 0.06:
        return DEFAULT_CENTRE, False
    return centre, True


def _determinant(m: Sequence[Sequence[float]]) -> float:
    return (
        m[0][0] * (m[1][1] * m[2][2] - m[1][2] * m[2][1])
        - m[0][1] * (m[1][0] * m[2][2] - m[1][2] * m[2][0])
        + m[0][2] * (m[1][0] * m[2][1] - m[1][1] * m[2][0])
    )


def assign(
    directions: Mapping[Key, Point], targets: Iterable[str], limit_mm: float = math.inf
) -> dict[Key, tuple[str, float]]:
    """Assign each key to the nearest target within ``limit_mm``, none twice; the closest pairs are joined first.

    The result maps key -> (electrode, millimetres); a key without a free target in reach is absent. A tie goes to the
    lower id, then to the smaller key, so the result does not depend on any order.
    """
    wanted = list(targets)
    pairs = sorted(
        (distance, IDS[target], key)
        for key, direction in directions.items()
        for target in wanted
        if (distance := round(distance_mm(direction, POSITIONS[target]), 6)) <= limit_mm
    )
    found: dict[Key, tuple[str, float]] = {}
    used: set[int] = set()
    for distance, number, key in pairs:
        if key not in found and number not in used:
            found[key] = (VOCABULARY[number - 1], distance)
            used.add(number)
    return found


def spread_out(n: int) -> tuple[str, ...]:
    """Return ``n`` electrodes that cover the scalp: 10-20 sites first, then always the one farthest from those taken.

    Groups follow each other (10-20, 10-10, 10-05), so a shorter list is the start of a longer one.
    """
    taken: list[str] = []
    nearest = dict.fromkeys(GRID, math.inf)
    for group in (TEN_TWENTY, TEN_TEN, GRID):
        left = [name for name in group if name in nearest]
        while left and len(taken) < n:
            # A cap starts at Cz; of equals max() takes the first, hence the lower id.
            best = "Cz" if not taken else max(left, key=lambda name: round(nearest[name], 6))
            taken.append(best)
            left.remove(best)
            del nearest[best]
            for name in nearest:
                nearest[name] = min(nearest[name], angle(POSITIONS[name], POSITIONS[best]))
    return tuple(taken)
