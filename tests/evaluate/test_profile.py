"""The profiler without a GPU: what is asked of ncu, what is made of its answer, and what happens where there is none."""

from __future__ import annotations

import json

import pytest

from kernelwright.evaluate.profile import COUNTERS, Profiler, parse, run
from kernelwright.evaluate.watched import Request, Watched
from kernelwright.problems import resolve
from kernelwright.records import Build, Candidate, Environment, Launch, LaunchPlan, Origin, Outcome, TensorArg, Trial, Verdict

HEADER = '"ID","Process ID","Process Name","Host Name","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"'
DRAM, L2, TIME = "dram__throughput.avg.pct_of_peak_sustained_elapsed", "lts__t_sector_hit_rate.pct", "gpu__time_duration.sum"


def row(launch: int, metric: str, value: str) -> str:
    return f'"{launch}","77","python","host","k","Command line profiler metrics","{metric}","%","{value}"'


def printed(*rows: str) -> str:
    return "\n".join(["==PROF== Connected to process 77", "", HEADER, *rows, "==PROF== Disconnected"])


def made() -> Trial:
    plan = LaunchPlan(launches=(Launch(kernel="k", args=(TensorArg(name="x"),)), Launch(kernel="k2", args=())))
    return Trial(
        workload=resolve("chain:new-gelu:8x8"),
        candidate=Candidate(kind="cuda", source="x", plan=plan, origin=Origin(kind="llm")),
        verdict=Verdict(outcome=Outcome.OK),
        environment=Environment(target="cuda:sm_90", device="x"),
        build=Build(key="k", artifact="/x", compiler="c", arch="sm_90a"),
        stage="verify",
    )


@pytest.fixture
def ncu(tmp_path, monkeypatch):
    """Puts a stand-in on PATH that prints a text and records what it was started with."""

    def use(output: str, code: int = 0):
        tool, said = tmp_path / "ncu", tmp_path / "output"
        said.write_text(output)
        tool.write_text(
            "#!/usr/bin/env python3\nimport json, os, sys\n"
            f"calls = {str(tmp_path / 'calls')!r}\n"
            "request = open(sys.argv[-1]).read()\n"
            "open(calls, 'a').write(json.dumps([sys.argv[1:], request, 'KERNELWRIGHT_LLM_KEY' in os.environ]) + '\\n')\n"
            f"print(open({str(said)!r}).read())\nsys.exit({code})\n"
        )
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        return lambda: [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]

    return use


def test_launches_are_weighed_by_their_time():
    text = printed(row(0, DRAM, "90.0"), row(0, TIME, "1,000"), row(1, DRAM, "50.0"), row(1, TIME, "3000"), row(1, L2, "n/a"))
    assert parse(text) == {COUNTERS[DRAM]: 60.0}
    assert parse("==ERROR== ERR_NVGPUCTRPERM") == {} and parse("") == {}


def test_the_tool_watches_a_process_that_runs_the_kernel(ncu, monkeypatch):
    monkeypatch.setenv("KERNELWRIGHT_LLM_KEY", "k-123")
    calls = ncu(printed(row(0, DRAM, "42.04"), row(0, L2, "7")))
    trial = made()
    assert Profiler("cuda:sm_90").counters(trial) == {COUNTERS[DRAM]: 42.0, COUNTERS[L2]: 7.0}
    ((words, request, has_key),) = calls()
    assert "regex:^(k|k2)$" in words and words[-3:-1] == ["-m", "kernelwright.evaluate.profile"]
    assert words[words.index("--clock-control") + 1] == "none" and set(COUNTERS) <= set(words[words.index("--metrics") + 1].split(","))
    (asked,) = Request.from_json(request).kernels
    assert asked.candidate == trial.candidate and asked.workloads == (trial.workload,) and not has_key


def test_where_it_is_not_allowed_it_is_not_tried_again(ncu):
    calls = ncu("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters", code=1)
    profiler = Profiler("cuda:sm_90")
    assert profiler.counters(made()) == {} == profiler.counters(made())
    assert "exit code 1" in profiler.why and "does not have permission" in profiler.why and len(calls()) == 1


def test_without_a_gpu_or_the_tool_it_says_so(monkeypatch, tmp_path):
    assert Profiler("cpu").why == "there are no counters on target cpu" and Profiler("cpu").counters(made()) == {}
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("kernelwright.evaluate.watched.toolkit_folders", lambda: iter(()))
    assert "not installed" in Profiler("cuda:sm_90").why


def test_the_watched_process_runs_the_kernel_on_whatever_target(monkeypatch):
    """On the fake target: inputs are generated, buffers bound, the kernel run once."""
    from kernelwright.targets import fake_device

    seen = []
    monkeypatch.setattr(fake_device._Scripted, "run", lambda self, index=0: seen.append(sorted(self._sets[index].tensors)))
    candidate = Candidate(kind="fake", source="{}", origin=Origin(kind="script"))
    build = Build(key="k", artifact="/x", compiler="c", arch="fake")
    run(Request(target="fake", kernels=(Watched(candidate=candidate, build=build, workloads=(resolve("gemm:8x8x8:fp32"),)),)))
    assert seen == [["a", "b", "c"]]


@pytest.mark.gpu
def test_counters_of_a_kernel_on_a_gpu():
    from kernelwright.evaluate.build import Builder
    from kernelwright.families import families_for
    from kernelwright.targets import usable

    gpu = usable("cuda")
    w = resolve("chain:new-gelu:4096x4096")
    (family, *_), _ = families_for(w, gpu.facts())
    candidate = family.render(family.seeds(w, gpu.facts())[0], w, gpu.facts())
    with Builder(gpu) as builder:
        ((_, build),) = builder.builds([candidate])
    assert isinstance(build, Build)
    profiler = Profiler(gpu.name)
    found = profiler.counters(made().replace(workload=w, candidate=candidate, build=build))
    if not found:
        pytest.skip(profiler.why)
    assert set(found) == set(COUNTERS.values()) and found[COUNTERS[DRAM]] > 20, "a stream through memory"
