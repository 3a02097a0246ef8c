"""Alignment: turns and fits measured electrode positions to the table of electrodes, before distances are measured.

Positions of a file lie on a real head: it is no sphere, its centre is unknown, and it leans (the head of MNE's
``standard_1005`` by 8 degrees, which is half of the way to the next electrode). So the nearest electrode means nothing
until the positions lie on our sphere as well as they can.

``align`` tries many turns. From each it goes on as "iterative closest point" does: give every position its nearest
electrode, fit the positions to these electrodes, and repeat. First it only turns the head, then it also moves and
stretches it a little, then it also bends it. Electrodes whose label is a known name are held at that name. Names of the
10-20 system are likelier than those between them. Turns that fit about as well as the best one are all returned: a name
is certain only where they agree. Standard library only.
"""

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from cerebro_eeg.channels.electrodes import (
    GRID,
    HEAD_MM,
    POSITIONS,
    TEN_TEN,
    TEN_TWENTY,
    Point,
    distance_mm,
    fit_sphere,
)

Matrix = list[list[float]]  # rows x, y, z; columns: the terms of ``_terms``

FEWEST = 5  # positions: fewer fit anywhere
_CAP = 15.0**2  # mm^2: a position farther from all electrodes fits none; it must not pull the others
_ANCHOR_CAP = 40.0**2
_ODDS = 8.0  # log of the odds from which on a choice is certain
_SIGMA = 1.5  # mm for each axis: positions are never known better than this
_FEW = 12.0  # mm, divided by their number: how much less a few positions tell
_FREEDOM = 8  # numbers that a fit chooses by itself
_LEVELS = {**dict.fromkeys(GRID, 36.0), **dict.fromkeys(TEN_TEN, 4.0), **dict.fromkeys(TEN_TWENTY, 0.0)}
_COARSE = tuple(name for name in GRID if name in TEN_TEN)
_SEARCHED = 40  # positions that choose among the turns
_TURNS = tuple(
    (tilt, roll, yaw) for tilt in range(-24, 25, 6) for roll in (-8, 0, 8) for yaw in (-8, 0, 8)
)  # degrees about the axis through the ears, through the nose, and upward
# Of the radius, upward: on some templates the ring Fpz-T7-Oz lies 18 degrees above the equator, and a few positions do
# not tell the centre of the head well.
_SHIFTS = (0.0, 0.31, -0.2)
_REFINED = 6
_DENSE = 2.2  # mm: sigma of positions that prove sites between the coarse ones
_OFF_SITES = 10.0**2  # mm^2: the margin for electrodes that are at no site
_ENOUGH = 6  # known names that tell how a numbered cap is turned, whatever its other electrodes are


# Caps of Biosemi number their electrodes. These are at sites of the 10-10 system, by the maker's coordinates.
_BIOSEMI = {
    "ABCD": "A1=Cz A19=Pz A23=Oz B22=C4 B26=T8 C17=Fpz C21=Fz D19=C3 D23=T7",
    "ABCDE": "A1=Cz A19=Pz A23=Oz C7=C4 B32=T8 D8=Fpz D4=Fz E4=C3 E9=T7",
    "ABCDEFGH": "A1=Cz A6=Pz A19=Oz C23=C4 C18=T8 E12=Fpz E17=Fz G16=C3 G11=T7",
}


def cap_names(labels: Sequence[str]) -> dict[int, str]:
    """Return the electrodes at known sites of a Biosemi cap with 128, 160 or 256 electrodes, by their numbers."""
    places = {label.upper(): index for index, label in enumerate(labels)}
    letters = "".join(letter for letter in "ABCDEFGH" if all(f"{letter}{n}" in places for n in range(1, 33)))
    known = (entry.split("=") for entry in _BIOSEMI.get(letters, "").split())
    return {places[label]: name for label, name in known}


