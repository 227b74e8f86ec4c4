"""Chromium without a window, over a pipe: what a page says in its console, does when it is used, and looks like."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")
"""The program; "" where there is none."""
ANSWER_S = 60.0
"""Longest wait for one answer."""


class Browser:
    """One page of it. Made by `browser()`.

    Attributes:
        said: what the pages have said in the console since they were opened, with exceptions and refused requests.
    """

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back, self._rest, self._number = to, back, b"", 0
        self._loaded = False
        self._session = ""
        self.said: list[str] = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._ask(f"{domain}.enable")
        self._ask("Emulation.setScrollbarsHidden", hidden=True)

    def open(self, page: Path, width: int, *, dark: bool = False, height: int = 900) -> None:
        """Show a file.

        Args:
            page: the file.
            width, height: of the screen, in px.
            dark: whether the user has asked for dark colours.
        """
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.theme(dark=dark)
        self._loaded = False
        self._ask("Page.navigate", url=page.resolve().as_uri())
        while not self._loaded:
            self._hear()
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def theme(self, *, dark: bool) -> None:
        """Ask for dark or light colours."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[scheme])

    def run(self, script: str) -> Any:
        """The value of an expression on the page; a promise's is waited for.

        Raises:
            AssertionError: it has thrown.
        """
        found = self._ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def mouse(self, kind: str, x: float, y: float, clicks: int = 0) -> None:
        """Move ("mouseMoved"), press ("mousePressed") or let go ("mouseReleased")."""
        pressed = {} if kind == "mouseMoved" else {"button": "left", "clickCount": clicks or 1}
        self._ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **pressed)

    def key(self, name: str) -> None:
        """Press a key and let it go."""
        texts = {"Enter": "\r", " ": " "}
        more = {"text": texts[name]} if name in texts else {}
        codes = {"Tab": 9, "Enter": 13, " ": 32, "ArrowRight": 39, "ArrowLeft": 37}
        for kind in ("keyDown", "keyUp"):
            self._ask("Input.dispatchKeyEvent", type=kind, key=name, windowsVirtualKeyCode=codes[name], **more)
            more = {}

    def picture(self, *, whole: bool = True) -> bytes:
        """A PNG of the whole page, or of the screen."""
        return base64.b64decode(
            self._ask("Page.captureScreenshot", captureBeyondViewport=whole, **self._clip(whole))["data"]
        )

    def pdf(self) -> bytes:
        """The page on paper."""
        return base64.b64decode(self._ask("Page.printToPDF", printBackground=False)["data"])

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self._ask("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        number = self._number
        told = {"id": number, "method": method, "params": parameters}
        if self._session:
            told["sessionId"] = self._session
        os.write(self._to, json.dumps(told).encode() + b"\0")
        while (answer := self._hear()).get("id") != number:
            pass
        assert "error" not in answer, (method, answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    def _hear(self) -> dict[str, Any]:
        end_s = time.monotonic() + ANSWER_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._back], [], [], max(0.0, end_s - time.monotonic()))
            assert ready, f"Chromium has said nothing for {ANSWER_S} s"
            more = os.read(self._back, 1 << 20)
            assert more, "Chromium has ended"
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        said: dict[str, Any] = json.loads(line)
        method, facts = said.get("method", ""), said.get("params", {})
        self._loaded |= method == "Page.loadEventFired"
        if method == "Runtime.exceptionThrown":
            details = facts["exceptionDetails"]
            self.said.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled":
            self.said.append(f"{facts['type']}: {[one.get('value', one.get('description')) for one in facts['args']]}")
        elif method == "Log.entryAdded":
            self.said.append(f"{facts['entry']['level']}: {facts['entry']['text']}")
        return said


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start Chromium, and end it.

    Args:
        profile: an empty folder for what it writes.
    """
    (their_in, to), (back, their_out) = os.pipe(), os.pipe()
    # Chromium reads commands from descriptor 3 and answers on 4; bash moves the pipes there.
    script = f'exec "$0" "$@" 3<&{their_in} 4>&{their_out}'
    arguments = (
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-background-networking", "--disable-extensions", "--remote-debugging-pipe",
        f"--user-data-dir={profile}",
    )  # fmt: skip
    with open(profile / "said.txt", "wb") as said:
        process = subprocess.Popen(
            ["bash", "-c", script, CHROMIUM, *arguments], pass_fds=(their_in, their_out), stdout=said, stderr=said,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    os.close(their_in)
    os.close(their_out)
    try:
        yield Browser(to, back)
    finally:
        os.close(to)  # with which it ends by itself
        os.close(back)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
