"""The client against a real server on localhost: retries, time-outs, broken answers, and a budget that nothing exceeds."""

from __future__ import annotations

import json
import math
import threading
import time

import pytest
from scripted_server import Say, Server, serving

from kernelwright.propose.llm_calls import Answer, Call, Calls, Message, Request, Transcript, without_secrets
from kernelwright.propose.llm_client import ATTEMPTS, Budget, CallFailed, Client, NoMoreCalls, worst_case
from kernelwright.settings import Llm, SettingsError

KEY = "k-0123456789-secret"
REQUEST = Request(model="m", messages=(Message(role="user", content="hello"),), max_tokens=64, temperature=0.5)


def client(server: Server, tmp_path, **options) -> Client:
    given = {"url": server.url, "models": ("m",), "key": KEY, "seconds": 5.0} | options
    return Client(Llm(**given), Calls(tmp_path / "llm", "run"), pause=0.01)


def kept(tmp_path) -> list[Call]:
    return [Call.from_json(path.read_bytes()) for path in sorted((tmp_path / "llm").glob("*/*.json"))]


def test_one_call_speaks_the_protocol(tmp_path):
    with serving("hi there") as server:
        answer = client(server, tmp_path).ask(REQUEST)
    assert answer == Answer(text="hi there", prompt_tokens=100, answer_tokens=50, finish="stop")
    assert server.paths == ["/v1/chat/completions"] and server.keys == [f"Bearer {KEY}"]
    assert server.requests[0] == {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 64,
        "temperature": 0.5,
    }
    (call,) = kept(tmp_path)
    assert call.request == REQUEST and call.answer == answer and call.url == server.url


def test_without_a_key_none_is_sent(tmp_path):
    with serving("hi") as server:
        client(server, tmp_path, key="").ask(REQUEST)
    assert server.keys == [None]


@pytest.mark.parametrize(
    "fault",
    [
        Say("slow down", status=429, headers={"Retry-After": "0.01"}),
        Say("overloaded", status=503),
        Say(status=500, raw=b"<html>oops</html>"),
        Say(raw=b"<html>not json</html>"),
        Say(raw=b'{"choices": []}'),
        Say(raw=b'{"choices": [{"message": {"content": 7}}]}'),
        Say(raw=b"[" * 100_000),
        Say(raw=b'{"choices": [{"mess', headers={"Content-Length": "500"}),
        Say(hang_up=True),
    ],
)
def test_passing_faults_are_tried_again(tmp_path, fault):
    with serving(fault, "at last") as server:
        assert client(server, tmp_path).ask(REQUEST).text == "at last"
    assert len(server.requests) == 2 and kept(tmp_path)[0].attempts == 2


def test_after_all_attempts_it_says_what_was_seen(tmp_path):
    with serving(Say("overloaded", status=503)) as server, pytest.raises(CallFailed, match="HTTP 503 overloaded") as error:
        client(server, tmp_path).ask(REQUEST)
    assert len(server.requests) == ATTEMPTS and not error.value.lasting
    assert "overloaded" in kept(tmp_path)[0].error and kept(tmp_path)[0].answer is None


@pytest.mark.parametrize(("status", "says"), [(401, "check KERNELWRIGHT_LLM_KEY"), (404, "check KERNELWRIGHT_LLM_URL"), (400, "HTTP 400")])
def test_lasting_faults_are_not(tmp_path, status, says):
    with serving(Say("no such thing", status=status)) as server, pytest.raises(CallFailed, match=says) as error:
        client(server, tmp_path).ask(REQUEST)
    assert len(server.requests) == 1 and error.value.lasting
    assert kept(tmp_path)[0].attempts == 1


def test_nobody_listens(tmp_path):
    with serving("x") as server:
        pass
    one = client(server, tmp_path)
    with pytest.raises(CallFailed, match="refused"):
        one.ask(REQUEST)
    assert one.budget.tokens == 0, "nothing was sent"


