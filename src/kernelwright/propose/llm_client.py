"""Asks an OpenAI-compatible endpoint (POST {base}/chat/completions), with retries, a deadline and a budget that nothing exceeds.

The protocol is one POST of JSON, so the standard library does it: no dependency, and each attempt passes through our budget, which a
library's own retries would not.

The budget is hard. Before an attempt its worst case is set aside: a token is at least one byte of the prompt, and the answer has at most
`max_tokens`. What cannot be set aside is not asked. An attempt whose answer was lost (cut connection, time-out, unreadable) costs its worst
case, since the server may charge for it.
"""

from __future__ import annotations

import contextlib
import datetime
import email.utils
import http.client
import json
import math
import random
import socket
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import kernelwright
from kernelwright.propose.llm_calls import Answer, Call, Calls, Request, Transcript, without_secrets
from kernelwright.propose.llm_response import ServerError, answer_of, readable, worst_case
from kernelwright.settings import Llm, SettingsError

ATTEMPTS = 5
PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before the second attempt, doubled each time and scattered; at most. A server's Retry-After comes before it."""
LARGEST = 8 << 20
"""Bytes of a response that are read."""
_RETRIED = (408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529)
_OF_REQUEST = (400, 413, 422)
"""About this request (too long, say), where the model has answered others."""


class CallFailed(RuntimeError):
    """No answer, after so many attempts. `lasting`: asking this model again is useless (no such model, key refused)."""

    def __init__(self, message: str, attempts: int, *, lasting: bool = False):
        super().__init__(message)
        self.attempts, self.lasting = attempts, lasting


class NoMoreCalls(RuntimeError):
    """The next call could exceed the tokens or the money of this run, or the transcript is at its end; the message says which."""


class Budget:
    """Tokens and dollars of one run. Threads may share it."""

    def __init__(self, tokens: int, dollars: float, prices: Any):
        self.limit, self.money, self.prices = tokens, dollars, prices
        self.tokens, self.dollars = 0, 0.0
        """Spent, including what is set aside."""
        self._lock = threading.Lock()

    def cost(self, model: str, prompt: int, answer: int) -> float:
        price_in, price_out = self.prices.get(model, (0.0, 0.0))
        return (prompt * price_in + answer * price_out) / 1e6

    def set_aside(self, model: str, prompt: int, answer: int) -> None:
        """Raises NoMoreCalls."""
        with self._lock:
            if self.tokens + prompt + answer > self.limit:
                raise NoMoreCalls(
                    f"{self.tokens} of {self.limit} tokens are spent, and the next call could take {prompt + answer}; "
                    "raise KERNELWRIGHT_LLM_TOKENS for more"
                )
            if self.dollars + self.cost(model, prompt, answer) > self.money:
                raise NoMoreCalls(
                    f"${self.dollars:.4f} of ${self.money:g} are spent, and the next call could cost "
                    f"${self.cost(model, prompt, answer):.4f}; raise KERNELWRIGHT_LLM_DOLLARS for more"
                )
            self._add(model, prompt, answer)

    def correct(self, model: str, aside: tuple[int, int], used: tuple[int, int]) -> None:
        """What was set aside becomes what was used."""
        with self._lock:
            self._add(model, used[0] - aside[0], used[1] - aside[1])

    def _add(self, model: str, prompt: int, answer: int) -> None:
        self.tokens += prompt + answer
        self.dollars += self.cost(model, prompt, answer)


