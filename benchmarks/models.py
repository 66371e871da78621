"""Prefill and decode of language models with and without kw.accelerate: eager, CUDA graphs, torch.compile.

    python benchmarks/models.py PACK... --out results/h200/models --seconds 300 --engines eager graph
    python benchmarks/models.py PACK... --out results/h200/models --seconds 300 --cells decode:1x512 prefill:1x512 --engines graph compile
    python benchmarks/models.py --out results/h200/models                                  the summary alone

Models have random weights: transformers' Llama with the sizes of Llama-3.1-8B, its Qwen2 with those of Qwen2.5-7B. A cell is a model, a
type, a phase and BATCHxLENGTH: `prefill`, LENGTH tokens of each sequence up to the first new token (milliseconds); `decode`, STEPS greedy
steps at the end of a context of LENGTH (tokens a second). Cells come in the order of CELLS; each one's line is on disk before the next
begins, a further call goes on with what is missing, an engine that fails (no memory, compilation) is named in the line and passed over.

In a round every engine is sampled once with torch's layers and once with ours (and once more: A/A), in random order. Engines: `eager`;
`graph`, the eager step as a CUDA graph; `compile`, torch.compile of the step, static shapes; `compile-graph`, that as a CUDA graph, without
compiling anew. All use one static cache and attention without a mask, so that none of them gets another attention kernel: prefill is
causal, decode attends to the whole cache. Before anything is timed, each engine's logits are held against the eager model's with torch's
layers: the relative error (Frobenius) must stay below BOUND.

What the packs must hold: products nt in the model's type, of each projection for each number of tokens (BATCH in decode, BATCH x LENGTH in
prefill), a bias included. These suites are that:

    kernelwright tune llama-3.1-8b --target cuda --minutes 10 --rival eager --rival cublaslt-auto --out kernelwright-out
    kernelwright tune qwen2.5-7b --target cuda --minutes 10 --rival eager --rival cublaslt-auto --out kernelwright-out
    python benchmarks/models.py kernelwright-out/pack-llama-3.1-8b kernelwright-out/pack-qwen2.5-7b --out results/h200/models

(`--dtype fp16` for fp16.) A pack of another suite serves by prediction, or leaves the layers to torch: each line says how many it served.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import sys
import types
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measuring
import numpy as np
import torch
from contenders import use
from host import of_one_place
from measuring import AGAIN, LEAST_ROUNDS, OURS, Budget, Lines, compared, environment, hopeless, read, refuse, rounds, sample, supervise
from published import command_line, write_summary

import kernelwright as kw
from kernelwright.problems.problem import TORCH_DTYPES
from kernelwright.problems.suites import MODELS, Model
from kernelwright.report.shapes import mean_of

TORCH = "torch"
LAYERS = {"Llama-3.1-8B": 32, "Qwen2.5-7B": 28}
CELLS = [
    "decode:1x512",
    "prefill:1x512",
    "decode:32x512",
    "decode:8x512",
    "decode:128x512",
    "prefill:1x2048",
    "prefill:8x512",
    "prefill:8x2048",
    "prefill:32x512",
    "prefill:128x512",
    "prefill:32x2048",
    "prefill:128x2048",
]
ENGINES = ("eager", "graph", "compile", "compile-graph")
STEPS = 8
BOUND = {"bf16": 0.06, "fp16": 0.02}
"""Of logits after 30 layers whose products are rounded to 8 or 11 bits in another order; a wrong kernel gives 1 and more."""
COMPILE: dict[str, Any] = {"dynamic": False}
MOST_ROUNDS = 9
MAX_LINE = 300


@dataclass(frozen=True)
class Cell:
    model: str
    dtype: str
    phase: str
    batch: int
    length: int

    @classmethod
    def parse(cls, model: str, dtype: str, text: str) -> Cell:
        """`decode:8x512`. Raises ValueError."""
        phase, _, sizes = text.partition(":")
        batch, _, length = sizes.partition("x")
        if phase not in ("prefill", "decode") or not (batch.isdigit() and length.isdigit()):
            raise ValueError(f"{text!r} is no cell; write it like decode:8x512 or prefill:1x2048")
        return cls(model, dtype, phase, int(batch), int(length))

    @property
    def name(self) -> str:
        return f"{self.model} {self.dtype} {self.phase}:{self.batch}x{self.length}"

    @property
    def tokens(self) -> int:
        """Rows of the layers' inputs."""
        return self.batch * (self.length if self.phase == "prefill" else 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packs", type=Path, nargs="*", help="without one nothing is measured; the last counts first")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=480.0, help="all of it, the start of the process included")
    parser.add_argument("--models", nargs="+", choices=list(LAYERS), default=list(LAYERS))
    parser.add_argument("--dtypes", nargs="+", choices=list(BOUND), default=["bf16"])
    parser.add_argument("--cells", nargs="+", default=list(CELLS), help="PHASE:BATCHxLENGTH, the most important first")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--layers", type=int, help="fewer than the model has")
    parser.add_argument("--cell-seconds", type=float, default=12.0, help="of a cell's rounds; one that needs four times that is left out")
    parser.add_argument("--hang", type=float, default=300.0, help="a step that takes longer ends the process, seconds")
    parser.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()

    raw = args.out / "samples.jsonl"
    if args.inner:
        measure(args, raw)
        return
    complete = supervise(args.seconds, raw) if args.packs else True
    wrong = summarise(raw, args.out)
    sys.exit(0 if complete and not wrong else 1)


# ------------------------------------------------------------------------------------------------------------- measuring


def measure(args: argparse.Namespace, raw: Path) -> None:
    budget = Budget(args.seconds, args.hang)
    budget.watch()
    measuring.device()
    packs = ", ".join([use(pack) for pack in args.packs])
    try:
        cells = [Cell.parse(model, dtype, text) for model in args.models for dtype in args.dtypes for text in args.cells]
    except ValueError as error:
        refuse(str(error))
    lines = Lines(raw)
    layers = {} if args.layers is None else {"layers": args.layers}
    where = environment(pack=packs, transformers=_transformers().__version__, **layers)
    lines.add({"environment": where, "command": command_line("models.py")})
    before = of_one_place(read(raw))[1]
    done = {line["end"] for line in before if "end" in line} | hopeless(before)
    loaded: tuple[object, Any] = (None, None)
    for cell in cells:
        name = f"{cell.name} [{' '.join(args.engines)}]"
        if name in done:
            continue
        if budget.left <= 0:
            break
        budget.watch()
        lines.add({"start": name})
        spoilers = {line["engine"]: line["error"] for line in before if line.get("spoils") == name}
        try:
            if loaded[0] != (cell.model, cell.dtype):
                loaded = (None, None)
                _free()
                loaded = (cell.model, cell.dtype), build(cell.model, cell.dtype, args.layers)
            engines = [engine for engine in args.engines if engine not in spoilers]
            line = measured(loaded[1], cell, engines, args.cell_seconds, budget)
        except Spoiled as error:
            lines.add({"spoils": name, "engine": error.engine, "error": str(error)})
            raise SystemExit(3) from None  # the context may be gone: the next process goes on without that engine
        except torch.OutOfMemoryError as error:
            line = {"failed": {"all": _first(error)}}
        if line is None:
            break
        line["failed"] = line["failed"] | spoilers
        about = {"cell": cell.name, "phase": cell.phase, "model": cell.model, "tokens": cell.tokens, "batch": cell.batch}
        lines.add({"end": name, **about, **line})
        print(f"{name}: {_said(line)}  ({budget.left:.0f} s left)", flush=True)
        _free()
    budget.close()


def _transformers():
    try:
        import transformers
    except ImportError as error:
        refuse(f"this program needs transformers ({error}): pip install transformers==5.17.*")
    return transformers


def build(name: str, dtype: str, layers: int | None = None) -> torch.nn.Module:
    """The model with random weights on the device."""
    transformers = _transformers()
    model = next(m for m in MODELS if m.name == name)
    config = config_of(transformers, model, layers or LAYERS[name])
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    # a name without a mask function: transformers then makes no mask, and all engines reach the same attention kernel
    transformers.AttentionInterface.register("unmasked_sdpa", sdpa_attention_forward)
    torch.manual_seed(0)
    with torch.device(measuring.device()):
        made = transformers.AutoModelForCausalLM.from_config(config, dtype=TORCH_DTYPES[dtype], attn_implementation="unmasked_sdpa")
    return made.eval().requires_grad_(False)


def config_of(transformers: Any, model: Model, layers: int) -> Any:
    sizes = {
        "vocab_size": model.vocabulary,
        "hidden_size": model.hidden,
        "intermediate_size": model.intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
    }
    if model.name.startswith("Qwen2.5"):
        return transformers.Qwen2Config(**sizes)
    return transformers.LlamaConfig(**sizes, head_dim=model.head)


class Spoiled(Exception):
    """An engine made the CUDA context unusable, or the allocator's state: this process can do no more."""

    def __init__(self, engine: str, error: BaseException):
        super().__init__(_first(error))
        self.engine = engine


class Run:
    """A cell's tensors, its step, and the state that each sample starts from."""

    def __init__(self, model: Any, cell: Cell):
        transformers, config = _transformers(), model.config
        on, decode = measuring.device(), cell.phase == "decode"
        self.model, self.cell = model, cell
        self.start = cell.length - STEPS if decode else 0
        queries = 1 if decode else cell.length
        self.cache = transformers.StaticCache(config=config, max_cache_len=cell.length)
        # its name from transformers 5.24 on, and before
        self.takes_cache = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        dtype = next(model.parameters()).dtype
        self.cache.early_initialization(cell.batch, config.num_key_value_heads, head, dtype, torch.device(on))
        for layer in self.cache.layers if decode else ():
            layer.keys.normal_()
            layer.values.normal_()
        self.prompt = torch.randint(config.vocab_size, (cell.batch, queries), device=on)
        self.ids, self.chosen = self.prompt.clone(), torch.empty(cell.batch, 1, dtype=torch.long, device=on)
        self.positions = torch.arange(self.start, self.start + queries, device=on).unsqueeze(0)
        self.first = self.positions.clone()

    def step(self) -> torch.Tensor:
        """Logits of the last tokens; the most likely ones are the next step's input."""
        arguments = {"input_ids": self.ids, "position_ids": self.positions, self.takes_cache: self.cache}
        logits = self.model(**arguments, use_cache=True, logits_to_keep=1).logits
        chosen = logits[:, -1].argmax(-1, keepdim=True)
        if self.cell.phase == "decode":
            self.ids.copy_(chosen)
            self.positions.add_(1)
        else:
            self.chosen.copy_(chosen)
        return logits

    def reset(self) -> None:
        self.ids.copy_(self.prompt)
        self.positions.copy_(self.first)
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(self.start)
            layer.keys[:, :, self.start :].zero_()  # decode attends to what another engine left there
            layer.values[:, :, self.start :].zero_()


class Layers:
    """Whose linear layers the model has: torch's or ours."""

    def __init__(self, model: torch.nn.Module):
        self._model, self._report = model, None

    def become(self, ours: bool) -> Any:
        if ours and self._report is None:
            self._report = kw.accelerate(self._model)
        elif not ours and self._report is not None:
            self._report.undo()
            self._report = None
        return self._report


@dataclass
class Engine:
    """A step with the layers of one side."""

    ours: bool
    step: Callable[[], torch.Tensor]
    steps: int

    def __call__(self) -> torch.Tensor:
        for _ in range(self.steps):
            logits = self.step()
        return logits  # pyright: ignore[reportPossiblyUnboundVariable]


def measured(model: Any, cell: Cell, names: Sequence[str], seconds: float, budget: Budget) -> dict[str, Any] | None:
    """The line of a cell; None where the time is up. `samples`: by `kw ENGINE`, `torch ENGINE` and `kw again ENGINE`, microseconds of STEPS
    steps of decode, or of one prefill."""
    with torch.inference_mode(False), torch.no_grad():
        run, layers = Run(model, cell), Layers(model)
        try:
            run.reset()
            reference = run.step().float().clone()
            served = layers.become(True).explain((cell.tokens,)).splitlines()[0]
            engines, logits, failed, wrong = prepared(run, layers, names, reference, budget)
            taken = clocked(run, layers, engines, seconds, budget) if engines else {}
        finally:
            layers.become(False)
            torch.compiler.reset()
        line = {"steps": STEPS if cell.phase == "decode" else 1, "served": served, "logits": logits, "failed": failed, "wrong": wrong}
        if taken is None:
            return None
        if isinstance(taken, str):
            return line | {"left_out": taken}
        return line | {"samples": taken}


def prepared(
    run: Run, layers: Layers, names: Sequence[str], reference: torch.Tensor, budget: Budget
) -> tuple[dict[str, Engine], dict[str, float], dict[str, str], list[str]]:
    """Engines by name with their logits' relative error, what failed and what is wrong; an engine counts where both sides are right.
    Raises Spoiled."""
    steps, bound = STEPS if run.cell.phase == "decode" else 1, BOUND[run.cell.dtype]
    pool = torch.cuda.graph_pool_handle() if torch.cuda.is_available() else None  # graphs never run side by side
    engines: dict[str, Engine] = {}
    logits: dict[str, float] = {}
    failed: dict[str, str] = {}
    wrong: list[str] = []
    for ours in (False, True):
        side, compiled = (OURS if ours else TORCH), _compiled(run)
        layers.become(ours)
        for name in [name for name in ENGINES if name in names]:
            key = f"{side} {name}"
            if name == "compile-graph" and (reason := failed.get(f"{side} compile")):
                failed[key] = reason
                continue
            budget.watch()
            try:
                step = _ready(run, compiled if name.startswith("compile") else run.step, name, pool)
                run.reset()
                got = step().float()
                error = float((got - reference).norm() / reference.norm())
            except Exception as caught:
                if "CUDA error" in str(caught) or isinstance(caught, RuntimeWarning):  # the second: ours would be torch's from now on
                    raise Spoiled(name, caught) from None
                failed[key] = _first(caught)
                continue
            logits[key] = round(error, 5)
            if error <= bound:
                engines[key] = Engine(ours, step, steps)
            else:
                wrong.append(f"{run.cell.name}: {key} differs from the eager model by {error:.3g}, at most {bound}")
    both = [name for name in ENGINES if f"{OURS} {name}" in engines and f"{TORCH} {name}" in engines]
    kept = {f"{side} {name}": engines[f"{side} {name}"] for name in both for side in (TORCH, OURS)}
    return kept | {f"{AGAIN} {name}": engines[f"{OURS} {name}"] for name in both}, logits, failed, wrong


def _ready(run: Run, step: Callable[[], torch.Tensor], name: str, pool: Any) -> Callable[[], torch.Tensor]:
    for _ in range(2):  # compiles, loads kernels
        run.reset()
        step()
    return captured(run, step, pool) if name.endswith("graph") else step


def _compiled(run: Run) -> Callable[[], torch.Tensor]:
    """Not compiled until it is called. Each has a code object of its own: what torch.compile keeps for one side is then not looked through
    for the other's."""

    def step() -> torch.Tensor:
        return run.step()

    own = types.FunctionType(step.__code__.replace(), step.__globals__, "step", None, step.__closure__)
    return torch.compile(own, **COMPILE)


def captured(run: Run, step: Callable[[], torch.Tensor], pool: Any) -> Callable[[], torch.Tensor]:
    """The step as a CUDA graph. Kernels are loaded before, which a capture forbids."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run.reset()
            step()
    torch.cuda.current_stream().wait_stream(side)
    run.reset()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        logits = step()

    def replay() -> torch.Tensor:
        graph.replay()
        return logits

    return replay


def clocked(
    run: Run, layers: Layers, engines: dict[str, Engine], seconds: float, budget: Budget
) -> dict[str, list[float | None]] | str | None:
    """Samples; a sentence where they would take too long, None where the time does not suffice."""

    def take(engine: Any, operands: Sequence[Any]) -> float | None:
        layers.become(engine.ours)
        run.reset()
        return sample(engine, operands)

    budget.watch()
    once = sum((take(engine, ()) or 0.0) for engine in engines.values()) * 1e-6
    if once * LEAST_ROUNDS > 4 * seconds:
        return f"a round takes {once:.0f} s"
    if once * LEAST_ROUNDS > budget.left:
        return None
    return rounds(engines, [()], max(LEAST_ROUNDS, min(MOST_ROUNDS, int(seconds / max(once, 1e-6)))), budget, take)


def _first(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"[:MAX_LINE]


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _said(line: dict[str, Any]) -> str:
    taken = {name: [x for x in each if x] for name, each in (line.get("samples") or {}).items() if AGAIN not in name}
    times = ", ".join(f"{name} {np.median(each) / 1e3 / line['steps']:.2f} ms" for name, each in taken.items() if each)
    return "; ".join(filter(None, (times, line.get("served", ""), line.get("left_out", ""), str(line.get("failed") or ""))))


# --------------------------------------------------------------------------------------------------------------- summary


def summarise(raw: Path, out: Path) -> list[str]:
    """Writes summary.json. Returns what was wrong."""
    where, lines, others = of_one_place(read(raw))
    ends = [line for line in lines if "end" in line]
    if not ends:
        print(f"{raw} has no cells yet")
        return []
    table = [row for line in ends if line.get("samples") for row in rows(line)]
    groups: dict[str, list[float]] = defaultdict(list)
    for row in table:
        groups[f"{row['phase']}_over_{row['against'].replace('-', '_').replace(' ', '_')}"].append(row["ratio"])
    means = {key: mean_of(found) for key, found in groups.items()}
    wrong = [sentence for line in ends for sentence in line.get("wrong", ())]
    write_summary(
        out,
        "; ".join(dict.fromkeys(line["command"] for line in lines if "command" in line)),
        where,
        {key: mean.mean for key, mean in means.items() if mean},
        intervals={key: {"low": m.low, "high": m.high, "cells": m.shapes} for key, m in means.items() if m},
        losses=sorted((row for row in table if row["outcome"] == "loss"), key=lambda row: row["ratio"]),
        wrong=wrong,
        failed={line["end"]: line["failed"] for line in ends if line.get("failed")},
        left_out={line["end"]: line["left_out"] for line in ends if "left_out" in line},
        hung_or_crashed=sorted(hopeless(lines)),
        served={line["end"]: line["served"] for line in ends if "served" in line},
        logits={line["end"]: line["logits"] for line in ends if "logits" in line},
        of_other_devices_or_versions=others,
        cells=table,
    )
    for row in table:
        said = f"{row['ratio']:.3f}x [{row['low']:.3f}, {row['high']:.3f}] {row['outcome']}"
        print(f"{row['cell']:36} {row['engine']:14} over {row['against']:20} {said:34} {row['value']:.4g} {row['unit']}")
    for sentence in wrong:
        print(f"WRONG: {sentence}", file=sys.stderr)
    print(out / "summary.json")
    return wrong


def rows(line: dict[str, Any]) -> list[dict[str, Any]]:
    """Ours over torch's layers with each engine; our fastest engine over torch.compile (the faster of its two) and over torch's fastest."""
    samples = line["samples"]
    engines = [name for name in ENGINES if f"{OURS} {name}" in samples]
    pairs = [(name, name, name) for name in engines]

    def fastest(side: str, names: Sequence[str]) -> str:
        return min(names, key=lambda name: np.median([x for x in samples[f"{side} {name}"] if x] or [np.inf]))

    best = fastest(OURS, engines)
    if compiled := [name for name in engines if name.startswith("compile")]:
        pairs.append((best, fastest(TORCH, compiled), "best compile"))
    pairs.append((best, fastest(TORCH, engines), "best"))
    found = []
    for ours, theirs, against in pairs:
        three = {OURS: samples[f"{OURS} {ours}"], AGAIN: samples[f"{AGAIN} {ours}"], TORCH: samples[f"{TORCH} {theirs}"]}
        c = compared(three, line["phase"]).get(TORCH)
        if c is None:
            continue
        us = float(np.median([x for x in samples[f"{OURS} {ours}"] if x]))
        decode = line["phase"] == "decode"
        found.append(
            {
                "cell": line["cell"],
                "phase": line["phase"],
                "engine": ours,
                "against": against,
                "torch_engine": theirs,
                "ratio": c.ratio,
                "low": c.low,
                "high": c.high,
                "outcome": c.outcome,
                "rounds": c.rounds,
                "value": line["batch"] * line["steps"] / us * 1e6 if decode else us / 1e3,
                "torch_value": line["batch"] * line["steps"] / c.rival_us * 1e6 if decode else c.rival_us / 1e3,
                "unit": "tokens/s" if decode else "ms to the first token",
            }
        )
    return found


if __name__ == "__main__":
    main()
