"""`kernelwright train STAGE...`: the kernel model of our own, from measurements to evaluated weights."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from kernelwright.cli.common import Json, by_stage, console, emit, one_of, out_dir, stages_of

STAGES = ("corpus", "pretrain", "sft", "rl", "evaluate")
STEPS = {"pretrain": 2000, "sft": 800, "rl": 300}


@dataclass(frozen=True)
class Options:
    """What the stages are told."""

    out: Path
    tables: list[Path]
    archive: Path | None
    steps: dict[str, int]
    width: int
    layers: int
    exemplars: str
    device: str
    on_device: bool
    target: str
    seeds: int
    budget: int
    jobs: int | None
    seed: int


def register(app: typer.Typer) -> None:
    @app.command(epilog="Example: kernelwright train all --table results/h200/learning/configs.jsonl.xz --out my-policy")
    def train(
        stages: Annotated[
            list[str], typer.Argument(help=f"One or more of {', '.join(STAGES)}, or all; done in this order.", metavar="STAGE...")
        ],
        out: Annotated[Path, typer.Option(help="Folder of the run; the same command goes on where it stopped.")] = Path(
            "kernelwright-out/policy"
        ),
        table: Annotated[list[Path] | None, typer.Option(help="File(s) of measured configs, beside the archive's screens.")] = None,
        archive: Annotated[
            Path | None, typer.Option(help="Archive whose screens are learnt; the default is yours, unless a table is given.")
        ] = None,
        steps: Annotated[
            list[str] | None, typer.Option(help="Updates; 300, or sft=300 for one stage.", metavar="[STAGE=]N", show_default=str(STEPS))
        ] = None,
        width: Annotated[int, typer.Option(min=8, help="Of the model; a multiple of 32.")] = 192,
        layers: Annotated[int, typer.Option(min=1)] = 4,
        exemplars: Annotated[str, typer.Option(help="Measured configs in prompts: buckets, islands, random or none.")] = "buckets",
        on_device: Annotated[
            bool, typer.Option("--on-device", help="rl: measure every design on the device instead of looking it up.")
        ] = False,
        target: Annotated[str, typer.Option(help="With --on-device: where designs are measured.")] = "auto",
        seeds: Annotated[int, typer.Option(min=1, help="evaluate: replays of each search and shape.")] = 20,
        budget: Annotated[int, typer.Option(min=1, help="evaluate: candidates of a replay.")] = 256,
        jobs: Annotated[int | None, typer.Option(min=1, help="evaluate: processes; the default is one a core.")] = None,
        seed: Annotated[int, typer.Option()] = 0,
        fresh: Annotated[bool, typer.Option("--fresh", help="Do the stages anew, and forget those that come after the first.")] = False,
        json_output: Json = False,
    ) -> None:
        """Train the kernel model: corpus, pretraining, fine-tuning on verified best kernels, contrastive RL, replayed evaluation."""
        from kernelwright.propose.exemplars import WAYS

        ordered, given = stages_of(stages, STAGES), by_stage(steps, STAGES, int, "--steps")
        one_of(exemplars, WAYS, "--exemplars")
        if width % 32:
            raise typer.BadParameter(f"a width of {width} does not divide into heads of 32; choose a multiple of 32")
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        options = Options(
            out_dir(out), table or [], archive, {name: given.get(name, given.get("", n)) for name, n in STEPS.items()}, width, layers,
            exemplars, device, on_device, target, seeds, budget, jobs, seed,
        )  # fmt: skip
        screen, done = console(json_output), {}
        if fresh:  # what comes after the first stage was learnt from what it left
            for name in STAGES[STAGES.index(ordered[0]) :]:
                _forget(out, name)
        for name in ordered:
            started = time.monotonic()
            done[name] = _RUN[name](options, screen)
            screen.print(f"{name}: {time.monotonic() - started:.0f} s", markup=False)
        if json_output:
            emit({"out": str(out), "stages": done})


def _corpus(o: Options, screen: Any) -> dict:
    from kernelwright.archive import Archive
    from kernelwright.cli.progress import steps
    from kernelwright.learn import policy_data, table
    from kernelwright.settings import settings

    if (o.out / policy_data.GUESSED).exists():  # written last
        screen.print("corpus: there already (--fresh draws it anew)")
        return {}
    rows: list[table.Row] = []
    screens: list[table.Row] = []
    device = None
    for path in o.tables:
        facts, read = table.read(path)
        device = device or facts
        if facts != device:
            raise typer.BadParameter(f"{path} was measured on {facts.name}, the first table on {device.name}: a run learns one device")
        rows += read
    if o.archive is not None or not o.tables:
        with Archive(o.archive or settings().archive) as archive:
            device = device or table.device_in(archive)
            screens += table.from_archive(archive, device)
    assert device is not None
    with steps(screen, "corpus") as told:
        measured, designs = policy_data.make_corpus(o.out, device, rows or screens, o.seed, told=told, screens=screens)
    screen.print(f"corpus: {measured} measured configs of training shapes and {designs} legal designs for {device.name}", markup=False)
    return {"measured": measured, "designs": designs, "device": device.name}


def _imitate(stage: str, rate: float) -> Callable[[Options, Any], dict]:
    def run(o: Options, screen: Any) -> dict:
        from kernelwright.learn.policy_data import load_corpus
        from kernelwright.learn.policy_model import Size
        from kernelwright.learn.policy_train import Imitation, imitate

        settings = Imitation(o.steps[stage], rate=rate, seed=o.seed, contrast=o.exemplars)
        with _progress(screen, stage) as said:
            policy = imitate(stage, o.out, load_corpus(o.out), settings, Size(o.width, o.layers, o.width // 32), said, o.device)
        return {"parameters": policy.parameters_in_all, **said.last}

    return run


def _reinforce(o: Options, screen: Any) -> dict:
    from kernelwright.learn.policy_data import load_corpus
    from kernelwright.learn.policy_rl import Contrastive, reinforce

    corpus, settings = load_corpus(o.out), Contrastive(o.steps["rl"], seed=o.seed, contrast=o.exemplars)
    with ExitStack() as stack:
        rewards = None
        if o.on_device:
            from kernelwright.learn.policy_device import FromDevice
            from kernelwright.learn.policy_run import trained

            rewards = stack.enter_context(FromDevice(corpus, trained(o.out, "sft").vocabulary, o.target, o.out / "rl-measured.jsonl"))
        said = stack.enter_context(_progress(screen, "rl"))
        reinforce(o.out, corpus, settings, said, o.device, rewards)
    return said.last


def _evaluate(o: Options, screen: Any) -> dict:
    from kernelwright.cli.progress import steps
    from kernelwright.learn import policy_data
    from kernelwright.learn import policy_evaluate as evaluation
    from kernelwright.learn.replay import SHOWN

    about = {"contrast": o.exemplars, "device": policy_data.load_corpus(o.out).device.name}
    before = evaluation.write_weights(o.out, "sft", about, o.out / "policy-before-rl.safetensors")
    after = evaluation.write_weights(o.out, "rl", about, o.out / "policy.safetensors")
    with steps(screen, "evaluate") as told:
        runs = evaluation.evaluate(
            o.out / policy_data.HELD,
            {evaluation.BEFORE: (before, o.exemplars), evaluation.AFTER: (after, o.exemplars)},
            training=o.out / policy_data.MEASURED,
            searches=evaluation.searches(),
            seeds=o.seeds,
            budget=o.budget,
            jobs=o.jobs,
            told=told,
        )
    figures = evaluation.summary(runs, o.budget)
    evaluation.write_weights(o.out, "rl", {**about, "figures": figures}, o.out / "policy.safetensors")
    (o.out / "evaluation.json").write_text(json.dumps(figures, indent=1) + "\n")
    (o.out / "evaluation.svg").write_text(
        evaluation.picture(runs, min(o.budget, SHOWN), "best so far of held-out shapes, as a share of the best known")
    )
    for name, f in figures["searches"].items():
        low, high = f["candidates_to_97pct_low"], f["candidates_to_97pct_high"]
        text = f"{name:20} {f['candidates_to_97pct']:5.1f} candidates to 97 % ({low:.1f}-{high:.1f})"
        screen.print(f"{text}, first proposal {f['first_share']:.1%} of the best", markup=False)
    return figures


class _progress:
    """Shows steps with their newest numbers."""

    def __init__(self, screen: Any, stage: str):
        from kernelwright.cli.progress import steps

        self.screen, self.stage, self.last = screen, stage, dict[str, float]()
        self._steps = steps(screen, stage)

    def __enter__(self) -> _progress:
        self._told = self._steps.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._steps.__exit__(*error)

    def __call__(self, done: int, total: int, numbers: dict[str, float]) -> None:
        self.last = {"steps": done, **numbers}
        self._told(done, total)
        self.screen.print(f"{self.stage} {done}/{total}: " + ", ".join(f"{k} {v:.4g}" for k, v in numbers.items()), markup=False)


def _forget(out: Path, stage: str) -> None:
    from kernelwright.learn import policy_data

    names = {"corpus": (policy_data.GUESSED,)}.get(stage, (f"{stage}.pt", f"{stage}.csv"))
    for name in names:
        (out / name).unlink(missing_ok=True)


_RUN: dict[str, Callable[[Options, Any], dict]] = {
    "corpus": _corpus,
    "pretrain": _imitate("pretrain", 1e-3),
    "sft": _imitate("sft", 3e-4),
    "rl": _reinforce,
    "evaluate": _evaluate,
}
