"""Features: one .npz or .parquet file with the features of any number of recordings, which memory need not hold.

Each column is written to a hidden file beside the target until all recordings are done. A recording that fails halfway
leaves no rows, and a killed run leaves no target. A row is a window, or one channel of a window. No pickle.

The file carries the SHA-256 of its own bytes: an .npz in the comment of the archive, a .parquet file in its metadata.
"""

import contextlib
import os
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from cerebro_eeg.errors import ConfigError, import_trouble
from cerebro_eeg.files import replacing, seal

KINDS = (".npz", ".parquet")
PIECE = 1 << 22  # bytes that are copied at a time
GROUP = 1 << 26  # bytes of features in a row group of a parquet file
SEALS = {".npz": b"sha256=", ".parquet": b"cerebro_eeg_sha256\x18\x40"}
"""What stands before the sum in a file. In parquet that is the name of a field and, in Thrift's form, a text of 64."""
_ZEROS = "0" * 64
TEXT = np.dtype("<U24")  # holds an id, and the longest name of a channel


def check_target(path: Path) -> None:
    """Refuse a path that cannot become a file of features, before any work is done for it."""
    if path.suffix.casefold() not in KINDS:
        raise ConfigError(f"--out ends in {path.suffix or 'nothing'!r}; expected a file name with .npz or .parquet")
    if path.is_dir():
        raise ConfigError("--out names a folder; give the name of a file, such as features.npz")
    if path.suffix.casefold() == ".parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                f"no parquet file can be written: {import_trouble(error, 'pyarrow')}, or write .npz"
            ) from None


class FeatureFile:
    """A file of features while it is written: one ``recording`` block per recording, then ``finish``."""

    def __init__(self, path: Path, shape: tuple[int, ...], *, channels: bool) -> None:
        """``shape`` is the shape of the features of one row; with ``channels`` a row also names its channel."""
        self._path, self._shape = path, shape
        texts = ["recording", *(["channel"] if channels else [])]
        self._types = {**dict.fromkeys(texts, TEXT), "start": np.dtype("<f8"), "features": np.dtype("<f4")}
        self.rows = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._stack = contextlib.ExitStack()
        self._files: dict[str, IO[bytes]] = {}
        for name in self._types:
            spool = path.with_name(f".{path.name}.{os.getpid()}.{name}.tmp")
            self._files[name] = self._stack.enter_context(spool.open("w+b"))
            self._stack.callback(spool.unlink, missing_ok=True)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Keep all rows that are added in this block, or none if it raises."""
        before = self.rows
        try:
            yield
        except BaseException:
            self.rows = before
            for name, file in self._files.items():
                file.seek(before * self._row_bytes(name))
                file.truncate()
            raise

    def add(
        self,
        id: str,
        start_B: NDArray[np.float64],
        features: NDArray[np.float32],
        channels: Sequence[str] | None = None,
    ) -> None:
        """Add windows of the recording ``id``: one row each or, with the names of ``channels``, one row per channel.

        ``features`` are then (windows, channels, ...), otherwise (windows, ...).
        """
        columns: dict[str, NDArray[np.generic]] = {"start": start_B, "features": features}
        if channels is not None:
            columns["start"] = start_B.repeat(len(channels))
            columns["channel"] = np.tile(np.array(channels), len(start_B))
        columns["recording"] = np.full(len(columns["start"]), id)
        for name, values in columns.items():
            self._files[name].write(np.ascontiguousarray(values, self._types[name]).tobytes())
        self.rows += len(columns["start"])

    def finish(self) -> None:
        """Write the target from the hidden files."""
        for file in self._files.values():
            file.flush()
        with replacing(self._path) as temporary:
            if self._path.suffix.casefold() == ".npz":
                self._write_npz(temporary)
            else:
                self._write_parquet(temporary)
            seal(temporary, SEALS[self._path.suffix.casefold()])

    def close(self) -> None:
        """Remove the hidden files; without ``finish`` nothing is left."""
        self._stack.close()

    def __enter__(self) -> "FeatureFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _row_bytes(self, name: str) -> int:
        return self._types[name].itemsize * (int(np.prod(self._shape)) if name == "features" else 1)

    def _write_npz(self, path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for name, kind in self._types.items():
                shape = (self.rows, *(self._shape if name == "features" else ()))
                entry = zipfile.ZipInfo(f"{name}.npy")  # has no time of day, so equal features give equal bytes
                with archive.open(entry, "w", force_zip64=True) as target:
                    head = {"descr": npy.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
                    npy.write_array_header_2_0(target, head)
                    file = self._files[name]
                    file.seek(0)
                    while piece := file.read(PIECE):
                        target.write(piece)
            archive.comment = SEALS[".npz"] + _ZEROS.encode()

    def _write_parquet(self, path: Path) -> None:
        """Write features as flat lists of fixed length; the metadata of the schema holds their shape."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        size = int(np.prod(self._shape))
        types = {TEXT: pa.string(), np.dtype("<f8"): pa.float64(), np.dtype("<f4"): pa.list_(pa.float32(), size)}
        schema = pa.schema(
            [(name, types[kind]) for name, kind in self._types.items()],
            metadata={"features_shape": "x".join(map(str, self._shape))},
        )
        rows = max(1, GROUP // (4 * size))
        with pq.ParquetWriter(path, schema, write_page_checksum=True) as writer:
            for first in range(0, self.rows, rows):
                count = min(rows, self.rows - first)
                columns = []
                for name, kind in self._types.items():
                    file = self._files[name]
                    file.seek(first * self._row_bytes(name))
                    values = np.frombuffer(file.read(count * self._row_bytes(name)), kind)
                    if name == "features":
                        columns.append(pa.FixedSizeListArray.from_arrays(pa.array(values), size))
                    else:
                        columns.append(pa.array(values.tolist() if kind == TEXT else values))
                writer.write_table(pa.Table.from_arrays(columns, schema=schema))
            writer.add_key_value_metadata({"cerebro_eeg_sha256": _ZEROS})
