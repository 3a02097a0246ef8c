"""Fit the polynomial of ``fast/triton/mlp.py``: the normal distribution below x as 1/2 + x p(x^2).

    python benchmarks/gelu_fit.py

It minimises the largest error on |x| <= 4.2 by Lawson's iteration: least squares with weights that grow where the error
is large. It prints the coefficients in float32 and their largest error. Beyond 4.2 the result is 0 or 1.
"""

import numpy as np
from numpy.polynomial import chebyshev, polynomial
from scipy.special import ndtr

DEGREE, END = 8, 4.2


def fit(rounds=400):
    """Return the coefficients of x, x^3, ... in float32."""
    x = np.sin(np.linspace(0, np.pi / 2, 3000))[1:] * END
    basis = x[:, None] * chebyshev.chebvander(2 * (x / END) ** 2 - 1, DEGREE)
    weights = np.ones(len(x))
    for _ in range(rounds):
        root = np.sqrt(weights)
        found = np.linalg.lstsq(basis * root[:, None], (ndtr(x) - 0.5) * root, rcond=None)[0]
        weights *= np.abs(basis @ found - (ndtr(x) - 0.5))
        weights /= weights.sum()
    total, power = np.zeros(1), np.ones(1)
    for coefficient in chebyshev.cheb2poly(found):
        total = polynomial.polyadd(total, coefficient * power)
        power = polynomial.polymul(power, [-1.0, 2 / END**2])
    return total.astype(np.float32)


def largest_error(coefficients):
    """Return the largest error on [-12, 12], computed in float32 as the kernel does."""
    x = np.linspace(-12, 12, 400_001, dtype=np.float32)
    t = np.minimum(x * x, np.float32(END * END))
    found = np.zeros_like(x)
    for coefficient in coefficients[::-1]:
        found = found * t + coefficient
    return np.abs(np.clip(found * x + np.float32(0.5), 0, 1) - ndtr(x.astype(float))).max()


if __name__ == "__main__":
    coefficients = fit()
    print(f"largest error {largest_error(coefficients):.1e}")
    print(", ".join(repr(float(c)) for c in coefficients))
