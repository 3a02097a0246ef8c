"""A headless Chromium that opens report pages, as a reader does, and says what it saw.

It is driven over the DevTools protocol through a pair of pipes, so no package and no port is needed. One browser serves
all tests of a process; each page has a tab of its own.
"""

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDTHS = {"desktop": 1280, "phone": 400}
PATIENCE = 120  # seconds; a limit for a browser that hangs, and no measure of speed
_LOOK = """(() => {
  const shown = e => { const r = e.getBoundingClientRect(), s = getComputedStyle(e);
    return r.width > 0 && r.height > 0 && s.visibility === 'visible' && Number(s.opacity) > 0; };
  const wide = [...document.body.querySelectorAll('*')].filter(e => {
    for (let p = e; p && p !== document.body; p = p.parentElement)
      if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(p).overflowX)) return false;
    return e.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5; });
  const headline = document.querySelector('.verdict'), root = document.documentElement;
  const colour = e => e ? [getComputedStyle(e).color, getComputedStyle(document.body).backgroundColor] : null;
  return {
    width: root.clientWidth, scroll: root.scrollWidth, height: root.scrollHeight,
    wide: wide.map(e => e.tagName + '.' + e.className),
    headline: headline && shown(headline) ? headline.innerText : null,
    headlineTop: headline ? headline.getBoundingClientRect().top : null,
    headlineColours: colour(headline && headline.querySelector('p')),
    sizes: [...document.querySelectorAll('.facts b, .verdict .sentence')].map(e =>
      [e.closest('.verdict') ? 'sentence' : 'number', parseFloat(getComputedStyle(e).fontSize), e.innerText]),
    images: [...document.images].map(i => [i.alt, i.complete, i.naturalWidth, i.naturalHeight, shown(i)]),
    text: document.body.innerText, commands: [...document.querySelectorAll('pre.command')].map(e => e.textContent),
  }; })()"""
_LAUNCH = """import os, sys
first, then = (os.dup(int(number)) for number in sys.argv[1:3])
os.dup2(os.dup2(first, 30), 3), os.dup2(os.dup2(then, 31), 4)
os.execv(sys.argv[3], sys.argv[3:])"""  # dash knows no descriptor of two digits
# The event `loadEventFired` may be that of the empty page before. The command to navigate returns in the new page.
_LOADED = """new Promise(done =>
  document.readyState === 'complete' ? done(true) : addEventListener('load', () => done(true)))"""
_DECODED = "Promise.all([...document.images].map(i => i.decode().then(() => true, () => false)))"


def find_chromium() -> str | None:
    """Return the path of a Chromium or Chrome; None if there is none."""
    named = os.environ.get("CEREBRO_CHROMIUM")
    return next(filter(None, map(shutil.which, [named] if named else NAMES)), None)


@dataclass
class Seen:
    """What the browser saw of a page."""

    facts: dict
    """What the script in the page found: sizes, images, the headline."""
    console: list[str] = field(default_factory=list)
    """Messages of the console and of the browser's log, and errors of scripts."""
    requests: list[str] = field(default_factory=list)
    """Addresses that the page asked for, but for itself and data inside it."""
    decoded: list[bool] = field(default_factory=list)
    """For each image whether it was decoded."""


class Browser:
    """One headless Chromium."""

    def __init__(self, program: str) -> None:
        self._home = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        # Chromium reads commands from descriptor 3 and writes answers to 4.
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        words = [
            program,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
        ]
        words += ["--disable-background-networking", "--disable-component-update", "--disable-extensions"]
        words += ["--hide-scrollbars", "--remote-debugging-pipe", f"--user-data-dir={self._home.name}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, str(theirs_in), str(theirs_out), *words],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._rest, self._number, self._events = b"", 0, []
        try:
            self._send("Browser.getVersion")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the browser with all its processes."""
        for one in (self._in, self._out):
            os.close(one)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._home.cleanup()

    def look(self, page: Path, width: int = 1280, *, dark: bool = False, printed: bool = False, shot=None) -> Seen:
        """Open a page at a width, and return what is seen; ``shot`` is where a PNG of the whole page is written."""
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        tab = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._events.clear()
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._send(f"{domain}.enable", tab)
        phone = width < 600
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": phone}
        self._send("Emulation.setDeviceMetricsOverride", tab, **size)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._send("Emulation.setEmulatedMedia", tab, media="print" if printed else "", features=features)
        address = page.resolve().as_uri()
        self._send("Page.navigate", tab, url=address)
        self._value(tab, _LOADED)
        decoded = self._value(tab, _DECODED)
        seen = Seen(self._value(tab, _LOOK), decoded=decoded)
        if shot is not None:
            clip = {"x": 0, "y": 0, "width": width, "height": seen.facts["height"], "scale": 1}
            picture = self._send("Page.captureScreenshot", tab, captureBeyondViewport=True, clip=clip)
            Path(shot).write_bytes(base64.b64decode(picture["data"]))
        for event in self._events:
            kind, of = event["method"], event["params"]
            if kind == "Runtime.consoleAPICalled":
                seen.console.append(" ".join(str(one.get("value")) for one in of["args"]))
            elif kind == "Runtime.exceptionThrown":
                seen.console.append(of["exceptionDetails"]["text"])
            elif kind == "Log.entryAdded":
                seen.console.append(of["entry"]["text"])
            elif kind == "Network.requestWillBeSent":
                url = of["request"]["url"]
                if url != address and not url.startswith("data:"):
                    seen.requests.append(url)
        self._send("Target.closeTarget", targetId=target)
        return seen

    def print(self, page: Path) -> bytes:
        """Return the page as PDF, as the print dialogue makes it."""
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        tab = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._send("Page.enable", tab)
        self._events.clear()
        self._send("Page.navigate", tab, url=page.resolve().as_uri())
        self._value(tab, _LOADED)
        found = base64.b64decode(self._send("Page.printToPDF", tab, printBackground=False)["data"])
        self._send("Target.closeTarget", targetId=target)
        return found

    def _value(self, tab: str, script: str):
        found = self._send("Runtime.evaluate", tab, expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"]["value"]

    def _send(self, method: str, tab: str | None = None, **params):
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": params, **({"sessionId": tab} if tab else {})}
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        while True:
            found = self._receive()
            if found.get("id") == number:
                assert "error" not in found, (method, found["error"])
                return found["result"]
            if "method" in found:
                self._events.append(found)

    def _receive(self) -> dict:
        limit = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, limit - time.monotonic()))
            data = os.read(self._in, 1 << 20) if ready else b""
            if not data:
                raise RuntimeError("Chromium ended or does not answer")
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)
