"""``cerebro-eeg verify``: is everything still as it was written?"""

import time
from pathlib import Path

from cerebro_eeg.progress import Progress, in_bytes, time_left
from cerebro_eeg.runs.verify import VerifyResult
from cerebro_eeg.runs.verify import verify as verify_paths


def verify(paths: tuple[Path, ...], /) -> VerifyResult:
    """Check stores, runs, checkpoints, features and predictions for damage, by the sums that were written with them.

    Nothing is changed. For each path the output says what was checked, what is damaged, and what has no sum and could
    not be checked. The exit code is 0 where nothing is damaged, and 9 where something is.

    Try, for example:
      cerebro-eeg verify my-store my-run
      cerebro-eeg verify my-features.npz --json

    Args:
        paths: Folders or files that cerebro-eeg wrote.
    """
    progress, began = Progress(), time.monotonic()

    def tell(done: int, total: int) -> None:
        if progress.due():
            left = time_left(done, total, time.monotonic() - began)
            progress.show(f"{in_bytes(done)} of {in_bytes(total)} checked, {left} left", done / max(1, total))

    try:
        return verify_paths(paths, tell)
    finally:
        progress.end()
