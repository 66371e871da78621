"""Config to Candidate: fills in the constants of kernel.cpp and joins its headers into one source."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from kernelwright.families.family import Config
from kernelwright.families.gemm_cpu.space import along_k
from kernelwright.records import Candidate, Launch, LaunchPlan, Origin, ScalarArg, TensorArg, Workload, WorkspaceArg

_TYPES = {"fp32": "float", "bf16": "bf16", "fp16": "fp16"}
_MICRO = {"fma": "MicroFma", "dot": "MicroDot", "dpbf16": "MicroDpbf16", "amx": "MicroAmx"}


@cache
def _file(name: str) -> str:
    return files("kernelwright.families.gemm_cpu").joinpath(name).read_text(encoding="utf-8")


def render(config: Config, w: Workload, origin: Origin) -> Candidate:
    """A `cpu` Candidate for every M, N, K, lda, ldb, ldc of the workload's layout and dtype."""
    left, right = ("b", "a") if config["swap"] else ("a", "b")
    constants = {
        "SWAP": config["swap"],
        "LEFT_ALONG_K": along_k(w)[left],
        "RIGHT_ALONG_K": along_k(w)[right],
        "PACK_LEFT": config[f"pack_{left}"],
        "PACK_RIGHT": config[f"pack_{right}"],
        **{name.upper(): config[name] for name in ("mr", "nr", "mc", "kc", "nc", "unroll", "prefetch", "threads")},
    }
    text = _file("kernel.cpp")
    for name, value in constants.items():
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        text, count = re.subn(rf"\b{name} = [^;,]+", f"{name} = {shown}", text, count=1)
        if count != 1:
            raise RuntimeError(f"kernel.cpp has no constant {name}")
    kernel = str(config["kernel"])
    text = text.replace("using T = float;", f"using T = {_TYPES[w.dtype]};")
    text = text.replace('"vec_avx512.h"', f'"vec_{config["vector"]}.h"')
    text = text.replace('"micro_fma.h"', f'"micro_{kernel}.h"').replace("MicroFma<MR, NR>", f"{_MICRO[kernel]}<MR, NR>")
    return Candidate(kind="cpu", source=_joined(text), plan=_plan(config, w, left), origin=origin)


def _joined(text: str) -> str:
    """The text with `#include "header.h"` lines replaced by the headers of this folder."""
    return re.sub(r'^#include "(\w+\.h)"$', lambda match: _joined(_file(match[1])).rstrip("\n"), text, flags=re.M)


def _plan(config: Config, w: Workload, left: str) -> LaunchPlan:
    rows, cols = ("N", "M") if left == "b" else ("M", "N")
    right = "a" if left == "b" else "b"
    depth = f"cdiv(min(K, {config['kc']}), 32) * 32"
    bytes_per_thread = []
    if config[f"pack_{left}"]:
        bytes_per_thread.append(f"4 * cdiv(min({rows}, {config['mc']}), 32) * 32 * {depth}")
    if config[f"pack_{right}"]:
        bytes_per_thread.append(f"4 * cdiv(min({cols}, {config['nc']}), 32) * 32 * {depth}")
    if w.dtype != "fp32" or config["swap"]:  # else partial sums collect in C
        bytes_per_thread.append(f"(K > {config['kc']}) * 4 * cdiv({rows}, 32) * 32 * cdiv(min({cols}, {config['nc']}), 32) * 32")
    workspace = f"256 + {config['threads']} * ({' + '.join(bytes_per_thread) or '0'})"
    pointers = tuple(TensorArg(name=name) for name in ("a", "b", "c"))
    sizes = tuple(ScalarArg(ctype="i64", value=name) for name in ("M", "N", "K", "ld_a", "ld_b", "ld_c"))
    launch = Launch(kernel="kernel", args=(*pointers, *sizes, WorkspaceArg()))
    return LaunchPlan(launches=(launch,), workspace=workspace)
