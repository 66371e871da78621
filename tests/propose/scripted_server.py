"""An OpenAI-compatible server on localhost whose answers are scripted: a real socket, real HTTP, real faults."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Say:
    """One response. `status` other than 200: an error in OpenAI's form."""

    text: str = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    pause: float = 0.0
    """Seconds before it."""
    raw: bytes | None = None
    """The body, instead of a completion."""
    drip: float = 0.0
    """Seconds between bytes."""
    hang_up: bool = False
    """The connection is closed without an answer."""
    finish: str = "stop"
    usage: dict[str, int] | None = field(default_factory=lambda: {"prompt_tokens": 100, "completion_tokens": 50})


Script = Callable[[dict[str, Any], int], Say]
"""From the body of a request and its number, counted from 0."""


class Server:
    def __init__(self, script: Script):
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.paths: list[str] = []
        self.most_at_once = 0
        self._at_once = 0
        lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    number = len(outer.requests)
                    outer.requests.append(body)
                    outer.keys.append(self.headers.get("Authorization"))
                    outer.paths.append(self.path)
                    outer._at_once += 1
                    outer.most_at_once = max(outer.most_at_once, outer._at_once)
                say = script(body, number)
                time.sleep(say.pause)
                with lock:
                    outer._at_once -= 1
                if not say.hang_up:
                    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the client gave up, as it should
                        self._respond(say, body)

            def _respond(self, say: Say, body: dict[str, Any]) -> None:
                if say.raw is not None:
                    content = say.raw
                elif say.status != 200:
                    content = json.dumps({"error": {"message": say.text, "type": "scripted"}}).encode()
                else:
                    message = {"role": "assistant", "content": say.text}
                    choices = [{"index": 0, "message": message, "finish_reason": say.finish}]
                    full = {"id": "x", "object": "chat.completion", "model": body["model"], "choices": choices}
                    content = json.dumps(full | ({"usage": say.usage} if say.usage else {})).encode()
                self.send_response(say.status)
                for name, value in {"Content-Type": "application/json", "Content-Length": str(len(content)), **say.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                for i in range(len(content) if say.drip else 0):
                    self.wfile.write(content[i : i + 1])
                    self.wfile.flush()
                    time.sleep(say.drip)
                if not say.drip:
                    self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"

    def __enter__(self) -> Server:
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()


@contextmanager
def serving(*says: Say | str, then: Say | None = None) -> Iterator[Server]:
    """Answers in this order; then `then`, or the last again."""

    def script(body: dict[str, Any], number: int) -> Say:
        say = says[number] if number < len(says) else then or says[-1]
        return Say(say) if isinstance(say, str) else say

    with Server(script) as server:
        yield server


def answer(code: str, tag: str = "cpp") -> str:
    """As a model is asked to write it."""
    return f"## Performance analysis\nBound by memory.\n\n## Design\nOne pass.\n\n## Code\n```{tag}\n{code}\n```\n"
