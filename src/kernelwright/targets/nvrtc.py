"""Compiles CUDA C++ to a cubin with NVRTC: no GPU, no driver, no toolkit.

Cubins, not PTX, are made: a cubin of CUDA 13.x loads on every driver of CUDA 13, while PTX of a newer minor version does not.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kernelwright.records import KernelResources, Outcome
from kernelwright.targets.target import CandidateFault, TargetUnavailable

LOG_LIMIT = 4000
"""Characters of a compiler's log that are kept."""

MISSING = 'the CUDA compiler NVRTC is not installed; install it with: pip install "kernelwright[cuda]"'


def architecture(sm: int) -> str:
    """NVRTC's name of a compute capability. From Hopper on the `a` form: only it has wgmma and setmaxnreg."""
    return f"sm_{sm}a" if sm >= 90 else f"sm_{sm}"


@cache
def load() -> Any:
    """The module cuda.bindings.nvrtc with its library loaded. Raises TargetUnavailable."""
    try:
        from cuda.bindings import nvrtc  # pyright: ignore[reportAttributeAccessIssue]: compiled, without stubs

        nvrtc.nvrtcVersion()  # loads the library; cuda.pathfinder raises a RuntimeError where there is none
    except (ImportError, RuntimeError) as error:
        raise TargetUnavailable(f"{MISSING} ({str(error).splitlines()[0] if str(error) else type(error).__name__})") from None
    return nvrtc


def version() -> tuple[int, int]:
    """(major, minor) of NVRTC."""
    _, major, minor = load().nvrtcVersion()
    return major, minor


def architectures() -> tuple[int, ...]:
    """Compute capabilities it compiles for, ascending."""
    status, *_, known = load().nvrtcGetSupportedArchs()  # cuda-bindings before 13.5 do not return the count
    _require(status)
    return tuple(sorted(known))


# ------------------------------------------------------------------------------------------------------------- headers


def toolkit_folders() -> Iterator[Path]:
    """Folders with `include`, `lib` or `bin` of the CUDA toolkit: wheels, nvcc's on PATH, the usual place."""
    spec = find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        # nvidia/cu13 since CUDA 13; nvidia/cuda_runtime, nvidia/cublas ... before
        yield from sorted((p for p in Path(root).iterdir() if p.is_dir()), key=lambda p: (not p.name.startswith("cu1"), p.name))
    if nvcc := shutil.which("nvcc"):
        yield Path(nvcc).resolve().parents[1]
    yield Path("/usr/local/cuda")


@cache
def include_folder() -> Path:
    """Where cuda_fp16.h is. Raises TargetUnavailable."""
    for folder in toolkit_folders():
        if (folder / "include" / "cuda_fp16.h").is_file():
            return folder / "include"
    raise TargetUnavailable('the CUDA headers (cuda_fp16.h) are not installed; install them with: pip install "kernelwright[cuda]"')


@cache
def _toolkit_headers_version() -> str:
    """`13000` for the headers of CUDA 13.0; the digest of cuda_fp16.h where cuda.h does not say."""
    header = include_folder() / "cuda.h"
    found = re.search(r"#define CUDA_VERSION (\d+)", header.read_text(errors="replace")) if header.is_file() else None
    return found[1] if found else hashlib.sha256((include_folder() / "cuda_fp16.h").read_bytes()).hexdigest()


@cache
def device_headers() -> Mapping[str, str]:
    """`kernelwright/NAME.cuh` to text: the header library that every candidate may include."""
    folder = resources.files("kernelwright").joinpath("device")
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".cuh")), key=lambda f: f.name)
    return {f"kernelwright/{f.name}": f.read_text(encoding="utf-8") for f in files}


def inlined(source: str, headers: Mapping[str, str]) -> str:
    """The source with each header that it includes, by `#include "NAME"`, in the place where it is included first."""
    left = dict(headers)

    def text(found: re.Match[str]) -> str:
        if found[1] not in headers:
            return found[0]
        return expanded(left.pop(found[1], "").replace("#pragma once\n", "", 1))

    def expanded(part: str) -> str:
        return re.sub(r'^[ \t]*#include "([^"]+)"[^\n]*$', text, part, flags=re.MULTILINE)

    return expanded(source)


# ------------------------------------------------------------------------------------------------------------- compile


ALLOWED_FLAGS = (
    "D", "U", "define-macro", "undefine-macro", "maxrregcount", "use_fast_math", "ftz", "fmad", "prec-sqrt", "prec-div", "restrict",
    "extra-device-vectorization", "ptxas-options", "Xptxas", "std", "diag-suppress", "lineinfo",
)  # fmt: skip
"""Options that a candidate may add: none that reads or writes a file."""


def options(arch: str, flags: tuple[str, ...]) -> list[str]:
    """NVRTC's command line. Raises CandidateFault for a flag that is not allowed."""
    for flag in flags:
        name = re.match(r"--?([A-Za-z_][\w-]*)", flag)
        if not name or not (name[1] in ALLOWED_FLAGS or re.match(r"-[DU]\w", flag)):
            raise CandidateFault(
                Outcome.COMPILE_ERROR, f"the compiler flag {flag!r} is not allowed; allowed are {', '.join(ALLOWED_FLAGS)}"
            )
    return [
        f"--gpu-architecture={arch}",
        "-std=c++20",
        "-default-device",
        f"--include-path={include_folder()}",
        "--ptxas-options=-v",
        "--no-cache",  # NVRTC's own cache, where a driver is there, gives the cubin without the resource report
        *flags,
    ]