# Geodesic nets (HydroCel, EGI) have few electrodes at sites. The maker lists those that stand for the 10-20 system.
_NETS = {
    64: "10=Fp1 5=Fp2 6=Fz 12=F3 60=F4 18=F7 58=F8 20=C3 50=C4 24=T7 52=T8 34=Pz 28=P3 42=P4 30=P7 44=P8 35=O1 39=O2 "
    "37=Oz",
    128: "22=Fp1 9=Fp2 11=Fz 24=F3 124=F4 33=F7 122=F8 36=C3 104=C4 45=T7 108=T8 62=Pz 52=P3 92=P4 58=P7 96=P8 70=O1 "
    "83=O2 75=Oz",
    256: "37=Fp1 18=Fp2 21=Fz 36=F3 224=F4 47=F7 2=F8 59=C3 183=C4 69=T7 202=T8 101=Pz 87=P3 153=P4 96=P7 170=P8 116=O1 "
    "150=O2 126=Oz",
}
_NET_MM = 22.0  # the stand-ins of HydroCel nets lie up to 19 mm from the sites; other numberings are off by far more


def net_names(labels: Sequence[str]) -> dict[int, str]:
    """Return the electrodes of a geodesic net with 64, 128 or 256 electrodes that stand for 10-20 sites, by number.

    The electrode after the last number is the reference, Cz.
    """
    places = {label.upper(): index for index, label in enumerate(labels)}
    count = next((count for count in sorted(_NETS, reverse=True) if f"E{count}" in places), 0)
    known = [entry.split("=") for entry in _NETS.get(count, "").split()] + [[str(count + 1), "Cz"]]
    there = sum(f"E{number}" in places for number in range(1, count + 1))
    if not count or there < 0.9 * count or any(f"E{number}" in places for number in range(count + 2, count + 9)):
        return {}
    return {places[f"E{number}"]: name for number, name in known if f"E{number}" in places}


def identify_net(points: Mapping[int, Point], names: Mapping[int, str], wanted: Collection[int]) -> dict[int, "Placed"]:
    """Name the electrodes of a geodesic net by its maker's table, if its positions agree with the table.

    Nothing is returned if they do not: earlier nets have the same labels and other places.
    """
    held = {index: name for index, name in names.items() if index in points}
    centre, found = fit_sphere(list(points.values()))
    if not found or len(held) < _ENOUGH:
        return {}
    order = sorted(points)
    moved = [tuple(a - b for a, b in zip(points[index], centre, strict=True)) for index in order]
    radius = sum(math.hypot(*point) for point in moved) / len(moved)
    scaled = [(x / radius, y / radius, z / radius) for x, y, z in moved]
    fitted = dict(zip(order, _by_names(scaled, [held.get(index) for index in order]), strict=True))
    distances = {index: distance_mm(fitted[index], POSITIONS[name]) for index, name in held.items()}
    if max(distances.values()) > _NET_MM:
        return {}
    other = Placed(None, why="an electrode of a geodesic net that stands for no 10-20 site")
    return {index: Placed(held[index], distances[index]) if index in held else other for index in wanted}


@dataclass(frozen=True)
class Alignment:
    """Positions as directions on our sphere, by all turns of the head that fit about as well as the first."""

    fits: tuple[Mapping[int, Point], ...]
    sigma: float
    """How far the electrodes lie from their names, in mm for each axis."""
    on_sites: bool
    """Whether the electrodes are at sites of the 10-05 system; those of geodesic nets are not."""
    doubtful: bool
    """Whether a wrong fit could be as good. Many electrodes between the coarse sites lie near some site anyhow."""

    @property
    def margin(self) -> float:
        """Difference in mm^2 from which on one choice is certain against another."""
        return 2 * self.sigma**2 * _ODDS if self.on_sites else _OFF_SITES


@dataclass(frozen=True)
class Placed:
    """The name of an electrode by its position, and its distance in mm; or the reason why it gets none."""

    name: str | None
    distance: float = 0.0
    why: str = ""


