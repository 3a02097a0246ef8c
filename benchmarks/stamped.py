"""Run a command and print its lines with the seconds since its start: where does the time of a whole command go?

python benchmarks/stamped.py cerebro-eeg finetune my-store --task eyes --from small-open --seeds 3 --out eyes
"""

import subprocess
import sys
import time


def main(command: list[str]) -> int:
    began = time.monotonic()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", bufsize=1
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(f"{time.monotonic() - began:8.2f}  {line.rstrip()}", flush=True)
        code = process.wait()
    print(f"{time.monotonic() - began:8.2f}  ended with {code}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