def test_parameters_that_a_model_does_not_take_are_left_out(tmp_path):
    def script(body, number):
        if "temperature" in body:
            return Say("Unsupported value: 'temperature' does not support 0.5", status=400)
        return Say("Use max_completion_tokens, max_tokens is not supported", status=400) if "max_tokens" in body else Say("fine")

    with Server(script) as server:
        one = client(server, tmp_path)
        assert one.ask(REQUEST).text == "fine"
        assert one.ask(REQUEST.replace(sample=1)).text == "fine"
    assert len(server.requests) == 4, "the second call knows"
    assert server.requests[-1]["max_completion_tokens"] == 64 and set(server.requests[-1]) == {"model", "messages", "max_completion_tokens"}


def test_threads_that_are_refused_at_one_time_all_try_again(tmp_path):
    """One learns that the model takes no temperature; the others' requests were under way with it."""
    together = threading.Barrier(4)

    def script(body, number):
        if "temperature" in body:
            together.wait(10)
            return Say("'temperature' is not supported", status=400)
        return Say("fine")

    with Server(script) as server:
        one, found = client(server, tmp_path), []
        threads = [threading.Thread(target=lambda i=i: found.append(one.ask(REQUEST.replace(sample=i)).text)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == ["fine"] * 4


def streamed(*pieces: str, end: str = "data: [DONE]\n\n", usage: dict | None = None) -> Say:
    events = [{"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in pieces]
    events += [{"choices": [], "usage": usage}] if usage else []
    text = ": keep-alive\n\n" + "".join(f"data: {json.dumps(event, ensure_ascii=False)}\r\n\r\n" for event in events) + end
    return Say(raw=text.encode(), headers={"Content-Type": "text/event-stream"})


def test_a_server_that_only_streams(tmp_path):
    def script(body, number):
        if not body.get("stream"):
            return Say("This model only supports stream mode, please enable the stream parameter", status=400)
        if "stream_options" in body:
            return Say("unknown field stream_options", status=400)
        return streamed("a\u2028", "b", usage={"prompt_tokens": 7, "completion_tokens": 3})

    with Server(script) as server:
        answer = client(server, tmp_path).ask(REQUEST)
    assert (answer.text, answer.prompt_tokens, answer.answer_tokens) == ("a\u2028b", 7, 3) and len(server.requests) == 3


def test_a_stream_that_nobody_asked_for_and_one_that_broke_off(tmp_path):
    broken = streamed("half", end="")
    wrong = streamed("x", end='data: {"error": {"message": "overloaded", "code": 529}}\n\n')
    with serving(broken, wrong, streamed("who", "le")) as server:
        assert client(server, tmp_path).ask(REQUEST).text == "whole"
    assert len(server.requests) == 3


def test_an_error_that_says_200_is_an_error(tmp_path):
    router = Say(raw=b'{"error": {"message": "no credit\\u001b[31m", "code": 402}}')
    with serving(router) as server, pytest.raises(CallFailed, match=r"error 402 no credit \[31m$") as error:
        client(server, tmp_path).ask(REQUEST)
    assert len(server.requests) == 1 and error.value.lasting


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        ({"prompt_tokens": 0, "completion_tokens": 0}, worst_case(REQUEST)),
        ({"prompt_tokens": -3, "completion_tokens": "9"}, worst_case(REQUEST)),
        ({"prompt_tokens": True, "completion_tokens": 10**30}, worst_case(REQUEST)),
        ([1, 2], worst_case(REQUEST)),
        ({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 60}, (10, 50)),
        ({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 0}, (10, 5)),
    ],
)
def test_counts_that_cannot_be(tmp_path, usage, counted):
    """A proxy that reports no tokens must not make a hard budget endless."""
    with serving(Say("x", usage=usage)) as server:
        one = client(server, tmp_path)
        answer = one.ask(REQUEST)
    assert (answer.prompt_tokens, answer.answer_tokens) == counted and one.budget.tokens == sum(counted)
    assert kept(tmp_path)[0].answer == answer


def test_half_a_character_is_kept_as_a_question_mark(tmp_path):
    half = b'{"choices": [{"message": {"content": "a\\ud800b"}}]}'
    with serving(Say(raw=half), Say(status=400, raw=b'{"error": {"message": "c\\ud800d"}}')) as server:
        one = client(server, tmp_path)
        assert one.ask(REQUEST).text == "a?b"
        with pytest.raises(CallFailed, match=r"c\?d"):
            one.ask(REQUEST.replace(sample=1))
    assert len(kept(tmp_path)) == 2


def test_a_conversation_that_is_too_long_is_not_the_end_of_the_model(tmp_path):
    too_long = Say("This model's maximum context length is 4096 tokens. Please reduce max_tokens", status=400)
    with serving("fine", too_long) as server, pytest.raises(CallFailed, match="KERNELWRIGHT_LLM_PROMPT=brief") as error:
        one = client(server, tmp_path)
        one.ask(REQUEST)
        one.ask(REQUEST.replace(sample=1))
    assert not error.value.lasting and len(server.requests) == 2
    with serving(too_long) as server, pytest.raises(CallFailed) as error:
        client(server, tmp_path / "2").ask(REQUEST)
    assert error.value.lasting, "not one was short enough"


def test_retry_after_is_kept_to(tmp_path):
    with serving(Say("wait", status=429, headers={"Retry-After": "0.6"}), "now") as server:
        started = time.monotonic()
        client(server, tmp_path).ask(REQUEST)
    assert time.monotonic() - started >= 0.6


@pytest.mark.parametrize("slow", [Say("late", pause=30), Say("drop by drop", drip=0.2)])
def test_a_slow_server_is_cut_off_at_the_deadline(tmp_path, slow):
    with serving(slow) as server, pytest.raises(CallFailed, match="in time"):
        started = time.monotonic()
        client(server, tmp_path, seconds=1.0).ask(REQUEST)
    assert time.monotonic() - started < 15, "30 s and 40 s without the deadline"


def test_a_redirect_does_not_carry_the_key_away(tmp_path):
    with serving("stolen") as other:
        moved = Say("moved", status=307, headers={"Location": other.url + "/chat/completions"})
        with serving(moved) as server, pytest.raises(CallFailed, match="HTTP 307"):
            client(server, tmp_path).ask(REQUEST)
    assert other.requests == []


def test_an_endless_response_is_not_read_to_the_end(tmp_path):
    with serving(Say(raw=b" " * (9 << 20))) as server, pytest.raises(CallFailed, match="longer than 8 MiB"):
        client(server, tmp_path).ask(REQUEST)


def test_content_in_parts_and_refusals(tmp_path):
    parts = json.dumps({"choices": [{"message": {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}}]})
    refusal = json.dumps({"choices": [{"message": {"content": None, "refusal": "no"}}]})
    with serving(Say(raw=parts.encode()), Say(raw=refusal.encode())) as server:
        one = client(server, tmp_path)
        assert one.ask(REQUEST).text == "ab" and one.ask(REQUEST.replace(sample=1)).text == ""


# ------------------------------------------------------------------------------------------------------------- secrets


def test_the_key_is_nowhere(tmp_path):
    echo = Say(f"Incorrect API key provided: {KEY}. Also sk-abcdefghijkl****mnop", status=401)
    with serving(echo, Say(raw=f"<b>{KEY}</b>".encode())) as server:
        one = client(server, tmp_path)
        with pytest.raises(CallFailed) as first:
            one.ask(REQUEST)
        with pytest.raises(CallFailed) as second:
            one.ask(REQUEST)
    stored = "".join(path.read_text() for path in (tmp_path / "llm").rglob("*.json"))
    assert len(kept(tmp_path)) == 2
    for text in (str(first.value), str(second.value), stored, repr(one._options)):
        assert KEY not in text and "sk-abc" not in text
    assert without_secrets("a Bearer abcdefgh12 b", "") == "a *** b"


# -------------------------------------------------------------------------------------------------------------- budget


def test_the_token_budget_is_hard(tmp_path):
    one_call = sum(worst_case(REQUEST))
    with serving(Say("x", usage={"prompt_tokens": 10, "completion_tokens": 20})) as server:
        one = client(server, tmp_path, tokens=one_call + 45)
        for i in range(2):
            one.ask(REQUEST.replace(sample=i))
        with pytest.raises(NoMoreCalls, match="KERNELWRIGHT_LLM_TOKENS"):
            one.ask(REQUEST.replace(sample=9))
    assert one.budget.tokens == 60 and len(server.requests) == 2, "what was set aside is given back, and no call could exceed it"


def test_the_money_is_hard_too(tmp_path):
    with serving(Say("x", usage={"prompt_tokens": 10, "completion_tokens": 64})) as server:
        one = client(server, tmp_path, prices={"m": (1.0, 10_000.0)}, dollars=1.9)
        one.ask(REQUEST)
        one.ask(REQUEST.replace(sample=1))
        with pytest.raises(NoMoreCalls, match=r"of \$1.9 are spent.*KERNELWRIGHT_LLM_DOLLARS"):
            one.ask(REQUEST.replace(sample=2))
    assert one.budget.dollars == pytest.approx(2 * (64 * 10_000 + 10) / 1e6) and len(server.requests) == 2
    assert kept(tmp_path)[0].dollars == pytest.approx(0.64001)


def test_retries_pay_as_well(tmp_path):
    """An answer that was lost may be charged for; one that was refused is not."""
    worst = sum(worst_case(REQUEST))
    with serving(Say(raw=b"garbage"), Say("busy", status=503), Say("x", usage=None)) as server:
        one = client(server, tmp_path)
        one.ask(REQUEST)
    assert one.budget.tokens == 2 * worst, "one lost, one without a count"
    with serving(Say(raw=b"garbage")) as server, pytest.raises(NoMoreCalls):
        client(server, tmp_path / "2", tokens=int(2.5 * worst)).ask(REQUEST)
    assert len(server.requests) == 2


def test_threads_cannot_exceed_it_together():
    budget, refused = Budget(1000, math.inf, {}), []

    def spend():
        for _ in range(50):
            try:
                budget.set_aside("m", 5, 5)
            except NoMoreCalls:
                refused.append(1)

    threads = [threading.Thread(target=spend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert budget.tokens == 1000 and len(refused) == 300


# ---------------------------------------------------------------------------------------------------------- kept calls


def test_the_same_request_is_answered_from_what_was_kept(tmp_path):
    with serving("first", "second") as server:
        client(server, tmp_path).ask(REQUEST)
        again = Client(Llm(url=server.url, models=("m",)), Calls(tmp_path / "llm", "another run"))
        assert again.ask(REQUEST).text == "first" and again.budget.tokens == 0 and again.cached == 1
        assert again.ask(REQUEST.replace(sample=1)).text == "second", "another sample is another request"
    assert len(server.requests) == 2


def test_a_folder_of_calls_is_a_transcript(tmp_path):
    other = REQUEST.replace(sample=1)
    with serving("one", "two", "three") as server:
        one = client(server, tmp_path)
        for request in (REQUEST, other, REQUEST.replace(sample=2)):
            one.ask(request)
    folder = tmp_path / "llm" / "run"
    replayed = Client(Llm(url=f"file:{folder}"), Calls(tmp_path / "elsewhere", "r"))
    assert replayed.models == ("m",)
    unknown = REQUEST.replace(max_tokens=1)
    assert [replayed.ask(r).text for r in (other, unknown, unknown)] == ["two", "one", "three"], "the same one, else the next"
    with pytest.raises(NoMoreCalls, match="no more answers"):
        replayed.ask(unknown)
    assert not (tmp_path / "elsewhere").exists(), "a replay keeps nothing"


def test_bad_transcripts_get_one_sentence(tmp_path):
    with pytest.raises(SettingsError, match="is no folder"):
        Transcript(tmp_path / "nowhere")
    with pytest.raises(SettingsError, match="holds no answers"):
        Transcript(tmp_path)
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(SettingsError, match=r"x.json is no call"):
        Transcript(tmp_path)


def test_no_model_is_said(tmp_path):
    with pytest.raises(SettingsError, match="KERNELWRIGHT_LLM_MODELS"):
        Client(Llm(url="http://localhost:1/v1"), Calls(tmp_path, "r"))
