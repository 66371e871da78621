"""`kernelwright train-hf STAGE...`: trains a Hugging Face model to write kernels: on verified ones of ours, then on how its own fare."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from kernelwright.cli.common import (
    Json,
    Layouts,
    TargetName,
    by_stage,
    console,
    emit,
    one_of,
    open_archive,
    open_target,
    stages_of,
    workloads_of,
)

STAGES = ("corpus", "pretrain", "sft", "keep", "grpo", "evaluate")
MODELS = ("pretrain", "sft", "keep", "grpo")
"""Stages that make one, in their order."""

STEPS = {"pretrain": 200, "sft": 300, "keep": 60, "grpo": 200}
RATES = {"pretrain": 2e-4, "sft": 2e-4, "keep": 1e-4, "grpo": 2e-5}
"""For adapters. With --lora 0, a tenth for models of billions of weights."""
BATCHES = {"pretrain": 16, "sft": 16, "keep": 16, "grpo": 64}


def register(app: typer.Typer) -> None:
    @app.command(
        "train-hf",
        epilog="Example: kernelwright train-hf corpus sft grpo evaluate --model Qwen/Qwen2.5-Coder-0.5B --workload chains --render 24",
    )
    def train_hf(
        stages: Annotated[
            list[str], typer.Argument(help=f"One or more of {', '.join(STAGES)}, or all; done in this order.", metavar="STAGE...")
        ],
        model: Annotated[str, typer.Option(help="Folder, .gguf file or name on the Hub; default: what the last stage made.")] = "",
        run: Annotated[Path, typer.Option("--out", help="Folder of the run; the same command goes on where it stopped.")] = Path(
            "kernelwright-out/hf"
        ),
        workload: Annotated[
            list[str] | None, typer.Option(help="corpus: problems or suites; default: all that the archive holds for the target.")
        ] = None,
        layout: Layouts = None,
        target: TargetName = "auto",
        render: Annotated[int, typer.Option(min=0, help="corpus: configs of our families to draw and measure for each workload.")] = 0,
        kernels: Annotated[int, typer.Option(min=1, help="corpus: most kernels that are written of a workload.")] = 24,
        held_out: Annotated[int, typer.Option(min=0, help="corpus: workloads that are kept for evaluate.")] = 0,
        steps: Annotated[list[str] | None, typer.Option(help="Updates; 300, or sft=300 for one stage.", metavar="[STAGE=]N")] = None,
        seconds: Annotated[list[str] | None, typer.Option(help="Most seconds of a stage's training.", metavar="[STAGE=]S")] = None,
        learning_rate: Annotated[list[str] | None, typer.Option(help="Of AdamW.", metavar="[STAGE=]R")] = None,
        batch: Annotated[list[str] | None, typer.Option(help="Sequences of an update.", metavar="[STAGE=]N")] = None,
        micro: Annotated[list[str] | None, typer.Option(help="Sequences in memory at a time; default 4.", metavar="[STAGE=]N")] = None,
        lora: Annotated[
            list[str] | None, typer.Option(help="Rank of adapters; 0 trains all weights; default 16.", metavar="[STAGE=]N")
        ] = None,
        context: Annotated[int | None, typer.Option(min=64, help="Tokens of prompt and answer; default: the model's.")] = None,
        answer_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 2048,
        answers: Annotated[int, typer.Option(min=1, help="Answers to a prompt: keep, grpo (the group) and evaluate.")] = 8,
        side_by_side: Annotated[int, typer.Option(min=1, help="keep, evaluate: answers that are written at one time.")] = 64,
        temperature: Annotated[float, typer.Option(min=0, help="Of sampling.")] = 1.0,
        exemplars: Annotated[str, typer.Option(help="Kernels in prompts: buckets, islands, random or none.")] = "buckets",
        rounds: Annotated[int, typer.Option(min=1, help="keep: how often it samples and trains.")] = 1,
        kl: Annotated[float, typer.Option(min=0, help="grpo: weight of the KL term to the model it began with.")] = 0.02,
        save_steps: Annotated[int, typer.Option(min=1, help="Updates between two checkpoints.")] = 50,
        weights: Annotated[str, typer.Option(help="float32, or bfloat16 for models that are too large otherwise.")] = "float32",
        part: Annotated[str, typer.Option(help="evaluate: train or held_out workloads.")] = "held_out",
        name: Annotated[str, typer.Option(help="evaluate: of the result; default: the stage that made the model.")] = "",
        seed: Annotated[int, typer.Option(help="Of draws, training and sampling.")] = 0,
        fresh: Annotated[bool, typer.Option("--fresh", help="Do the stages anew.")] = False,
        json_output: Json = False,
    ) -> None:
        """Train a language model on kernels: corpus, pretrain, sft, keep what works, contrastive GRPO, evaluate.

        A stage that is done is not done again; one that was cut off goes on from its last checkpoint. On several GPUs: accelerate launch -m
        kernelwright train-hf ...
        """
        from kernelwright.learn import hf_model
        from kernelwright.learn.hf_grpo import Grpo
        from kernelwright.learn.hf_sample import Sampling
        from kernelwright.learn.hf_train import Options
        from kernelwright.propose.exemplars import WAYS

        for value, known, what in ((exemplars, WAYS, "--exemplars"), (weights, ("float32", "bfloat16"), "--weights")):
            one_of(value, known, what)
        one_of(part, ("train", "held_out"), "--part")
        ordered = stages_of(stages, STAGES)
        given = {
            "steps": by_stage(steps, STAGES, int, "--steps"),
            "seconds": by_stage(seconds, STAGES, float, "--seconds"),
            "learning_rate": by_stage(learning_rate, STAGES, float, "--learning-rate"),
            "batch": by_stage(batch, STAGES, int, "--batch"),
            "micro": by_stage(micro, STAGES, int, "--micro"),
            "lora": by_stage(lora, STAGES, int, "--lora", least=0),
        }

        def options(stage: str) -> Options:
            def of(what: str, default: Any) -> Any:
                return given[what].get(stage, given[what].get("", default))

            return Options(
                run=run,
                model=model if model and stage == start else _latest(run, stage, model),
                steps=of("steps", STEPS.get(stage, 0)),
                batch=of("batch", BATCHES.get(stage, 0)),
                micro=of("micro", 4),
                learning_rate=of("learning_rate", RATES.get(stage, 0.0)),
                lora=of("lora", 16),
                seconds=of("seconds", float("inf")),
                context=context,
                answer_tokens=answer_tokens,
                save_steps=save_steps,
                weights=weights,
                seed=seed,
            )

        first = _first_process("corpus" in ordered)
        screen = console(json_output or not first)
        screen.quiet = not first
        results: dict[str, Any] = {}
        sampling = Sampling(answers, temperature, exemplars, side_by_side)
        if fresh:
            _forget(run, ordered if first else ())
        start = next((s for s in ordered if s != "corpus"), "")
        if "corpus" in ordered:
            results["corpus"] = _corpus(run, workload or (), layout or (), target, render, kernels, held_out, seed, screen)
        if start:
            hf_model.require()
            for stage in ordered:
                if stage != "corpus":
                    results[stage] = _stage(stage, options(stage), sampling, Grpo(kl=kl), rounds, target, name, part, screen)
        if json_output and first:
            emit(results)
        elif first:
            for stage, summary in results.items():
                text = ", ".join(f"{what} {value}" for what, value in summary.items() if not isinstance(value, dict | list))
                screen.print(f"{stage}: {text}", markup=False)


def _stage(stage: str, o: Any, sampling: Any, grpo: Any, rounds: int, target: str, name: str, part: str, screen: Any) -> dict[str, Any]:
    import torch
    from accelerate import PartialState

    from kernelwright.learn import hf_grpo, hf_sample, hf_train
    from kernelwright.learn.hf_pool import Pool

    if stage != "evaluate" and (known := hf_train.done(o.run, stage)) is not None:
        return known | {"done": "earlier"}
    screen.print(f"{stage}: from {o.model}", markup=False)
    if stage == "pretrain":
        return hf_train.pretrain(o)
    if stage == "sft":
        return hf_train.sft(o)
    state = PartialState()
    gpu = state.local_process_index if torch.cuda.is_available() and state.num_processes > 1 else None
    with open_archive() as archive, Pool(open_target(target), archive, _session(o.run), o.model, gpu) as pool:
        if stage == "keep":
            return hf_sample.keep(o, sampling, pool, rounds)
        if stage == "grpo":
            return hf_grpo.grpo(o, sampling, grpo, pool)
        return hf_sample.evaluate(o, sampling, pool, name or _made_by(o.run, o.model), part)


def _corpus(
    run: Path, names: Sequence[str], layouts: Sequence[str], target: str, render: int, kernels: int, held_out: int, seed: int, screen: Any
) -> dict[str, Any]:
    from kernelwright.learn import hf_corpus
    from kernelwright.learn.hf_pool import Pool
    from kernelwright.learn.hf_text import Device
    from kernelwright.targets import target as target_of

    folder = run / "corpus"
    if (folder / "summary.json").exists():
        return json.loads((folder / "summary.json").read_text()) | {"done": "earlier"}
    one = target_of(target)
    session = f"train-{uuid.uuid4().hex[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "session").write_text(session)
    with open_archive() as archive:
        workloads = [w for text in names for w in workloads_of(text, layouts=layouts)] or [
            w for w in archive.workloads() if archive.best(w, one.name, own=True) is not None
        ]
        write: dict[str, Any] = {"render": render, "kernels": kernels, "held_out": held_out, "seed": seed}

        def said(line: str) -> None:
            screen.print(line, markup=False)

        if one.unavailable() is None:
            with Pool(one, archive, session, "") as pool:
                return hf_corpus.build(folder, workloads, one, archive, pool.device, pool=pool, said=said, **write)
        if render:
            open_target(target)  # says why it cannot be measured on
        # kernels that were measured elsewhere can be written down anywhere
        return hf_corpus.build(folder, workloads, one, archive, Device(one.facts(), None), said=said, **write)


def _forget(run: Path, stages: Sequence[str]) -> None:
    """No process goes on before the first has removed what the stages left. `evaluate` is done whenever it is asked for."""
    from kernelwright.learn import hf_train

    for stage in stages:
        if stage != "evaluate":
            hf_train.forget(run, stage)
    with suppress(ImportError):
        from accelerate import PartialState

        PartialState().wait_for_everyone()


def _first_process(corpus: bool) -> bool:
    """Whether this process speaks for all that `accelerate launch` started. Raises BadParameter where they would all write a corpus."""
    try:
        from accelerate import PartialState
    except ImportError:
        return True
    state = PartialState()
    if corpus and state.num_processes > 1:
        raise typer.BadParameter(
            "a corpus is written by one process; run `kernelwright train-hf corpus` first, then launch the other stages"
        )
    return state.is_main_process


def _session(run: Path) -> str:
    """Of all that this training measures."""
    try:
        return (run / "corpus" / "session").read_text()
    except FileNotFoundError:
        raise ValueError(f"there is no corpus in {run}; make one with: kernelwright train-hf corpus --out {run}") from None


def _latest(run: Path, stage: str, given: str) -> str:
    """The model that the last stage before this one made. Raises BadParameter."""
    before = MODELS[: MODELS.index(stage)] if stage in MODELS else MODELS
    for name in reversed(before):
        if name == "keep" and (rounds := sorted((run / "keep").glob("round-*/model"), key=lambda p: int(p.parent.name[6:]))):
            return str(rounds[-1])
        if (run / name / "model").is_dir():
            return str(run / name / "model")
    if given:
        return given
    raise typer.BadParameter(f"no stage before {stage} has made a model in {run}; name one with --model")


def _made_by(run: Path, model: str) -> str:
    """`grpo` of RUN/grpo/model, `keep-round-0`; a foreign model's is the last part of its name."""
    path = Path(model)
    if path.name == "model" and path.is_relative_to(run):
        return "-".join(path.parent.relative_to(run).parts)
    return path.stem
