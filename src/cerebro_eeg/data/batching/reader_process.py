"""A process of its own that reads pieces of files and sends them back through a socket.

Started by ``apart.py`` as a script: it loads nothing but the standard library, so it is there at once and small. It is
first told the files. A question is a number of pieces and, for each, three whole numbers: file, offset and size in
bytes. The answer is the sum of the sizes and then the bytes, or -1 where something went wrong: whoever asked then reads
for itself, and says what it was. It ends when the socket is closed, and leaves signals to the process that started it.
"""

import os
import signal
import socket
import struct
import sys

OPEN = 128
"""Files that are held open."""
NUMBER = struct.Struct("=q")
PIECE = struct.Struct("=qqq")
FAILED = NUMBER.pack(-1)


def serve(channel: socket.socket) -> None:
    """Answer until there is nobody to answer."""
    paths = bytes(receive(channel, *NUMBER.unpack(receive(channel, NUMBER.size)))).split(b"\0")
    opened: dict[int, int] = {}
    memory = bytearray()
    while True:
        (count,) = NUMBER.unpack(receive(channel, NUMBER.size))
        pieces = list(PIECE.iter_unpack(receive(channel, count * PIECE.size)))
        total = sum(size for _, _, size in pieces)
        if len(memory) < total:
            memory = bytearray(total)
        try:
            read(paths, opened, pieces, memoryview(memory)[:total])
        except OSError:
            channel.sendall(FAILED)
            continue
        channel.sendall(NUMBER.pack(total))
        channel.sendall(memoryview(memory)[:total])


def read(paths: list[bytes], opened: dict[int, int], pieces: list[tuple[int, ...]], into: memoryview) -> None:
    """Pieces one behind the other; a file that ends too early is an ``OSError`` as well."""
    place = 0
    for file, offset, size in pieces:
        if file not in opened:
            while len(opened) >= OPEN:
                os.close(opened.pop(next(iter(opened))))
            opened[file] = os.open(paths[file], os.O_RDONLY | os.O_CLOEXEC)
        end = place + size
        while place < end:
            count = os.preadv(opened[file], [into[place:end]], offset)
            if not count:
                raise OSError("the file has become shorter")
            place, offset = place + count, offset + count


def receive(channel: socket.socket, size: int) -> bytearray:
    """So many bytes; ``EOFError`` where the other side is gone."""
    found = bytearray(size)
    view = memoryview(found)
    while view:
        count = channel.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    return found


def main() -> None:
    for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    try:
        serve(socket.socket(fileno=int(sys.argv[1])))
    except (EOFError, ConnectionError):  # the other side has closed the socket, or has ended
        return


if __name__ == "__main__":
    main()
