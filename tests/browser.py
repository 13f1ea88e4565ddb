"""A page in a browser without a window, driven by the DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

SECONDS = 20.0
"""That an answer, or a condition, is waited for."""


class Page:
    """One page. `errors` are what its console says of errors, and exceptions of its scripts."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._numbers = socket, itertools.count(1)
        self.errors: list[str] = []

    async def call(self, method: str, **given: Any) -> dict[str, Any]:
        """The answer to a command of DevTools."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": given})
        async with asyncio.timeout(SECONDS):
            while True:
                said = await self._socket.receive_json()
                self._note(said)
                if said.get("id") == number:
                    assert "error" not in said, said
                    answer: dict[str, Any] = said["result"]
                    return answer

    def _note(self, said: dict[str, Any]) -> None:
        given = said.get("params", {})
        if said.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(given["exceptionDetails"], ensure_ascii=False))
        elif said.get("method") == "Log.entryAdded" and given["entry"]["level"] == "error":
            self.errors.append(given["entry"]["text"])

    async def value(self, expression: str) -> Any:
        """What an expression of JavaScript gives."""
        found = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def eventually(self, expression: str) -> Any:
        """Waits until an expression is true, and returns what it gives."""
        deadline = time.monotonic() + SECONDS
        while not (found := await self.value(expression)):
            assert time.monotonic() < deadline, f"{expression}\n{await self.value('document.body.innerText')}"
            await asyncio.sleep(0.05)
        return found

    async def go(self, url: str) -> None:
        """Opens an address and waits until it is loaded."""
        await self.call("Page.navigate", url=url)
        await self.eventually(f"location.href.startsWith({json.dumps(url)}) && document.readyState === 'complete'")

    async def type(self, text: str) -> None:
        """Types into what has the focus, in place of what is selected."""
        await self.call("Input.insertText", text=text)

    async def press(self, key: str, code: int, text: str = "") -> None:
        """Presses a key and lets it go."""
        given = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **given, **({"text": text} if text else {}))
        await self.call("Input.dispatchKeyEvent", type="keyUp", **given)

    async def size(self, width: int, height: int, *, dark: bool = False) -> None:
        """The size of the window in pixels, and which colours are preferred."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def picture(self) -> bytes:
        """What the window shows, as PNG."""
        found = await self.call("Page.captureScreenshot", format="png")
        return base64.b64decode(found["data"])


@asynccontextmanager
async def opened(devtools: str) -> AsyncIterator[Page]:
    """A new page of the browser whose DevTools are at this address."""
    timeout = aiohttp.ClientTimeout(total=SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        async with session.put(f"{devtools}/json/new?about:blank") as answer:
            target = await answer.json()
        async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
            page = Page(socket)
            for domain in ("Page", "Runtime", "Log"):
                await page.call(f"{domain}.enable")
            yield page
        async with session.get(f"{devtools}/json/close/{target['id']}"):
            pass
