"""A headless Chromium that is told what to do over a pipe, by its DevTools protocol."""

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


class Tab:
    """One page: what it computes, what is done to it."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back = to, back
        self._session: str | None = None
        self._number = 0
        self._rest = b""

    def attach(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._answer()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def _answer(self) -> Any:
        while b"\0" not in self._rest:
            assert select.select([self._back], [], [], 120)[0], "the browser says nothing"
            read = os.read(self._back, 1 << 20)
            assert read, "the browser has ended"
            self._rest += read
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def value(self, expression: str) -> Any:
        """What a JavaScript expression is, as JSON has it."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, expression: str) -> Any:
        """The first value of an expression that is true."""
        end = time.monotonic() + 60
        while not (value := self.value(expression)):
            assert time.monotonic() < end, f"{expression} stays untrue: {self.value('document.body.innerText')}"
            time.sleep(0.1)
        return value

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        self.until(f"location.href.startsWith({json.dumps(address)}) && document.readyState === 'complete'")

    def drop(self, *paths: Path) -> None:
        """Files dragged in over the upper part of the window, and dropped on the middle."""
        data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
        for kind, y in (("dragEnter", 150), ("dragOver", 150), ("dragOver", 500), ("drop", 500)):
            self.call("Input.dispatchDragEvent", type=kind, x=400, y=y, data=data)
            time.sleep(0.5)  # no hand is faster, and what lies where is known a frame after a change

    def choose(self, element: str, *paths: Path) -> None:
        """Files chosen with an ``<input type=file>``."""
        node = self.call("DOM.querySelector", nodeId=self.call("DOM.getDocument")["root"]["nodeId"], selector=element)
        self.call("DOM.setFileInputFiles", nodeId=node["nodeId"], files=[str(path) for path in paths])

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode={"Tab": 9}[key])

    def prefer(self, scheme: str) -> None:
        """``light`` or ``dark``."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, **options: Any) -> bytes:
        return base64.b64decode(self.call("Page.captureScreenshot", **options)["data"])


@contextmanager
def chromium(place: Path) -> Iterator[Tab]:
    """A browser with an empty profile in ``place`` that finds no other machine; its log is for ``requests``."""
    command = [shutil.which("chromium") or "", "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
    command += [f"--user-data-dir={place}/profile", "--disable-background-networking", "--disable-component-update"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", f"--log-net-log={place}/net.json"]
    command += ["--window-size=1000,1000", "--hide-scrollbars", "about:blank"]
    (read, to), (back, write) = os.pipe(), os.pipe()
    plumbed = ["bash", "-c", f'exec "$@" 3<&{read} 4>&{write}', "bash", *command]
    browser = subprocess.Popen(plumbed, pass_fds=(read, write), stderr=subprocess.DEVNULL)
    os.close(read)
    os.close(write)
    tab = Tab(to, back)
    try:
        tab.attach()
        yield tab
        tab._session = None
        tab.call("Browser.close")
        browser.wait(60)
    finally:
        browser.kill()
        browser.wait()
        os.close(to)
        os.close(back)


def requests(place: Path) -> set[str]:
    """Every address that a page or a worker, not the browser itself, asked for."""
    found = json.loads((place / "net.json").read_text())
    begun = found["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    jobs = [event["params"] for event in found["events"] if event["type"] == begun and "params" in event]
    return {job["url"] for job in jobs if job.get("initiator", "not an origin") != "not an origin"}