def key(source: str, arch: str, flags: tuple[str, ...]) -> str:
    """SHA-256 of all that the cubin depends on."""
    digest = hashlib.sha256()
    parts = [source, arch, repr(version()), _toolkit_headers_version(), *flags, "headers"]
    parts += [text for header in device_headers().items() for text in header]
    for part in parts:
        raw = part.encode("utf-8", "surrogateescape")
        digest.update(len(raw).to_bytes(8, "little"))
        digest.update(raw)
    return digest.hexdigest()


def compile_cubin(source: str, arch: str, flags: tuple[str, ...] = ()) -> tuple[bytes, str]:
    """(cubin, log). Raises CandidateFault(COMPILE_ERROR) with the compiler's words."""
    nvrtc = load()
    headers = device_headers()
    if "\0" in source:
        raise CandidateFault(Outcome.COMPILE_ERROR, "the source holds a zero byte")
    text = source.encode("utf-8", "replace")
    created, program = nvrtc.nvrtcCreateProgram(
        text, b"candidate.cu", len(headers), [t.encode() for t in headers.values()], [n.encode() for n in headers]
    )
    _require(created)
    try:
        arguments = [option.encode() for option in options(arch, flags)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(arguments), arguments)
        log = _text(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).decode("utf-8", "replace").rstrip("\0\n")
        if int(status) != 0:
            raise CandidateFault(Outcome.COMPILE_ERROR, _foreign(log) or shorten(log) or f"NVRTC: {status.name}")
        cubin = _text(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
        if called := [name for name, symbol in _SERVICES.items() if b"\0" + symbol + b"\0" in cubin]:
            raise CandidateFault(
                Outcome.COMPILE_ERROR, f"device code that is measured may not call {', '.join(called)}: write to tensors only"
            )
        return cubin, log
    finally:
        nvrtc.nvrtcDestroyProgram(program)


_SERVICES = {"printf": b"vprintf", "malloc": b"malloc"}
"""What the driver does for a kernel outside its buffers: output that floods the judge's log, memory in which results could be kept."""


def _foreign(log: str) -> str:
    """A sentence where the compiler quotes a file that is no header of the toolkit or of ours: its content is not for a candidate's
    author."""
    for path in re.findall(r"^(\S[^\n(]*)\(\d+\): ", log, re.MULTILINE):
        if path != "candidate.cu" and not path.startswith((str(include_folder()), "kernelwright/", "cuda", "crt/")):
            return f"it includes {path}, which is no header of the CUDA toolkit or of kernelwright"
    return ""


def _text(program: Any, size_of: Any, read: Any) -> bytes:
    status, size = size_of(program)
    _require(status)
    buffer = b"\0" * max(size, 2)  # Python shares bytes objects of length 1, and this one is written to
    _require(*read(program, buffer))
    return buffer[:size]


def _require(status: Any) -> None:
    if int(status) != 0:
        raise RuntimeError(f"NVRTC failed: {status.name}")


def shorten(log: str, limit: int = LOG_LIMIT) -> str:
    """At most `limit` characters. The start is kept: the first error explains the rest."""
    log = log.strip()
    return log if len(log) <= limit else f"{log[: limit - 20].rstrip()}\n... (log cut)"


# ----------------------------------------------------------------------------------------------------- resource report

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SMEM = re.compile(r"(\d+) bytes smem")
_CUMULATIVE = re.compile(r"(\d+) bytes cumulative stack size")
_NOISE = re.compile(r"^(ptxas\s+info\s+:\s+(\d+ bytes gmem.*|Compile time = .*))?$")


def parse_resources(log: str) -> tuple[dict[str, KernelResources], str]:
    """Resources by kernel from the words of `ptxas -v`, and every line that is no part of that report (warnings, notes).

    Registers, spills, stack frame and static shared memory of the entry function; functions that it calls add to its stack.
    """
    found: dict[str, dict[str, int]] = {}
    rest: list[str] = []
    entry = owner = ""
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry = owner = match[1]
            found[entry] = {"registers": 0}
        elif match := _PROPERTIES.search(line):
            owner = match[1]
        elif match := _FRAME.search(line):
            if owner in found:
                stack, stores, loads = map(int, match.groups())
                found[owner].update(stack=stack, spill_stores=stores, spill_loads=loads)
        elif (match := _USED.search(line)) and entry:
            found[entry]["registers"] = int(match[1])
            if smem := _SMEM.search(line):
                found[entry]["smem"] = int(smem[1])
            if stack := _CUMULATIVE.search(line):
                found[entry]["stack"] = max(found[entry].get("stack", 0), int(stack[1]))
        elif not _NOISE.match(line.strip()):
            rest.append(line)
    return {name: KernelResources(**values) for name, values in found.items()}, "\n".join(rest)
