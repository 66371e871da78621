"""`chain_cuda`: fused CUDA C++ kernels for element-wise chains, row reductions and running sums, on sm_80 and newer.

Choices of an element-wise chain
    scheme         flat: one long vector (contiguous matrices only); tiles: rows and columns, per-row and per-column inputs
    threads        threads a block
    vec            elements of one access; above 1 it needs lengths, strides and addresses that are multiples of it
    items          vectors of each input that a thread has in flight
Choices of a chain with reductions or running sums
    scheme         registers: the row is read once and stays in registers; reread: any length, read again in each stage
    row_threads    threads that share a row: up to 32 are lanes of one warp, more are the whole block
    rows_per_block rows that a block holds at once
    vec, items     as above; scheme `registers` has as many items as the row needs
    columns        hoist: per-column inputs wait in registers; late: they are read where they are used
    fixed_cols     the number of columns is a constant of the kernel
Choices of both
    blocks_per_sm  0: a block for each piece of work; else a persistent grid of at most so many blocks a multiprocessor
    hints          none; store: outputs leave the caches first; stream: inputs too
    math           accurate: CUDA's functions, 1 to 2 ulp; fast: exp in two instructions, reciprocal and 16-bit tanh in one
"""

from __future__ import annotations

import math
from functools import lru_cache

from kernelwright.families.chain_cuda.program import ChainProgram, follow_cols
from kernelwright.families.chain_cuda.render import items_of, render
from kernelwright.families.family import Config, DeviceFacts, Family, Space, Value
from kernelwright.records import DTYPES, Candidate, Expr, Workload

FASTER = ("exp", "log", "tanh", "sigmoid", "erf", "reciprocal", "div")
"""Ops with an approximation of their own."""
MOST_ITEMS = 16
"""More vectors of a row in one thread do not fit its registers at any useful number of threads."""
CACHED_ROW = 32 * 1024
"""Columns up to which the registers of a block can hold a row: 1,024 threads of 64 registers, half of them for the row."""