def identify(
    points: Mapping[int, Point],
    anchors: Mapping[int, str],
    wanted: Collection[int],
    used: Collection[str],
    limit: float,
    cap: Mapping[int, str],
) -> dict[int, Placed]:
    """Name the electrodes ``wanted`` by their positions, or say why not; no name of ``used`` is given again.

    ``anchors`` are the names of electrodes by their labels, ``cap`` those of a numbered cap (``cap_names``).
    A name is given only if no other is nearly as near, no other electrode claims it, and all turns of the head that fit
    agree on it.
    """
    key = tuple(sorted((index, point) for index, point in points.items()))
    held = {index: name for index, name in {**cap, **anchors}.items() if index in points}
    found = align(key, tuple(sorted(held.items())), cap=bool(cap))
    chosen = sorted(index for index in wanted if index in points)
    if found is None:
        few = f"{len(points)} positions are too few, or not those of a head, to tell how it is turned"
        return {index: Placed(None, why=few) for index in chosen}
    if not found.fits:
        why = "the positions fit no places of the 10-05 system, and too few have names to tell how the head is turned"
        return {index: Placed(None, why=why) for index in chosen}
    answers = [_choose(directions, chosen, used, limit, found) for directions in found.fits]
    result = {}
    for index in chosen:
        said = [answer[index] for answer in answers]
        unclear = next((placed for placed in said if placed.name is None), None)
        if unclear is None and len({placed.name for placed in said}) > 1:
            names = " or ".join(dict.fromkeys(str(placed.name) for placed in said))
            unclear = Placed(None, why=f"{names}, by how the head is turned")
        result[index] = unclear or said[0]
    return result


def _choose(
    directions: Mapping[int, Point], wanted: Sequence[int], used: Collection[str], limit: float, found: "Alignment"
) -> dict[int, Placed]:
    result: dict[int, Placed] = {}
    claims: dict[str, list[tuple[float, int]]] = {}
    for index in wanted:
        x, y, z = directions[index]
        near = sorted(
            (2 * HEAD_MM**2 * (1 - (x * a + y * b + z * c)) + _LEVELS[name], name)
            for name in (GRID if found.on_sites else _COARSE)
            for a, b, c in (POSITIONS[name],)
        )[:2]
        (first, name), (second, other) = near
        distance, away = (distance_mm(directions[index], POSITIONS[n]) for n in (name, other))
        if distance > limit:
            result[index] = Placed(None, why=f"no free electrode within {limit:.0f} mm")
        elif second - first < found.margin or (name not in _COARSE and found.sigma > _DENSE):
            result[index] = Placed(None, why=f"between {name} ({distance:.0f} mm) and {other} ({away:.0f} mm)")
        else:
            result[index] = Placed(name, distance)
        if distance <= limit:
            claims.setdefault(name, []).append((first, index))
    for name, group in claims.items():
        group.sort()
        if name in used:
            for _, index in group:
                result[index] = Placed(None, why=f"nearest to {name}, which is another channel")
        elif len(group) > 1:
            clear = group[1][0] - group[0][0] >= found.margin
            for _, index in group[1:] if clear else group:
                result[index] = Placed(None, why=f"nearest to {name}, as another electrode")
    return result


@functools.lru_cache(maxsize=64)  # the recordings of a corpus share a cap
def align(placed: tuple[tuple[int, Point], ...], named: tuple[tuple[int, str], ...], *, cap: bool) -> Alignment | None:
    """Fit positions in metres to the table; ``named`` are the electrodes of those with a known name.

    Of a numbered ``cap``, the known names turn the head alone: its other electrodes are at places of their own.
    None means that there are too few positions, or that they do not lie on a head.
    """
    points, anchors = dict(placed), dict(named)
    if len(points) < FEWEST:
        return None
    order = sorted(points, key=lambda index: points[index])  # the result does not depend on the order of labels
    centre, found = fit_sphere([points[index] for index in order])
    if not found:
        return None
    moved = [tuple(a - b for a, b in zip(points[index], centre, strict=True)) for index in order]
    radius = sum(math.hypot(*point) for point in moved) / len(moved)
    scaled = [(x / radius, y / radius, z / radius) for x, y, z in moved]
    held = [anchors.get(index) for index in order]
    best = _search(scaled, held)
    fits = [_refine(scaled, held, turn, shift, names) for turn, shift in best for names in (_COARSE, GRID)]
    fits.sort(key=itemgetter(0))
    least, first = fits[0]
    _, distances = _nearest(first, held, GRID)
    near = [d for d in distances if d < _CAP]  # without a few that are on the cheek or the neck
    # A few positions follow any fit, so their distances are small whether it is right or not.
    rest = math.sqrt(sum(near) / max(2, 2 * len(near) - _FREEDOM))
    sigma = max(_SIGMA + _FEW / (len(scaled) + 3 * len(anchors)), rest)
    limit = least + 2 * sigma**2 * _ODDS
    kept = [directions for cost, directions in fits if cost <= limit]
    on_sites, doubtful = _sites(first, held, sigma)
    doubtful |= len(scaled) - len(near) > max(1, 0.1 * len(scaled))
    doubtful |= len(scaled) <= _SEARCHED and rest > (2.0 if len(scaled) < 16 else 2.5)  # mm: no search is complete
    reach = min(max(side) for axis in (0, 1) for side in ([d[axis] for d in first], [-d[axis] for d in first]))
    doubtful |= reach < 0.5 and rest > _SIGMA  # one side of the head leaves its turn open
    if not on_sites or doubtful:
        on_sites, kept = False, [_by_names(scaled, held)] if cap and len(anchors) >= _ENOUGH else []
    return Alignment(tuple(dict(zip(order, fit, strict=True)) for fit in kept), sigma, on_sites, doubtful)


