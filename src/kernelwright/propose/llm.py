"""`llm`: models behind an OpenAI-compatible endpoint write the kernels, given the task, contrasting measured kernels and what to read.

One question is a conversation: the task, the answer, and, while the kernel fails, up to REPAIRS times what went wrong. Questions run in
threads, several at a time; which model gets the next one is a bandit's choice. What a model returns is a text that is parsed, nothing more:
it runs where every candidate runs, in the target's own processes.
"""

from __future__ import annotations

import math
import queue
import threading
import time
import uuid
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any

from kernelwright.families.family import DeviceFacts
from kernelwright.learn.retrieval import Index, Passage, kernel_passages, own_passages
from kernelwright.propose import exemplars, llm_prompt
from kernelwright.propose.bandit import Bandit, earned
from kernelwright.propose.llm_answer import AnswerError, languages, read
from kernelwright.propose.llm_calls import Answer, Calls, Message, Request
from kernelwright.propose.llm_client import CallFailed, Client, NoMoreCalls
from kernelwright.propose.proposer import Proposer
from kernelwright.records import Candidate, Origin, Outcome, Trial
from kernelwright.settings import SettingsError, settings

REPAIRS = 2
"""Rounds after the first answer. Later rounds of the same conversation seldom help, and each costs all that was said before it."""
PASSAGES, REPAIR_PASSAGES = 4, 2
TEMPERATURE = 0.8
FUTILE = 12
"""So many answers one after the other without a new candidate end the search: a server that says the same every time, say."""
FAULTS = 3
"""Failed calls one after the other until a model is not asked any more."""
CLOSED = "closed"
SHOWN = 60_000
"""Most characters of an answer that are repeated to the model in a repair."""


class LlmUnavailable(ValueError):
    """No model gave a single answer; the message says why and what to do."""


@dataclass(frozen=True)
class Question:
    """What a model is asked, and how it came to that."""

    model: str
    messages: tuple[Message, ...]
    parents: tuple[str, ...]
    """Ids of the exemplars' Candidates, or of the one under repair."""
    island: int
    repairs: int = 0


@dataclass(frozen=True)
class Reply:
    question: Question
    request: Request
    answer: Answer | None = None
    failure: Exception | None = None


