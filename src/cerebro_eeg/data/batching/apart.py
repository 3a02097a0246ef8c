"""Apart: processes that read for this one, so that reading does not take turns with launching kernels.

A thread that reads a thousand windows a step holds Python's lock for as many short moments, each time that the thread
which launches a GPU's kernels lets go of it (benchmarks/README.md has what that costs). A reader process
(``reader_process.py``) has a lock of its own. A thread here sends it a table of what to read and waits for the bytes in
one call, without the lock.
"""

import logging
import os
import queue
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cerebro_eeg.data.batching import reader_process
from cerebro_eeg.data.batching.reader_process import NUMBER

_log = logging.getLogger(__name__)


class Apart:
    """Reader processes for these files, as many as ``count``; none where none can be started."""

    def __init__(self, files: Sequence[Path], count: int) -> None:
        self._all: list[_Process] = []
        self._free: queue.SimpleQueue[_Process] = queue.SimpleQueue()
        names = b"\0".join(os.fsencode(path) for path in files)
        try:
            while len(self._all) < count:
                self._all.append(_Process(names))
                self._free.put(self._all[-1])
        except OSError as error:
            _log.warning("no process for reading can be started (%s); threads read instead", error.strerror or error)

    def read(self, pieces: NDArray[np.int64], into: memoryview) -> bool:
        """Read ``pieces`` (file, offset, size in bytes) one behind the other; False: nobody did, do it yourself."""
        try:
            process = self._free.get_nowait()
        except queue.Empty:
            return False
        try:
            found = process.read(pieces, into)
        except OSError:  # it was killed, say for want of memory
            _log.warning("a process that read windows has ended; threads read instead")
            return False
        self._free.put(process)
        return found

    def close(self) -> None:
        """End them."""
        for process in self._all:
            process.close()
        self._all.clear()


class _Process:
    """One of them, and this side of its socket."""

    def __init__(self, names: bytes) -> None:
        self._socket, theirs = socket.socketpair()
        script = [sys.executable, "-I", "-S", reader_process.__file__, str(theirs.fileno())]
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

    def read(self, pieces: NDArray[np.int64], into: memoryview) -> bool:
        self._socket.sendall(NUMBER.pack(len(pieces)) + np.ascontiguousarray(pieces, np.int64).tobytes())
        head = bytearray(NUMBER.size)
        self._receive(memoryview(head))
        if bytes(head) == reader_process.FAILED:
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
