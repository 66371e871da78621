"""Answers that a model writes, in three ways:

pass     independent samples, for pass@k
refine   one conversation: after each answer what went wrong, or how fast it is; the best of it is the answer
tools    rounds in which the model builds, profiles and submits, as it decides

Models are asked as the proposer `llm` asks them: same rules, same prompts, same budget, every call kept, so that an interrupted run asks
nothing twice. What a model returns is a text that is parsed; it runs where every candidate runs. Drafts are timed beside eager alone.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernelwright.archive import Archive
from kernelwright.bench.answers import Entrant
from kernelwright.bench.messages import Order, Prompt
from kernelwright.bench.results import Answer, Facts, Result, Store, Task
from kernelwright.bench.run import Options, Progress, Running, WorkerDied
from kernelwright.evaluate.profile import Profiler
from kernelwright.propose import exemplars_report, llm_prompt
from kernelwright.propose.llm_answer import AnswerError, languages, read
from kernelwright.propose.llm_calls import Calls, Message, Request
from kernelwright.propose.llm_client import CallFailed, Client, NoMoreCalls
from kernelwright.records import Origin, Trial
from kernelwright.settings import SettingsError, settings
from kernelwright.targets import usable

WAYS = ("pass", "refine", "tools")
TEMPERATURE = 0.8
OBSERVED = 4000
"""Most characters of what a model is told of a round."""
PROFILES = 8
DRAFT = "draft"
"""What a draft's result is asked under: it stands in no score."""
_ACTION = re.compile(r"^\s*ACTION:[ \t]*(build|profile|submit)\b", re.IGNORECASE)


class NoModel(SettingsError):
    """No endpoint is set, or it is asked in a way that there is not."""


@dataclass
class Spent:
    """What one task took of a model, calls from earlier runs included."""

    calls: int = 0
    tokens: int = 0
    dollars: float = 0.0

    def as_costs(self) -> dict[str, float]:
        found = {"calls": float(self.calls), "tokens": float(self.tokens)}
        return found | ({"dollars": round(self.dollars, 6)} if self.dollars else {})


@dataclass
class Draft:
    """One answer of a conversation, and how it fared."""

    answer: Answer
    result: Result

    @property
    def rank(self) -> tuple[int, float]:
        order = ("skipped", "no answer", "not compiled", "wrong", "correct").index(self.result.status)
        return order, min((c.ratio for c in self.result.comparisons if c.mode == self.result.mode), default=0.0)


@dataclass
class Desk:
    """All that a conversation needs."""

    client: Client
    worker: Running
    store: Store
    options: Options
    target: Any
    progress: Callable[[Progress], None]
    archive: Archive
    profiler: Profiler
    ended: str = ""
    """Why nothing more is asked."""
    deadline: float = field(default=float("inf"))

    def say(self, model: str, messages: Sequence[Message], spent: Spent, sample: int = 0) -> str | None:
        """The model's answer; None when no more may be asked, or it does not answer."""
        request = Request(
            model=model,
            messages=tuple(messages),
            max_tokens=settings().llm.answer_tokens,
            temperature=TEMPERATURE,
            sample=sample,
        )
        try:
            answer = self.client.ask(request, self.deadline)
        except NoMoreCalls as error:
            self.ended = str(error)
            return None
        except CallFailed as error:
            if error.lasting:
                self.ended = str(error)
            return None
        spent.calls += 1
        spent.tokens += answer.prompt_tokens + answer.answer_tokens
        spent.dollars += self.client.budget.cost(model, answer.prompt_tokens, answer.answer_tokens)
        return answer.text

    def message(self, role: str, text: str) -> Message:
        key = settings().llm.key
        return Message(role=role, content=text.replace(key, "***") if key else text)

    def prompt(self, task: Task) -> Prompt | None:
        """None where the task cannot be loaded, or nothing can be written for it."""
        order = Order(task=task, answers=(), lint=False, prompt=True)
        try:
            said = list(self.worker.ask(order, self.options.task_seconds))  # to its end: what is left would be taken for the next answer
        except WorkerDied:
            return None
        found = next((s for s in said if isinstance(s, Prompt)), None)
        return found if found is not None and found.system else None

    def judge(self, task: Task, answer: Answer) -> Result:
        """A draft beside eager; from the store where it is known."""
        workload = task.workload.id if task.workload else ""
        known = self.store.known((workload, answer.entrant, str(answer.sample), answer.id, DRAFT), self.worker.start())
        if known is not None:
            return known
        order = Order(task=task, answers=(answer,), rivals=("eager",), rounds=7, seconds=1.0, lint=False, asked=DRAFT)
        order = order.replace(facts=Facts(task=task, workload=workload))
        try:
            found = next((s for s in list(self.worker.ask(order, self.options.task_seconds)) if isinstance(s, Result)), None)
            if found is not None:
                self.store.append(found)
                return found
            why = "the worker said nothing of it"
        except WorkerDied as error:
            why = str(error)
        return Result(
            suite=task.suite,
            task=task.key,
            workload=workload,
            entrant=answer.entrant,
            answer=answer.id,
            status="wrong",
            outcome="TIMEOUT",
            evidence=why,
            asked=DRAFT,
        )

    def trial(self, result: Result) -> Trial | None:
        try:
            return self.archive.trial(result.trial) if result.trial else None
        except (ValueError, RuntimeError):
            return None