def _sites(directions: Sequence[Point], held: Sequence[str | None], sigma: float) -> tuple[bool, bool]:
    """Return ``on_sites`` and ``doubtful``. By chance 1 of 4 lies within 4 mm of a site, and 1 of 6 of a coarse one."""
    names, fine = _nearest(directions, held, GRID)
    _, coarse = _nearest(directions, held, _COARSE)
    count = len(directions)
    there = sum(d < 16 for d in fine) > 0.4 * count or sum(d < 25 for d in coarse) > 0.4 * count
    between, twice = sum(name not in _COARSE for name in names), count - len(set(names))
    dense = between > count / 4
    return there, twice > max(2, 0.1 * count) or (dense and (sigma > _DENSE or twice > max(1, 0.03 * count)))


def _search(scaled: Sequence[Point], held: Sequence[str | None]) -> list[tuple[Matrix, float]]:
    """Return the turns and shifts upward from which a fit is worth trying, as rotation matrices."""
    step = max(1, math.ceil(len(scaled) / _SEARCHED))
    chosen = [i for i in range(len(scaled)) if i % step == 0 or held[i] is not None]
    names = [held[i] for i in chosen]
    tried = []
    for shift in _SHIFTS:
        lowered = [_unit((scaled[i][0], scaled[i][1], scaled[i][2] - shift)) for i in chosen]
        starts = [_rotation(*turn) for turn in _TURNS]
        known = [(u, POSITIONS[name]) for u, name in zip(lowered, names, strict=True) if name is not None]
        if len(known) >= 3:
            turned = _kabsch(known)
            starts = [turned, *(_product(_rotation(*turn), turned) for turn in _TURNS if max(map(abs, turn)) <= 8)]
        for start in starts:
            turned_points = [_apply(start, u) for u in lowered]
            tried.append((_total(*_nearest(turned_points, names, _COARSE), names), start, shift))
    tried.sort(key=itemgetter(0))
    found: list[tuple[float, Matrix, float]] = []
    for _, start, shift in tried[: 3 * _REFINED]:
        lowered = [_unit((scaled[i][0], scaled[i][1], scaled[i][2] - shift)) for i in chosen]
        turn = start
        for _ in range(6):
            turned_points = [_apply(turn, u) for u in lowered]
            pairs = _pairs(lowered, *_nearest(turned_points, names, _COARSE))
            if len(pairs) < 4:
                break
            turn = _kabsch(pairs)
        cost = _total(*_nearest([_apply(turn, u) for u in lowered], names, _COARSE), names)
        if not any(shift == other and _apart(turn, before) < 3 for _, before, other in found):
            found.append((cost, turn, shift))
    found.sort(key=itemgetter(0))
    return [(turn, shift) for _, turn, shift in found[: _REFINED if len(scaled) > _SEARCHED else 2 * _REFINED]]


def _refine(
    scaled: Sequence[Point], held: Sequence[str | None], turn: Matrix, shift: float, names: tuple[str, ...]
) -> tuple[float, list[Point]]:
    """Move, stretch and bend the head until the electrodes lie best at ``names``; return cost and directions."""
    start = [[*row, -row[2] * shift] for row in turn]
    matrix, bending = start, 0.0
    directions = [_unit(_image(matrix, u)) for u in scaled]
    for degree, rounds in ((1, 5), (2, 5)):
        base = start if degree == 1 else [[*row, *[0.0] * 5] for row in matrix]
        for _ in range(rounds):
            pairs = _pairs(scaled, *_nearest(directions, held, names))
            if len(pairs) < FEWEST:
                break
            matrix, bending = _fit(pairs, base, degree)
            directions = [_unit(_image(matrix, u)) for u in scaled]
    lean = _apart(turn, _rotation(0, 0, 0)) / 12
    cost = _total(*_nearest(directions, held, GRID), held) + bending + 9 * lean**2
    return cost, directions


