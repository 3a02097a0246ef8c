"""Reader processes: they read windows from disk, so that reading does not compete with launching GPU kernels.

A thread that launches kernels releases Python's lock in every operator, and a reading thread then takes it. A step with
a thousand windows delays the launches as often (benchmarks/notes/2026-11-16-whole-training.md). A reader process has a
lock of its own: a thread here sends it a table of what to read and waits for the bytes in one call, without the lock.

``ReaderPool`` starts this very file as a script. So its imports at the top are few and of the standard library only: a
reader starts at once and stays small.

The protocol: first the reader receives the names of the files. A question is two counts, of pieces and of checks; then
per piece three whole numbers: file, offset and size in bytes; and per check four: file, offset, size and the CRC-32 of
these bytes. The answer is the sum of the sizes of the pieces and then their bytes, or -1 after an error or a wrong
CRC-32. The thread then reads for itself and raises the error. A reader ends when its socket is closed.
"""

import os
import signal
import socket
import struct
import sys
import zlib
from collections import deque

TYPE_CHECKING = False  # as in `typing`, which would have to be imported
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

OPEN = 128
"""Files that a reader holds open."""
NUMBER = struct.Struct("=q")
COUNTS = struct.Struct("=qq")
PIECE = struct.Struct("=qqq")
CHECK = struct.Struct("=qqqq")
FAILED = NUMBER.pack(-1)


class ReaderPool:
    """Up to ``count`` reader processes for these files; fewer, or none, where they cannot be started."""

    def __init__(self, files: "Sequence[Path]", count: int) -> None:
        self._all: list[_ReaderProcess] = []
        self._free: deque[_ReaderProcess] = deque()  # its append and pop are safe between threads
        names = b"\0".join(os.fsencode(path) for path in files)
        try:
            while len(self._all) < count:
                self._all.append(_ReaderProcess(names))
                self._free.append(self._all[-1])
        except OSError as error:
            _warn(f"no process for reading can be started ({error.strerror or error}); threads read instead")

    def read(self, pieces: bytes, checks: bytes, into: memoryview) -> bool:
        """Read pieces one behind the other; False where no reader could, and the caller must read them itself.

        ``pieces`` holds file, offset and size in bytes of each piece as 64-bit integers. ``checks`` holds the same and
        the CRC-32 of other stretches, which must be right.
        """
        try:
            reader = self._free.popleft()
        except IndexError:
            return False
        try:
            done = reader.read(pieces, checks, into)
        except OSError:  # it was killed, for example because memory ran out
            _warn("a process that read windows has ended; threads read instead")
            return False
        self._free.append(reader)
        return done

    def close(self) -> None:
        """End all readers."""
        for reader in self._all:
            reader.close()
        self._all.clear()


class _ReaderProcess:
    """One reader process and this side of its socket."""

    def __init__(self, names: bytes) -> None:
        import subprocess

        self._socket, theirs = socket.socketpair()
        script = [sys.executable, "-I", "-S", __file__, str(theirs.fileno())]
        silent = subprocess.DEVNULL
        try:
            self._process = subprocess.Popen(
                script, stdin=silent, stdout=silent, stderr=silent, pass_fds=(theirs.fileno(),), start_new_session=True
            )
        except OSError:
            self._socket.close()
            raise
        finally:
            theirs.close()
        try:
            self._socket.sendall(NUMBER.pack(len(names)) + names)
        except OSError:  # it ended at once
            self.close()
            raise

    def read(self, pieces: bytes, checks: bytes, into: memoryview) -> bool:
        counts = COUNTS.pack(len(pieces) // PIECE.size, len(checks) // CHECK.size)
        self._socket.sendall(counts + pieces + checks)
        head = bytearray(NUMBER.size)
        self._receive(memoryview(head))
        if bytes(head) == FAILED:
            return False
        self._receive(into)
        return True

    def close(self) -> None:
        self._socket.close()
        self._process.kill()  # it has nothing to lose, and a disk may keep it waiting
        self._process.wait()

    def _receive(self, view: memoryview) -> None:
        while view:
            count = self._socket.recv_into(view, 0, socket.MSG_WAITALL)
            if not count:
                raise ConnectionResetError
            view = view[count:]


def _warn(text: str) -> None:
    import logging

    logging.getLogger(__name__).warning(text)


# The script


def serve(channel: socket.socket) -> None:
    """Answer questions until the other side closes the socket."""
    paths = bytes(receive(channel, *NUMBER.unpack(receive(channel, NUMBER.size)))).split(b"\0")
    opened: dict[int, int] = {}
    memory = bytearray()
    while True:
        count, check_count = COUNTS.unpack(receive(channel, COUNTS.size))
        pieces = list(PIECE.iter_unpack(receive(channel, count * PIECE.size)))
        checks = list(CHECK.iter_unpack(receive(channel, check_count * CHECK.size)))
        total = sum(size for _, _, size in pieces)
        if len(memory) < total:
            memory = bytearray(total)
        try:
            check(paths, opened, checks)
            read(paths, opened, pieces, memoryview(memory)[:total])
        except OSError:
            channel.sendall(FAILED)
            continue
        channel.sendall(NUMBER.pack(total))
        channel.sendall(memoryview(memory)[:total])


def read(paths: list[bytes], opened: dict[int, int], pieces: list[tuple[int, ...]], into: memoryview) -> None:
    """Read pieces one behind the other; a file that ends too early raises an ``OSError``, too."""
    place = 0
    for file, offset, size in pieces:
        descriptor = opened.get(file) or descriptor_of(paths, opened, file)
        end = place + size
        while place < end:
            count = os.preadv(descriptor, [into[place:end]], offset)
            if not count:
                raise OSError("the file has become shorter")
            place, offset = place + count, offset + count


def check(paths: list[bytes], opened: dict[int, int], checks: list[tuple[int, ...]]) -> None:
    """Raise an ``OSError`` where bytes of a file do not have their CRC-32."""
    for file, offset, size, sum in checks:
        if zlib.crc32(os.pread(opened.get(file) or descriptor_of(paths, opened, file), size, offset)) != sum:
            raise OSError("the file is damaged")


def descriptor_of(paths: list[bytes], opened: dict[int, int], file: int) -> int:
    """Open a file, and close the one that was opened first if there are too many."""
    while len(opened) >= OPEN:
        os.close(opened.pop(next(iter(opened))))
    opened[file] = os.open(paths[file], os.O_RDONLY | os.O_CLOEXEC)
    return opened[file]


def receive(channel: socket.socket, size: int) -> bytearray:
    """Receive so many bytes; raises ``EOFError`` where the other side is gone."""
    found = bytearray(size)
    view = memoryview(found)
    while view:
        count = channel.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    return found


def main() -> None:
    """Serve the process that started this script, which alone obeys signals and then closes the socket."""
    for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    try:
        serve(socket.socket(fileno=int(sys.argv[1])))
    except (EOFError, ConnectionError):  # the other side has closed the socket, or has ended
        return


if __name__ == "__main__":
    main()
