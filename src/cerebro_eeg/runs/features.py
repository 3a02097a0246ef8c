"""Features: one .npz, .parquet or .csv file with the features of any number of recordings, which memory need not hold.

Each column is written to a hidden file beside the target until all recordings are done. A recording that fails halfway
leaves no rows, and a killed run leaves no target. A row is a window, or one channel of a window. No pickle.

Tables (.parquet, .csv) have a column f0, f1, ... per number. A parquet file of tokens has one column of lists instead,
because tokens are thousands of numbers.

A file carries the SHA-256 of its own bytes: an .npz in the comment of the archive, a .parquet file in its metadata. A
.csv file has no place for it, so a file beside it has, as ``sha256sum`` writes it.
"""

import contextlib
import csv
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from cerebro_eeg.errors import ConfigError, InputError, import_trouble
from cerebro_eeg.files import file_sum, replacing, seal, write_text
from cerebro_eeg.notebook import Shown
from cerebro_eeg.progress import counted
from cerebro_eeg.terminal import CsvWriter

KINDS = (".npz", ".parquet", ".csv")
PIECE = 1 << 22  # bytes that are copied at a time
GROUP = 1 << 26  # bytes of features in a row group of a parquet file
SEALS = {".npz": b"sha256=", ".parquet": b"cerebro_eeg_sha256\x18\x40"}
"""What stands before the sum in a file. In parquet that is the name of a field and, in Thrift's form, a text of 64."""
_ZEROS = "0" * 64
TEXT = np.dtype("<U24")  # holds an id, and the longest name of a channel
NUMBER = np.dtype("<f8")


def check_target(path: Path, *, tokens: bool = False) -> None:
    """Refuse a path that cannot become a file of features, before any work is done for it."""
    if path.suffix.casefold() not in KINDS:
        raise ConfigError(
            f"--out ends in {path.suffix or 'nothing'!r}; expected a file name with .npz or .parquet or .csv"
        )
    if path.is_dir():
        raise ConfigError("--out names a folder; give the name of a file, such as features.npz")
    if tokens and path.suffix.casefold() == ".csv":
        raise ConfigError(
            "tokens are too many numbers for a .csv file; write .npz or .parquet, or choose another level"
        )
    if path.suffix.casefold() == ".parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                f"no parquet file can be written: {import_trouble(error, 'pyarrow')}, or write .npz"
            ) from None


def sum_file(path: Path) -> Path:
    """Return the file with the sum of a .csv file."""
    return path.with_name(f"{path.name}.sha256")


def text_of(values: Sequence[str]) -> np.dtype[np.str_]:
    """Return a type that holds all of these texts."""
    return np.dtype(f"<U{max(24, *map(len, values))}") if values else TEXT


