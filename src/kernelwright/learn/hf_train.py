"""Stages `pretrain` and `sft`, and what all stages of training share: arguments, checkpoints and resuming, curves, the limit of time.

Under `accelerate launch` the stages run on several GPUs; the first process writes.
"""

from __future__ import annotations

import json
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelwright.learn import hf_model
from kernelwright.learn.hf_corpus import lines

CHECKPOINTS = 2
"""That are kept of a stage: the last may be half written when the power fails."""


@dataclass(frozen=True)
class Options:
    """Of one stage of training."""

    run: Path
    """Folder of the whole training: corpus/, then one folder a stage."""
    model: str
    """Where the stage starts: a folder, a .gguf file or a name on the Hub."""
    steps: int
    """Updates of the weights."""
    batch: int
    """Sequences in one update, over all processes."""
    micro: int
    """Sequences that one process holds at a time; limited by its memory."""
    learning_rate: float
    lora: int = 16
    """Rank of the adapters; 0 trains all weights."""
    context: int | None = None
    """Tokens of prompt and answer; the model's own limit if None or above it."""
    answer_tokens: int = 2048
    seconds: float = float("inf")
    """Of training in this call; then the stage ends as if it had come to its last step."""
    save_steps: int = 50
    weights: str = "float32"
    """Or `bfloat16`, for models that are too large otherwise: see `hf_model`."""
    seed: int = 0


def pretrain(o: Options) -> dict[str, Any]:
    """Continued pretraining: the next token of texts.jsonl, cut into pieces of the context's length."""
    from datasets import Dataset
    from trl.trainer.sft_config import SFTConfig

    texts = lines(o.run / "corpus" / "texts.jsonl")
    model, tokenizer = hf_model.load(o.model, o.weights)
    data = Dataset.from_list([{"text": line["text"] + (tokenizer.eos_token or "")} for line in texts])
    args = arguments(SFTConfig, o, "pretrain", max_length=hf_model.context(model, o.context), packing=True, packing_strategy="wrapped")
    return supervised(o, "pretrain", model, tokenizer, data, args)


