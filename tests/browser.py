"""A real headless Chromium for tests, driven over its own DevTools protocol.

    with start_browser() as browser, browser.page(width=390, dark=True) as page:
        page.goto("file:///...")
        page.click("#points")
        page.wait_for("document.querySelector('#detail').textContent.length > 0")
        assert page.errors == [] and page.foreign_requests() == []

`find_chromium` says where a browser is, or why there is none; `CHROMIUM` in the environment names
one elsewhere. Tests skip without a browser, except in CI (`ATOLL_NEED_BROWSER=1`), where they fail.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import websocket

SCREENSHOTS = Path(__file__).parent.parent / "build" / "screenshots"
"""Where views are kept for people to look at; git ignores it."""

WAIT_S = 120.0
"""Until something is taken to never come: machines may be busy."""

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-default-apps", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--remote-debugging-port=0", "--force-color-profile=srgb",
)  # fmt: skip
KEYS = {
    "Tab": (9, "Tab"), "Enter": (13, "Enter"), "Escape": (27, "Escape"), "Home": (36, "Home"),
    "End": (35, "End"), "ArrowLeft": (37, "ArrowLeft"), "ArrowUp": (38, "ArrowUp"),
    "ArrowRight": (39, "ArrowRight"), "ArrowDown": (40, "ArrowDown"), " ": (32, "Space"),
}  # fmt: skip


def find_chromium() -> str | None:
    given = os.environ.get("CHROMIUM")
    if given:
        return given
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """One tab."""

    def __init__(self, address: str) -> None:
        self._socket = websocket.create_connection(address, suppress_origin=True, timeout=WAIT_S)
        self._number = 0
        self.errors: list[str] = []
        """What the console, the network and uncaught exceptions complained about."""
        self.requests: list[str] = []
        self._loaded = False
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._socket.close()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command, and its answer; events on the way are taken in."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == self._number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                result: dict[str, Any] = message["result"]
                return result
            self._event(message)

    def _event(self, message: dict[str, Any]) -> None:
        name, params = message.get("method"), message.get("params", {})
        if name == "Page.loadEventFired":
            self._loaded = True
        elif name == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif name == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif name == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.errors.append(" ".join(str(a.get("value", a)) for a in params["args"]))
        elif name == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    def foreign_requests(self) -> list[str]:
        """Requests that leave this machine."""
        own = ("", "127.0.0.1", "localhost", "::1", None)
        return [url for url in self.requests if urlsplit(url).hostname not in own]

    def goto(self, url: str) -> float:
        """Open an address; seconds until it was loaded."""
        began = time.monotonic()
        self._loaded = False
        answer = self.call("Page.navigate", url=url)
        if "errorText" in answer:
            raise RuntimeError(f"{url}: {answer['errorText']}")
        while not self._loaded:
            self._event(json.loads(self._socket.recv()))
        return time.monotonic() - began

    def eval(self, script: str) -> Any:
        """The value of an expression (or what its promise comes to) in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise AssertionError(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def wait_for(self, script: str, timeout_s: float = WAIT_S) -> Any:
        """Until an expression is true."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            value = self.eval(script)
            if value:
                return value
            time.sleep(0.03)
        raise AssertionError(f"never true: {script}; errors {self.errors}")

    def wait_until(self, done: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
        """Until a condition of this process holds, such as a file that is there."""
        deadline = time.monotonic() + timeout_s
        while not done():
            assert time.monotonic() < deadline, f"never true: {done}; errors {self.errors}"
            time.sleep(0.03)

    def text(self, selector: str) -> str:
        return str(self.eval(f"document.querySelector({json.dumps(selector)}).textContent"))

    def count(self, selector: str) -> int:
        return int(self.eval(f"document.querySelectorAll({json.dumps(selector)}).length"))

    def box(self, selector: str) -> tuple[float, float, float, float]:
        """Left, top, width and height in the window, after scrolling there."""
        found = self.eval(
            f"(() => {{const e = document.querySelector({json.dumps(selector)});"
            "if (!e) return null; e.scrollIntoView({block: 'center', behavior: 'instant'});"
            "const r = e.getBoundingClientRect(); return [r.left, r.top, r.width, r.height]})()"
        )
        assert found is not None, f"no element {selector}"
        left, top, width, height = found
        return left, top, width, height

    def click(self, selector: str) -> None:
        left, top, width, height = self.box(selector)
        self.click_at(left + width / 2, top + height / 2)

    def click_at(self, x: float, y: float) -> None:
        """A real click at a point of the window."""
        self.hover_at(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def hover_at(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def drag(self, start: tuple[float, float], end: tuple[float, float], steps: int = 5) -> None:
        """Press at one point of the window, move, and let go at another."""
        mouse = "Input.dispatchMouseEvent"
        self.hover_at(*start)
        self.call(mouse, type="mousePressed", x=start[0], y=start[1], button="left", clickCount=1)
        for i in range(1, steps + 1):
            x = start[0] + (end[0] - start[0]) * i / steps
            y = start[1] + (end[1] - start[1]) * i / steps
            self.call(mouse, type="mouseMoved", x=x, y=y, button="left", buttons=1)
        self.call(mouse, type="mouseReleased", x=end[0], y=end[1], button="left", clickCount=1)

    def press(self, key: str) -> None:
        code, name = KEYS[key]
        text = {"text": "\r"} if key == "Enter" else {"text": " "} if key == " " else {}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=name,
                windowsVirtualKeyCode=code, **(text if kind == "keyDown" else {}),
            )  # fmt: skip

    def set_value(self, selector: str, value: str) -> None:
        """Give a field a value as a user would: with its input and change events."""
        self.eval(
            f"(() => {{const e = document.querySelector({json.dumps(selector)});"
            f"e.value = {json.dumps(value)};"
            "for (const name of ['input', 'change'])"
            " e.dispatchEvent(new Event(name, {bubbles: true}))})()"
        )

    def overflow(self) -> int:
        """Pixels by which the page is wider than its window: 0 where nothing sticks out."""
        return int(
            self.eval("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        )

    def picture(self, selector: str) -> bytes:
        """One element as a PNG."""
        left, top, width, height = self.box(selector)
        x, y = self.eval("[scrollX, scrollY]")
        clip = {"x": left + x, "y": top + y, "width": width, "height": height, "scale": 1}
        answer = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(answer["data"])

    def window(self, scale: float) -> bytes:
        """What the window shows as a PNG, at a scale."""
        width, height = self.eval("[innerWidth, innerHeight]")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": scale}
        return base64.b64decode(self.call("Page.captureScreenshot", clip=clip)["data"])

    def screenshot(self, name: str, *, whole: bool = True) -> Path:
        """Keep the page's picture under build/screenshots."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        taken = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path = SCREENSHOTS / f"{name}.png"
        path.write_bytes(base64.b64decode(taken["data"]))
        return path


class Browser:
    """One Chromium with a fresh profile."""

    def __init__(self, port: int) -> None:
        self._port = port

    @contextmanager
    def page(self, width: int = 1280, height: int = 900, *, dark: bool = False) -> Iterator[Page]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/json/new?about:blank", method="PUT"
        )
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            target = json.load(answer)
        page = Page(target["webSocketDebuggerUrl"])
        page.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        page.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        try:
            yield page
        finally:
            page.close()
            close = f"http://127.0.0.1:{self._port}/json/close/{target['id']}"
            urllib.request.urlopen(close, timeout=WAIT_S).close()


@contextmanager
def start_browser() -> Iterator[Browser]:
    """A browser of its own, ended with the block."""
    program = find_chromium()
    if program is None:
        reason = "no Chromium found; install one (apt-get install chromium) or set CHROMIUM"
        if os.environ.get("ATOLL_NEED_BROWSER"):
            pytest.fail(reason)
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield Browser(_port(Path(profile), process))
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _port(profile: Path, process: subprocess.Popen[bytes]) -> int:
    """The port that Chromium chose; it writes it into its profile."""
    file = profile / "DevToolsActivePort"
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"Chromium ended at once with code {process.returncode}")
        if file.exists() and (lines := file.read_text().splitlines()):
            return int(lines[0])
        time.sleep(0.05)
    raise RuntimeError(f"Chromium did not open its DevTools port within {WAIT_S:g} s")
