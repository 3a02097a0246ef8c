"""Log: the numbers of every step, in ``metrics.jsonl`` and on request in TensorBoard and Weights & Biases.

A resumed run first cuts its file back to the step of its state, so that no step is in the file twice.
"""

import contextlib
import json
import math
import secrets
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TextIO

from cerebro_eeg.errors import ConfigError, import_trouble
from cerebro_eeg.files import add_sum, parse_json, write_text

Logger = Literal["tensorboard", "wandb"]


class Log:
    """The log of a run while it trains. Each line is a step or a validation: ``{"step": 12, "loss": 0.5, ...}``.

    With several processes, only the log of the ``first`` one writes.
    """

    def __init__(self, folder: Path, step: int, loggers: tuple[Logger, ...] = (), first: bool = True) -> None:
        self._board: Any = _tensorboard(folder, step) if first and "tensorboard" in loggers else None
        self._wandb: Any = _wandb(folder) if first and "wandb" in loggers else None
        self._file: TextIO | None = None
        if not first:
            return
        self._path = path = folder / "metrics.jsonl"
        kept = [line for line in read_lines(path) if line["step"] <= step and step > 0]  # step 0 is made again
        write_text(path, "".join(json.dumps(line) + "\n" for line in kept), summed=False)  # it grows until the end
        self._file = path.open("a", encoding="utf-8")

    def write(self, step: int, **values: float | str | None) -> None:
        """Write values that were measured after step ``step``; the first step is 1."""
        if self._file is None:
            return
        plain = {name: _finite(value) for name, value in values.items()}
        self._file.write(json.dumps({"step": step, **plain}) + "\n")
        self._file.flush()
        numbers = {name: value for name, value in plain.items() if isinstance(value, float | int)}
        if self._board is not None:
            for name, value in numbers.items():
                self._board.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log(numbers, step=step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()
            with contextlib.suppress(OSError):  # a full disk: the error that ends the run says so
                add_sum(self._path)
        if self._board is not None:
            self._board.close()
        if self._wandb is not None:
            self._wandb.finish(exit_code=0 if kind is None else 1)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a metrics file, without a last line that a kill cut short."""
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            values = parse_json(line) if line else {"step": 0}
            if not isinstance(values["step"], int):
                raise TypeError
        except (ValueError, TypeError, KeyError, IndexError):
            raise ConfigError(f"line {number} of {path} is damaged; delete it: only its numbers are lost") from None
        found += [values] if line else []
    return found


def _finite(value: float | str | None) -> float | str | None:
    """Return None for NaN and infinity, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _tensorboard(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError(f"{import_trouble(error, 'tensorboard')}, or leave the logger out") from error
    return SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)


def _wandb(folder: Path) -> Any:
    try:
        import wandb
    except ImportError as error:
        raise ConfigError(f"{import_trouble(error, 'wandb')}, or leave the logger out") from error
    return wandb.init(
        project="cerebro-eeg", name=str(folder), dir=str(folder), resume="allow", id=_identity(folder / "wandb-id")
    )


def _identity(path: Path) -> str:
    """Return the id of this run, made once. The folder's name is no id: many runs are called seed-0."""
    if not path.exists():
        write_text(path, secrets.token_hex(8))
    return path.read_text(encoding="utf-8")
