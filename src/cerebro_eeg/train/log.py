"""Log: what a run says of every step, in ``metrics.jsonl`` and, where they are installed and wanted, in TensorBoard and
Weights & Biases. A run that goes on cuts its file back to the step that its state knows, so no step is there twice."""

import json
import math
import secrets
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from cerebro_eeg.errors import ConfigError
from cerebro_eeg.files import write_text

Logger = Literal["tensorboard", "wandb"]


class Log:
    """Open for as long as a run trains; only the first process has one.

    A line is a step, or something that was measured after it: ``{"step": 12, "loss": 0.5, ...}``.
    """

    def __init__(self, folder: Path, step: int, loggers: tuple[Logger, ...] = ()) -> None:
        self._board: Any = _tensorboard(folder, step) if "tensorboard" in loggers else None
        self._wandb: Any = _wandb(folder) if "wandb" in loggers else None
        path = folder / "metrics.jsonl"
        kept = [line for line in read_lines(path) if line["step"] <= step]
        write_text(path, "".join(json.dumps(line) + "\n" for line in kept))
        self._file = path.open("a", encoding="utf-8")

    def write(self, step: int, **values: float | str | None) -> None:
        """Values after step ``step`` (the first is 1)."""
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
        self._file.close()
        if self._board is not None:
            self._board.close()
        if self._wandb is not None:
            self._wandb.finish(exit_code=0 if kind is None else 1)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file; a last line that a kill cut short is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1] if line]


def _finite(value: float | str | None) -> float | str | None:
    """JSON has no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _tensorboard(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError("TensorBoard is not installed; pip install tensorboard, or leave the logger out") from error
    return SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)


def _wandb(folder: Path) -> Any:
    try:
        import wandb
    except ImportError as error:
        raise ConfigError("Weights & Biases is not installed; pip install wandb, or leave the logger out") from error
    return wandb.init(
        project="cerebro-eeg", name=str(folder), dir=str(folder), resume="allow", id=_identity(folder / "wandb-id")
    )


def _identity(path: Path) -> str:
    """An id for this run alone: folders of many runs are called seed-0, and one id would mix their curves."""
    if not path.exists():
        write_text(path, secrets.token_hex(8))
    return path.read_text(encoding="utf-8")
