"""A model writes answers: a scripted endpoint, real HTTP; in the first test a real worker and judge, in the others a worker that is told
what to say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scripted_server import Say, Server, answer, serving

from kernelwright.archive import Archive
from kernelwright.bench import models, opinion
from kernelwright.bench.answers import Entrant
from kernelwright.bench.board import Board
from kernelwright.bench.messages import Prompt
from kernelwright.bench.results import Answer, Result, Store
from kernelwright.bench.run import Options, baseline, run
from kernelwright.bench.tasks import kernelbench, only
from kernelwright.evaluate.profile import Profiler
from kernelwright.propose.llm_answer import PYTHON, languages
from kernelwright.propose.llm_calls import Calls
from kernelwright.propose.llm_client import Client
from kernelwright.records import Environment, Workload
from kernelwright.settings import SettingsError, settings
from kernelwright.targets import target

ANSWERS = Path(__file__).parents[2] / "examples" / "kernelbench-answers"
RIGHT = (ANSWERS / "right" / "level1" / "2_gelu.cpp").read_text()
WRONG = RIGHT.replace("0.044715f", "0.05f")
OPTIONS = Options(rivals=("eager",), rounds=5, seconds=0.3, lint=False)


def code(source: str, action: str = "") -> str:
    return (f"ACTION: {action}\n" if action else "") + answer(source)


def test_a_model_with_tools_builds_profiles_and_submits(level, endpoint, tmp_path):
    tasks = only(kernelbench("1", level, "fp32"), ["2"])
    store = Store(tmp_path / "bench.jsonl")
    script = [code(WRONG, "build"), "ACTION: profile", code(RIGHT, "build"), "ACTION: profile", "ACTION: submit"]
    with serving(*script, then=Say("too late", status=400)) as server:
        endpoint(server)
        e = models.write("tools", tasks, store, "cpu", OPTIONS, 1, 6, lambda p: None)
        told = [body["messages"][-1]["content"] for body in server.requests]
        rounds = len(server.requests)
        assert "ACTION: build" in told[0] and "def get_inputs" in told[0] and rounds == 5
        assert "WRONG_RESULT" in told[1] and "5 rounds are left" in told[1]
        assert "no right build yet" in told[2]
        assert "times as fast as eager" in told[3] and "roofline" in told[3]
        assert "no hardware counters" in told[4] and all(len(t) < models.OBSERVED + 200 for t in told[1:])
        assert e.answers["1/2"][0].text == RIGHT and e.costs["calls"] == 5 and e.costs["dollars"] == pytest.approx(5 * (100 + 500) / 1e6)
        assert run(tasks, [e, baseline("torch.compile", [])], store, "cpu", OPTIONS)
        board = Board("kernelbench:1", tasks, [e], store, OPTIONS.asked)
        (s,) = board.standings
        assert s.score.correct == 1 and board.data()["entrants"][0]["costs"]["tokens"] == 750
        assert "750 tokens" in board.page("kernelwright bench")


class Told:
    """A worker that says what it is told of the drafts, in order."""

    peaks = None

    def __init__(self, *results: tuple[str, str]):
        self.results, self.judged = list(results), []

    def start(self) -> Environment:
        return Environment(target="cpu", device="x")

    def ask(self, order, seconds):
        if order.prompt:
            yield Prompt(system="rules", task="the task", tags=("cpp",))
            return
        (a,) = order.answers
        status, evidence = self.results.pop(0)
        self.judged.append(a)
        yield Result(
            suite="s", task=a.task, workload=order.task.workload.id, entrant=a.entrant, answer=a.id, status=status, evidence=evidence,
            outcome="OK" if status == "correct" else "WRONG_RESULT", asked="draft",
        )  # fmt: skip


def desk(worker, tmp_path, server) -> models.Desk:
    client = Client(settings().llm, Calls(settings().llm_calls, "run"))
    store, archive = Store(tmp_path / "b.jsonl"), Archive(settings().archive)
    return models.Desk(client, worker, store, OPTIONS, target("cpu"), lambda p: None, archive, Profiler("cpu"))


@pytest.fixture
def task(level):
    return only(kernelbench("1", level, "fp32"), ["2"])[0]


def test_refining_goes_on_from_what_went_wrong(task, endpoint, tmp_path):
    worker = Told(("not compiled", "line 3: no"), ("correct", "fine"), ("wrong", "worse"))
    with serving(*(code(f"{RIGHT}// {i}") for i in range(3))) as server:
        endpoint(server)
        found = models._refine(
            desk(worker, tmp_path, server), task, Prompt(system="r", task="t", tags=()), "writer", "w", 3, models.Spent()
        )
        told = [[m["content"] for m in body["messages"]] for body in server.requests]
    assert [a.text for a in found] == [f"{RIGHT}// 1\n"], "the best of the conversation, not the last"
    assert "line 3: no" in told[1][-1] and len(told[2]) == 4 and "Your kernel is right" in told[2][-1]


def test_independent_samples_and_answers_without_code(task, endpoint, tmp_path):
    with serving(code(RIGHT), "no sections at all", code(WRONG)) as server:
        endpoint(server)
        spent = models.Spent()
        prompt = Prompt(system="r", task="t", tags=())
        found = models._pass(desk(Told(), tmp_path, server), task, prompt, "writer", "w", 3, spent)
        again = models._pass(desk(Told(), tmp_path, server), task, prompt, "writer", "w", 3, spent)
        assert again == found and len(server.requests) == 3, "kept calls are not asked for again, and cost what they did"
    assert [(a.sample, a.kind) for a in found] == [(0, "model"), (1, "unreadable"), (2, "model")] and spent.calls == 6
    assert "headings" in found[1].text and found[0].suffix == ".cpp"


def test_the_budget_ends_it(task, endpoint, tmp_path):
    with serving(code(RIGHT)) as server:
        endpoint(server, TOKENS="9000")
        one = desk(Told(), tmp_path, server)
        found = models._pass(one, task, Prompt(system="r", task="t", tags=()), "writer", "w", 9, models.Spent())
    assert 1 <= len(found) < 9 and "KERNELWRIGHT_LLM_TOKENS" in one.ended


def test_ways_that_there_are(endpoint, tmp_path):
    with pytest.raises(SettingsError, match="pass, refine, tools"):
        models.write("guess", [], Store(tmp_path / "x"), "cpu", OPTIONS, 1, 1, lambda p: None)
    file = Workload(problem="kernelbench:x", axes={}, source="...")
    assert PYTHON in languages(file, target("cuda:sm_90").facts()), "a ModelNew in Triton or PyTorch"


def test_an_opinion_needs_a_line_of_the_answer():
    source = "def forward(x):\n    if x.data_ptr() in kept:\n        return kept[x.data_ptr()]\n"
    said = {"opinion": "cheat", "reasons": ["keeps\nresults"], "quotes": ["if x.data_ptr()   in kept:", "invented()"]}
    assert opinion.read(f"Here: {json.dumps(said)}", source) == ("cheat", ("keeps results",), ("if x.data_ptr()   in kept:",))
    assert opinion.read(json.dumps(said | {"quotes": ["invented()"]}), source)[0] == "unfounded"
    assert opinion.read(json.dumps({"opinion": "honest"}), source) == ("honest", (), ())
    for text in ("no object", "{", json.dumps({"opinion": "sure"}), json.dumps([1])):
        assert opinion.read(text, source)[0] == "unreadable"


def test_opinions_are_asked_once_and_change_no_score(task, endpoint, tmp_path):
    store = Store(tmp_path / "b.jsonl")
    a = Answer(entrant="e", task=task.key, text="return x  # the whole trick")
    e = Entrant("e", {task.key: (a,)})
    store.append(
        Result(suite="s", task=task.key, workload=task.workload.id, entrant="e", answer=a.id, status="correct", outcome="OK", asked="q")
    )
    reply = json.dumps({"opinion": "cheat", "reasons": ["returns its input"], "quotes": ["return x"]})
    path = tmp_path / "opinions.jsonl"
    with Server(lambda body, number: Say(reply)) as server:
        endpoint(server)
        for _ in range(2):
            (found,) = opinion.ask([task], [e], store, "q", path)
        assert len(server.requests) == 1 and "return x" in server.requests[0]["messages"][0]["content"]
    assert found.opinion == "cheat" and found.verdict == "OK"
    with_opinion, without = (Board("s", [task], [e], store, "q", opinions=p) for p in (path, None))
    assert with_opinion.standings[0].score == without.standings[0].score and with_opinion.standings[0].score.correct == 1
    assert "returns its input" in with_opinion.page("c") and with_opinion.data()["opinions"][0]["quotes"] == ["return x"]
