"""Config -> one C++ file: `vec.h`, `vecmath.h` and a kernel written from the RowProgram."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kernelwright.families.chain_cpu.expressions import Expressions, Names
from kernelwright.families.chain_cpu.schedule import Pass, Schedule
from kernelwright.families.chain_cpu.task import CTYPES, Buffer
from kernelwright.problems.rowprogram import RowProgram


@dataclass(frozen=True)
class Choices:
    """A config, typed. `space.py` says what each choice means."""

    unroll: int
    accumulators: int = 1
    keep: str = "recompute"
    stores: str = "cached"
    prefetch: int = 0
    exp_degree: int = 6
    quotient: str = "divide"
    threads: int = 1


@lru_cache(maxsize=1)
def header() -> str:
    return "\n".join((Path(__file__).parent / name).read_text() for name in ("vec.h", "vecmath.h"))


class Kernel:
    """`constants`: C++ of the nodes whose value depends on the axes."""

    def __init__(
        self, title: str, program: RowProgram, buffers: tuple[Buffer, ...], constants: Mapping[int, str], choices: Choices
    ) -> None:
        self.title, self.program, self.buffers, self.choices = title, program, buffers, choices
        self.schedule = Schedule(program, choices.keep != "recompute")
        self.names = Names(self.schedule, constants, frozenset(b.name for b in buffers if b.strided))
        self.by_name = {b.name: b for b in buffers}
        self.hosts = self._hosts() if choices.keep == "output" else {}
        self.slots = sorted(self.schedule.kept - self.hosts.keys())
        """Kept values that live in the scratch rows, one row each."""

    def _hosts(self) -> dict[int, str]:
        """Kept value -> float32 output whose row it may use until the output itself is written there."""
        schedule, hosts = self.schedule, {}
        free = [b.name for b in self.buffers if b.role == "out" and b.shape == "full" and b.dtype == "fp32"]
        for n in sorted(schedule.kept - schedule.shifted):
            last = max(p for p in range(len(schedule.passes)) if n in schedule.uses(p))
            found = next((o for o in free if schedule.ready[self.program.outputs[o]] >= last), None)
            if found is not None:
                free.remove(found)
                hosts[n] = found
        return hosts

    # ------------------------------------------------------------------------------------------------------- the whole file

    def source(self) -> str:
        c = self.choices
        defines = [f"#define EXP_DEGREE {c.exp_degree}", f"#define NEWTON {int(c.quotient == 'newton')}"]
        return "\n".join([f"// {self.title}", *defines, "", header(), *self._function(), ""])

    def _function(self) -> list[str]:
        flat = self._flat()
        lines = ["// " + "-" * 124, *(f"// {line}" for line in self._formulas()), ""]
        if self.choices.threads > 1 and self.slots:
            lines += ['extern "C" int omp_get_thread_num();', ""]
        lines += [f'extern "C" void kernel({", ".join(self._parameters())}) {{']
        if flat:
            strides = " && ".join(f"ld_{name} == cols" for name in flat)
            lines += [
                f"    if ({strides}) {{  // the rows lie end to end: one long row",
                "        cols *= rows;",
                "        rows = 1;",
                "    }",
            ]
        if self.choices.threads > 1:
            lines += [f"#pragma omp parallel for schedule(static) num_threads({self.choices.threads})"]
        lines += ["    for (long row = 0; row < rows; ++row) {"]
        lines += [f"        {line}".rstrip() for line in self._row()]
        lines += ["    }"]
        if self._streams():
            lines += ["    end_of_stream();"]
        return [*lines, "}"]

    def _parameters(self) -> list[str]:
        tensors = [f"{'const ' if b.role == 'in' else ''}{CTYPES[b.dtype]}* __restrict {b.name}" for b in self.buffers]
        numbers = ["long rows", "long cols", *(f"long ld_{b.name}" for b in self.buffers if b.strided)]
        return tensors + numbers + (["float* __restrict scratch"] if self.slots else [])

    def _flat(self) -> list[str]:
        """Tensors whose rows must lie end to end for the matrix to be one long row; none if it cannot be, or threads share the rows."""
        if not self.schedule.elementwise or self.choices.threads > 1:
            return []
        return [b.name for b in self.buffers if b.strided and b.shape == "full"]

    def _streams(self) -> bool:
        return self.choices.stores == "streaming"

    # ------------------------------------------------------------------------------------------------------- one row

    def _row(self) -> list[str]:
        schedule = self.schedule
        lines = []
        for b in self.buffers:
            if b.shape == "full":
                const = "const " if b.role == "in" else ""
                lines.append(f"{const}{CTYPES[b.dtype]}* {b.name}_row = {b.name}{f' + row * ld_{b.name}' if b.strided else ''};")
        for n, output in self.hosts.items():
            lines.append(f"float* kept_{self.names.of(n)} = {output}_row;  // the output's row serves until the output is written")
        thread = "omp_get_thread_num()" if self.choices.threads > 1 else "0"
        for i, n in enumerate(self.slots):
            at = f"({thread} * {len(self.slots)} + {i}) * cols"
            lines.append(f"float* kept_{self.names.of(n)} = scratch + {at if self.choices.threads > 1 else f'{i} * cols'};")
        outer = Expressions(self.names, schedule.row_uses(), 0, "")
        for p, here in enumerate(schedule.passes):
            for name in here.row_outputs:
                value = outer.number(self.program.outputs[name])
                at = f"row * ld_{name}" if self.by_name[name].strided else "row"
                outer.line(f"store_one({name} + {at}, {value.vector});")
            sweep = self._sweep(p, here, outer) if here.sweeps else []
            lines += outer.lines
            outer.lines = []
            lines += sweep
        return lines

    def _sweep(self, p: int, here: Pass, outer: Expressions) -> list[str]:
        schedule, n_acc = self.schedule, self.choices.accumulators
        lines = ["", f"// pass {p + 1}: {'; '.join(self._purposes(here))}"]
        for n in here.reductions:
            lines.append(f"{schedule.nodes[n].name.capitalize()}<{n_acc}> parts_{self.names.of(n)};")
        lines += [f"Scan running_{self.names.of(n)};" for n in sorted(schedule.uses(p)) if self._scans(n, p)]
        halves = [("0", "cols", None)]
        if schedule.rotates(p):
            halves = [("0", "cols - cols / 2", ("j + cols / 2", "-")), ("cols - cols / 2", "cols", ("j - (cols - cols / 2)", "+"))]
        for begin, end, rotated in halves:
            body = Expressions(self.names, schedule.uses(p), p, "    ", outer)
            body.rotated = rotated
            self._body(p, here, body)
            lines.append(f"sweep<{self.choices.unroll}>({begin}, {end}, [&](long j, auto lanes, auto slot) INLINE {{")
            lines += [*body.lines, "});"]
        return lines

    def _scans(self, n: int, p: int) -> bool:
        known = n in self.schedule.kept and self.schedule.ready[n] < p
        return self.schedule.nodes[n].op == "scan" and not known

    def _body(self, p: int, here: Pass, body: Expressions) -> None:
        if self.choices.prefetch:
            for name in self._first_read(p):
                body.line(f"__builtin_prefetch({name}_row + j + {self.choices.prefetch});")
        for n in here.reductions:
            arg = body.number(self.schedule.nodes[n].args[0])
            body.line(f"parts_{self.names.of(n)}.add({arg.vector}, lanes, slot);")
        for n in here.kept:
            text = body.number(n)
            body.line(f"store(kept_{self.names.of(n)} + j, {text.vector}, lanes);")
        for name in here.outputs:
            text = body.number(self.program.outputs[name])
            body.line(f"{'stream' if self._streams() else 'store'}({name}_row + j, {text.vector}, lanes);")

    def _first_read(self, p: int) -> list[str]:
        """Full inputs that no earlier pass has brought into the cache."""
        schedule = self.schedule
        earlier = {n for q in range(p) for n in schedule.uses(q)}
        inputs = [n for n in sorted(schedule.uses(p)) if schedule.nodes[n].op == "input" and n not in earlier]
        return [schedule.nodes[n].name for n in inputs if schedule.nodes[n].shape == "full"]

    # ------------------------------------------------------------------------------------------------------- comments

    def _purposes(self, here: Pass) -> list[str]:
        """What a pass computes, in the formula's own terms."""
        reductions = [f"{self.names.of(n)} = {self._formula(n)}" for n in here.reductions]
        kept = [f"keep {self.names.of(n)}" for n in here.kept]
        return reductions + kept + [f"{name} = {self._formula(self.program.outputs[name])}" for name in here.outputs]

    def _formulas(self) -> list[str]:
        return [f"{name} = {self._formula(n, deep=True)}" for name, n in self.program.outputs.items()]

    def _formula(self, n: int, deep: bool = False, root: bool = True) -> str:
        """Row values by their names unless `deep`; no longer than a line."""
        node = self.program.nodes[n]
        if node.op == "input":
            return node.name
        if node.op == "const":
            return self.names.constant(n).removesuffix("f").replace("(float)", "")
        if not self.schedule.wide(n) and not deep and not root and node.op == "reduce":
            return self.names.of(n)
        args = [self._formula(a, deep, False) for a in node.args]
        infix = {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
        if node.op in infix:
            text = f"{args[0]} {infix[node.op]} {args[1]}"
            text = text if root else f"({text})"
        else:
            text = f"{node.name or node.op}({', '.join(args)})"
        return text if len(text) <= 110 else text[:107] + "..."
