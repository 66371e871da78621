"""The sanitizers' bookkeeping, with stand-ins for NVIDIA's tool: what it says becomes a Verdict, and only a run to the end passes."""

from __future__ import annotations

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelwright.evaluate import audit, sanitized
from kernelwright.evaluate.audit import Extent, verify_pack
from kernelwright.evaluate.build import build
from kernelwright.evaluate.evaluator import Evaluator
from kernelwright.evaluate.sanitized import Sanitizer
from kernelwright.evaluate.watched import SAID, Request, Watched, find_tool
from kernelwright.problems import resolve
from kernelwright.records import Build, Outcome, Verdict
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
    return Request(target="cpu", kernels=(Watched(candidate=candidate, build=build(target("cpu"), candidate), workloads=workloads),))


def sanitize(path: str, tool: str, one: Request, **options) -> Verdict:
    (verdict,) = Sanitizer(path, **options).run(tool, one)
    return verdict


PLAYED = f"""#!{sys.executable}
# plays tool and child: what happens to a kernel stands in its source
import json, os, sys, time
kernels = json.load(open(sys.argv[-1]))["kernels"]
found = False
with open(os.path.join(os.path.dirname(__file__), "started"), "a") as log:
    log.write(f"{{len(kernels)}}\\n")
for index, kernel in enumerate(kernels):
    source = kernel["candidate"]["source"]
    if "HANGS" in source:
        time.sleep(600)
    if "DIES" in source:
        print("Segmentation fault")
        sys.exit(3)
    if "LEFT OUT" in source:
        continue
    alone = len(kernels) == 1
    found |= "FOUND" in source and not ("TOGETHER" in source and alone)
    wrong = "WRONG" in source and not ("ONCE" in source and alone)
    outcome = "WRONG_RESULT" if wrong else "OK"
    print("{SAID}" + json.dumps({{"index": index, "verdict": {{"outcome": outcome, "evidence": "played"}}}}), flush=True)
if found:
    print("========= Invalid __global__ write of size 2 bytes")
    sys.exit(77)
"""
BEHAVES = {
    "": Outcome.OK,
    "HANGS": Outcome.TIMEOUT,
    "DIES": Outcome.CRASH,
    "LEFT OUT": Outcome.CRASH,
    "FOUND": Outcome.OUT_OF_BOUNDS,
    "WRONG": Outcome.WRONG_RESULT,
    "WRONG ONCE": Outcome.WRONG_RESULT,
    "FOUND, WRONG": Outcome.OUT_OF_BOUNDS,
}


def played(folder: Path) -> str:
    path = folder / "compute-sanitizer"
    path.write_text(PLAYED)
    path.chmod(0o755)
    return str(path)


def several(*behaviours: str) -> Request:
    workloads = (resolve("gemm:8x8x8:fp32"),)
    kernels = (product(f"/* {index} {what} */") for index, what in enumerate(behaviours))
    artifact = Build(key="none", artifact="none", compiler="", arch="")
    return Request(target="cpu", kernels=tuple(Watched(candidate=c, build=artifact, workloads=workloads) for c in kernels))


def started(folder: Path) -> list[int]:
    """Kernels of each process."""
    return [int(line) for line in (folder / "started").read_text().split()]


def test_many_kernels_share_a_process(tmp_path):
    path = tool(tmp_path, WATCH + 'exec "$@"')
    one, other, wrong = request().kernels[0], request(product("/* other */")).kernels[0], request(product("c[0] += 1;")).kernels[0]
    verdicts = Sanitizer(path).run("memcheck", Request(target="cpu", kernels=(one, wrong, other)))
    assert [v.outcome for v in verdicts] == [Outcome.OK, Outcome.WRONG_RESULT, Outcome.OK]
    assert [v.evidence for v in verdicts if v.ok] == ["2 shapes", "2 shapes"]


def test_a_clean_process_is_the_only_one(tmp_path):
    verdicts = Sanitizer(played(tmp_path)).run("memcheck", several("", "", "WRONG", ""))
    assert [v.outcome for v in verdicts] == ["OK", "OK", "WRONG_RESULT", "OK"]
    assert started(tmp_path) == [4]


@pytest.mark.parametrize("what", ["FOUND", "FOUND, WRONG", "DIES", "LEFT OUT"])
def test_trouble_is_the_culprits_and_the_innocent_pass(tmp_path, what):
    verdicts = Sanitizer(played(tmp_path)).run("memcheck", several("", "", what, ""))
    assert [v.outcome for v in verdicts] == ["OK", "OK", BEHAVES[what], "OK"]
    assert sorted(started(tmp_path)) == [1, 1, 1, 1, 4]
    assert ("Invalid __global__ write" in verdicts[2].evidence) == ("FOUND" in what)


