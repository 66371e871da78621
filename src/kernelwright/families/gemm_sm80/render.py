"""Config -> Candidate: fills the Config struct of kernel.cuh or simt.cuh and writes the launch plan."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from kernelwright.families import epilogue
from kernelwright.families.family import Config, DeviceFacts
from kernelwright.families.gemm_sm80.space import blocks_per_sm, smem_bytes, threads
from kernelwright.records import Candidate, Expr, Launch, LaunchPlan, Origin, ScalarArg, TensorArg, Workload, WorkspaceArg

_FOLDER = Path(__file__).parent
_CONFIG = re.compile(r"// config: begin.*?// config: end\n", re.DOTALL)
_ELEMENT = {"fp16": "kw::f16", "bf16": "kw::bf16"}


@cache
def _text(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8").replace('#include "split_k.cuh"\n', (_FOLDER / "split_k.cuh").read_text("utf-8"))


def render(c: Config, w: Workload, device: DeviceFacts, origin: Origin) -> Candidate:
    simt = w.dtype == "fp32"
    struct = _struct_simt(c, w, device) if simt else _struct_tensor_core(c, w, device)
    source = _CONFIG.sub(lambda _: struct, _text("simt.cuh" if simt else "kernel.cuh"), count=1)
    return Candidate(kind="cuda", source=source, plan=_plan(c, w, device), origin=origin)


def _bool(value: object) -> str:
    return "true" if value else "false"


def _common(c: Config, w: Workload, device: DeviceFacts) -> list[str]:
    return [
        f"static constexpr bool a_k_contiguous = {_bool(w.layout[0] == 'n')};",
        f"static constexpr bool b_k_contiguous = {_bool(w.layout[1] == 't')};",
        f"static constexpr int block_m = {c['block_m']}, block_n = {c['block_n']}, block_k = {c['block_k']};",
        f"static constexpr int stages = {c['stages']};",
        f"static constexpr int blocks_per_sm = {blocks_per_sm(c, w, device)};",
        f"static constexpr int split_k = {c['split_k']};",
        f"static constexpr bool one_kernel = {_bool(_one_kernel(c))};",
        f"static constexpr int raster_group = {c['raster_group']};",
        f"static constexpr int vector_bytes = {c['vector_bytes']};",
    ]


def _struct(lines: list[str]) -> str:
    return "struct Config {\n" + "".join(f"    {line}\n" for line in lines) + "};\n"


def _struct_tensor_core(c: Config, w: Workload, device: DeviceFacts) -> str:
    return _struct(
        [
            f"using Element = {_ELEMENT[w.dtype]};",
            f"static constexpr bool fp16_accumulate = {_bool(w.accumulate == 'fp16')};",
            *_common(c, w, device),
            f"static constexpr int warps_m = {c['warps_m']}, warps_n = {c['warps_n']}, warps_k = {c['warps_k']};",
            f"static constexpr Tails tails = Tails::{c['tails']};",
            f"static constexpr bool staged_store = {_bool(c['staged_store'])};",
            "static constexpr bool swap = false;",
            epilogue.steps(w),
        ]
    )


def _struct_simt(c: Config, w: Workload, device: DeviceFacts) -> str:
    sizes = f"static constexpr int thread_m = {c['thread_m']}, thread_n = {c['thread_n']};"
    return _struct([*_common(c, w, device), sizes])


def _one_kernel(c: Config) -> bool:
    return int(c["split_k"]) > 1 and c["reduction"] == "last-block"


def _plan(c: Config, w: Workload, device: DeviceFacts) -> LaunchPlan:
    bm, bn, split = int(c["block_m"]), int(c["block_n"]), int(c["split_k"])
    tiles = f"cdiv(M, {bm}) * cdiv(N, {bn})"
    one_kernel = _one_kernel(c)
    # counters, then partial sums of whole tiles; or row-major partial sums of the matrix alone
    counters = f"cdiv({tiles} * 4, 256) * 256"
    workspace: Expr = 0
    partials = counter = ScalarArg(ctype="i64", value=0)
    if one_kernel:
        workspace = f"max(256, {counters} + {tiles} * {split * bm * bn * 4})"
        partials, counter = WorkspaceArg(offset=counters), WorkspaceArg()
    elif split > 1:
        workspace = f"max(256, M * N * {split * 4})"
        partials = WorkspaceArg()

    def i32(*names: str) -> tuple[ScalarArg, ...]:
        return tuple(ScalarArg(ctype="i32", value=name) for name in names)

    pdl = device.sm >= 90
    grid: tuple[Expr, Expr, Expr] = (f"max(1, {tiles})", 1, split)
    if c["raster_group"] == 0:
        grid = (f"max(1, cdiv(M, {bm}))", f"max(1, cdiv(N, {bn}))", split)
    tensors = (TensorArg(name="a"), TensorArg(name="b"), TensorArg(name="c"))
    gemm = Launch(
        kernel="gemm",
        args=(*tensors, *i32("M", "N", "K", "ld_a", "ld_b", "ld_c"), partials, counter, *(() if w.dtype == "fp32" else epilogue.args(w))),
        grid=grid,
        block=(threads(c), 1, 1),
        smem=smem_bytes(c, w),
        pdl=pdl,
    )
    launches: tuple[Launch, ...] = (gemm,)
    if split > 1 and not one_kernel:
        reduce = Launch(
            kernel="reduce",
            args=(partials, TensorArg(name="c"), *i32("M", "N", "ld_c")),
            grid=("max(1, min(cdiv(M * N, 1024), 16 * sms))", 1, 1),  # 4 elements a thread, 256 threads
            block=(256, 1, 1),
            pdl=pdl,
        )
        launches = (gemm, reduce)
    return LaunchPlan(launches=launches, workspace=workspace, workspace_zeroed=one_kernel, requires=_requires(c, w))


def _requires(c: Config, w: Workload) -> tuple[str, ...]:
    vector = int(c["vector_bytes"])
    size = 4 if w.dtype == "fp32" else 2
    row_a, row_b = ("K" if w.layout[0] == "n" else "M"), ("N" if w.layout[1] == "n" else "K")
    operands = [("a", row_a), ("b", row_b)]
    if w.dtype == "fp32":
        operands = [(name, row) for name, row in operands if row != "K"]  # the others are copied element by element
    needs: list[str] = []
    if vector > size:
        per_copy = vector // size
        for name, row in operands:
            needs += [f"ld_{name} % {per_copy} == 0", f"align_{name} % {vector} == 0"]
            if w.dtype == "fp32" or c["tails"] == "chunk":
                needs.append(f"{row} % {per_copy} == 0")
    if w.dtype != "fp32":
        if c["tails"] == "none":
            needs += [f"{axis} % {c[block]} == 0" for axis, block in (("M", "block_m"), ("N", "block_n"), ("K", "block_k"))]
        if c["staged_store"]:
            needs += ["ld_c % 8 == 0", "align_c % 16 == 0"]
        needs += epilogue.requires(w)
    if c["raster_group"] == 0:
        needs.append(f"cdiv(N, {c['block_n']}) <= 65535")
    return tuple(needs)
