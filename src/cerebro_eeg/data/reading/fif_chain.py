"""Does the chain of tags of a FIF file have an end? MNE follows it for ever where it runs in a circle.

A tag has four big-endian numbers: kind, type, bytes of its data, and where the next tag is (0: behind the data, -1:
nowhere), as mne/_fiff/tag.py has it. A chain with more tags than the file has room for is a circle.
"""

import gzip
import struct
import zlib
from pathlib import Path
from typing import IO

from cerebro_eeg.data.reading.edf_samples import opened
from cerebro_eeg.errors import RecordingError

_FILE_ID = 100
_MOST = 1 << 40


def check_fif(path: Path) -> None:
    """Raise RecordingError unless all tags lie in the file, one after the other, and end."""
    with opened(path) as (read, stamp):
        packed = read(0, min(2, stamp.size)) == b"\x1f\x8b"
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            _follow(file, _MOST if packed else stamp.size)
    except (OSError, EOFError, zlib.error) as error:
        raise RecordingError("unreadable", f"cannot be read ({type(error).__name__}); copy the file anew") from None


def _follow(file: "IO[bytes] | gzip.GzipFile", size: int) -> None:
    place, tags = 0, 0
    while True:
        file.seek(place)
        head = file.read(16)
        if not head and tags:
            return  # without a last tag: the recorder was stopped hard, what came before is whole
        if len(head) < 16:
            raise RecordingError("truncated", "a FIF file that is cut in mid-tag; copy it anew")
        kind, _, length, following = struct.unpack(">iiii", head)
        if not tags and kind != _FILE_ID:
            raise RecordingError("format", "no FIF file: it does not begin with a file id")
        tags += 1
        if length < 0 or place + 16 + length > size:
            raise RecordingError("truncated", "a FIF file with a tag that reaches beyond its end; copy it anew")
        if following == -1:
            return
        if following < 0 or tags > size // 16 or following > size:
            raise RecordingError("damaged", "a FIF file whose chain of tags leads nowhere; copy it anew")
        # In a compressed file going back is slow, and nobody writes such a chain.
        if following and following <= place and isinstance(file, gzip.GzipFile):
            raise RecordingError("damaged", "a FIF file whose chain of tags leads nowhere; copy it anew")
        place = following or place + 16 + length