def test_a_hang_is_the_culprits_too(tmp_path):
    verdicts = Sanitizer(played(tmp_path), seconds=2.0).run("racecheck", several("", "HANGS", ""))
    assert [v.outcome for v in verdicts] == ["OK", "TIMEOUT", "OK"]


def test_a_finding_that_does_not_come_again_fails_all_that_it_may_be_about(tmp_path):
    verdicts = Sanitizer(played(tmp_path)).run("memcheck", several("", "FOUND TOGETHER", "WRONG", ""))
    assert [v.outcome for v in verdicts] == ["OUT_OF_BOUNDS", "OUT_OF_BOUNDS", "WRONG_RESULT", "OUT_OF_BOUNDS"]
    assert all("with 4 kernels, though in none of them alone" in v.evidence for v in verdicts if v.outcome == "OUT_OF_BOUNDS")


def test_a_wrong_result_stands_though_it_is_right_the_next_time(tmp_path):
    verdicts = Sanitizer(played(tmp_path)).run("memcheck", several("WRONG ONCE", "DIES", ""))
    assert [v.outcome for v in verdicts] == ["WRONG_RESULT", "CRASH", "OK"]


@given(behaviours=st.lists(st.sampled_from([b for b in BEHAVES if b != "HANGS"]), min_size=1, max_size=5))
@settings(max_examples=12, deadline=None)
def test_every_kernel_has_one_verdict_its_own(tmp_path_factory, behaviours):
    folder = tmp_path_factory.mktemp("played")
    verdicts = Sanitizer(played(folder)).run("memcheck", several(*behaviours))
    assert len(verdicts) == len(behaviours)
    for index, (what, verdict) in enumerate(zip(behaviours, verdicts, strict=True)):
        alone = len(behaviours) == 1 and what == "WRONG ONCE"
        after = what == "WRONG ONCE" and "DIES" in behaviours[:index]  # the process had died before it came to this kernel
        assert verdict.outcome == (Outcome.OK if alone or after else BEHAVES[what])


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
    monkeypatch.setattr(audit, "find_tool", lambda name: None)
    cuda = type("Cuda", (), {"kind": "cuda"})()
    assert audit._tools(cuda, Extent())[0] is None  # pyright: ignore[reportArgumentType]
    assert "neither on PATH" in audit._tools(cuda, Extent())[1]["memcheck"]  # pyright: ignore[reportArgumentType]
    assert "not asked for" in audit._tools(cuda, Extent(sanitize=False))[1]["racecheck"]  # pyright: ignore[reportArgumentType]


def test_the_tool_is_found_on_path(tmp_path, monkeypatch):
    path = tool(tmp_path, "exit 0")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert find_tool("compute-sanitizer") == path


def test_findings_of_the_tools_fail_the_kernel_of_a_pack(tmp_path, monkeypatch):
    """The whole way of CUDA kernels through an audit, their ladder played by a C++ kernel's judge."""
    monkeypatch.setattr(audit, "_tools", lambda target, extent: (played(tmp_path), {"memcheck": "played", "racecheck": "played"}))
    monkeypatch.setattr(audit, "BATCH", 2)
    kernels = [product(f"/* {index} {what} */") for index, what in enumerate(("", "FOUND", "", "DIES", ""))]
    with Evaluator(target("cpu")) as cpu:
        saved = made_up_pack(tmp_path / "p", "cpu", cpu.environment, [(f"gemm:8x8x{8 + i}:fp32", c) for i, c in enumerate(kernels)])
        found = verify_pack(saved, target("cpu"), cpu, Extent(random=2))
    assert sorted(k.candidate for k in found.kernels) == sorted(c.id for c in kernels), "each once"
    by_tool = {k.candidate: [(t.name, t.outcome) for t in k.tools] for k in found.kernels}
    expected = {"": ("OK", "OK"), "FOUND": ("OUT_OF_BOUNDS", "NONDETERMINISTIC"), "DIES": ("CRASH", "CRASH")}
    for c, what in zip(kernels, ("", "FOUND", "", "DIES", ""), strict=True):
        assert by_tool[c.id] == list(zip(("memcheck", "racecheck"), expected[what], strict=True))
    assert sorted(k.candidate for k in found.failed) == sorted([kernels[1].id, kernels[3].id])
    assert found.not_run == 0


def test_a_tool_that_does_not_start_is_not_run(tmp_path, monkeypatch):
    monkeypatch.setattr(audit, "_tools", lambda target, extent: (str(tmp_path / "nowhere"), {}))
    with Evaluator(target("cpu")) as cpu:
        saved = made_up_pack(tmp_path / "p", "cpu", cpu.environment, [("gemm:8x8x8:fp32", product())])
        found = verify_pack(saved, target("cpu"), cpu, Extent(random=0))
    assert not found.failed and found.not_run == 2 and "not run" in found.kernels[0].tools[0].evidence