def sft(o: Options, *, stage: str = "sft", pairs: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Supervised fine-tuning on prompts and answers, those of pairs.jsonl unless others are given; the loss is the answer's. Pairs that are
    longer than the context are left out. Raises ValueError where none is left."""
    from datasets import Dataset
    from trl.trainer.sft_config import SFTConfig

    pairs = lines(o.run / "corpus" / "pairs.jsonl") if pairs is None else pairs
    model, tokenizer = hf_model.load(o.model, o.weights)
    limit = hf_model.context(model, o.context)
    fitting = [p for p in pairs if hf_model.tokens(tokenizer, p["prompt"] + p["completion"]) <= limit]
    if not fitting:
        raise ValueError(f"none of the {len(pairs)} pairs fits the context of {limit} tokens; take a model with a larger one, or --context")
    data = Dataset.from_list([{"prompt": p["prompt"], "completion": p["completion"]} for p in fitting])
    args = arguments(SFTConfig, o, stage, max_length=None, completion_only_loss=True)
    done = supervised(o, stage, model, tokenizer, data, args)
    return done | {"pairs": len(fitting), "too_long": len(pairs) - len(fitting)}


def supervised(o: Options, stage: str, model: Any, tokenizer: Any, data: Any, args: Any) -> dict[str, Any]:
    from trl.trainer.sft_trainer import SFTTrainer

    trainer = SFTTrainer(
        model=model,
        args=args,
        train_dataset=data,
        processing_class=tokenizer,
        peft_config=hf_model.lora(o.lora),
        callbacks=callbacks(o, stage),
    )
    return finish(o, stage, trainer, tokenizer)


def arguments(config: Any, o: Options, stage: str, **more: Any) -> Any:
    """What all trainers are told. The rate is constant after a short rise: a stage that ends early, or goes on, is then the same as one
    that was planned so."""
    import torch
    from accelerate import PartialState

    gpu, processes = torch.cuda.is_available(), PartialState().num_processes
    micro = min(o.micro, o.batch)
    if o.batch % (micro * processes):
        raise ValueError(f"a batch of {o.batch} cannot be shared by {processes} process(es) that hold {micro} sequences at a time")
    return config(
        output_dir=str(o.run / stage / "checkpoints"),
        max_steps=o.steps,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=o.batch // (micro * processes),
        learning_rate=o.learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=min(10, o.steps // 10),
        bf16=gpu,
        use_cpu=not gpu,
        gradient_checkpointing=False,
        save_strategy="steps",
        save_steps=o.save_steps,
        save_total_limit=CHECKPOINTS,
        logging_steps=1,
        logging_first_step=True,
        report_to=["tensorboard"] if _tensorboard() else [],
        disable_tqdm=True,
        dataloader_pin_memory=gpu,
        seed=o.seed,
        **more,
    )


def _tensorboard() -> bool:
    from transformers.integrations.integration_utils import is_tensorboard_available

    return is_tensorboard_available()


def callbacks(o: Options, stage: str) -> list[Any]:
    from transformers import TrainerCallback

    class Curve(TrainerCallback):
        """Every log as a line of STAGE/curve.jsonl; what a resumed run does again is replaced."""

        path = o.run / stage / "curve.jsonl"

        def on_train_begin(self, args, state, control, **kwargs):
            if state.is_world_process_zero:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                old = self.path.read_text().splitlines() if self.path.exists() else []
                kept = [line for line in old if json.loads(line)["step"] <= state.global_step]
                self.path.write_text("".join(f"{line}\n" for line in kept))

        def on_log(self, args, state, control, logs=None, **kwargs):
            if state.is_world_process_zero:
                with self.path.open("a") as file:
                    file.write(json.dumps({"step": state.global_step, **(logs or {})}) + "\n")

    class Deadline(TrainerCallback):
        """Ends training when its time is up; every process decides as the first does, or they would wait for each other for ever."""

        started = time.monotonic()

        def on_step_end(self, args, state, control, **kwargs):
            from accelerate.utils import broadcast_object_list

            over = [time.monotonic() - self.started > o.seconds]
            if o.seconds < float("inf"):
                broadcast_object_list(over)
            if over[0]:
                control.should_training_stop = control.should_save = True

    return [Curve(), Deadline()]


def finish(o: Options, stage: str, trainer: Any, tokenizer: Any) -> dict[str, Any]:
    """Trains on from the last checkpoint if there is one; saves the model and a summary."""
    last = _last_checkpoint(o.run / stage / "checkpoints")
    started = time.monotonic()
    trainer.train(resume_from_checkpoint=str(last) if last else None)
    steps = trainer.state.global_step
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    summary = {
        "stage": stage,
        "model": o.model,
        "steps": steps,
        "resumed_at": _step(last) if last else 0,
        "seconds": round(time.monotonic() - started, 1),
        "first_loss": losses[0] if losses else None,
        "last_loss": losses[-1] if losses else None,
        "lora": o.lora,
    }
    if trainer.accelerator.is_main_process:
        hf_model.save(trainer.accelerator.unwrap_model(trainer.model), tokenizer, o.run / stage / "model")
        (o.run / stage / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    trainer.accelerator.wait_for_everyone()
    return summary


def _last_checkpoint(folder: Path) -> Path | None:
    """The newest that is whole. One that was being written when its process was killed lacks the trainer's state, which comes last; the
    trainer itself would take it, and fail."""
    for path in sorted(folder.glob("checkpoint-*"), key=_step, reverse=True):
        with suppress(OSError, ValueError):
            json.loads((path / "trainer_state.json").read_text())
            return path
    return None


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.rsplit("-", 1)[1])


def done(run: Path, stage: str) -> dict[str, Any] | None:
    """The summary of a stage that came to its end."""
    path = run / stage / "summary.json"
    return json.loads(path.read_text()) if path.exists() else None


def forget(run: Path, stage: str) -> None:
    """Removes all that a stage left."""
    shutil.rmtree(run / stage, ignore_errors=True)
