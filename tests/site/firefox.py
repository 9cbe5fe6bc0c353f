"""A headless Firefox, by the W3C's WebDriver BiDi: Playwright drives only a Firefox of its own, which not all can have."""

import asyncio
import json
import shutil
import subprocess
import time
from contextlib import contextmanager
from itertools import count
from threading import Thread

from tornado.websocket import websocket_connect

LISTENS = "WebDriver BiDi listening on "
KEYS = {"Enter": "\ue007", "Escape": "\ue00c", "Tab": "\ue004"}


class Firefox:
    """One page. `complaints` holds what its console has said of errors."""

    def __init__(self, address):
        # In a thread of its own: in this one, Playwright may have a loop that runs.
        self.loop, self.numbers, self.complaints = asyncio.new_event_loop(), count(1), []
        self.thread = Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.socket = self.wait(websocket_connect, f"{address}/session")
        self.send("session.new", capabilities={})
        self.send("session.subscribe", events=["log.entryAdded"])
        self.context = self.send("browsingContext.create", type="tab")["context"]

    def wait(self, function, *arguments):
        async def call():
            return await function(*arguments)

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(60)

    def send(self, method, **params):
        number = next(self.numbers)
        self.wait(self.socket.write_message, json.dumps({"id": number, "method": method, "params": params}))
        while True:
            answer = json.loads(self.wait(self.socket.read_message))
            if answer.get("method") == "log.entryAdded" and answer["params"]["level"] == "error":
                self.complaints.append(answer["params"]["text"])
            if answer.get("id") == number:
                assert answer["type"] == "success", answer
                return answer["result"]

    def close(self):
        self.loop.call_soon_threadsafe(self.socket.close)
        self.wait(asyncio.sleep, 0.1)  # until the other side has answered
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def open(self, address, width=1280):
        self.send("browsingContext.setViewport", context=self.context, viewport={"width": width, "height": 800})
        self.send("browsingContext.navigate", context=self.context, url=address, wait="complete")

    def evaluate(self, expression):
        """The value of an expression of JavaScript, as JSON has it; a promise is awaited."""
        result = self.send(
            "script.evaluate",
            expression=f"(async () => JSON.stringify(await ({expression})))()",
            target={"context": self.context},
            awaitPromise=True,
            userActivation=True,
        )
        assert result["type"] == "success", result
        return json.loads(result["result"].get("value", "null"))

    def wait_for(self, expression):
        """Waits until an expression holds; returns its value.

        Asked anew each time: a promise in a page that another one takes the place of would never be kept.
        """
        deadline = time.monotonic() + 30
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < deadline, f"never so: {expression}"
            time.sleep(0.05)
        return value

    def press(self, *keys):
        actions = [{"type": kind, "value": KEYS.get(key, key)} for key in keys for kind in ("keyDown", "keyUp")]
        source = {"type": "key", "id": "keyboard", "actions": actions}
        self.send("input.performActions", context=self.context, actions=[source])

    def click(self, selector):
        x, y = self.evaluate(
            f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])"
            f"([...document.querySelectorAll({json.dumps(selector)})].find((e) => e.offsetWidth).getBoundingClientRect())"
        )
        moves = [
            {"type": "pointerMove", "x": round(x), "y": round(y)},
            {"type": "pointerDown", "button": 0},
            {"type": "pointerUp", "button": 0},
        ]
        self.send(
            "input.performActions", context=self.context, actions=[{"type": "pointer", "id": "mouse", "actions": moves}]
        )


@contextmanager
def firefox(profile):
    """Starts Firefox with a profile in this folder; FileNotFoundError if there is none."""
    found = next(filter(None, map(shutil.which, ("firefox-esr", "firefox"))), None)
    if not found:
        raise FileNotFoundError("no firefox-esr and no firefox")
    command = [found, "--headless", "--remote-debugging-port=0", "--profile", str(profile)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        try:
            line = next((line for line in process.stderr if LISTENS in line), "")
            assert line, f"{found} ended before it listened"
            page = Firefox(line.partition(LISTENS)[2].strip())
            yield page
            page.close()
        finally:
            process.kill()
