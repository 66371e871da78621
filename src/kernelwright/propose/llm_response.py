"""What an OpenAI-compatible server sent back, as an Answer: a completion, or the events of a server that only streams."""

from __future__ import annotations

import json
from typing import Any

from kernelwright.propose.llm_calls import Answer, Request

OVERHEAD = 32
"""Tokens that a chat template may add to a message."""
MOST_TOKENS = 10**9
"""A server that counts more for one call has not counted."""


class ServerError(Exception):
    """An error in the body of a response that says 200, as routers in front of several servers send it."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status, self.message = status, message


def worst_case(request: Request) -> tuple[int, int]:
    """Most tokens of prompt and answer: a token stands for at least one byte."""
    return sum(len(m.content.encode()) + OVERHEAD for m in request.messages), request.max_tokens


def answer_of(raw: bytes, request: Request) -> Answer:
    """Raises ServerError; and ValueError, LookupError, TypeError, AttributeError or RecursionError where it is no answer at all."""
    start = raw.lstrip()[:8]
    body = _streamed(raw) if start.startswith((b"data:", b"event:", b"id:", b"retry:", b":")) else json.loads(raw)
    _no_error(body)
    choice = body["choices"][0]
    _no_error(choice)
    content = choice["message"].get("content")
    if isinstance(content, list):
        content = "".join(part["text"] for part in content if part.get("type") == "text")
    if not isinstance(content, str | None):
        raise TypeError
    text = readable(content or "")
    prompt, answer = _counts(body.get("usage"), worst_case(request), bool(text))
    return Answer(text=text, prompt_tokens=prompt, answer_tokens=answer, finish=readable(str(choice.get("finish_reason") or ""))[:40])


def readable(text: str) -> str:
    """JSON may spell half a character (a lone surrogate), which no file and no compiler takes."""
    return text.encode(errors="replace").decode()


def _counts(usage: Any, most: tuple[int, int], said_something: bool) -> tuple[int, int]:
    """Tokens of prompt and answer. A server that does not count, or counts what cannot be, is taken at the worst case. `total_tokens` above
    the sum are thoughts that some leave out of the answer's."""
    usage = usage if isinstance(usage, dict) else {}
    prompt, answer, total = (usage.get(name) for name in ("prompt_tokens", "completion_tokens", "total_tokens"))
    prompt = prompt if _count(prompt) and prompt else most[0]  # no prompt is empty
    if not _count(answer) or (not answer and said_something):
        return prompt, most[1]
    return prompt, max(answer, total - prompt if _count(total) else 0)


def _count(n: Any) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= MOST_TOKENS


def _streamed(raw: bytes) -> dict[str, Any]:
    """The completion that a stream's pieces make. Raises ValueError where it broke off."""
    parts: list[str] = []
    finish, usage, ended = "", None, False
    for line in raw.decode().replace("\r\n", "\n").split("\n"):  # not splitlines: what models write may hold other ends of lines
        name, _, data = line.partition(":")
        if name != "data" or not data.strip():
            continue
        if data.strip() == "[DONE]":
            ended = True
            break
        event = json.loads(data)
        _no_error(event)
        usage = event.get("usage") or usage
        for choice in (event.get("choices") or [])[:1]:
            _no_error(choice)
            parts.append((choice.get("delta") or {}).get("content") or "")
            finish = choice.get("finish_reason") or finish
    if not (ended or finish):
        raise ValueError("the stream broke off")
    return {"choices": [{"message": {"content": "".join(parts)}, "finish_reason": finish}], "usage": usage}


def _no_error(body: Any) -> None:
    error = body.get("error")
    if not error:
        return
    error = error if isinstance(error, dict) else {"message": error}
    code = error.get("code")
    raise ServerError(code if isinstance(code, int) and 400 <= code < 600 else 500, str(error.get("message")))