def _by_names(scaled: Sequence[Point], held: Sequence[str | None]) -> list[Point]:
    """Turn, move and stretch the head by the electrodes with known names alone; return all directions."""
    pairs = [(u, POSITIONS[name]) for u, name in zip(scaled, held, strict=True) if name is not None]
    turn = _kabsch([(_unit(u), place) for u, place in pairs])
    matrix, _ = _fit(pairs, [[*row, 0.0] for row in turn], 1)
    return [_unit(_image(matrix, u)) for u in scaled]


def _nearest(
    directions: Sequence[Point], held: Sequence[str | None], names: tuple[str, ...]
) -> tuple[list[str], list[float]]:
    """Return for each direction the likeliest name, and the squared distance to it in mm^2."""
    sites = _weighted(names)
    found, distances = [], []
    for (x, y, z), name in zip(directions, held, strict=True):
        if name is None:
            best, name = -2.0, names[0]
            for a, b, c, cost, other in sites:  # not max(): this loop is most of the time
                likely = x * a + y * b + z * c - cost
                if likely > best:
                    best, name = likely, other
        a, b, c = POSITIONS[name]
        found.append(name)
        distances.append(2 * HEAD_MM**2 * max(0.0, 1 - (x * a + y * b + z * c)))
    return found, distances


@functools.cache
def _weighted(names: tuple[str, ...]) -> tuple[tuple[float, float, float, float, str], ...]:
    return tuple((*POSITIONS[name], _LEVELS[name] / (2 * HEAD_MM**2), name) for name in names)


def _total(names: Sequence[str], distances: Sequence[float], held: Sequence[str | None]) -> float:
    """Return the cost of names at these squared distances. Two electrodes at one name cost as one that fits none."""
    total, taken = 0.0, set()
    for distance, name, known in sorted(zip(distances, names, (n is not None for n in held), strict=True)):
        if known:
            total += min(distance, _ANCHOR_CAP)
        else:
            total += _CAP if name in taken else min(distance + _LEVELS[name], _CAP)
        taken.add(name)
    return total


def _pairs(points: Sequence[Point], names: Sequence[str], distances: Sequence[float]) -> list[tuple[Point, Point]]:
    """Return each position with the place of its name, for those that are near enough, one for each name."""
    nearest: dict[str, tuple[float, Point]] = {}
    for point, name, distance in zip(points, names, distances, strict=True):
        if distance < _CAP and (name not in nearest or distance < nearest[name][0]):
            nearest[name] = (distance, point)
    return [(point, POSITIONS[name]) for name, (_, point) in nearest.items()]


def _terms(point: Point, degree: int) -> list[float]:
    x, y, z = point
    return [x, y, z, 1.0] if degree == 1 else [x, y, z, 1.0, x * x, y * y, x * y, x * z, y * z]


# How far a coefficient may go from where it was, against 4 mm on the head: stretching 10 %, moving 20 % and bending 5 %
# of the radius.
_RIDGE = (0.16, 0.16, 0.16, 0.04, 0.64, 0.64, 0.64, 0.64, 0.64)


def _fit(pairs: Sequence[tuple[Point, Point]], base: Matrix, degree: int) -> tuple[Matrix, float]:
    """Return the map with the least squares from the first to the second points, and what its changes cost in mm^2."""
    rows = [_terms(point, degree) for point, _ in pairs]
    size = len(rows[0])
    normal = [[sum(row[i] * row[j] for row in rows) for j in range(size)] for i in range(size)]
    for i in range(size):
        normal[i][i] += _RIDGE[i]
    matrix, cost = [], 0.0
    for axis in range(3):
        right = [
            sum(row[i] * target[axis] for row, (_, target) in zip(rows, pairs, strict=True)) + _RIDGE[i] * base[axis][i]
            for i in range(size)
        ]
        line = _solve(normal, right)
        cost += sum(_RIDGE[i] * (line[i] - base[axis][i]) ** 2 for i in range(size))
        matrix.append(line)
    return matrix, cost * HEAD_MM**2