class Client:
    """`ask` may be called by several threads at once."""

    def __init__(self, options: Llm, calls: Calls, *, pause: float = PAUSE):
        self._options, self._calls, self._pause = options, calls, pause
        self.budget = Budget(options.tokens, options.dollars, options.prices)
        self.transcript: Transcript | None = None
        if options.url.startswith("file:"):
            self.transcript = Transcript(Path(unquote(options.url.removeprefix("file:").removeprefix("//"))))
        self.models = options.models or (self.transcript.models if self.transcript else ())
        if not self.models:
            raise SettingsError("no model is named; set KERNELWRIGHT_LLM_MODELS to one or several of the endpoint's, comma-separated")
        self.asked = self.cached = 0
        self._unknown: dict[str, set[str]] = {model: set() for model in self.models}
        """Parameters that a model refused; `stream`: it answers in a stream only."""
        self._answered: set[str] = set()
        self._lock = threading.Lock()

    def ask(self, request: Request, deadline: float = math.inf) -> Answer:
        """The answer, from an earlier run's calls if it is there. `deadline` is of time.monotonic. Raises CallFailed, NoMoreCalls,
        SettingsError."""
        if self.transcript is not None:
            with self._lock:
                answer = self.transcript.answer(request)
                self.cached += answer is not None
            if answer is None:
                raise NoMoreCalls("the transcript has no more answers")
            return answer
        if (known := self._calls.find(request)) is not None:
            with self._lock:
                self.cached += 1
            return known
        started = time.monotonic()
        try:
            answer, attempts = self._attempts(request, min(deadline, started + self._options.seconds))
        except CallFailed as failed:
            self._keep(request, None, str(failed), failed.attempts, started)
            raise
        self._keep(request, answer, "", attempts, started)
        return answer

    def _keep(self, request: Request, answer: Answer | None, error: str, attempts: int, started: float) -> None:
        priced = answer is not None and request.model in self._options.prices
        self._calls.keep(
            Call(
                request=request,
                answer=answer,
                error=error,
                url=self._options.url,
                attempts=attempts,
                seconds=round(time.monotonic() - started, 3),
                dollars=self.budget.cost(request.model, answer.prompt_tokens, answer.answer_tokens) if answer and priced else None,
                created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            )
        )

    def _attempts(self, request: Request, deadline: float) -> tuple[Answer, int]:
        """The answer, and how many attempts it took."""
        problem, pause = "", self._pause
        for attempt in range(1, ATTEMPTS + 1):
            left = deadline - time.monotonic()
            if left <= 0:
                raise CallFailed(f"no answer in time ({problem or 'no attempt was finished'})", attempt - 1)
            aside = worst_case(request)
            self.budget.set_aside(request.model, *aside)
            used = aside
            wait = 0.0
            unknown = frozenset(self._unknown[request.model])
            try:
                answer = self._post(request, unknown, left)
                used = (answer.prompt_tokens, answer.answer_tokens)
                with self._lock:
                    self.asked += 1
                    self._answered.add(request.model)
                return answer, attempt
            except _Refused as refused:
                used = (0, 0)  # an HTTP error is not charged
                problem = refused.message
                if refused.status == 400 and self._adapt(request.model, unknown, refused.message):
                    continue
                if refused.status not in _RETRIED:
                    lasting = refused.status not in _OF_REQUEST or request.model not in self._answered
                    raise CallFailed(f"{request.model}: {problem}", attempt, lasting=lasting) from None
                wait = refused.retry_after
            except _Lost as lost:
                used = aside if lost.sent else (0, 0)
                problem = str(lost)
            finally:
                self.budget.correct(request.model, aside, used)
            if attempt < ATTEMPTS:
                wait = min(LONGEST_PAUSE, wait or pause * random.uniform(0.5, 1.5))
                time.sleep(max(0.0, min(wait, deadline - time.monotonic())))
                pause *= 2
        raise CallFailed(f"{request.model}: no answer in {ATTEMPTS} attempts, the last: {problem}", ATTEMPTS)

    def _adapt(self, model: str, unknown: frozenset[str], message: str) -> bool:
        """Leaves out a parameter that this model does not take, as some do not, or asks for a stream; True if that is worth another
        attempt. `unknown`: as they were when the refused request was sent; another thread may have learnt the same meanwhile."""
        said = message.lower()
        if "context" in said:  # a conversation that is too long: the limit's name is not what is wrong
            return False
        for name in ("temperature", "max_tokens", "stream_options", "stream"):
            if name in said and name not in unknown:
                self._unknown[model].add(name)
                return True
        return False

    def _post(self, request: Request, unknown: frozenset[str], seconds: float) -> Answer:
        body: dict[str, Any] = {"model": request.model, "messages": [{"role": m.role, "content": m.content} for m in request.messages]}
        # newer models of some vendors take the limit by its other name only
        body["max_completion_tokens" if "max_tokens" in unknown else "max_tokens"] = request.max_tokens
        if "temperature" not in unknown:
            body["temperature"] = request.temperature
        if "stream" in unknown:
            body |= {"stream": True} | ({} if "stream_options" in unknown else {"stream_options": {"include_usage": True}})
        raw = self._exchange(json.dumps(body).encode(), seconds)
        try:
            return answer_of(raw, request)
        except ServerError as error:
            raise _Refused(error.status, f"error {error.status} {self._shown(error.message)}", 0.0) from None
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            start = without_secrets(raw[:200].decode(errors="replace"), self._options.key)
            raise _Lost(f"the response is no chat completion: {' '.join(start.split())!r}", sent=True) from None

    def _exchange(self, body: bytes, seconds: float) -> bytes:
        """One POST. The time-out of a socket is for each read, so a server that drips is cut off at the deadline here."""
        deadline = time.monotonic() + seconds
        headers = {"Content-Type": "application/json", "User-Agent": f"kernelwright/{kernelwright.__version__}"}
        if self._options.key:
            headers["Authorization"] = f"Bearer {self._options.key}"
        post = urllib.request.Request(f"{self._options.url}/chat/completions", body, headers, method="POST")
        try:
            with _OPENER.open(post, timeout=seconds) as response:
                return _read(response, deadline)
        except urllib.error.HTTPError as error:
            with contextlib.closing(error):
                raise self._refused(error, deadline) from None
        except (TimeoutError, http.client.HTTPException, ConnectionError, urllib.error.URLError, OSError) as error:
            why = getattr(error, "reason", error)
            unsent = isinstance(why, ConnectionRefusedError | socket.gaierror)
            text = "it took too long" if isinstance(why, TimeoutError) else str(why) or type(why).__name__
            raise _Lost(without_secrets(f"{self._options.url}: {text}", self._options.key), sent=not unsent) from None

    def _refused(self, error: urllib.error.HTTPError, deadline: float) -> _Refused:
        try:
            text = _read(error, min(deadline, time.monotonic() + 10))[:2000].decode(errors="replace")
        except (OSError, http.client.HTTPException):
            text = ""
        with contextlib.suppress(ValueError, LookupError, TypeError):
            text = str(json.loads(text)["error"]["message"])
        text = self._shown(text)
        fix = {401: "; check KERNELWRIGHT_LLM_KEY", 403: "; check KERNELWRIGHT_LLM_KEY", 404: "; check KERNELWRIGHT_LLM_URL and _MODELS"}
        if error.code in _OF_REQUEST and "context" in text.lower():
            fix[error.code] = "; set KERNELWRIGHT_LLM_ANSWER_TOKENS to less, or KERNELWRIGHT_LLM_PROMPT=brief"
        return _Refused(
            error.code, f"HTTP {error.code} {text}".strip() + fix.get(error.code, ""), _retry_after(error.headers.get("Retry-After"))
        )

    def _shown(self, text: str) -> str:
        """A server's message on one line, without the key and what a terminal would obey."""
        printable = "".join(c if c.isprintable() else " " for c in readable(text))
        return without_secrets(" ".join(printable.split()), self._options.key)[:300]


