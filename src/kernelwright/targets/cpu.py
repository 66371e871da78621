"""The CPU target: C++ candidates compiled with the system's compiler, run in a process of their own.

A candidate is a C++ file with `extern "C" void NAME(...)`; its LaunchPlan names the functions and their arguments.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import time
from pathlib import Path

from kernelwright.families.family import DeviceFacts
from kernelwright.records import Build, Candidate, Outcome
from kernelwright.settings import child_environment, settings
from kernelwright.targets import sandbox
from kernelwright.targets.processes import kill_group
from kernelwright.targets.target import CandidateFault, Device, Target

FLAGS = ("-std=c++20", "-shared", "-fPIC", "-O3", "-march=native", "-fopenmp")
_ALLOWED_FLAG = re.compile(r"-(O\w*|[fmW][a-z0-9][\w+.=-]*|[DU]\w.*|std=[\w+]+)")
"""None that names a file or a program: -fplugin=, -wrapper, -include and the like hold a slash, a comma or a word of their own."""
_LOG_CHARS = 4000
_COMPILE_SECONDS = 120


class CpuTarget(Target):
    name = "cpu"
    kind = "cpu"

    def unavailable(self) -> str | None:
        if compiler() is None:
            return "no C++ compiler was found: install g++ (or clang++), or name one in KERNELWRIGHT_CXX"
        return None

    def facts(self) -> DeviceFacts:
        return DeviceFacts(
            target="cpu",
            name=cpu_name(),
            sms=1,
            l2_bytes=cache_bytes(2),
            threads=settings().threads,
            isa=instruction_sets(),
        )

    def build_key(self, candidate: Candidate) -> str:
        text = "\0".join([candidate.source, *FLAGS, *candidate.flags, compiler_version(), ",".join(sorted(instruction_sets()))])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def compile(self, candidate: Candidate, directory: Path) -> Build:
        found = compiler()
        if found is None:
            raise CandidateFault(Outcome.COMPILE_ERROR, self.unavailable() or "")
        for flag in candidate.flags:
            if not _ALLOWED_FLAG.fullmatch(flag):
                raise CandidateFault(
                    Outcome.COMPILE_ERROR, f"the compiler flag {flag!r} is not allowed; a candidate may add -O, -f, -m, -D, -U, -std and -W"
                )
        source, artifact = directory / "kernel.cpp", directory / "kernel.so"
        source.write_text(candidate.source)
        started = time.monotonic()
        code, log = _compiled([found, *FLAGS, *candidate.flags, "-o", str(artifact), str(source)], directory)
        log = log.replace(str(directory) + "/", "")
        if code != 0:
            raise CandidateFault(Outcome.COMPILE_ERROR, log[:_LOG_CHARS] or f"the compiler exited with {code}")
        return Build(
            key=self.build_key(candidate),
            artifact=str(artifact),
            compiler=compiler_version(),
            arch=platform.machine(),
            seconds=time.monotonic() - started,
            log=log[:_LOG_CHARS],
        )

    def open(self) -> Device:
        from kernelwright.targets.cpu_device import CpuDevice

        return CpuDevice()


def _compiled(command: list[str], directory: Path) -> tuple[int, str]:
    """The compiler's exit code and words. It is confined as a candidate is, but that it may start its own programs: a source can have it
    read files (`#include`, `.incbin`), and a few lines of macros have it work for hours or take all memory."""

    def confine() -> None:
        sandbox.restrict(directory, toolchain, programs=True)
        if sandbox.landlock_abi():  # without, the filter would deny every writing
            sandbox.seal(processes=True)

    # a compiler that is not the system's brings its headers and libraries beside it
    toolchain = ["/bin", "/etc/alternatives", Path(command[0]).resolve().parents[1]]
    # without our secrets, which /proc/self/environ would show
    environment = child_environment({"TMPDIR": str(directory)})
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment,
        start_new_session=True,
        preexec_fn=confine,
    )
    try:
        words = process.communicate(timeout=_COMPILE_SECONDS)[1]
        return process.returncode, words
    except subprocess.TimeoutExpired:
        raise CandidateFault(Outcome.COMPILE_ERROR, f"the compiler took longer than {_COMPILE_SECONDS} s") from None
    finally:
        if process.returncode is None:
            kill_group(process.pid)  # the driver's own end would leave the compiler proper at work
            process.communicate()


@functools.cache
def compiler() -> str | None:
    """Path of the C++ compiler: KERNELWRIGHT_CXX, else g++, else clang++."""
    for name in filter(None, (settings().cxx, "g++", "clang++")):
        if found := shutil.which(name):
            return found
    return None


@functools.cache
def compiler_version() -> str:
    found = compiler()
    if found is None:
        return ""
    done = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=30)
    return done.stdout.splitlines()[0] if done.stdout else found


@functools.cache
def _cpuinfo() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    first = text.split("\n\n", 1)[0]
    return {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in first.splitlines())}


def cpu_name() -> str:
    info = _cpuinfo()
    name = info.get("model name") or platform.processor() or platform.machine()
    # virtual machines hide the marketing name; family and model still tell the generation
    return f"{re.sub(r' +', ' ', name)} (family {info.get('cpu family', '?')}, model {info.get('model', '?')})"


def instruction_sets() -> frozenset[str]:
    return frozenset(_cpuinfo().get("flags", "").split())


def cache_bytes(level: int) -> int:
    """Size of the data cache of that level that core 0 sees; 0 where the system does not tell."""
    base = Path("/sys/devices/system/cpu/cpu0/cache")
    for index in sorted(base.glob("index*")):
        try:
            if int((index / "level").read_text()) == level and (index / "type").read_text().strip() != "Instruction":
                size = (index / "size").read_text().strip()
                return int(size.removesuffix("K")) * 1024 if size.endswith("K") else int(size)
        except (OSError, ValueError):
            continue
    return 0


def usable_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))
