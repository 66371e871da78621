"""Every call of a model, kept: one JSON file a call in a folder for each run. The same request is answered from there at no cost, and a
folder of calls is a transcript, which stands in for an endpoint (`KERNELWRIGHT_LLM_URL=file:FOLDER`).

A call holds the whole conversation and the answer, never the key.
"""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import msgspec

from kernelwright.records import Record
from kernelwright.settings import SettingsError, writable


class Message(Record, frozen=True, kw_only=True):
    role: str
    content: str


class Request(Record, frozen=True, kw_only=True):
    """What decides an answer, as far as anything does."""

    model: str
    messages: tuple[Message, ...]
    max_tokens: int
    temperature: float
    sample: int = 0
    """Tells requests apart that are equal otherwise: the second is to get an answer of its own."""


class Answer(Record, frozen=True, kw_only=True):
    text: str
    prompt_tokens: int
    answer_tokens: int
    finish: str = ""
    """Why it ended: `stop`, or `length` when it was cut off."""


class Call(Record, frozen=True, kw_only=True):
    """One file: a request with its answer, or with why there is none."""

    request: Request
    answer: Answer | None = None
    error: str = ""
    url: str
    attempts: int = 1
    seconds: float = 0.0
    dollars: float | None = None
    created: str = ""


class Calls:
    """The calls of all runs; this one's in a folder of its own. Threads may share it."""

    def __init__(self, folder: Path, run: str):
        self._folder, self._run = folder, folder / run
        self._lock = threading.Lock()
        self._count = 0

    def find(self, request: Request) -> Answer | None:
        """The answer that the same request got before."""
        for path in sorted(self._folder.glob(f"*/*-{request.id}.json")):
            call = _read(path)
            if call is not None and call.answer is not None and call.request == request:
                return call.answer
        return None

    def keep(self, call: Call) -> Path:
        """Writes it, whole or not at all. Raises SettingsError."""
        with self._lock:
            self._count += 1
            path = self._run / f"{self._count:05}-{call.request.id}.json"
        writable(self._run)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        try:
            partial.write_bytes(msgspec.json.format(msgspec.json.encode(call), indent=1))
            partial.rename(path)
        except OSError as error:
            raise SettingsError(f"{path} cannot be written ({error.strerror}): free some space or set KERNELWRIGHT_HOME") from None
        return path


class Transcript:
    """Answers from a folder of calls: of the same request where there is one, else the next that was not given yet, in their order."""

    def __init__(self, folder: Path):
        if not folder.is_dir():
            raise SettingsError(f"KERNELWRIGHT_LLM_URL names the transcript {folder}, which is no folder; name one with calls in it")
        found = [(path, _read(path)) for path in sorted(folder.glob("*.json"))]
        if bad := [path for path, call in found if call is None]:
            raise SettingsError(f"{bad[0]} is no call of a model; take it out of the transcript {folder}")
        self._left = [call for _, call in found if call is not None and call.answer is not None]
        if not self._left:
            raise SettingsError(f"the transcript {folder} holds no answers; name a folder of kept calls")
        self.models = tuple(dict.fromkeys(call.request.model for call in self._left))

    def answer(self, request: Request) -> Answer | None:
        """None at the end."""
        i = next((i for i, call in enumerate(self._left) if call.request == request), 0)
        return self._left.pop(i).answer if self._left else None


def _read(path: Path) -> Call | None:
    try:
        return Call.from_json(path.read_bytes())
    except (OSError, ValueError):
        return None


_SECRET = re.compile(r"\b(sk|key|Bearer)[-_ ][A-Za-z0-9_\-*.]{8,}")


def without_secrets(text: str, key: str) -> str:
    """A server's message as we keep and show it: some repeat the key, or parts of it."""
    if key:
        text = text.replace(key, "***")
    return _SECRET.sub("***", text)
