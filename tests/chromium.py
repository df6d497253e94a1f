"""Headless Chromium for tests, driven through a pipe by its own protocol; nothing but the browser is needed."""

import base64
import fcntl
import json
import os
import shutil
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars",
]  # fmt: skip
needs_chromium = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)"),
]
KEYS = {"Tab": 9, "Enter": 13, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40,
        "Delete": 46, "Space": 32}  # fmt: skip


class Tab:
    """One page in the browser."""

    def __init__(self, to, back):
        self.to, self.back, self.asked, self.session = to, back, 0, None
        self.left, self.problems = b"", []
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self.session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")

    def __call__(self, method, **params):
        """Send a request and wait for the answer; problems reported meanwhile are kept."""
        self.asked += 1
        message = {"id": self.asked, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self.asked:
            self._note(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def _read(self):
        while b"\0" not in self.left:
            got = os.read(self.back, 1 << 16)
            if not got:
                raise RuntimeError("the browser closed its pipe")
            self.left += got
        first, self.left = self.left.split(b"\0", 1)
        return json.loads(first)

    def _note(self, event):
        method, said = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(said["exceptionDetails"].get("exception", {}).get("description", "an exception"))
        elif method == "Log.entryAdded" and said["entry"]["level"] == "error":
            self.problems.append(said["entry"]["text"])
        elif method == "Network.requestWillBeSent" and said["request"]["url"].startswith("http"):
            self.problems.append(f"asked the network for {said['request']['url']}")

    def run(self, code):
        """The value of an expression, promises awaited."""
        found = self("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["exception"].get("description", code))
        return found["result"].get("value")

    def open(self, page, width=1200, height=900, dark=False, still=True, touch=False, address=""):
        """Show a file; `still` asks for no motion, so that nothing starts by itself."""
        motion, scheme = "reduce" if still else "", "dark" if dark else "light"
        wants = {"prefers-color-scheme": scheme, "prefers-reduced-motion": motion}
        self("Emulation.setEmulatedMedia", features=[{"name": k, "value": v} for k, v in wants.items()])
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=touch)
        self("Emulation.setTouchEmulationEnabled", enabled=touch)
        self("Page.navigate", url="about:blank")
        self("Page.navigate", url=Path(page).as_uri() + address)
        self.run("new Promise(done => document.readyState === 'complete' ? done() : addEventListener('load', done))")
        self.frames(2)

    def frames(self, count=1):
        """Wait for this number of frames."""
        self.run(f"(async () => {{ for (let i = 0; i < {count}; i++) await new Promise(requestAnimationFrame) }})()")

    def key(self, name, shift=False):
        text = {"Enter": "\r", "Space": " "}.get(name, "")
        keys = dict(key=" " if name == "Space" else name, code=name, windowsVirtualKeyCode=KEYS[name],
                    modifiers=8 if shift else 0)  # fmt: skip
        self("Input.dispatchKeyEvent", type="keyDown", text=text, **keys)
        self("Input.dispatchKeyEvent", type="keyUp", **keys)

    def press(self, x, y, *path):
        """Press the mouse at a place, drag it along the path and let go."""
        self("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, button="left", clickCount=1)
        for x, y in path:
            self("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y, button="left", buttons=1)
        self("Input.dispatchMouseEvent", type="mouseReleased", x=x, y=y, button="left", clickCount=1)

    def touch(self, x, y, *path):
        self("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        for x, y in path:
            self("Input.dispatchTouchEvent", type="touchMove", touchPoints=[{"x": x, "y": y}])
        self("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def shot(self, file, whole=True):
        size = self("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"clip": {**size, "scale": 1}, "captureBeyondViewport": True} if whole else {}
        Path(file).write_bytes(base64.b64decode(self("Page.captureScreenshot", **clip)["data"]))


@contextmanager
def browser(folder):
    """A tab in a separate browser, which is closed at the end."""
    into, to = os.pipe()
    back, out = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (into, out)]  # 3 and 4 may be other pipes' ends here
    quiet = [(os.POSIX_SPAWN_OPEN, end, os.devnull, os.O_WRONLY, 0) for end in (1, 2)]
    pipes = [(os.POSIX_SPAWN_DUP2, end, at) for end, at in zip(high, (3, 4))]
    command = [CHROMIUM, *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"]
    process = os.posix_spawn(CHROMIUM, command, os.environ, file_actions=[*quiet, *pipes])
    for end in (into, out, *high):
        os.close(end)
    try:
        yield Tab(to, back)
    finally:
        os.close(to)
        os.kill(process, signal.SIGTERM)
        os.waitpid(process, 0)
        os.close(back)
