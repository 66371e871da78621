"""Rewards of reinforcement learning from the device: what the kernel model writes is compiled in the pool, verified and timed beside the
first rival, as every candidate is. Anything legal may be written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernelwright import rivals
from kernelwright.evaluate.evaluator import Evaluator
from kernelwright.families import families_for
from kernelwright.learn import table
from kernelwright.learn.policy_data import Corpus, Lesson, pools
from kernelwright.learn.policy_legal import Constraint, Legal
from kernelwright.learn.policy_train import taught
from kernelwright.learn.policy_vocabulary import Vocabulary
from kernelwright.learn.table import Row
from kernelwright.loop import screen_job
from kernelwright.records import Candidate, Workload
from kernelwright.targets import usable

BESIDE = 8
"""Designs of one Job: they share the rival's samples, as in `kernelwright tune`."""


class FromDevice:
    """Use as a context manager. Every measurement is a line of `path` at once, and is never made twice."""

    def __init__(self, corpus: Corpus, vocabulary: Vocabulary, target: str, path: Path):
        self._target = usable(target)
        self._facts = self._target.facts()
        if (self._facts.target, self._facts.name) != (corpus.device.target, corpus.device.name):
            raise table.TableError(f"the corpus was measured on {corpus.device.name}, this is {self._facts.name}: a run learns one device")
        self._vocabulary = vocabulary
        self.lessons: Sequence[Lesson] = next(iter(pools(taught(corpus, vocabulary)[0])), [])
        self._legal: dict[str, Legal] = {}
        self._known: dict[tuple, Row] = {}
        if path.exists():
            _, rows = table.read(path)
        else:
            rows = []
        table.write(path, self._facts, rows)  # without a line that was cut off
        for t in corpus.tables:
            self._known |= {(r.workload, *table.key_of(r.family, r.config)): r for r in t.rows}
        self._known |= {(r.workload, *table.key_of(r.family, r.config)): r for r in rows}
        self._evaluator, self._lines = Evaluator(self._target), path.open("ab")
        self.measured = 0

    def __enter__(self) -> FromDevice:
        return self

    def __exit__(self, *_: Any) -> None:
        self._evaluator.close()
        self._lines.close()

    def constraint(self, lesson: Lesson, seen: Sequence[Row]) -> Constraint:
        w = lesson.table.workload
        if w.name not in self._legal:
            self._legal[w.name] = Legal(self._vocabulary, families_for(w, self._facts)[0], w, self._facts)
        return self._legal[w.name]

    def soon(self, asked: Sequence[tuple[Lesson, Sequence[tuple[int, ...]]]]) -> None:
        self._evaluator.builder.want(c for lesson, designs in asked for c in self._new(lesson.table.workload, designs).values())

    def of(self, lesson: Lesson, designs: Sequence[tuple[int, ...]]) -> list[Row | None]:
        w = lesson.table.workload
        new = self._new(w, designs)
        job = screen_job(w, self._target.name, rivals.names_for(w, self._target.name)[:1])
        trials = self._evaluator.evaluate(new.values(), job, stage="screen", session="rl", beside=BESIDE)
        for key, trial in zip(new, trials, strict=True):
            self.measured += 1
            if (row := table.row_of(trial)) is not None:
                self._known[key] = row
                self._lines.write(row.to_json().encode() + b"\n")
        self._lines.flush()
        return [self._known.get(self._key(w, d)) for d in designs]

    def _key(self, w: Workload, design: tuple[int, ...]) -> tuple:
        return (w.name, *table.key_of(*self._vocabulary.config(design)))

    def _new(self, w: Workload, designs: Sequence[tuple[int, ...]]) -> dict[tuple, Candidate]:
        """What was not measured yet."""
        families = {f.name: f for f in families_for(w, self._facts)[0]}
        found = {}
        for d in designs:
            if (key := self._key(w, d)) not in self._known:
                name, config = self._vocabulary.config(d)
                found[key] = families[name].render(config, w, self._facts).replace(origin=families[name].origin(config, "policy"))
        return found