class ChainCuda(Family):
    name = "chain_cuda"

    def refuses(self, w: Workload, device: DeviceFacts) -> str | None:
        if device.sm < 80:
            return "it needs an NVIDIA GPU of compute capability 8.0 or newer"
        from kernelwright.problems import problem_of
        from kernelwright.problems.lower import LoweringError

        if not hasattr(problem_of(w), "program"):
            return "it writes kernels for element-wise chains, row reductions and running sums only"
        try:
            chain, (_, cols) = load(w), matrix(w)
        except LoweringError as error:
            return f"its program cannot be written down: {error}"
        if reason := chain.refuses():
            return reason
        if chain.has("scan") and chain.has("reduce") and cols > CACHED_ROW // 2:
            return f"it joins running sums with reductions only in rows of up to {CACHED_ROW // 2} columns"
        return None

    def space(self, w: Workload, device: DeviceFacts) -> Space:
        chain = load(w)
        space: Space = {}
        if pointwise(chain):
            flat = not chain.inputs("row") and not chain.inputs("col") and not chain.has("index", "rotate_half", "pick")
            space["scheme"] = ("flat", "tiles") if flat else ("tiles",)
            space["threads"] = (128, 256, 512, 1024)
            space["vec"] = vectors(chain)
            space["items"] = (1, 2, 4, 8)
        else:
            # running sums of pieces can be carried on, and so can reductions, but not one through the other
            reread = not (chain.has("scan") and chain.has("reduce")) and chain.stages > 0
            space["scheme"] = ("registers", "reread") if reread else ("registers",)
            space["row_threads"] = (8, 16, 32, 64, 128, 256, 512, 1024)
            space["rows_per_block"] = (1, 2, 4, 8, 16, 32)
            space["vec"] = vectors(chain)
            space["items"] = (1, 2, 4, 8)
            if chain.inputs("col"):
                space["columns"] = ("late", "hoist")
            if chain.any_cols:
                space["fixed_cols"] = (False, True)
        space["blocks_per_sm"] = (0, 1, 2, 4, 8, 16)
        space["hints"] = ("none", "store", "stream")
        if chain.has(*FASTER):
            space["math"] = ("accurate", "fast")
        return space

    def illegal(self, config: Config, w: Workload, device: DeviceFacts) -> str | None:
        chain, (_, cols) = load(w), matrix(w)
        space = self.space(w, device)
        if unknown := sorted(set(config) - set(space)):
            return f"{', '.join(unknown)} is not a choice here"
        for choice, values in space.items():
            if config.get(choice) not in values:
                return f"{choice} must be one of {', '.join(map(str, values))}"
        vec, items = int(config["vec"]), int(config["items"])
        if cols % vec and config["scheme"] != "flat":
            return f"{cols} columns are no multiple of vec = {vec}"
        if chain.has("rotate_half") and (cols // 2 % vec or (vec > 1 and cols % 2)):
            return f"half a row of {cols} columns is no multiple of vec = {vec}"
        if "threads" in config:
            threads, held = int(config["threads"]), items
        else:
            row_threads, per_block = int(config["row_threads"]), int(config["rows_per_block"])
            threads = row_threads * per_block
            if row_threads > 32 and per_block > 1:
                return f"{row_threads} threads a row fill the block: rows_per_block must be 1"
            if threads % 32 or threads > 1024:
                return f"{row_threads} threads a row x {per_block} rows = {threads} threads; a block has 32 to 1024, whole warps"
            if config["scheme"] == "registers":
                held = items_of(config, cols)
                if items != 1:
                    return "items is a choice of scheme reread; in scheme registers the row's length sets it, so give 1"
                if held > MOST_ITEMS:
                    return f"{cols} columns / ({row_threads} threads x vec {vec}) = {held} items a thread, at most {MOST_ITEMS}"
            else:
                held = items * (2 if chain.has("scan") else 1)
                if config.get("columns") == "hoist":
                    return "scheme reread cannot hoist the columns; choose late"
                if items > 1 and row_threads * vec * (items - 1) >= max(1, cols):
                    return f"{items} items x {row_threads} threads x vec {vec} are more than the {cols} columns need"
        need, limit = registers(chain, config, held), min(255, 65536 // threads // 8 * 8)
        if need > limit:
            return f"about {need} registers a thread, {threads} threads a block leave {limit}"
        return None

    def seeds(self, w: Workload, device: DeviceFacts) -> tuple[Config, ...]:
        chain, (rows, cols) = load(w), matrix(w)
        space = self.space(w, device)
        half = all(chain.tensors[name].dtype in ("fp16", "bf16") for name in chain.program.outputs)
        common: dict[str, Value] = {"blocks_per_sm": 0, "hints": "none"}
        if "math" in space:
            common["math"] = "fast" if half else "accurate"
        wide = max((v for v in space["vec"] if not self._splits(chain, cols, int(v))), key=int)
        guesses: list[Config] = []
        if pointwise(chain):
            many = rows * cols >= 2**23  # below, a wave of small pieces fills the device sooner
            for scheme, items in ((s, i) for i in ((2, 4, 1) if many else (1, 2, 4)) for s in space["scheme"]):
                vec = space["vec"][-1] if scheme == "flat" else wide
                guesses.append({"scheme": scheme, "threads": 256, "vec": vec, "items": items, **common})
            guesses.append({**guesses[0], "scheme": "tiles", "vec": 1})
        else:
            extra: dict[str, Value] = {k: space[k][0] for k in ("columns", "fixed_cols") if k in space}
            for vec in dict.fromkeys((int(wide), 1)):
                for per_thread in (4, 2, 8, 1):
                    threads = min(1024, max(32, 2 ** math.ceil(math.log2(max(1, cols) / (vec * per_thread)))))
                    per_block = max(1, 128 // threads) if threads <= 32 else 1
                    row: Config = {
                        "row_threads": threads,
                        "rows_per_block": per_block,
                        "vec": vec,
                        "items": 1,
                        **extra,
                        **common,
                    }
                    guesses.append({"scheme": "registers", **row})
                guesses.append({**guesses[-1], "scheme": "reread", "row_threads": min(512, max(32, threads)), "items": 1})
        if "math" in space:
            guesses.append({**guesses[0], "math": "accurate" if half else "fast"})
        legal = [g for g in guesses if self.illegal(g, w, device) is None]
        return tuple({tuple(g.items()): g for g in legal}.values())

    @staticmethod
    def _splits(chain: ChainProgram, cols: int, vec: int) -> bool:
        """Whether vectors of this length straddle a row's end or middle."""
        return bool(cols % vec or (chain.has("rotate_half") and vec > 1 and cols % (2 * vec)))

    def render(self, config: Config, w: Workload, device: DeviceFacts) -> Candidate:
        if reason := self.illegal(config, w, device):
            raise ValueError(f"this config of chain_cuda is illegal for {w.name}: {reason}")
        chain, (rows_now, cols_now) = load(w), matrix(w)
        rows: Expr = "rows" if "rows" in w.axes else rows_now
        cols: Expr = "cols" if "cols" in w.axes else cols_now
        title = w.problem.split(":", 1)[-1]
        source, plan = render(chain, config, title=title, rows=rows, cols=cols, cols_now=cols_now, dependent=device.sm >= 90)
        return Candidate(kind="cuda", source=source, plan=plan, origin=self.origin(config))


def pointwise(chain: ChainProgram) -> bool:
    """Whether every output element depends on its own row and column alone."""
    return chain.stages == 0 and not chain.outputs(full=False)


def matrix(w: Workload) -> tuple[int, int]:
    """Rows and columns."""
    from kernelwright.problems import problem_of

    return problem_of(w).matrix(w)  # pyright: ignore[reportAttributeAccessIssue]: `refuses` saw that it is a chain


@lru_cache(maxsize=256)
def load(w: Workload) -> ChainProgram:
    """The Workload's program and tensors. Raises LoweringError."""
    from kernelwright.problems import problem_of

    problem = problem_of(w)
    program_of = problem.program  # pyright: ignore[reportAttributeAccessIssue]: `refuses` saw that it is a chain
    program = program_of(w)
    others = {}
    if set(w.axes) == {"rows", "cols"}:
        # even steps, so that rotate_half keeps its halves
        for step in (2, 6):
            cols = w.axes["cols"] + step
            others[cols] = program_of(w.replace(axes=w.axes | {"cols": cols}))
    offsets, any_cols = follow_cols(program, w.axes.get("cols", 0), others)
    return ChainProgram(program, {t.name: t for t in problem.tensors(w)}, offsets, any_cols)


def vectors(chain: ChainProgram) -> tuple[int, ...]:
    """Lengths up to 16 bytes of the narrowest matrix."""
    names = [chain.nodes[i].name for i in chain.inputs("full")] + list(chain.outputs(full=True))
    size = min((DTYPES[chain.tensors[n].dtype] for n in names), default=4)
    return tuple(v for v in (1, 2, 4, 8) if v * size <= 16)


def registers(chain: ChainProgram, config: Config, items: int) -> int:
    """Rough estimate of a thread's registers: what its vectors hold, beside addresses and one vector in work."""
    vec = int(config["vec"])
    words = sum(max(1, vec * DTYPES[chain.tensor(i).dtype] // 4) for i in chain.inputs("full"))
    columns = sum(max(1, vec * DTYPES[chain.tensor(i).dtype] // 4) for i in chain.inputs("col"))
    if chain.has("rotate_half"):
        words *= 2
    kept = len(chain.kept) * vec if config["scheme"] == "registers" else 0
    held = items * max(words, kept)
    held += columns * (items if config.get("columns") == "hoist" else 1)
    return 24 + vec * 2 + held
