"""Spherical splines: a channel computed from the others, by where the electrodes lie on the head.

After Perrin et al., "Spherical splines for scalp potential and current density mapping", Electroenceph. Clin.
Neurophysiol. 72 (1989) 184, with the constants of MNE (``mne.channels.interpolation``): order 4, 50 terms.
"""

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.channels.electrodes import POSITIONS

ORDER, TERMS = 4, 50
STIFFNESS = 1e-5
"""What is added to the diagonal, so that two electrodes at one place do not make the equations singular."""


def spline_weights(to: NDArray[np.float64], given: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weights (to, given) that turn the potential at ``given`` directions into that at ``to``, (n, 3)."""
    given = given / np.linalg.norm(given, axis=1, keepdims=True)
    to = to / np.linalg.norm(to, axis=1, keepdims=True)
    count = len(given)
    equations = np.ones((count + 1, count + 1))
    equations[:count, :count] = _kernel(given @ given.T) + STIFFNESS * np.eye(count)
    equations[count, count] = 0
    known = np.concatenate([_kernel(to @ given.T), np.ones((len(to), 1))], 1)
    found: NDArray[np.float64] = known @ np.linalg.pinv(equations)[:, :count]
    return found


def from_the_others(names: tuple[str, ...]) -> dict[int, NDArray[np.float64]]:
    """Return weights (channels,) that compute a channel from all others, by the place of the channel in ``names``.

    Only single electrodes whose place on the head is known can be computed, from four or more others.
    """
    placed = [place for place, name in enumerate(names) if name in POSITIONS]
    where = np.array([POSITIONS[names[place]] for place in placed]).reshape(-1, 3)
    found = {}
    for row, place in enumerate(placed if len(placed) > 4 else []):
        others = np.delete(np.arange(len(placed)), row)
        weights = np.zeros(len(names))
        weights[np.array(placed)[others]] = spline_weights(where[[row]], where[others])[0]
        found[place] = weights
    return found


def _kernel(cosine: NDArray[np.float64]) -> NDArray[np.float64]:
    number = np.arange(1, TERMS + 1)
    factors = (2 * number + 1) / (number**ORDER * (number + 1) ** ORDER * 4 * np.pi)
    found: NDArray[np.float64] = np.polynomial.legendre.legval(np.clip(cosine, -1, 1), [0, *factors])
    return found
