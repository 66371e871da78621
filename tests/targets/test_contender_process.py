"""What a process in the candidate's hands may write into the judge's pipe, and what comes of it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, Pipe

import pytest

from kernelwright.records import Outcome
from kernelwright.targets.contender_process import ContenderProcess
from kernelwright.targets.target import CandidateFault


@contextmanager
def process(answer: Callable[[Connection, bytes], object]) -> Iterator[ContenderProcess]:
    """A process that receives requests and leaves the answers to `answer(pipe, the request's id)`."""
    ours, theirs = Pipe()
    stderr = os.memfd_create("stderr")
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        ours.close()
        try:
            while True:
                answer(theirs, json.loads(theirs.recv_bytes())["id"].encode())
        finally:
            os._exit(0)
    theirs.close()
    one = ContenderProcess(pid, ours, stderr, stops=True)
    try:
        yield one
    finally:
        one.close()


def frame(text: bytes) -> bytes:
    return len(text).to_bytes(4, "big") + text


def test_an_answer_in_pieces_is_read_whole():
    long = b"x" * (1 << 18)  # more than the pipe holds, more than one read

    def answer(pipe: Connection, name: bytes) -> None:
        message = frame(b'{"id": "%s", "long": "%s"}' % (name, long))
        for part in (message[:2], message[2:4], message[4:90], message[90:]):
            while part:
                part = part[os.write(pipe.fileno(), part) :]
            time.sleep(0.01)

    with process(answer) as one:
        for _ in range(2):
            assert one.ask({"do": "launch"}, 10)[0]["long"] == long.decode()


@pytest.mark.parametrize("said", [b"\0", b"\0\0\0\x05", b"\0\0\0\x05abc"], ids=["half a header", "a header", "half a message"])
def test_the_beginning_of_an_answer_is_waited_for_no_longer_than_for_an_answer(said):
    with process(lambda pipe, name: os.write(pipe.fileno(), said) and time.sleep(60)) as one, pytest.raises(CandidateFault) as fault:
        one.ask({"do": "launch"}, 0.2)
    assert fault.value.outcome == Outcome.TIMEOUT
    assert not one.pid


@pytest.mark.parametrize(
    "said",
    [frame(b"no JSON"), frame(b"[1]"), b"\x7f\xff\xff\xffabc", b"\xff\xff\xff\xff\0\0\0\0\0\0\0\x02{}", frame(b"{}") + b"more"],
    ids=["no JSON", "no object", "too long", "a long header", "more than one"],
)
def test_what_is_no_answer_ends_the_process(said):
    with process(lambda pipe, name: os.write(pipe.fileno(), said) and time.sleep(60)) as one, pytest.raises(CandidateFault) as fault:
        one.ask({"do": "launch"}, 10)
    assert fault.value.outcome == Outcome.CRASH
    assert not one.pid


def test_an_answer_to_nobodys_question_is_a_cheat():
    with process(lambda pipe, name: pipe.send_bytes(b'{"id": "0"}')) as one, pytest.raises(CandidateFault) as fault:
        one.ask({"do": "launch"}, 10)
    assert fault.value.outcome == Outcome.CHEAT
