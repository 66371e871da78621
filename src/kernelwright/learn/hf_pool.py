"""The evaluation pool as a reward function: answers of a model in, rewards in the same order out, every Trial in the archive.

What was measured once on this device is not measured again, so a training run that goes on from a checkpoint meets the same rewards. A
Trial remembers the step that it was made in (`origin.config["step"]`): exemplars of a step are drawn from earlier steps only, on every
process and after every resume alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from kernelwright import propose, rivals
from kernelwright.archive import Archive
from kernelwright.evaluate.evaluator import Evaluator
from kernelwright.learn import reward
from kernelwright.learn.compact import compact
from kernelwright.learn.hf_text import Device, Messages
from kernelwright.loop import measured_again, screen_job
from kernelwright.propose.llm_answer import AnswerError, languages, read
from kernelwright.records import Candidate, Origin, Outcome, Trial, Workload
from kernelwright.targets.target import Peaks, Target

BEFORE = -(10**6)
"""The step of what `evaluate` samples: it sees what the corpus measured, whatever was trained since, so that models are asked the same."""


@dataclass(frozen=True)
class Judged:
    """What became of one answer."""

    reward: float | None
    """None where it was too noisy to time."""
    outcome: str
    """An Outcome; `UNREADABLE` where the answer holds no candidate."""
    evidence: str = ""
    trial: Trial | None = None


class Pool:
    """Evaluates answers on one device. Use as a context manager. `gpu`: of a process that trains on that GPU of several."""

    def __init__(self, target: Target, archive: Archive, session: str, model: str, gpu: int | None = None):
        self.target, self.archive, self.session, self.model = target, archive, session, model
        self._evaluator = Evaluator(target, gpu=gpu)
        self._facts = target.facts()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self._evaluator.close()

    @property
    def device(self) -> Device:
        return Device(self._facts, msgspec.convert(self._evaluator.peaks, Peaks))

    def history(self, w: Workload, step: int | None = None) -> list[Trial]:
        """What counts of all that was measured of a Workload on this device; with `step` without what this session made in that step and
        later."""
        here = (t for t in self.archive.trials(workload=w) if t.environment.comparable(self._evaluator.environment))
        return reward.counted([t for t in here if step is None or t.session != self.session or _step(t) < step])

    def judge(self, answers: Sequence[tuple[Workload, str]], step: int) -> list[Judged]:
        """In the order given. Equal kernels are measured once."""
        candidates: list[Candidate | str] = []
        for w, text in answers:
            origin = Origin(kind="policy", name=self.model, config={"step": step}, proposer="train-hf")
            try:
                candidates.append(read(text, languages(w, self._facts), w, origin))
            except AnswerError as error:
                candidates.append(str(error))
        pairs = [(w, c) for (w, _), c in zip(answers, candidates, strict=True) if isinstance(c, Candidate)]
        known = self.measure(pairs)
        found = []
        for (w, _), c in zip(answers, candidates, strict=True):
            if isinstance(c, str):
                found.append(Judged(reward.FAILED, "UNREADABLE", c))
            else:
                t = known[w.id, c.id]
                found.append(Judged(reward.reward(t), str(t.verdict.outcome), t.verdict.evidence, t))
        return found

    def measure(self, pairs: Sequence[tuple[Workload, Candidate]]) -> dict[tuple[str, str], Trial]:
        """What counts of each, by Workload and Candidate; measured where it was not yet."""
        found: dict[tuple[str, str], Trial] = {}
        new: dict[Workload, dict[str, Candidate]] = {}
        for w, c in pairs:
            new.setdefault(w, {})[c.id] = c
        for w, wanted in new.items():
            # the newest counts; in one training a kernel has one reward, also that of being too noisy
            trials = (t for t in self.history(w) if t.session == self.session or t.verdict.outcome is not Outcome.NOISY)
            for t in {t.candidate.id: t for t in trials}.values():
                if wanted.pop(t.candidate.id, None) is not None:
                    found[w.id, t.candidate.id] = t
        # all compile side by side while the first are timed
        self._evaluator.builder.want(c for wanted in new.values() for c in wanted.values())
        for w, wanted in new.items():
            found |= {(w.id, c.id): self._screen(w, c) for c in wanted.values()}
        return found

    def _screen(self, w: Workload, candidate: Candidate) -> Trial:
        """As the search does it: a screen, once more if it was too noisy, in a fresh process if it is faster than can be believed."""
        job = screen_job(w, self.target.name, rivals.names_for(w, self.target.name)[:1])

        def screened() -> Trial:
            (found,) = self._evaluator.evaluate([candidate], job, stage="screen", session=self.session)
            self.archive.append(found)
            return found

        trial = screened()
        if trial.verdict.outcome is Outcome.NOISY:
            trial = screened()
        claimed = reward.reference(trial)
        if claimed is None or claimed.ratio <= reward.ceiling(self.archive.trials(workload=w)):
            return trial
        again = measured_again(self._evaluator, trial, self.session, self.archive, lambda _: None)
        return reward.settle(trial, again)


def _step(trial: Trial) -> int:
    """What no step made (kernels of our Families that the stage `corpus` measured) came before all."""
    return int(trial.candidate.origin.config.get("step", BEFORE - 1))


def filled(rewards: Sequence[float | None]) -> list[float]:
    """Of one group: one that was too noisy to time counts as the others' mean, so that it teaches nothing."""
    known = [r for r in rewards if r is not None]
    mean = statistics.fmean(known) if known else reward.FAILED
    return [mean if r is None else r for r in rewards]


def counts(prompts: Sequence[Messages], judged: Sequence[Judged]) -> dict[str, float]:
    """Of answers to prompts: shares that are right, right and no copy of a kernel in the prompt, cheat, cannot be read; mean reward; the
    fastest speed over the reference's."""
    n = max(1, len(judged))
    right = [(p, j.trial) for p, j in zip(prompts, judged, strict=True) if j.trial is not None and j.trial.verdict.ok]
    speeds = [propose.score(t) for _, t in right]
    return {
        "right": len(right) / n,
        "new_right": sum(compact(t.candidate.source).strip() not in p[-1]["content"] for p, t in right) / n,
        "cheats": sum(j.outcome == Outcome.CHEAT for j in judged) / n,
        "unreadable": sum(j.outcome == "UNREADABLE" for j in judged) / n,
        "mean_reward": statistics.fmean(filled([j.reward for j in judged])) if judged else 0.0,
        "best_speed": max(speeds, default=0.0),
    }