class FeatureFile:
    """A file of features while it is written: one ``recording`` block per recording, then ``finish``."""

    def __init__(
        self,
        path: Path,
        shape: tuple[int, ...],
        *,
        channels: bool,
        further: Mapping[str, np.dtype[Any]] | None = None,
    ) -> None:
        """``shape`` is the shape of the features of one row; with ``channels`` a row also names its channel.

        ``further`` are the types of further columns. An entry "recording" gives ids another type than ``TEXT``.
        """
        self._path, self._shape = path, shape
        kinds = dict(further or {})
        self._types: dict[str, np.dtype[Any]] = {"recording": kinds.pop("recording", TEXT)}
        self._types |= {"channel": TEXT} if channels else {}
        self._further = tuple(kinds)
        self._types |= {"start": NUMBER, **kinds, "features": np.dtype("<f4")}
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
        further: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        """Add windows of the recording ``id``: one row each or, with the names of ``channels``, one row per channel.

        ``features`` are then (windows, channels, ...), otherwise (windows, ...). ``further`` has the further columns,
        an entry per window.
        """
        repeats = 1 if channels is None else len(channels)
        columns: dict[str, NDArray[Any]] = {"start": start_B.repeat(repeats), "features": features}
        columns |= {name: np.asarray((further or {})[name]).repeat(repeats) for name in self._further}
        if channels is not None:
            columns["channel"] = np.tile(np.array(channels), len(start_B))
        columns["recording"] = np.full(len(columns["start"]), id)
        for name, values in columns.items():
            self._files[name].write(np.ascontiguousarray(values, self._types[name]).tobytes())
        self.rows += len(columns["start"])

    @property
    def names(self) -> tuple[str, ...]:
        """The columns beside the features."""
        return tuple(name for name in self._types if name != "features")

    def finish(self) -> None:
        """Write the target from the hidden files."""
        for file in self._files.values():
            file.flush()
        kind = self._path.suffix.casefold()
        with replacing(self._path) as temporary:
            {".npz": self._write_npz, ".parquet": self._write_parquet, ".csv": self._write_csv}[kind](temporary)
            if kind in SEALS:
                seal(temporary, SEALS[kind])
        if kind not in SEALS:
            write_text(sum_file(self._path), f"{file_sum(self._path)}  {self._path.name}\n")

    def close(self) -> None:
        """Remove the hidden files; without ``finish`` nothing is left."""
        self._stack.close()

    def __enter__(self) -> "FeatureFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _flat(self) -> bool:
        """Whether a table has a column per number."""
        return len(self._shape) == 1

    def _row_bytes(self, name: str) -> int:
        return self._types[name].itemsize * (int(np.prod(self._shape)) if name == "features" else 1)

    def _read(self, name: str, first: int, count: int) -> NDArray[Any]:
        """Return some rows of a column; features are (rows, numbers)."""
        file = self._files[name]
        file.seek(first * self._row_bytes(name))
        values = np.frombuffer(file.read(count * self._row_bytes(name)), self._types[name])
        return values.reshape(count, -1) if name == "features" else values

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
        """Write a column per number or, of tokens, lists of fixed length; the metadata hold the shape of a row."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        size = int(np.prod(self._shape))
        fields: list[tuple[str, Any]] = []
        for name, kind in self._types.items():
            if name != "features":
                fields.append((name, pa.string() if kind.kind == "U" else pa.float64()))
            elif self._flat:
                fields += [(column, pa.float32()) for column in number_names(size)]
            else:
                fields.append((name, pa.list_(pa.float32(), size)))
        schema = pa.schema(fields, metadata={"features_shape": "x".join(map(str, self._shape))})
        rows = max(1, GROUP // (4 * size))
        with pq.ParquetWriter(path, schema, write_page_checksum=True) as writer:
            for first in range(0, self.rows, rows):
                count = min(rows, self.rows - first)
                columns: list[Any] = []
                for name, kind in self._types.items():
                    values = self._read(name, first, count)
                    if name != "features":
                        columns.append(pa.array(values.tolist() if kind.kind == "U" else values))
                    elif self._flat:
                        columns += [pa.array(np.ascontiguousarray(column)) for column in values.T]
                    else:
                        columns.append(pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), size))
                writer.write_table(pa.Table.from_arrays(columns, schema=schema))
            writer.add_key_value_metadata({"cerebro_eeg_sha256": _ZEROS})

    def _write_csv(self, path: Path) -> None:
        names = [name for name in self._types if name != "features"]
        rows = max(1, PIECE // (4 * self._shape[0]))
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = CsvWriter(file)
            writer.writerow([*names, *number_names(self._shape[0])])
            for first in range(0, self.rows, rows):
                count = min(rows, self.rows - first)
                columns = [self._read(name, first, count).tolist() for name in names]
                numbers = self._read("features", first, count)
                for place, values in enumerate(zip(*columns, strict=True)):
                    writer.writerow([*values, *map(str, numbers[place])])


# Reading


def number_names(count: int) -> list[str]:
    """Return the names of the columns of features: f0, f1, ..."""
    return [f"f{number}" for number in range(count)]


def feature_columns(features: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    """Return features (rows, ...) as columns f0, f1, ..."""
    flat = features.reshape(len(features), -1)
    return dict(zip(number_names(flat.shape[1]), flat.T, strict=True))


@dataclass(frozen=True, eq=False, repr=False)
class FeatureTable(Shown):
    """Features of any number of recordings with their context: one row per window, or per channel of a window."""

    features: NDArray[np.float32]
    """(rows, width); of tokens (rows, patches, width)."""
    context: Mapping[str, NDArray[Any]]
    """The other columns: recording and start; channel; of a store subject, split and label; path where asked for."""
    failures: tuple[Any, ...] = ()
    """Recordings that could not be used, each with its reason."""
    trouble: str | None = None
    """A line on these recordings; None if there are none."""
    remarks: tuple[str, ...] = ()
    """Warnings for readers of the features."""

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column by its name: ``features["recording"]``."""
        if name == "features":
            return self.features
        if name not in self.context:
            raise InputError(f"there is no column {name!r}; the columns are {', '.join(self.context)} and features")
        return self.context[name]

    @property
    def X(self) -> NDArray[np.float32]:  # noqa: N802
        """The features as scikit-learn takes them: (rows, numbers)."""
        return self.features.reshape(len(self.features), -1)

    @property
    def y(self) -> NDArray[Any]:
        """The labels as text; of a regression the values, (rows,) or (rows, targets)."""
        targets = [values for name, values in self.context.items() if name.startswith(TARGET)]
        if targets:
            return targets[0] if len(targets) == 1 else np.stack(targets, 1)
        if "label" not in self.context:
            raise InputError("these features have no labels; embed a store with task='...' for them")
        return self.context["label"]

    @property
    def groups(self) -> NDArray[np.str_]:
        """The subject of each row, or its recording where the subject is not known: what no two splits may share."""
        recording = self["recording"]
        subject = self.context.get("subject")
        return recording if subject is None else np.where(subject == "", recording, subject)

    def _headline(self) -> str:
        shape = " x ".join(map(str, self.features.shape[1:]))
        recordings = counted(len(np.unique(self["recording"])), "recording")
        return f"{counted(len(self), 'row')} of {recordings}, {shape} features"

    def _columns(self) -> Mapping[str, Sequence[Any]]:
        return {**self.context, **feature_columns(self.features)}  # type: ignore[dict-item]

    def _notes(self) -> Sequence[str]:
        return [*filter(None, [self.trouble]), *self.remarks]


