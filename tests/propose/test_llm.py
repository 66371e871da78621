"""The proposers `llm` and `mix` against a scripted server: questions, repairs, budgets, and the whole loop on the CPU target."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time

import pytest
from gelu_answers import ANSWERS, FAST, PLAIN, TRANSCRIPT
from scripted_server import Say, Server, answer, serving
from toy_family import judged

from kernelwright.archive import Archive
from kernelwright.loop import Budget, optimize
from kernelwright.problems import resolve
from kernelwright.propose import Context, make
from kernelwright.propose.llm import FUTILE, REPAIRS, Llm, LlmUnavailable
from kernelwright.propose.mix import Mix
from kernelwright.records import Candidate, Environment, Outcome, Trial, Verdict
from kernelwright.settings import SettingsError
from kernelwright.targets import target

W = resolve("chain:new-gelu:16x64")
CPU = target("cpu").facts()
KEY = "k-0123456789-secret"


@pytest.fixture
def endpoint(monkeypatch):
    """Sets the environment for a server."""

    def use(server: Server | str, models: str = "m", **more: str) -> None:
        monkeypatch.setenv("KERNELWRIGHT_LLM_URL", server if isinstance(server, str) else server.url)
        monkeypatch.setenv("KERNELWRIGHT_LLM_MODELS", models)
        monkeypatch.setenv("KERNELWRIGHT_LLM_KEY", KEY)
        for name, value in more.items():
            monkeypatch.setenv(f"KERNELWRIGHT_LLM_{name}", value)

    return use


def proposer(name: str = "llm", families=(), **more) -> Llm:
    found = make(name, W, families, CPU, context=Context(deadline=time.monotonic() + 60), **more)
    assert isinstance(found, Llm | Mix)
    return found  # type: ignore[return-value]


def told(candidate: Candidate, ratio: float, **fields) -> Trial:
    return judged(candidate, ratio, workload=W, environment=Environment(target="cpu", device="x"), **fields)


def numbered(i: int) -> str:
    return answer(f"{PLAIN}// kernel {i}")


def prompts(server: Server) -> list[str]:
    return [body["messages"][-1]["content"] for body in server.requests]


def test_a_candidate_says_where_it_comes_from(endpoint):
    with serving(answer(PLAIN)) as server:
        endpoint(server)
        (candidate,) = proposer().propose(1)
    assert candidate.kind == "cpu" and candidate.source == PLAIN
    origin = candidate.origin
    assert (origin.kind, origin.name, origin.proposer, origin.config["repairs"]) == ("llm", "m", "llm", 0)
    assert [m["role"] for m in server.requests[0]["messages"]] == ["system", "user"]


def test_measured_kernels_are_the_next_prompt_and_the_parents(endpoint):
    with serving(numbered(1), numbered(2)) as server:
        endpoint(server, CONCURRENCY="1")
        one = proposer()
        (first,) = one.propose(1)
        one.learn(told(first, 2.0))
        (second,) = one.propose(1)
    assert "No kernel for this workload" in prompts(server)[0]
    assert "// kernel 1" in prompts(server)[1] and "2.00x the speed of eager" in prompts(server)[1]
    assert second.origin.parents == (first.id,)


@pytest.mark.parametrize("outcome", [Outcome.COMPILE_ERROR, Outcome.WRONG_RESULT, Outcome.CHEAT, Outcome.CRASH])
def test_failures_go_back_a_bounded_number_of_times(endpoint, outcome):
    with Server(lambda body, number: Say(numbered(number))) as server:
        endpoint(server, CONCURRENCY="1")
        one = proposer()
        for round_ in range(REPAIRS + 2):
            (candidate,) = one.propose(1)
            one.learn(told(candidate, 0, verdict=Verdict(outcome=outcome, evidence=f"evidence {round_}")))
    lengths = [len(body["messages"]) for body in server.requests]
    assert lengths == [*range(2, 2 * REPAIRS + 3, 2), 2], "then a new question"
    for round_ in range(REPAIRS):
        conversation = server.requests[round_ + 1]["messages"]
        assert f"evidence {round_}" in conversation[-1]["content"] and f"// kernel {round_}" in conversation[-2]["content"]
        assert ("recognised as a cheat" in conversation[-1]["content"]) == (outcome is Outcome.CHEAT)


def test_answers_that_cannot_be_read_go_back_too(endpoint):
    with serving(Say("no code here", finish="length"), answer(PLAIN)) as server:
        endpoint(server, CONCURRENCY="1")
        (candidate,) = proposer().propose(1)
    assert candidate.source == PLAIN and candidate.origin.config["repairs"] == 1
    assert "must have the headings" in prompts(server)[1] and "cut off at 8192 tokens" in prompts(server)[1]


def test_noise_and_foreign_trials_are_no_failure(endpoint):
    with Server(lambda body, number: Say(numbered(number))) as server:
        endpoint(server, CONCURRENCY="1")
        one = proposer()
        (candidate,) = one.propose(1)
        one.learn(told(candidate, 0, verdict=Verdict(outcome=Outcome.NOISY)))
        one.learn(judged(candidate, 0))
        one.propose(1)
    assert [len(body["messages"]) for body in server.requests] == [2, 2]


def test_never_the_same_kernel_twice_and_an_end_to_repetition(endpoint):
    with serving(answer(PLAIN)) as server:
        endpoint(server)
        one = proposer()
        assert len(one.propose(4)) == 1 and one.propose(4) == [] == one.propose(1)
    assert FUTILE <= len(server.requests) <= FUTILE + 8
    assert "held no new kernel" in one.summary()["no more questions"]


def test_several_calls_at_once(endpoint):
    with Server(lambda body, number: Say(numbered(number), pause=0.5)) as server:
        endpoint(server, CONCURRENCY="3")
        one = proposer()
        found = one.propose(8)
        while len(found) < 6:
            found += one.propose(6 - len(found))
    assert server.most_at_once == 3 and len({c.id for c in found}) == 6


def test_no_more_calls_than_candidates_wanted(endpoint):
    with Server(lambda body, number: Say(numbered(number))) as server:
        endpoint(server, CONCURRENCY="8")
        assert len(proposer().propose(1)) == 1
    assert len(server.requests) == 1


def test_the_better_model_is_asked_more_often(endpoint):
    with Server(lambda body, number: Say(answer(f"{PLAIN}// {body['model']} {number}"))) as server:
        endpoint(server, "good, bad", CONCURRENCY="1")
        one, speed = proposer(), 1.0
        for _ in range(40):
            (candidate,) = one.propose(1)
            speed *= 1.1 if candidate.origin.name == "good" else 1.0
            one.learn(told(candidate, speed if candidate.origin.name == "good" else 0.5))
    asked = [body["model"] for body in server.requests]
    assert asked[:2] == ["good", "bad"] and asked.count("good") > asked.count("bad") >= 5
    assert one.summary()["earned by models"]["good"] > one.summary()["earned by models"]["bad"]


def test_a_model_that_does_not_exist_is_dropped(endpoint):
    def script(body, number):
        return Say("no such model", status=404) if body["model"] == "gone" else Say(numbered(number))

    with Server(script) as server:
        endpoint(server, "gone, there", CONCURRENCY="1")
        one = proposer()
        assert [len(one.propose(1)) for _ in range(5)] == [1] * 5
    assert [body["model"] for body in server.requests].count("gone") == 1 and one.summary()["llm"]["failed calls"] == 1


def test_no_model_at_all_is_one_sentence(endpoint):
    with serving(Say("bad key", status=401)) as server:
        endpoint(server)
        with pytest.raises(LlmUnavailable, match="no model answers: m: HTTP 401 bad key; check KERNELWRIGHT_LLM_KEY"):
            proposer().propose(1)


def test_the_budget_ends_it(endpoint):
    with Server(lambda body, number: Say(numbered(number), usage={"prompt_tokens": 9000, "completion_tokens": 1000})) as server:
        endpoint(server, TOKENS="60000", ANSWER_TOKENS="1000", CONCURRENCY="1")
        one, found = proposer(), []
        while batch := one.propose(1):
            found += batch
            assert len(found) < 10
    assert len(found) == len(server.requests) > 1 and one.summary()["llm"]["tokens"] <= 60_000
    assert "KERNELWRIGHT_LLM_TOKENS" in one.summary()["no more questions"]


def test_time_is_kept(endpoint):
    with serving(Say(answer(PLAIN), pause=30)) as server:
        endpoint(server)
        one = make("llm", W, [], CPU, context=Context(deadline=time.monotonic() + 1))
        started = time.monotonic()
        assert one.propose(4) == [] and one.propose(4) == []
        one.close()
    assert time.monotonic() - started < 15


def test_the_key_is_in_no_prompt_however_it_came_into_evidence(endpoint):
    with Server(lambda body, number: Say(numbered(number))) as server:
        endpoint(server, CONCURRENCY="1")
        one = proposer()
        (candidate,) = one.propose(1)
        one.learn(told(candidate, 0, verdict=Verdict(outcome=Outcome.COMPILE_ERROR, evidence=f"KERNELWRIGHT_LLM_KEY={KEY}")))
        one.propose(1)
    assert all(KEY not in prompt for prompt in prompts(server)) and "KERNELWRIGHT_LLM_KEY=***" in prompts(server)[1]


def test_islands(endpoint):
    with Server(lambda body, number: Say(numbered(number))) as server:
        endpoint(server, CONCURRENCY="1", EXEMPLARS="islands")
        one = proposer()
        for i in range(8):
            (candidate,) = one.propose(1)
            assert candidate.origin.config["island"] == i % 4
            one.learn(told(candidate, 1.0 + 0.2 * i))
    assert "// kernel 0" in prompts(server)[4] and "// kernel 3" not in prompts(server)[4], "an island draws from its own"
    assert "// kernel 1" in prompts(server)[5] and "// kernel 2" not in prompts(server)[5]


def test_a_resumed_search_knows_what_was_tried(endpoint):
    with Server(lambda body, number: Say(numbered(number))) as server:
        endpoint(server, CONCURRENCY="1")
        (first,) = proposer().propose(1)
        again = proposer(history=[told(first, 3.0)])
        (second,) = again.propose(1)
    assert second.id != first.id and "// kernel 0" in prompts(server)[1] and again.bandit.means() == {"m": 1.0}


def test_without_an_endpoint_it_says_what_to_set():
    for name in ("llm", "mix"):
        with pytest.raises(SettingsError, match="set KERNELWRIGHT_LLM_URL"):
            make(name, W, [], CPU)
    assert {c.origin.proposer for c in make("mix", W, families(), CPU).propose(4)} == {"evolve"}
    with pytest.raises(SettingsError, match="models write no kernels for target fake"):
        make("llm", W, [], target("fake").facts())


# ----------------------------------------------------------------------------------------------------------------- mix


def families():
    from kernelwright.families import families_for

    return families_for(W, CPU)[0]


def test_mix_goes_on_searching_while_a_model_thinks(endpoint):
    with serving(Say(answer(PLAIN), pause=3.0), numbered(1)) as server:
        endpoint(server, CONCURRENCY="1")
        mix, origins = proposer("mix", families()), []
        started = time.monotonic()
        while "llm" not in origins and time.monotonic() - started < 30:
            for candidate in mix.propose(1):
                origins.append(candidate.origin.proposer)
                mix.learn(told(candidate, 1.0))
            time.sleep(0.2)
    assert origins[0] == "evolve" and origins[-1] == "llm" and origins.count("evolve") > 3


def test_mix_shares_by_what_each_earned(endpoint):
    with Server(lambda body, number: Say(numbered(number))) as server:
        endpoint(server, CONCURRENCY="4")

        def shares(winner: str) -> dict[str, int]:
            mix, best, count = proposer("mix", families()), 1.0, {"llm": 0, "evolve": 0}
            for _ in range(60):
                for candidate in mix.propose(1):
                    name = candidate.origin.proposer
                    count[name] += 1
                    best *= 1.2 if name == winner else 1.0
                    mix.learn(told(candidate, best if name == winner else 0.5))
                time.sleep(0.02)
            assert mix.summary()["earned by proposers"][winner] == max(mix.summary()["earned by proposers"].values())
            return count

        by_evolve, by_llm = shares("evolve"), shares("llm")
    assert by_evolve["evolve"] > by_evolve["llm"] > 0 and by_llm["llm"] > by_evolve["llm"]


def test_mix_survives_an_endpoint_that_is_down(endpoint):
    with serving(Say("bad key", status=401)) as server:
        endpoint(server)
        mix = proposer("mix", families())
        found = []
        for _ in range(10):
            found += mix.propose(2)
            time.sleep(0.05)
    assert len(found) == 20 and {c.origin.proposer for c in found} == {"evolve"}
    assert "HTTP 401" in mix.summary()["ended"]["llm"]


def test_mix_without_a_family_is_the_model(endpoint):
    with serving(answer(PLAIN)) as server:
        endpoint(server)
        assert proposer("mix").propose(1)[0].origin.proposer == "llm"


# ------------------------------------------------------------------------------------------------------ the whole loop


@pytest.mark.slow
def test_the_loop_builds_verifies_times_and_learns_from_a_model(endpoint, tmp_path):
    """A compile error and its repair, a wrong result, an unreadable answer and its repair: the last is 100 times as fast as the first."""
    with serving(*ANSWERS) as server:
        endpoint(server, CONCURRENCY="1")
        budget = Budget(trials=4, seconds=300, finalists=1, confirm_rounds=9, confirm_seconds=0.2)
        with Archive(tmp_path / "a.db") as archive:
            run = optimize(W, target("cpu"), archive, proposer="llm", budget=budget, rival_names=("eager",))
            screens = list(archive.trials(workload=W, stage="screen"))
    assert [str(t.verdict.outcome) for t in screens] == ["COMPILE_ERROR", "OK", "WRONG_RESULT", "OK"]
    assert run.winner is not None and run.winner.candidate.source == FAST and run.winner.stage == "confirm"
    assert "tangens_hyperbolicus" in prompts(server)[1] and "WRONG_RESULT" in prompts(server)[3]
    assert screens[1].candidate.origin.parents == (screens[0].candidate.id,), "a repair's parent is what it repairs"
    assert run.proposer["llm"]["candidates"] == 4 and run.proposer["llm"]["unreadable answers"] == 1


@pytest.mark.slow
def test_a_problem_that_no_family_can_do(endpoint, tmp_path):
    """A KernelBench file with a product of two inputs, answered in C++ with the default interface and in Python."""
    file = tmp_path / "outer.py"
    file.write_text(
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, a, b):\n        return torch.outer(a, b)\n"
        "def get_inputs():\n    return [torch.randn(40), torch.randn(30)]\ndef get_init_inputs():\n    return []\n"
    )
    w = resolve(str(file))
    cpp = (
        'extern "C" void kernel(const float* a, const float* b, float* y, long la, long lb, long ly) {\n'
        "    for (long i = 0; i < 40; i++) for (long j = 0; j < 30; j++) y[i * ly + j] = a[i] * b[j];\n}\n"
    )
    python = "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, a, b):\n        return a[:, None] * b\n"
    with serving(answer(cpp), answer(python, "python")) as server:
        endpoint(server, CONCURRENCY="1")
        budget = Budget(trials=2, seconds=300, finalists=1, confirm_rounds=9, confirm_seconds=0.2)
        with Archive(tmp_path / "a.db") as archive:
            optimize(w, target("cpu"), archive, proposer="llm", budget=budget, rival_names=("eager",))
            screens = list(archive.trials(workload=w, stage="screen"))
    assert [(t.candidate.kind, t.verdict.outcome) for t in screens] == [("cpu", Outcome.OK), ("python", Outcome.OK)]
    assert "torch.outer(a, b)" in prompts(server)[0]


@pytest.mark.slow
def test_a_jump_is_measured_again_in_a_fresh_process(tmp_path):
    """On the fake target: 20 times the rival's speed is more than a first screen may claim."""
    from kernelwright.records import Origin

    fast = Candidate(kind="fake", source='{"us": 1.0}', origin=Origin(kind="script"))
    with Archive(tmp_path / "a.db") as archive:
        given = {"budget": Budget(trials=3, seconds=60, finalists=1, confirm_rounds=9, confirm_seconds=0.2), "extra": [fast]}
        run = optimize(resolve("gemm:16x16x16:fp32"), target("fake"), archive, proposer="random", **given)
        again = [t for t in archive.trials() if t.stage == "replay"]
        stored = list(archive.trials())
    assert [t.candidate.id for t in again] == [fast.id] and run.winner is not None and run.winner.candidate.id == fast.id
    assert math.isclose(again[0].comparisons[0].ratio, stored[0].comparisons[0].ratio, rel_tol=0.1)
    assert {c.rung for c in again[0].verdict.checks} >= {"adversarial", "repeat", "shapes"}, "reports take a replay for a confirmation"


@pytest.mark.slow
def test_the_example_runs_offline(tmp_path):
    env = os.environ | {"KERNELWRIGHT_HOME": str(tmp_path), "KERNELWRIGHT_LLM_URL": f"file:{TRANSCRIPT}"}
    words = ["optimize", "chain:new-gelu:256x256", "--target", "cpu", "--proposer", "llm", "--seconds", "300", "--rival", "eager"]
    words += ["--confirm-seconds", "0.5", "--out", str(tmp_path / "o")]
    done = subprocess.run([sys.executable, "-m", "kernelwright", *words], capture_output=True, text=True, env=env, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "scripted" in done.stdout and "kept calls 5" in done.stdout and "1 COMPILE_ERROR" in done.stdout
