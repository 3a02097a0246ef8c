"""Schema: dataclasses to JSON values and back, with every field checked by its type. Standard library only."""

import dataclasses
import difflib
import numbers
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from reprlib import repr as shown  # shortens long values, so that errors stay one line
from typing import Any, Literal, TypeVar

from cerebro_eeg.errors import ConfigError

T = TypeVar("T")


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` if one of the choices is close, otherwise nothing."""
    close = difflib.get_close_matches(name, list(choices), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def to_dict(config: Any) -> dict[str, Any]:
    """Return a config as plain JSON values."""
    return typing.cast(dict[str, Any], _plain(dataclasses.asdict(config)))


def from_dict(cls: type[T], values: Any, base: T | None = None) -> T:
    """Make a config from JSON values; missing fields come from ``base``, and without it they are an error."""
    return _build(cls, values, base, cls.__name__)


def settle(config: Any) -> None:
    """Check every field of a new config, and convert it to its declared type: 256 becomes 256.0."""
    hints = typing.get_type_hints(type(config))
    for name in (f.name for f in dataclasses.fields(config)):
        value = _check(hints[name], getattr(config, name), None, f"{type(config).__name__}.{name}")
        object.__setattr__(config, name, value)


def _build(cls: type[T], values: Any, base: T | None, where: str) -> T:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where} is {type(values).__name__}; expected an object with named fields")
    hints = typing.get_type_hints(cls)
    names = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for name in values:
        if name not in names:
            raise ConfigError(f"{where} has no field {shown(name)}{did_you_mean(str(name), names)}")
    filled: dict[str, Any] = {}
    for name in names:
        if name in values:
            inner = getattr(base, name) if base is not None else None
            filled[name] = _check(hints[name], values[name], inner, f"{where}.{name}")
        elif base is not None:
            filled[name] = getattr(base, name)
        else:
            raise ConfigError(f"{where} lacks the field {name!r}")
    return cls(**filled)


def _check(hint: Any, value: Any, base: Any, where: str) -> Any:
    """Return ``value`` in the type of the field, or raise an error that says what was expected."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        if isinstance(value, typing.cast(type[Any], hint)):  # it was checked when it was made
            return value
        return _build(typing.cast(type[Any], hint), value, base, where)
    if origin is Literal:
        if value in args and isinstance(value, str):
            return value
        raise ConfigError(f"{where} is {shown(value)}; choose one of {', '.join(map(str, args))}")
    if origin in (types.UnionType, typing.Union):  # the latter of Literal["a"] | None
        if value is None and type(None) in args:
            return None
        return _check(next(a for a in args if a is not type(None)), value, base, where)
    if origin is tuple:
        if isinstance(value, list | tuple) and (args[-1] is Ellipsis or len(value) == len(args)):
            return tuple(_check(args[0], v, None, f"{where}[{i}]") for i, v in enumerate(value))
        raise ConfigError(
            f"{where} is {shown(value)}; expected a list" + ("" if args[-1] is Ellipsis else f" of {len(args)}")
        )
    if origin is dict:
        if isinstance(value, Mapping) and all(isinstance(k, str) for k in value):
            return {k: _check(args[1], v, None, f"{where}[{shown(k)}]") for k, v in value.items()}
        raise ConfigError(f"{where} is {shown(value)}; expected an object with named values")
    value = _plain(value)
    if isinstance(value, bool) == (hint is bool):  # for Python a bool is an int; here it is not
        if hint is not float and isinstance(value, hint) and not (hint is int and abs(value) >= 2**63):
            return value
        if hint is float and isinstance(value, int | float) and abs(value) <= sys.float_info.max:  # false for NaN, too
            return float(value)
    raise ConfigError(f"{where} is {shown(value)}; expected {'a finite number' if hint is float else hint.__name__}")


def _plain(value: Any) -> Any:
    """Convert tuples to lists and NumPy numbers to Python's, because JSON knows only these."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return value
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def require(condition: bool, message: str) -> None:
    """Raise a ConfigError with ``message`` unless ``condition`` holds."""
    if not condition:
        raise ConfigError(message)