TARGET = "target_"
"""What the columns of a regression begin with."""


def read_features(path: "os.PathLike[str] | str") -> FeatureTable:
    """Read a file that ``embed`` wrote: .npz, .parquet or .csv."""
    file = Path(path).expanduser()
    kind = file.suffix.casefold()
    if kind not in KINDS:
        raise InputError(f"the file ends in {file.suffix or 'nothing'!r}; expected features as .npz, .parquet or .csv")
    try:
        columns, shape = {".npz": _read_npz, ".parquet": _read_parquet, ".csv": _read_csv}[kind](file)
    except FileNotFoundError:
        raise InputError("there is no such file of features; check the path") from None
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(
            f"the file holds no features of cerebro-eeg, or is damaged ({type(error).__name__})"
        ) from error
    features = columns.pop("features").astype(np.float32, copy=False)
    return FeatureTable(features.reshape(len(features), *shape), columns)


_Columns = tuple[dict[str, NDArray[Any]], tuple[int, ...]]


def _read_npz(path: Path) -> _Columns:
    with np.load(path, allow_pickle=False) as file:
        columns = {name: file[name] for name in file.files}
    return columns, columns["features"].shape[1:]


def _read_parquet(path: Path) -> _Columns:
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ConfigError(f"no parquet file can be read: {import_trouble(error, 'pyarrow')}") from None
    table = pq.read_table(path)
    shape = tuple(map(int, (table.schema.metadata or {})[b"features_shape"].split(b"x")))
    columns: dict[str, NDArray[Any]] = {}
    numbers = []
    for name in table.column_names:
        column = table.column(name)
        if name == "features":  # lists: of tokens, and in files of earlier releases
            numbers = [column.combine_chunks().flatten().to_numpy(zero_copy_only=False)]
        elif _is_number_name(name):
            numbers.append(column.to_numpy())
        else:
            found = column.to_numpy()
            columns[name] = found.astype(np.str_) if found.dtype == np.object_ else found
    one = len(numbers) == 1 and "features" in table.column_names
    features = numbers[0].reshape(table.num_rows, -1) if one else np.stack(numbers, 1)
    return {**columns, "features": features}, shape


def _read_csv(path: Path) -> _Columns:
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        names = next(rows, [])
        first = names.index("f0")
        kept = [(row[:first], np.array(row[first:], np.float32)) for row in rows]
    texts = list(zip(*(texts for texts, _ in kept), strict=True)) or [()] * first
    columns: dict[str, NDArray[Any]] = {
        name: np.array(values, np.float64 if _is_measure(name) else np.str_)
        for name, values in zip(names[:first], texts, strict=True)
    }
    width = len(names) - first
    features = np.stack([numbers for _, numbers in kept]) if kept else np.empty((0, width), np.float32)
    return {**columns, "features": features}, (width,)


def _is_number_name(name: str) -> bool:
    return name[:1] == "f" and name[1:].isdecimal()


def _is_measure(name: str) -> bool:
    return name == "start" or name.startswith(TARGET)
