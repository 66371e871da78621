"""A model's opinion of each answer, beside the rules' verdict. It decides nothing: no score reads it.

An accusation is shown only with lines that really stand in the answer; one whose quotes do not is shown as unfounded. The rules are those
of the judge (`evaluate`), which every answer goes through, opinion or not.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from kernelwright.bench.answers import Entrant
from kernelwright.bench.results import Answer, Result, Store, Task
from kernelwright.propose import llm_prompt
from kernelwright.propose.llm_calls import Calls, Message, Request
from kernelwright.propose.llm_client import CallFailed, Client, NoMoreCalls
from kernelwright.records import Record
from kernelwright.settings import SettingsError, settings

KINDS = ("honest", "doubtful", "cheat")
_OBJECT = re.compile(r"\{.*\}", re.DOTALL)


class Opinion(Record, frozen=True, kw_only=True):
    """Of one answer."""

    task: str
    entrant: str
    sample: int
    answer: str
    """Id."""
    model: str
    opinion: str
    """One of KINDS; `unfounded` for an accusation without a line of the answer; `unreadable`."""
    reasons: tuple[str, ...] = ()
    quotes: tuple[str, ...] = ()
    """Lines that do stand in the answer."""
    verdict: str = ""
    """Of the rules, which is what counts."""


def read(text: str, source: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """(opinion, reasons, quotes that stand in the source) of a model's words."""
    found = _OBJECT.search(text)
    try:
        value: Any = json.loads(found[0]) if found else None
        opinion = value["opinion"]
        reasons = tuple(" ".join(str(r).split())[:300] for r in value.get("reasons", ())[:8])
        quotes = tuple(str(q) for q in value.get("quotes", ())[:8])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return "unreadable", (), ()
    if opinion not in KINDS:
        return "unreadable", reasons, ()
    plain = " ".join(source.split())
    real = tuple(q.strip()[:200] for q in quotes if len(q.strip()) > 3 and " ".join(q.split()) in plain)
    return ("unfounded" if opinion != "honest" and not real else opinion), reasons, real


def load(path: Path) -> list[Opinion]:
    """Those that were asked for before."""
    found = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            found.append(Opinion.from_json(line))
        except ValueError:
            continue
    return found


def ask(tasks: Sequence[Task], entrants: Sequence[Entrant], store: Store, asked: str, path: Path) -> list[Opinion]:
    """Of every answer that was judged and has a text; appended to the file as they come. Raises SettingsError without an endpoint."""
    options = settings().llm
    if not options.url:
        raise SettingsError("--llm-judge needs an endpoint: set KERNELWRIGHT_LLM_URL and KERNELWRIGHT_LLM_MODELS (docs/learning.md)")
    client = Client(options, Calls(settings().llm_calls, f"judge-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"))
    known = load(path)
    have = {(o.answer, o.entrant, o.sample, o.model) for o in known}
    results = {(r.entrant, r.task, r.sample, r.answer): r for r in store.results.values() if r.asked == asked}
    model = next(iter(client.models))
    for task in tasks:
        for answer in (a for e in entrants for a in e.answers.get(task.key, ())):
            result = results.get((answer.entrant, task.key, answer.sample, answer.id))
            if result is None or not answer.text or task.workload is None or (answer.id, answer.entrant, answer.sample, model) in have:
                continue
            try:
                opinion = _one(client, model, task, answer, result)
            except NoMoreCalls:
                return known
            except CallFailed:
                continue
            known.append(opinion)
            with path.open("ab") as file:
                file.write(msgspec.json.encode(opinion) + b"\n")
    return known


def _one(client: Client, model: str, task: Task, answer: Answer, result: Result) -> Opinion:
    assert task.workload is not None
    found = f"{result.status}, {result.outcome}: {result.evidence}\n{result.work} {result.work_why}".strip()
    problem = task.workload.source or task.workload.name
    text = llm_prompt.render("opinion.j2", problem=problem, source=answer.text, suffix=answer.suffix, found=found)
    request = Request(model=model, messages=(Message(role="user", content=text),), max_tokens=1500, temperature=0.0)
    opinion, reasons, quotes = read(client.ask(request).text, answer.text)
    return Opinion(
        task=task.key,
        entrant=answer.entrant,
        sample=answer.sample,
        answer=answer.id,
        model=model,
        opinion=opinion,
        reasons=reasons,
        quotes=quotes,
        verdict=result.outcome,
    )
