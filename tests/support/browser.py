"""A headless Chromium, driven by its DevTools protocol over a pair of pipes; no package is
needed.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]
# Chromium reads its commands from descriptor 3 and answers on 4.
LAUNCH = (
    "import os, sys; r, w = map(int, sys.argv[1:3]); os.dup2(r, 200); os.dup2(w, 201); "
    "os.dup2(200, 3); os.dup2(201, 4); "
)
LAUNCH += "os.execvp(sys.argv[3], sys.argv[3:])"


def find_browser() -> str | None:
    """The path of a browser, if there is one; `BASS_BROWSER` names another."""
    return os.environ.get("BASS_BROWSER") or next(
        (path for name in NAMES if (path := shutil.which(name))), None
    )


class Page:
    """One tab. What the page writes to its console, and what it throws, is in `complaints`."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read, self._rest, self._count, self._session = write, read, b"", 0, ""
        self._events: list[dict[str, Any]] = []
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and wait for its answer."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters} | (
            {"sessionId": self._session} if self._session else {}
        )
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._count:
            self._note(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._read, 1 << 20)
            if not more:
                raise RuntimeError("the browser has ended")
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        return json.loads(line)

    def _note(self, event: dict[str, Any]) -> None:
        name, said = event.get("method", ""), event.get("params", {})
        self._events.append(event)
        if name == "Runtime.exceptionThrown":
            self.complaints.append(
                said["exceptionDetails"]
                .get("exception", {})
                .get("description", said["exceptionDetails"]["text"])
            )
        elif name == "Runtime.consoleAPICalled":
            self.complaints.append(
                f"{said['type']}: {[argument.get('value') for argument in said['args']]}"
            )
        elif name == "Log.entryAdded":
            self.complaints.append(said["entry"]["text"])
        elif name == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])

    def open(self, path: Path) -> None:
        """Load a file and wait until it is there."""
        self._events.clear()
        self.send("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self._events):
            self._note(self._next())

    def value(self, expression: str) -> Any:
        """What a JavaScript expression comes to."""
        answer = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(
                f"{expression}: "
                f"{answer['exceptionDetails'].get('exception', {}).get('description')}"
            )
        return answer["result"].get("value")

    def press(self, *keys: str) -> None:
        """Keys of the keyboard, one after the other."""
        codes = {
            "Tab": 9,
            "Escape": 27,
            "End": 35,
            "Home": 36,
            "ArrowLeft": 37,
            "ArrowUp": 38,
            "ArrowRight": 39,
            "ArrowDown": 40,
        }
        for key in keys:
            for kind in ("rawKeyDown", "keyUp"):
                self.send(
                    "Input.dispatchKeyEvent",
                    type=kind,
                    key=key,
                    code=key,
                    windowsVirtualKeyCode=codes[key],
                )

    def hover(self, selector: str) -> None:
        """Move the pointer over the first element that a selector finds."""
        self.value(
            f"document.querySelector({selector!r}).scrollIntoView({{block: 'center', inline: "
            f"'center'}})"
        )
        box = self.value(
            f"(({{x, y, width, height}}) => [x + width / 2, y + height / "
            f"2])(document.querySelector({selector!r}).getBoundingClientRect())"
        )
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])

    def looks(
        self, media: str = "screen", scheme: str = "light", width: int = 1200, height: int = 900
    ) -> None:
        """Emulate a medium, a colour scheme and a size of window."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.send(
            "Emulation.setEmulatedMedia",
            media=media,
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )

    def picture(self, path: Path, whole: bool = True) -> None:
        """A screenshot, of the whole page or of what is in the window."""
        path.write_bytes(
            base64.b64decode(
                self.send("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
            )
        )

    def pdf(self, path: Path) -> None:
        """The page as it is printed."""
        path.write_bytes(
            base64.b64decode(
                self.send("Page.printToPDF", printBackground=True, preferCSSPageSize=True)["data"]
            )
        )


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A browser with an empty profile in the folder."""
    found = find_browser()
    assert found is not None
    (commands, write), (read, answers) = os.pipe(), os.pipe()
    launch = [
        sys.executable,
        "-c",
        LAUNCH,
        str(commands),
        str(answers),
        found,
        *FLAGS,
        f"--user-data-dir={folder / 'profile'}",
    ]
    environment = os.environ | {"HOME": str(folder)}
    with subprocess.Popen(
        launch,
        pass_fds=(commands, answers),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
    ) as process:
        os.close(commands)
        os.close(answers)
        try:
            yield Page(write, read)
        finally:
            os.close(write)
            os.close(read)
            process.terminate()