def write(
    way: str,
    tasks: Sequence[Task],
    store: Store,
    target: str,
    options: Options,
    samples: int,
    turns: int,
    progress: Callable[[Progress], None],
) -> Entrant:
    """The answers of the first model that is set, for all tasks that can run. Raises SettingsError, TargetUnavailable."""
    if way not in WAYS:
        raise NoModel(f"--write {way} is no way of writing; choose from {', '.join(WAYS)}")
    if not settings().llm.url:
        raise NoModel("--write needs an endpoint: set KERNELWRIGHT_LLM_URL and KERNELWRIGHT_LLM_MODELS (docs/learning.md)")
    client = Client(settings().llm, Calls(settings().llm_calls, f"bench-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"))
    model = next(iter(client.models))
    name = f"{model} {'pass@k' if way == 'pass' else way}"
    found: dict[str, tuple[Answer, ...]] = {}
    costs: dict[str, dict[str, float]] = {}
    with Running(target) as worker, Archive(settings().archive) as archive:
        worker.start()
        desk = Desk(client, worker, store, options, usable(target), progress, archive, Profiler(usable(target).name))
        desk.deadline = time.monotonic() + 60 * options.minutes
        for task in tasks:
            if task.workload is None or task.skipped or desk.ended or time.monotonic() > desk.deadline:
                continue
            prompt = desk.prompt(task)
            if prompt is None:
                continue
            spent = Spent()
            answers = _WAYS[way](desk, task, prompt, model, name, samples if way == "pass" else turns, spent)
            if answers:
                found[task.key] = tuple(answers)
            costs[task.key] = spent.as_costs()
    total: dict[str, float] = {}
    for one in costs.values():
        for key, value in one.items():
            total[key] = total.get(key, 0.0) + value
    notes = (f"no more was asked: {desk.ended}",) if desk.ended else ()
    return Entrant(name, found, "model", notes, costs=total)


def _read(desk: Desk, task: Task, text: str, entrant: str, sample: int, model: str) -> Answer:
    """A text as an Answer; one that holds no code is an answer that does not compile."""
    w = task.workload
    assert w is not None
    try:
        candidate = read(text, languages(w, desk.target.facts()), w, Origin(kind="llm", name=model))
    except AnswerError as error:
        return Answer(entrant=entrant, task=task.key, sample=sample, text=str(error), kind="unreadable", origin=model)
    return Answer(
        entrant=entrant, task=task.key, sample=sample, text=candidate.source, suffix=_SUFFIX[candidate.kind], kind="model", origin=model
    )


_SUFFIX = {"python": ".py", "cuda": ".cu", "cpu": ".cpp"}


