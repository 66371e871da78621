"""A language model's prefill and decode as each engine runs it, with torch's linear layers and with ours: for models.py.

Engines: `eager`; `graph`, the eager step as a CUDA graph; `compile`, torch.compile of the step, static shapes; `compile-graph`, that as a
CUDA graph, without compiling anew. All use one static cache and attention without a mask, so that none of them gets another attention
kernel: prefill is causal, decode attends to the whole cache. Before anything is timed, each engine's logits are held against the eager
model's with torch's layers: the relative error (Frobenius) must stay below BOUND.
"""

from __future__ import annotations

import gc
import inspect
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import measuring
import torch
from contenders import TORCH
from measuring import AGAIN, OURS, Budget, refuse, rounds, sample
from torch._dynamo.utils import counters

import kernelwright as kw
from kernelwright.evaluate.stats import LEAST_ROUNDS
from kernelwright.problems.problem import TORCH_DTYPES
from kernelwright.problems.suites import MODELS, Model
from kernelwright.records import Workload

LAYERS = {"Llama-3.1-8B": 32, "Qwen2.5-7B": 28}
ENGINES = ("eager", "graph", "compile", "compile-graph")
STEPS = 8
"""Of decode, in one sample."""
BOUND = {"bf16": 0.16, "fp16": 0.02}
"""Of logits after 30 layers whose products are rounded to 8 or 11 bits in another order: torch.compile of torch's own layers, which rounds
less often than the eager model, differs from it by 0.063 and 0.0086. A wrong kernel gives 1 and more."""
SIDES = 3
"""Samples of an engine in a round: torch's layers, ours, and ours again."""
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


def huggingface() -> Any:
    """The transformers library."""
    try:
        import transformers
    except ImportError as error:
        refuse(f"this program needs transformers ({error}): pip install 'kernelwright[sparse]'")
    return transformers


def build(name: str, dtype: str, layers: int | None = None) -> torch.nn.Module:
    """The model with random weights on the device."""
    return made(next(m for m in MODELS if m.name == name), dtype, layers or LAYERS[name])


def made(model: Model, dtype: str, layers: int) -> torch.nn.Module:
    transformers = huggingface()
    config = config_of(transformers, model, layers)
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
        super().__init__(first_line(error))
        self.engine = engine


class Run:
    """A cell's tensors, its step, and the state that each sample starts from."""

    def __init__(self, model: Any, cell: Cell):
        transformers, config = huggingface(), model.config
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


def products(model: torch.nn.Module, cells: Sequence[Cell]) -> list[Workload]:
    """What the linear layers multiply in these cells."""
    found: dict[Workload, None] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear):
            n, k = layer.weight.shape
            biased = {"problem": "linear", "epilogue": "bias"} if layer.bias is not None else {"problem": "gemm"}
            for cell in cells:
                m = cell.batch if name == "lm_head" else cell.tokens
                found[Workload(axes={"M": m, "N": n, "K": k}, dtype=cell.dtype, layout="nt", **biased)] = None
    return list(found)


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
        counters.clear()
        try:
            run.reset()
            reference = run.step().float().clone()
            served = layers.become(True).explain((cell.tokens,)).splitlines()[0]
            layers.become(False)
            run.reset()
            # before anything is compiled or captured, which runs the step seven times for each engine and side
            once = (sample(run.step, ()) or 0.0) * 1e-6 * _steps(cell) * SIDES * len(names)
            if taken := too_long(once, seconds):
                return {"steps": _steps(cell), "served": served, "logits": {}, "failed": {}, "wrong": [], "left_out": taken}
            engines, logits, failed, wrong = prepared(run, layers, names, reference, budget)
            broken = dict(counters["graph_break"])
            taken = clocked(run, layers, engines, seconds, budget) if engines else {}
        finally:
            layers.become(False)
            torch.compiler.reset()
        if taken is None or (budget.left <= 0 and not taken):
            return None
        line = {"steps": _steps(cell), "served": served, "logits": logits, "failed": failed, "wrong": wrong}
        if broken:
            line["graph_breaks"] = broken
        if isinstance(taken, str):
            return line | {"left_out": taken}
        return line | {"samples": taken}


def prepared(
    run: Run, layers: Layers, names: Sequence[str], reference: torch.Tensor, budget: Budget
) -> tuple[dict[str, Engine], dict[str, float], dict[str, str], list[str]]:
    """Engines by name with their logits' relative error, what failed and what is wrong; an engine counts where both sides are right.
    Raises Spoiled."""
    steps, bound = _steps(run.cell), BOUND[run.cell.dtype]
    pool = torch.cuda.graph_pool_handle() if torch.cuda.is_available() else None  # graphs never run side by side
    engines: dict[str, Engine] = {}
    logits: dict[str, float] = {}
    failed: dict[str, str] = {}
    wrong: list[str] = []
    steps_made: list[Callable[[], torch.Tensor]] = []  # a graph that goes away, being wrong, takes the pool from those that follow
    for ours in (False, True):
        side, compiled = (OURS if ours else TORCH), _compiled(run)
        layers.become(ours)
        for name in [name for name in ENGINES if name in names]:
            key = f"{side} {name}"
            if name == "compile-graph" and (reason := failed.get(f"{side} compile")):
                failed[key] = reason
                continue
            if budget.left <= 0:
                break
            budget.watch()
            try:
                step = _ready(run, compiled if name.startswith("compile") else run.step, name, pool)
                steps_made.append(step)
                run.reset()
                got = step().float()
                error = float((got - reference).norm() / reference.norm())
            except Exception as caught:
                if "CUDA error" in str(caught) or isinstance(caught, RuntimeWarning):  # the second: ours would be torch's from now on
                    raise Spoiled(name, caught) from None
                failed[key] = first_line(caught)
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
    if reason := too_long(once, seconds):
        return reason
    if once * LEAST_ROUNDS > budget.left:
        return None
    return rounds(engines, [()], max(LEAST_ROUNDS, min(MOST_ROUNDS, int(seconds / max(once, 1e-6)))), budget, take)


def too_long(once: float, seconds: float) -> str | None:
    """Why a cell whose rounds take `once` seconds is left out."""
    return f"a round takes {once:.0f} s" if once * LEAST_ROUNDS > 4 * seconds else None


def _steps(cell: Cell) -> int:
    """In one sample."""
    return STEPS if cell.phase == "decode" else 1


def first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"[:MAX_LINE]


def free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
