"""Stage `grpo`: contrastive reinforcement learning. Each prompt shows kernels that were measured before, the group's answers are measured,
and what was measured is the reward, in this step's update and in later prompts (CUDA-L1).

TRL's GRPOTrainer does the update: group-normalised advantages, PPO's clipping, a KL term to the model that the stage began with (which is
the one without adapters). The reward's normalisation and clipping are CUDA-L1's (`learn.reward.smoothed`).
"""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass
from typing import Any

from kernelwright.learn import hf_model
from kernelwright.learn.hf_corpus import workloads_in
from kernelwright.learn.hf_pool import Pool, counts, filled
from kernelwright.learn.hf_sample import Prompts, Sampling
from kernelwright.learn.hf_train import Options, arguments, callbacks, finish
from kernelwright.learn.reward import smoothed
from kernelwright.records import Workload


@dataclass(frozen=True)
class Grpo:
    """What `Options` and `Sampling` do not say: `Sampling.answers` is the size of a group, `Options.batch` the answers of a step."""

    kl: float = 0.02
    """Weight of the KL term; 0 leaves it out. Ours: CUDA-L1's is not published."""
    clip: float = 0.2
    """PPO's epsilon."""


def grpo(o: Options, s: Sampling, g: Grpo, pool: Pool) -> dict[str, Any]:
    """Raises ValueError where batch, group and processes do not fit, or a task leaves no room for an answer."""
    from datasets import Dataset
    from trl.trainer.grpo_config import GRPOConfig

    workloads = workloads_in(o.run / "corpus", "train")
    model, tokenizer = hf_model.load(o.model, o.weights)
    room = hf_model.context(model, o.context) - o.answer_tokens
    prompts = Prompts(pool, tokenizer, s.way, room, o.seed)
    usable = [w for w in workloads if _fits(prompts, w)]
    if not usable:
        raise ValueError(f"no task of {len(workloads)} fits {room} tokens; give the model more with --context, or fewer --answer-tokens")
    if s.answers < 2 or o.batch % s.answers:
        raise ValueError(
            f"a batch of {o.batch} answers holds no whole groups of {s.answers}; --batch must be a multiple of --answers, 2 or more"
        )
    args = arguments(
        GRPOConfig,
        o,
        "grpo",
        num_generations=s.answers,
        max_completion_length=o.answer_tokens,
        temperature=s.temperature,
        top_p=1.0,
        beta=g.kl,
        epsilon=g.clip,
        # CUDA-L1's smoothing comes instead of TRL's own division by the standard deviation
        scale_rewards="none",
        # every answer counts alike, however long: a division by its own length would favour long failures
        loss_type="dr_grpo",
        shuffle_dataset=False,
    )
    if args.per_device_train_batch_size * args.gradient_accumulation_steps % s.answers:
        raise ValueError(f"the {o.batch} answers of a step leave a process no whole group of {s.answers}; take a larger --batch")
    # one row a group, for all steps: a resumed run finds its place whatever it was asked for before
    order, rows = random.Random(o.seed), []
    while len(rows) < o.steps * (o.batch // s.answers):
        rows += order.sample(range(len(usable)), len(usable))
    data = Dataset.from_list([{"prompt": [{"role": "user", "content": ""}], "workload": i, "number": n} for n, i in enumerate(rows)])
    trainer = _trainer(prompts, usable)(
        model=model,
        args=args,
        reward_funcs=_Reward(pool, usable, s.answers),
        train_dataset=data,
        processing_class=tokenizer,
        peft_config=hf_model.lora(o.lora),
        callbacks=callbacks(o, "grpo"),
    )
    done = finish(o, "grpo", trainer, tokenizer)
    return done | {"workloads": len(usable), "too_long": len(workloads) - len(usable), "exemplars": s.way}


def _fits(prompts: Prompts, w: Workload) -> bool:
    try:
        prompts.ask(w, 0)
    except ValueError:
        return False
    return True


def _trainer(prompts: Prompts, workloads: list[Workload]) -> Any:
    from trl.trainer.grpo_trainer import GRPOTrainer

    class Contrastive(GRPOTrainer):
        """Its prompts are made when their step comes: they show what was measured up to then."""

        def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> Any:
            step = self.state.global_step
            asked = [x | {"prompt": prompts.ask(workloads[x["workload"]], step, x["number"])} for x in inputs]
            return super()._generate_and_score_completions(asked)

        def _generate_single_turn(self, *args: Any, **more: Any) -> Any:
            with hf_model.computing(self.model), hf_model.merged(self.accelerator.unwrap_model(self.model)):
                return super()._generate_single_turn(*args, **more)

    return Contrastive


class _Reward:
    """The evaluation pool as TRL's reward function."""

    __name__ = "measured_speed"

    def __init__(self, pool: Pool, workloads: list[Workload], group: int):
        self._pool, self._workloads, self._group = pool, workloads, group

    def __call__(
        self, *, prompts: list[Any], completions: list[Any], workload: list[int], trainer_state: Any, log_metric: Any, **_: Any
    ) -> list[float]:
        answers = [(self._workloads[i], text[0]["content"]) for i, text in zip(workload, completions, strict=True)]
        judged = self._pool.judge(answers, trainer_state.global_step)
        advantages: list[float] = []
        for start in range(0, len(judged), self._group):
            advantages += smoothed(filled([j.reward for j in judged[start : start + self._group]]))
        for name, value in counts(prompts, judged).items():
            log_metric(name, value)
        log_metric("distinct", len({j.trial.candidate.id for j in judged if j.trial}) / len(judged))
        log_metric("groups_that_differ", statistics.fmean(a != 0 for a in advantages))
        return advantages