def _solve(matrix: Matrix, right: Sequence[float]) -> list[float]:
    """Solve equations with a positive definite matrix by elimination."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    size = len(rows)
    for i in range(size):
        pivot = max(range(i, size), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in range(i + 1, size):
            factor = rows[r][i] / rows[i][i]
            if factor:
                rows[r] = [a - factor * b for a, b in zip(rows[r], rows[i], strict=True)]
    solved = [0.0] * size
    for i in reversed(range(size)):
        solved[i] = (rows[i][size] - sum(rows[i][j] * solved[j] for j in range(i + 1, size))) / rows[i][i]
    return solved


def _image(matrix: Matrix, point: Point) -> Point:
    terms = _terms(point, 1 if len(matrix[0]) == 4 else 2)
    x, y, z = (sum(a * b for a, b in zip(row, terms, strict=True)) for row in matrix)
    return x, y, z


def _unit(point: Point) -> Point:
    length = math.hypot(*point) or 1.0
    return point[0] / length, point[1] / length, point[2] / length


def _apply(matrix: Matrix, point: Point) -> Point:
    x, y, z = point
    a, b, c = matrix
    return a[0] * x + a[1] * y + a[2] * z, b[0] * x + b[1] * y + b[2] * z, c[0] * x + c[1] * y + c[2] * z


def _product(first: Matrix, second: Matrix) -> Matrix:
    columns = list(zip(*second, strict=True))
    return [[sum(a * b for a, b in zip(row, column, strict=True)) for column in columns] for row in first]


def _rotation(tilt: float, roll: float, yaw: float) -> Matrix:
    """Return the turn about x, then y, then z, in degrees."""
    (a, b), (c, d), (e, f) = ((math.cos(math.radians(t)), math.sin(math.radians(t))) for t in (tilt, roll, yaw))
    about_x: Matrix = [[1.0, 0.0, 0.0], [0.0, a, -b], [0.0, b, a]]
    about_y: Matrix = [[c, 0.0, d], [0.0, 1.0, 0.0], [-d, 0.0, c]]
    about_z: Matrix = [[e, -f, 0.0], [f, e, 0.0], [0.0, 0.0, 1.0]]
    return _product(about_z, _product(about_y, about_x))


def _apart(a: Matrix, b: Matrix) -> float:
    """Return the angle between two turns in degrees."""
    trace = sum(x * y for row, other in zip(a, b, strict=True) for x, y in zip(row, other, strict=True))
    return math.degrees(math.acos(min(1.0, max(-1.0, (trace - 1) / 2))))


def _kabsch(pairs: Sequence[tuple[Point, Point]]) -> Matrix:
    """Return the rotation that best turns the first points into the second ones (Horn's quaternion)."""
    s = [[sum(a[i] * b[j] for a, b in pairs) for j in range(3)] for i in range(3)]
    n = [
        [s[0][0] + s[1][1] + s[2][2], s[1][2] - s[2][1], s[2][0] - s[0][2], s[0][1] - s[1][0]],
        [s[1][2] - s[2][1], s[0][0] - s[1][1] - s[2][2], s[0][1] + s[1][0], s[2][0] + s[0][2]],
        [s[2][0] - s[0][2], s[0][1] + s[1][0], s[1][1] - s[0][0] - s[2][2], s[1][2] + s[2][1]],
        [s[0][1] - s[1][0], s[2][0] + s[0][2], s[1][2] + s[2][1], s[2][2] - s[0][0] - s[1][1]],
    ]
    # The largest eigenvalue is about the number of pairs, the others are smaller: squaring finds its vector.
    shift = float(len(pairs))
    power = [[value + (shift if i == j else 0.0) for j, value in enumerate(row)] for i, row in enumerate(n)]
    for _ in range(12):
        power = _product(power, power)
        size = max(abs(value) for row in power for value in row) or 1.0
        power = [[value / size for value in row] for row in power]
    w, x, y, z = max(power, key=lambda row: sum(value * value for value in row))
    length = math.sqrt(w * w + x * x + y * y + z * z) or 1.0
    w, x, y, z = w / length, x / length, y / length, z / length
    return [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