def _pass(desk: Desk, task: Task, prompt: Prompt, model: str, name: str, samples: int, spent: Spent) -> list[Answer]:
    messages = [desk.message("system", prompt.system), desk.message("user", prompt.task)]
    found = []
    for sample in range(samples):
        text = desk.say(model, messages, spent, sample)
        if text is None and desk.ended:
            break
        if text is not None:
            found.append(_read(desk, task, text, name, sample, model))
    return found


def _refine(desk: Desk, task: Task, prompt: Prompt, model: str, name: str, turns: int, spent: Spent) -> list[Answer]:
    messages = [desk.message("system", prompt.system), desk.message("user", prompt.task)]
    drafts: list[Draft] = []
    for turn in range(turns):
        # the task and the last answer with what came of it: all rounds together would outgrow a model's memory
        text = desk.say(model, messages[:2] + messages[-2:] if len(messages) > 4 else messages, spent)
        if text is None:
            break
        answer = _read(desk, task, text, name, 0, model)
        result = desk.judge(task, answer)
        drafts.append(Draft(answer, result))
        desk.progress(Progress(turn + 1, turns, task, result))
        messages += [desk.message("assistant", text), desk.message("user", _told(desk, result, turns - turn - 1))]
    return _best(drafts)


def _tools(desk: Desk, task: Task, prompt: Prompt, model: str, name: str, turns: int, spent: Spent) -> list[Answer]:
    user = llm_prompt.render("tools.j2", task=prompt.task, turns=turns, limit=OBSERVED, profiles=PROFILES)
    messages = [desk.message("system", prompt.system), desk.message("user", user)]
    drafts: list[Draft] = []
    profiles = 0
    for turn in range(turns):
        text = desk.say(model, messages, spent)
        if text is None:
            break
        match = _ACTION.match(text)
        action = match[1].lower() if match else "build"
        left = turns - turn - 1
        if action == "submit":
            break
        if action == "profile":
            profiles += 1
            observed = _profile(desk, drafts) if profiles <= PROFILES else f"All {PROFILES} profiles are used up."
        else:
            answer = _read(desk, task, text[match.end() :] if match else text, name, 0, model)
            result = desk.judge(task, answer)
            drafts.append(Draft(answer, result))
            desk.progress(Progress(turn + 1, turns, task, result))
            observed = _told(desk, result, left)
        messages += [desk.message("assistant", text), desk.message("user", f"{observed[:OBSERVED]}\n{left} rounds are left.")]
    return _best(drafts)


_WAYS = {"pass": _pass, "refine": _refine, "tools": _tools}


def _best(drafts: Sequence[Draft]) -> list[Answer]:
    return [max(drafts, key=lambda d: d.rank).answer] if drafts else []


def _told(desk: Desk, result: Result, left: int) -> str:
    """What a model is told of its answer."""
    trial = desk.trial(result)
    if result.status != "correct":
        device = desk.target.facts()
        if trial is not None and not trial.verdict.ok:
            return llm_prompt.repair(trial, device, [])
        return llm_prompt.repair(None, device, [], result.evidence)
    timed = [c for c in result.comparisons if c.mode == result.mode]
    lines = exemplars_report.report(trial, desk.target.facts(), desk.worker.peaks) if trial is not None else []
    return llm_prompt.render(
        "feedback.j2",
        rivals=timed,
        mode=result.mode,
        us=result.us.get(result.mode, 0.0),
        floor=result.floor_us,
        lines=lines,
        limit=OBSERVED // 2,
        more=left > 0,
        left=left,
    )


def _profile(desk: Desk, drafts: Sequence[Draft]) -> str:
    last = next((d for d in reversed(drafts) if d.result.status == "correct"), None)
    trial = desk.trial(last.result) if last else None
    if last is None or trial is None:
        return "There is no right build yet to be profiled."
    lines = exemplars_report.report(trial, desk.target.facts(), desk.worker.peaks)
    counters = desk.profiler.counters(trial)
    lines += [f"{name}: {value:.4g}" for name, value in counters.items()] or [f"no hardware counters: {desk.profiler.why}"]
    if last.result.work_why:
        lines.append(last.result.work_why)
    return llm_prompt.fenced("\n".join(lines), limit=OBSERVED - 100)
