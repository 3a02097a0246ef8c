"""``python -m cerebro_eeg``: the command line, in the form that ``torchrun -m`` needs."""

import sys

from cerebro_eeg.cli import main

if __name__ == "__main__":
    sys.exit(main())
