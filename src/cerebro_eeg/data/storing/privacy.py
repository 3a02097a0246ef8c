"""Privacy: the key that turns names into ids, and the private map from ids back to names.

Ids are a keyed hash (HMAC-SHA256): of the name of a subject, and of the content of a recording (``ids.py``). Two people
with the same data and different keys cannot match them, and the same key gives the same ids on every machine. The key
belongs to the user and lies outside of every store.

The private map is the one file with names in it, for its owner alone and never in a store. It is JSON: ``{"recordings":
{id: path in the corpus}, "subjects": {id: name}}``. Each run adds to it and removes nothing, so one file can serve
several stores.
"""

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from cerebro_eeg.errors import ConfigError, InputError
from cerebro_eeg.files import parse_json, real

BYTES = 32


def default_key_file() -> Path:
    """Return the file of a user's key, unless another one is named."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "cerebro-eeg" / "key"


def read_key(path: Path) -> bytes:
    """Read the key in a file; where there is none, make a new one that only its owner can read."""
    try:
        if not path.exists():
            _make_key(path)
        mode = path.stat().st_mode & 0o777
        key = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except (OSError, ValueError) as error:
        raise InputError(
            f"the key file cannot be used ({type(error).__name__}); give one that cerebro-eeg made, or a name where it "
            "can make one"
        ) from None  # the error of the system would name a path
    if len(key) != BYTES:
        raise InputError(f"the key file holds {len(key)} bytes; expected {BYTES}, as cerebro-eeg writes them")
    if mode & 0o007:
        raise InputError(f"the key file has mode {mode:04o}: everybody can read it; chmod 600 it")
    return key


def make_id(key: bytes, kind: str, name: str) -> str:
    """Make the id of a recording or subject; ``kind`` gives equal names of different things different ids."""
    return hmac.new(key, f"{kind}\0{name}".encode(), hashlib.sha256).hexdigest()[:24]


@contextlib.contextmanager
def private_draft(path: Path, text: str) -> Iterator[Path]:
    """Yield a hidden sibling of ``path`` with this text, on the disk and readable by its owner alone.

    The caller moves it into place; otherwise it is deleted. (``files.replacing`` gives a file the usual permissions.)
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def check_outside(path: Path, store: Path, what: str) -> None:
    """Refuse a private file inside a store, because stores are passed on."""
    if real(path).is_relative_to(real(store)):
        raise ConfigError(f"the {what} would lie inside the store, which is passed on; name a file outside of it")


def _make_key(path: Path) -> None:
    """Put a whole key in place unless one is there; neither a faster process nor a kill may leave half a key."""
    with private_draft(path, secrets.token_hex(BYTES) + "\n") as draft:
        try:
            os.link(draft, path)  # fails where the name exists; a rename would replace it
        except FileExistsError:  # another process was faster: its key is the key
            pass
        except OSError:  # no hard links on this file system
            if not path.exists():
                os.replace(draft, path)


def seal(key: bytes | None) -> bytes:
    """Derive a key for the fingerprints of sources, which workers may have: the user's key cannot be computed from it.

    It is empty without a key, where a corpus is public and keeps its own ids.
    """
    return b"" if key is None else hmac.new(key, b"source", hashlib.sha256).digest()


def key_check(key: bytes) -> str:
    """Return a text that shows whether two stores were made with one key, and nothing about the key."""
    return make_id(key, "check", "cerebro-eeg")


Names = Mapping[str, Mapping[str, str]]
KINDS = ("recordings", "subjects")


def read_map(path: Path) -> dict[str, dict[str, str]]:
    """Read the map, empty where there is no file; refuse a file that others may read or that is no map."""
    found: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}
    try:
        mode = path.stat().st_mode & 0o777
        if mode & 0o077:
            raise InputError(f"the map file has mode {mode:04o}: others can read it; chmod 600 it, or name another")
        values = parse_json(path.read_bytes())
        if set(values) != set(KINDS) or not all(isinstance(names, dict) for names in values.values()):
            raise ValueError
        return {kind: {str(id): str(name) for id, name in values[kind].items()} for kind in KINDS}
    except FileNotFoundError:
        return found
    except InputError:
        raise
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"the map file cannot be used ({type(error).__name__}); give one that cerebro-eeg made, or a new name"
        ) from None  # the error of the system would name a path


def add_to_map(path: Path, names: Names) -> None:
    """Add names to the file, whole or not at all."""
    found = read_map(path)
    merged = {kind: dict(sorted({**found[kind], **names[kind]}.items())) for kind in KINDS}
    if merged == found and path.exists():
        return
    try:
        with private_draft(path, json.dumps(merged, indent=1) + "\n") as draft:
            os.replace(draft, path)
    except OSError as error:
        raise InputError(f"the map file cannot be written: {error.strerror}; name another") from None


def count_alike(names: Iterable[str]) -> int:
    """Count the names that equal another one except for case, blanks or the composition of letters."""
    counts = Counter(map(_folded, set(names)))
    return sum(count for count in counts.values() if count > 1)


def warn_of_alike(names: Iterable[str]) -> None:
    """Warn how many such names there are, without quoting them: a name may say who was recorded.

    They count as different subjects here, though their author mostly meant one.
    """
    alike = count_alike(names)
    if alike:
        warnings.warn(
            f"{alike:,} subjects are called like another but for case or blanks (as s1 and S1 would be) and count as "
            "different people; where they are not, splits by subject would share them: spell each in one way",
            stacklevel=2,
        )


def _folded(name: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())