class Llm(Proposer):
    name = "llm"
    needs_families = False
    reads_counters = True

    def _set_up(self, seed: int) -> None:
        self._languages = languages(self.workload, self.device)
        if not self._languages:
            raise SettingsError(f"models write no kernels for target {self.device.target}; choose cpu or cuda, or another proposer")
        options = settings().llm
        if not options.url:
            raise SettingsError(
                "models need an endpoint: set KERNELWRIGHT_LLM_URL (http://localhost:8000/v1, say), KERNELWRIGHT_LLM_MODELS and, where it "
                "wants one, KERNELWRIGHT_LLM_KEY"
            )
        self._options = options
        self.client = Client(options, Calls(settings().llm_calls, f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"))
        # a transcript's answers follow each other: asked at one time, they would come to different questions each time
        self._at_once = 1 if self.client.transcript else options.concurrency
        self.bandit = Bandit(self.client.models)
        self.trials: list[Trial] = []
        """All with a score, in the order they were learnt."""
        self._repairs: deque[Question] = deque()
        self._open: dict[str, Question] = {}
        """By Candidate: the conversation that it came from, with the answer."""
        self._replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        self._found: deque[Candidate] = deque()
        """Not proposed yet."""
        self._under_way = 0
        self._asked = 0
        self._samples: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self._futile = 0
        self._ended = ""
        """Why no more questions are asked."""
        self._counts: Counter[str] = Counter()
        self._index: Index | None = None

    # ------------------------------------------------------------------------------------------------------ proposing

    def propose(self, n: int) -> list[Candidate]:
        """Waits for at least one, as long as there is time; those whose answers are there already come along."""
        while len(self._found) < n and (not self._found or not self._replies.empty()):
            self._ask(n - len(self._found))
            if not self._under_way or not self._receive(self._left()):
                break
        return [self._found.popleft() for _ in range(min(n, len(self._found)))]

    def ready(self) -> bool:
        while True:
            self._ask(self._at_once)
            if self._found or not self._under_way:
                return True
            if not self._receive(0.0):
                return False

    def _receive(self, seconds: float | None) -> bool:
        """Takes in the next reply; False if none came in that time."""
        try:
            reply = self._replies.get(timeout=seconds)
        except queue.Empty:
            return False
        self._under_way -= 1
        if (candidate := self._take(reply)) is not None:
            self._found.append(candidate)
        return True

    def close(self) -> None:
        self._ended = self._ended or CLOSED

    def _left(self) -> float | None:
        left = self.context.deadline - time.monotonic()
        return None if math.isinf(left) else max(0.0, left)

    def _ask(self, wanted: int) -> None:
        """Keeps up to `wanted` questions under way: repairs first, they are half done."""
        while self._under_way < min(wanted, self._at_once) and not self._ended:
            if self.context.deadline <= time.monotonic():
                return
            question = self._repairs.popleft() if self._repairs else self._question()
            self.bandit.started(question.model)
            self._under_way += 1
            first = Request(
                model=question.model, messages=question.messages, max_tokens=self._options.answer_tokens, temperature=TEMPERATURE
            )
            request = first.replace(sample=self._samples[first.id])
            self._samples[first.id] += 1
            # daemons: an answer that nobody waits for must not keep the program alive
            threading.Thread(target=self._answer, args=(question, request), name="llm", daemon=True).start()

    def _answer(self, question: Question, request: Request) -> None:
        try:
            self._replies.put(Reply(question, request, answer=self.client.ask(request, self.context.deadline)))
        except Exception as error:  # raised again by whoever takes the reply
            self._replies.put(Reply(question, request, failure=error))

    def _question(self) -> Question:
        """A new one: exemplars are drawn anew each time."""
        island = self._asked % exemplars.ISLANDS
        self._asked += 1
        brief = self._options.prompt == "brief"
        shown = exemplars.choose(self.trials, self.rng, self._options.exemplars, island)
        text = llm_prompt.task(
            self.workload,
            self.device,
            self.context.peaks,
            shown,
            () if brief else exemplars.failures(self.trials),
            () if brief else self._passages(llm_prompt.query(self.workload, self.device), PASSAGES),
            brief,
        )
        rules = llm_prompt.system(self.workload, self.device, self._languages, brief)
        messages = (self._message("system", rules), self._message("user", text))
        return Question(self.bandit.ranked()[0], messages, tuple(t.candidate.id for t in shown), island)

    def _message(self, role: str, text: str) -> Message:
        """Without the key, however it came into evidence."""
        return Message(role=role, content=text.replace(self._options.key, "***") if self._options.key else text)

    def _passages(self, query: str, n: int) -> list[Passage]:
        if self._index is None:
            archive = self.context.archive
            kernels = kernel_passages(archive, self.workload, self.device.target) if archive is not None else ()
            self._index = Index([*_readable(self.device), *kernels])
        return self._index.search(query, n)

    # --------------------------------------------------------------------------------------------------------- answers

    def _take(self, reply: Reply) -> Candidate | None:
        """The Candidate of a reply, if it holds a new one."""
        question, answer = reply.question, reply.answer
        if answer is None:
            self._failed(question.model, reply.failure)
            return None
        self._faults[question.model] = 0
        self._counts["answers"] += 1
        origin = Origin(
            kind="llm",
            name=question.model,
            config={"call": reply.request.id, "repairs": question.repairs, "island": question.island},
            proposer=self.name,
            parents=question.parents,
        )
        said = (*question.messages, self._message("assistant", answer.text[:SHOWN]))
        try:
            candidate = read(answer.text, self._languages, self.workload, origin)
        except AnswerError as error:
            self._counts["unreadable answers"] += 1
            cut = f" (it was cut off at {self._options.answer_tokens} tokens; write less)" if answer.finish == "length" else ""
            self._repair(question, said, llm_prompt.repair(None, self.device, [], f"{error}{cut}"))
            return self._nothing(question.model)
        if candidate.id in self.tried:
            self._counts["repeated kernels"] += 1
            return self._nothing(question.model)
        self._futile = 0
        self._counts["candidates"] += 1
        self.tried.add(candidate.id)
        self._open[candidate.id] = Question(question.model, said, (candidate.id,), question.island, question.repairs)
        return candidate

    def _nothing(self, model: str) -> None:
        self.bandit.credit(model, 0.0)
        self._futile += 1
        if self._futile >= FUTILE:
            self._ended = f"{FUTILE} answers one after the other held no new kernel"

    def _failed(self, model: str, failure: Exception | None) -> None:
        self.bandit.withdraw(model)
        match failure:
            case NoMoreCalls():
                self._ended = str(failure)
                return
            case CallFailed(lasting=lasting):
                self._faults[model] += FAULTS if lasting else 1
                self._counts["failed calls"] += 1
            case Exception():
                raise failure
        if self._faults[model] < FAULTS or model not in self.bandit.arms:
            return
        self.bandit.remove(model)
        self._repairs = deque(q for q in self._repairs if q.model != model)
        if not self.bandit.arms:
            self._ended = str(failure)
            if not self._counts["answers"]:
                raise LlmUnavailable(f"no model answers: {failure}")

    def _repair(self, question: Question, said: tuple[Message, ...], text: str) -> None:
        if question.repairs < REPAIRS and question.model in self.bandit.arms:
            message = self._message("user", text)
            self._repairs.append(Question(question.model, (*said, message), question.parents, question.island, question.repairs + 1))

    # -------------------------------------------------------------------------------------------------------- learning

    def learn(self, trial: Trial) -> None:
        best, known = max(self.scores.values(), default=-math.inf), trial.candidate.id in self.scores
        before = len(self.trials)
        super().learn(trial)
        origin, question = trial.candidate.origin, self._open.pop(trial.candidate.id, None)
        if len(self.trials) == before:  # it said nothing: too noisy, of another Workload, or known
            if question is not None:
                self.bandit.withdraw(question.model)
            return
        if origin.kind == "llm" and not known:
            self.bandit.credit(origin.name, earned(self.scores[trial.candidate.id], best))
        if question is not None and not trial.verdict.ok:
            passages = self._passages(llm_prompt.query(self.workload, self.device, trial.verdict.evidence), REPAIR_PASSAGES)
            self._repair(question, question.messages, llm_prompt.repair(trial, self.device, passages))
            self._counts["cheats" if trial.verdict.outcome is Outcome.CHEAT else "failed kernels"] += 1

    def _learned(self, trial: Trial, new: float) -> None:
        self.trials.append(trial)

    def summary(self) -> dict[str, Any]:
        """Calls, tokens, money, and what each model earned a try."""
        budget = self.client.budget
        calls = {"calls": self.client.asked, "kept calls": self.client.cached, **self._counts, "tokens": budget.tokens}
        found: dict[str, Any] = {"llm": calls | ({"dollars": round(budget.dollars, 4)} if budget.dollars else {})}
        if means := self.bandit.means():
            found["earned by models"] = means
        if self._ended and self._ended != CLOSED:
            found["no more questions"] = self._ended
        return found


def _readable(device: DeviceFacts) -> list[Passage]:
    """Our own passages, without the headers of another kind of device: they are noise."""
    other = "families/" if device.sm else "device/"
    return [p for p in own_passages() if not p.source.startswith(other)]
