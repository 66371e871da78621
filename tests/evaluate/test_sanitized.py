"""The sanitizers' bookkeeping, with stand-ins for NVIDIA's tool: what it says becomes a Verdict, and only a run to the end passes."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kernelwright.evaluate import audit, sanitized
from kernelwright.evaluate.audit import Extent
from kernelwright.evaluate.build import build
from kernelwright.evaluate.evaluator import Evaluator
from kernelwright.evaluate.sanitized import Request, sanitize
from kernelwright.problems import resolve
from kernelwright.records import Outcome
from kernelwright.targets import target
from made_up import made_up_pack, product

# its own options come first; then the command that it watches
WATCH = 'while [ "${1#--}" != "$1" ]; do case "$1" in --version) echo "Version 2025.3.1"; exit 0;; esac; shift 2; done\n'


def tool(folder: Path, script: str) -> str:
    path = folder / "compute-sanitizer"
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    return str(path)


def request(candidate=None, *shapes: str) -> Request:
    candidate = candidate or product()
    workloads = tuple(resolve(s) for s in shapes or ("gemm:8x8x8:fp32", "gemm:3x5x7:fp32"))
    return Request(target="cpu", candidate=candidate, build=build(target("cpu"), candidate), workloads=workloads)


def test_the_child_runs_the_kernel_under_the_tool(tmp_path):
    seen = tmp_path / "seen"
    path = tool(tmp_path, f'echo "$@" > {seen}\n{WATCH}exec "$@"')
    verdict = sanitize(path, "memcheck", request())
    assert (verdict.outcome, verdict.evidence) == (Outcome.OK, "2 shapes")
    assert "--tool memcheck --report-api-errors no --error-exitcode 77 --kernel-regex kns=kernel " in seen.read_text()
    assert sanitized.sanitizer_version(path) == "2025.3.1"


def test_what_the_child_sees_itself_is_a_verdict_too(tmp_path):
    path = tool(tmp_path, WATCH + 'exec "$@"')
    assert sanitize(path, "memcheck", request(product("c[0] += 1;"))).outcome is Outcome.WRONG_RESULT
    assert sanitize(path, "racecheck", request(product(requires=("K > 99",)))).outcome is Outcome.REFUSED


@pytest.mark.parametrize(("name", "outcome"), [("memcheck", Outcome.OUT_OF_BOUNDS), ("racecheck", Outcome.NONDETERMINISTIC)])
def test_a_finding_fails_the_kernel(tmp_path, name, outcome):
    report = "========= COMPUTE-SANITIZER\n========= Invalid __global__ read of size 2 bytes\n========= ERROR SUMMARY: 1 error\n"
    verdict = sanitize(tool(tmp_path, f'{WATCH}"$@"; printf "{report}"; exit 77'), name, request())
    assert (verdict.outcome, verdict.evidence) == (outcome, f"{name}: Invalid __global__ read of size 2 bytes")


@pytest.mark.parametrize("script", ["exit 0", "echo no device; exit 1"])
def test_a_tool_that_did_not_run_the_kernel_does_not_pass_it(tmp_path, script):
    verdict = sanitize(tool(tmp_path, script), "memcheck", request())
    assert verdict.outcome is Outcome.CRASH


def test_a_tool_that_hangs_is_a_timeout_and_leaves_no_process(tmp_path):
    left = tmp_path / "pid"
    verdict = sanitize(tool(tmp_path, f"echo $$ > {left}; sleep 600"), "racecheck", request(), seconds=1.0)
    assert verdict.outcome is Outcome.TIMEOUT
    with pytest.raises(ProcessLookupError):
        os.kill(int(left.read_text()), 0)


def test_a_stopped_tool_leaves_no_process(tmp_path):
    left, stop = tmp_path / "pid", threading.Event()
    with ThreadPoolExecutor(1) as pool:
        verdict = pool.submit(sanitize, tool(tmp_path, f"echo $$ > {left}; sleep 600"), "racecheck", request(), stop=stop)
        while not left.exists() or not left.read_text():
            time.sleep(0.01)
        stop.set()
    assert verdict.result().outcome is Outcome.TIMEOUT
    with pytest.raises(ProcessLookupError):
        os.kill(int(left.read_text()), 0)


def test_where_the_tool_is_missing_nothing_is_counted_as_passed(tmp_path, monkeypatch):
    """The CUDA path of an audit, on a kernel that runs here: only what is said of the tools is looked at."""
    monkeypatch.setattr(sanitized, "sanitizer", lambda: None)
    cuda = type("Cuda", (), {"kind": "cuda"})()
    assert audit._tools(cuda, Extent())[0] is None  # pyright: ignore[reportArgumentType]
    assert "neither on PATH" in audit._tools(cuda, Extent())[1]["memcheck"]  # pyright: ignore[reportArgumentType]
    assert "not asked for" in audit._tools(cuda, Extent(sanitize=False))[1]["racecheck"]  # pyright: ignore[reportArgumentType]


def test_the_tool_is_found_on_path(tmp_path, monkeypatch):
    path = tool(tmp_path, "exit 0")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert sanitized.sanitizer() == path


def test_findings_of_the_tools_fail_the_kernel_of_a_pack(tmp_path):
    """The whole way of a CUDA kernel through an audit, its ladder played by a C++ kernel's judge."""
    path = tool(tmp_path, f'case "$2" in memcheck) {WATCH} exec "$@";; *) echo "========= Error: Race reported"; exit 77;; esac')
    with Evaluator(target("cpu")) as cpu:
        saved = made_up_pack(tmp_path / "p", "cpu", cpu.environment, [("gemm:8x8x8:fp32", product())])
        one = audit._Audit(saved, saved.entries, target("cpu"), cpu, Extent(random=2), path, {})
        with ThreadPoolExecutor(2) as pool:
            one.start(pool, threading.Event())
            kernel = one.result()
    assert [(t.name, t.outcome) for t in kernel.tools] == [("memcheck", "OK"), ("racecheck", "NONDETERMINISTIC")]
    assert [(f.where, f.outcome) for f in kernel.failures] == [("racecheck", "NONDETERMINISTIC")]
