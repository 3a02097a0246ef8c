"""The key that turns names of recordings and subjects into ids that say nothing without it.

Ids are a keyed hash (HMAC-SHA256) of a name, so that two people with the same data and other keys cannot match them,
and the same key gives the same ids on every machine. The key is the user's and lies outside of every store.

The private map: which source an id stands for. The one file with names in it, for its owner alone, in no store.

JSON: ``{"recordings": {id: path in the corpus}, "subjects": {id: name}}``. Each run adds what it knows and forgets
nothing, so one file can serve several stores.

Subjects whose names differ in spelling alone: different people to us, and mostly one to who wrote them.
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

BYTES = 32


def default_key_file() -> Path:
    """Where a user's key lies unless another file is named."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "cerebro-eeg" / "key"


def read_key(path: Path) -> bytes:
    """The key in a file; a new one is made, readable by its owner alone, where there is none."""
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
    """The id of a recording or subject; ``kind`` keeps equal names of different things apart."""
    return hmac.new(key, f"{kind}\0{name}".encode(), hashlib.sha256).hexdigest()[:24]


@contextlib.contextmanager
def private_draft(path: Path, text: str) -> Iterator[Path]:
    """A hidden sibling of ``path`` with this text, on the disk and from its first moment readable by its owner alone.

    Whoever asks moves it into place; otherwise it goes. (``files.replacing`` gives a file the usual permissions.)
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
    """Refuse a private file inside a store: a store is passed on."""
    if path.resolve().is_relative_to(store.resolve()):
        raise ConfigError(f"the {what} would lie inside the store, which is passed on; name a file outside of it")


def _make_key(path: Path) -> None:
    """Put a whole key in place unless one is there: a process that is faster, or a kill, must not leave half a key."""
    with private_draft(path, secrets.token_hex(BYTES) + "\n") as draft:
        try:
            os.link(draft, path)  # fails where the name exists; a rename would replace it
        except FileExistsError:  # another process was faster: its key is the key
            pass
        except OSError:  # no hard links on this file system
            if not path.exists():
                os.replace(draft, path)


def seal(key: bytes | None) -> bytes:
    """A key for the fingerprints of sources, which workers may have: it cannot be turned back into the user's.

    Empty without a key, where a corpus is public and keeps its own ids.
    """
    return b"" if key is None else hmac.new(key, b"source", hashlib.sha256).digest()


def key_check(key: bytes) -> str:
    """Tells whether two stores were made with one key, and nothing about it."""
    return make_id(key, "check", "cerebro-eeg")


Names = Mapping[str, Mapping[str, str]]
KINDS = ("recordings", "subjects")


def read_map(path: Path) -> dict[str, dict[str, str]]:
    """What the file holds, nothing where there is none; a file that others may read, or of another kind, is refused."""
    found: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}
    try:
        mode = path.stat().st_mode & 0o777
        if mode & 0o077:
            raise InputError(f"the map file has mode {mode:04o}: others can read it; chmod 600 it, or name another")
        values = json.loads(path.read_bytes())
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
    """Add to the file, whole or not at all."""
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
    """How many of the different names are another one but for case, blanks or the way a letter is composed."""
    counts = Counter(map(_folded, set(names)))
    return sum(count for count in counts.values() if count > 1)


def warn_of_alike(names: Iterable[str]) -> None:
    """Say how many there are, and none of them: a name may say who was recorded."""
    alike = count_alike(names)
    if alike:
        warnings.warn(
            f"{alike:,} subjects are called like another but for case or blanks (as s1 and S1 would be) and count as "
            "different people; where they are not, splits by subject would share them: spell each in one way",
            stacklevel=2,
        )


def _folded(name: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())
