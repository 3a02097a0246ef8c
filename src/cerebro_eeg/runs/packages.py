"""Packages that a verb needs late: they are looked for before the work, so that none is lost for want of one."""

import importlib.util

from cerebro_eeg.errors import ConfigError

INSTALL = {"sklearn": "scikit-learn"}
"""Names to install by, if they are not the names to import by."""


def is_installed(name: str) -> bool:
    """Return whether a package can be imported; it is not loaded."""
    return importlib.util.find_spec(name) is not None


def require_packages(*names: str, why: str) -> None:
    """Raise an error that names what to install, if one of the packages is missing."""
    missing = [INSTALL.get(name, name) for name in names if not is_installed(name)]
    if missing:
        listed = " and ".join(missing)
        raise ConfigError(f"{why} needs the package {listed}, which is not installed; pip install {' '.join(missing)}")


def no_events() -> str | None:
    """Return why events of seizures cannot be scored here, and what to do; None if they can."""
    if is_installed("timescoring"):
        return None
    return (
        "the scores of events are left out, for want of the package timescoring; pip install timescoring, and evaluate "
        "again: that adds them from the kept predictions and counts as no new scoring"
    )
