"""A headless Chromium, driven by its DevTools protocol over a pair of pipes; no package is
needed.
"""

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
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
    "--remote-debugging-pipe",
)
# Chromium reads its commands from descriptor 3 and answers on 4.
LAUNCH = (
    "import os, sys; r, w = map(int, sys.argv[1:3]); os.dup2(r, 200); os.dup2(w, 201); "
    "os.dup2(200, 3); os.dup2(201, 4); os.execvp(sys.argv[3], sys.argv[3:])"
)
CODES = {"Tab": 9, "Escape": 27, "Home": 36, "ArrowRight": 39, "ArrowDown": 40}


def find_browser() -> str | None:
    """The path of a browser, if there is one; `BASS_BROWSER` names another."""
    return os.environ.get("BASS_BROWSER") or next(
        (path for name in NAMES if (path := shutil.which(name))), None
    )


class Page:
    """One tab. complaints: what the page writes to its console or throws. requests: what it
    loads.
    """

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read, self._rest, self._count, self._session = write, read, b"", 0, ""
        self._loaded = False
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and wait for its answer."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
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
        self._loaded |= name == "Page.loadEventFired"
        if name in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            self.complaints.append(json.dumps(said))
        elif name == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])

    def open(self, path: Path) -> None:
        """Load a file and wait until it is there."""
        self._loaded = False
        self.send("Page.navigate", url=path.as_uri())
        while not self._loaded:
            self._note(self._next())

    def value(self, expression: str) -> Any:
        """What a JavaScript expression comes to."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def press(self, *keys: str) -> None:
        """Keys of the keyboard, one after the other."""
        for key in keys:
            code = {"key": key, "code": key, "windowsVirtualKeyCode": CODES[key]}
            for kind in ("rawKeyDown", "keyUp"):
                self.send("Input.dispatchKeyEvent", type=kind, **code)

    def hover(self, selector: str) -> None:
        """Move the pointer over the first element that a selector finds."""
        found = f"document.querySelector({selector!r})"
        self.value(f"{found}.scrollIntoView({{block: 'center', inline: 'center'}})")
        middle = "(({x, y, width, height}) => [x + width / 2, y + height / 2])"
        x, y = self.value(f"{middle}({found}.getBoundingClientRect())")
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def looks(self, scheme: str = "light", width: int = 1200, height: int = 900) -> None:
        """Emulate a colour scheme and a size of window."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", features=features)


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A browser with an empty profile in the folder."""
    found = find_browser()
    assert found is not None
    (commands, write), (read, answers) = os.pipe(), os.pipe()
    program = [sys.executable, "-c", LAUNCH, str(commands), str(answers), found]
    with subprocess.Popen(
        [*program, *FLAGS, f"--user-data-dir={folder / 'profile'}"],
        pass_fds=(commands, answers),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"HOME": str(folder)},
    ) as process:
        os.close(commands)
        os.close(answers)
        try:
            yield Page(write, read)
        finally:
            os.close(write)
            os.close(read)
            process.terminate()