def _read(response: Any, deadline: float) -> bytes:
    parts, size = [], 0
    while part := response.read1(1 << 16):
        parts.append(part)
        size += len(part)
        if size > LARGEST:
            raise http.client.HTTPException(f"the response is longer than {LARGEST >> 20} MiB")
        if time.monotonic() > deadline:
            raise TimeoutError
    return b"".join(parts)


def _retry_after(text: str | None) -> float:
    """Seconds; the header is a number or a date."""
    if not text:
        return 0.0
    with contextlib.suppress(ValueError):
        return max(0.0, float(text)) if math.isfinite(float(text)) else 0.0
    with contextlib.suppress(ValueError, TypeError):
        when = email.utils.parsedate_to_datetime(text)
        return max(0.0, (when - datetime.datetime.now(when.tzinfo or datetime.UTC)).total_seconds())
    return 0.0


class _Refused(Exception):
    def __init__(self, status: int, message: str, retry_after: float):
        super().__init__(message)
        self.status, self.message, self.retry_after = status, message, retry_after


class _Lost(Exception):
    """`sent`: the server may have worked on it."""

    def __init__(self, message: str, sent: bool):
        super().__init__(message)
        self.sent = sent


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key to another host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_OPENER: Any = urllib.request.build_opener(_NoRedirect)
