"""Stages that let a model write: `keep` (what works is trained on again) and `evaluate` (how often it is right, and how fast).

`keep` is CUDA-L1's second stage: sample, keep the answers whose kernels are right, train on them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from kernelwright import propose
from kernelwright.learn import hf_model
from kernelwright.learn.hf_corpus import lines, workloads_in
from kernelwright.learn.hf_pool import BEFORE, Judged, Pool, counts
from kernelwright.learn.hf_text import Messages, prompt
from kernelwright.learn.hf_train import Options, sft
from kernelwright.propose import exemplars
from kernelwright.records import Workload


@dataclass(frozen=True)
class Sampling:
    answers: int
    """To each prompt."""
    temperature: float = 1.0
    way: str = "buckets"
    """How exemplars are chosen: one of `exemplars.WAYS`."""
    batch: int = 64
    """Answers that are written side by side."""


class Prompts:
    """Contrastive prompts that leave room for the answer: exemplars are drawn anew for each step and number, the same ones on every process
    and after every resume."""

    def __init__(self, pool: Pool, tokenizer: Any, way: str, room: int, seed: int):
        self._pool, self._tokenizer, self._way, self._room, self._seed = pool, tokenizer, way, room, seed
        self._history = lru_cache(maxsize=64)(pool.history)

    def ask(self, w: Workload, step: int, number: int = 0) -> Messages:
        """Fewer exemplars where they are too long. Raises ValueError where not even the task fits."""
        trials = self._history(w, step)
        for count in range(exemplars.COUNT, -1, -1):
            rng = random.Random(f"{self._seed} {step} {number} {w.id}")
            found = prompt(w, self._pool.device, exemplars.choose(trials, rng, self._way, number, count) if count else [])
            if hf_model.tokens(self._tokenizer, found) <= self._room:
                return found
        raise ValueError(
            f"the task of {w.name} does not fit {self._room} tokens; give the model more with --context, or fewer --answer-tokens"
        )


def keep(o: Options, s: Sampling, pool: Pool, rounds: int = 1) -> dict[str, Any]:
    """Each round samples from the model that the last one made. Raises ValueError where no answer was right."""
    from accelerate import PartialState

    summary: dict[str, Any] = {"stage": "keep", "rounds": []}
    for number in range(rounds):
        folder = o.run / "keep" / f"round-{number}"
        path = folder / "answers.jsonl"
        if not path.exists():
            # all rounds sample at steps of their own, before those of `grpo`: see `Pool.history`
            asked, judged = written(o, s, pool, workloads_in(o.run / "corpus", "train"), step=number - rounds)
            if PartialState().is_main_process:
                folder.mkdir(parents=True, exist_ok=True)
                _write(path, [_line(*one) for one in zip(asked, judged, strict=True)])
            PartialState().wait_for_everyone()
        answers = lines(path)
        kept = {a["candidate"]: a for a in answers if a["outcome"] == "OK"}
        if not kept:
            raise ValueError(f"none of {len(answers)} answers holds a right kernel; train longer with sft, or sample more with --answers")
        pairs = [{"prompt": a["prompt"], "completion": [{"role": "assistant", "content": a["answer"]}]} for a in kept.values()]
        trained = sft(o, stage=f"keep/round-{number}", pairs=pairs)
        summary["rounds"].append(
            trained | {"answers": len(answers), "right": sum(a["outcome"] == "OK" for a in answers), "kept": len(kept)}
        )
        o = replace(o, model=str(folder / "model"))
    summary["model"] = o.model
    if PartialState().is_main_process:
        (o.run / "keep" / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    return summary


def evaluate(o: Options, s: Sampling, pool: Pool, name: str, part: str) -> dict[str, Any]:
    """Answers to prompts of Workloads of the corpus's `part`: evaluate/NAME.json has counts of all and by Workload, NAME.jsonl every answer
    with its outcome. Raises ValueError where the part is empty."""
    from accelerate import PartialState

    workloads = workloads_in(o.run / "corpus", part)
    if not workloads:
        raise ValueError(f"the corpus has no workload of part {part}; make one with --held-out 1 or more")
    best = {w.id: max((propose.score(t) for t in pool.history(w, BEFORE) if t.verdict.ok), default=0.0) for w in workloads}
    asked, judged = written(o, s, pool, workloads, step=BEFORE)
    by_workload = {}
    for w in workloads:
        mine = [(messages, j) for (other, messages, _), j in zip(asked, judged, strict=True) if other.id == w.id]
        by_workload[w.name] = counts(*zip(*mine, strict=True)) | {"answers": len(mine), "best_known_before": best[w.id]}
    found = {
        "model": o.model,
        "part": part,
        "seed": o.seed,
        "exemplars": s.way,
        **counts([messages for _, messages, _ in asked], judged),
        "workloads": by_workload,
    }
    if PartialState().is_main_process:
        folder = o.run / "evaluate"
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / f"{name}.jsonl", [_line(*one) for one in zip(asked, judged, strict=True)])
        (folder / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n")
    return found


Asked = tuple[Workload, Messages, str]


def written(o: Options, s: Sampling, pool: Pool, workloads: Sequence[Workload], *, step: int) -> tuple[list[Asked], list[Judged]]:
    """Prompts with their answers, and what became of them; each process writes and judges its share."""
    import torch
    from accelerate import PartialState
    from accelerate.utils import gather_object

    model, tokenizer = hf_model.load(o.model, o.weights)
    room = hf_model.context(model, o.context) - o.answer_tokens
    prompts = Prompts(pool, tokenizer, s.way, room, o.seed)
    asked = [(w, prompts.ask(w, step, n)) for w in workloads for n in range(s.answers)]
    state = PartialState()
    model.to(state.device)
    mine = asked[state.process_index :: state.num_processes]
    texts = hf_model.sample(
        model,
        tokenizer,
        [messages for _, messages in mine],
        answer_tokens=o.answer_tokens,
        temperature=s.temperature,
        batch=s.batch,
        seed=o.seed + state.process_index,
    )
    del model
    torch.cuda.empty_cache()  # what a judge needs
    judged = pool.judge([(w, text) for (w, _), text in zip(mine, texts, strict=True)], step)
    share = [((*one, text), j) for one, text, j in zip(mine, texts, judged, strict=True)]
    every: Any = gather_object(share) if state.num_processes > 1 else share
    return [a for a, _ in every], [j for _, j in every]


def _line(asked: Asked, judged: Judged) -> dict[str, Any]:
    w, messages, text = asked
    return {
        "workload": w.name,
        "prompt": messages,
        "answer": text,
        "outcome": judged.outcome,
        "reward": judged.reward,
        "evidence": judged.evidence[:400],
        "candidate": judged.trial.candidate.id if judged.trial else "",
    }


def _write(path: Path, content: Sequence[dict[str, Any]]) -> None:
    """Whole or not at all: a resumed stage takes a file that is there for finished."""
    partial = path.with_suffix(".partial")
    partial.write_text("".join(json.dumps(line) + "\n" for line in content))
    partial.replace(path)
