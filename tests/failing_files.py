"""Files that cannot be opened: faults of a disk, a network or memory, injected at any opening in a folder."""

import builtins
import io
import os


class FailingFiles:
    """Counts the files that are opened in a folder, and raises ``error`` for those whose number is in ``places``."""

    def __init__(self, patch, folder):
        self.folder, self.opened, self.places, self.error = os.fspath(folder), 0, range(0), None
        for module, name in ((builtins, "open"), (io, "open"), (os, "open")):
            patch.setattr(module, name, self.wrap(getattr(module, name)))

    def wrap(self, function):
        def call(file, *args, **kwargs):
            if not isinstance(file, int) and os.fspath(file).startswith(self.folder):
                self.opened += 1
                if self.opened - 1 in self.places:
                    raise self.error
            return function(file, *args, **kwargs)

        return call
