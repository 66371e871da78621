"""A Python candidate in a fresh process: the same protocol on CPU memory, where it can be tested, and on a GPU."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
import torch

from kernelwright.evaluate.buffers import Buffers
from kernelwright.evaluate.verify import compare, expect
from kernelwright.problems import problem_of
from kernelwright.problems.kernelbench import load
from kernelwright.records import Outcome
from kernelwright.targets import sandbox
from kernelwright.targets.answer_process import AnswerProcess
from kernelwright.targets.target import CandidateFault

PROBLEM = """
import torch
class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.rand(width))
    def forward(self, x):
        return torch.tanh(x) * self.scale
def get_inputs():
    return [torch.randn(64, 256)]
def get_init_inputs():
    return [256]
"""
ANSWER = PROBLEM[: PROBLEM.index("def get_inputs")].replace("Model", "ModelNew")


class Memory:
    """As much of a device as buffers need."""

    def __init__(self, device: str):
        self.torch_device = device

    def allocate(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self.torch_device)


class Judged:
    def __init__(self, file, answer: str, device: str = "cpu", sets: int = 3, dtype: str = "fp32"):
        self.w = load(file, dtype)
        self.problem = problem_of(self.w)
        self.buffers = Buffers(Memory(device), self.problem, self.w, sets=sets)  # pyright: ignore[reportArgumentType]
        self.device = device
        self.prepared: list[str] = []
        self.contender = AnswerProcess(answer, self.w, self.buffers.bounds, device=device, prepare=self.prepare)

    def prepare(self, mode: str, tensors: Sequence[torch.Tensor]) -> None:
        self.prepared.append(mode)

    def fill(self) -> None:
        rng = torch.Generator(device=self.device)
        rng.seed()
        case = next(c for c in self.problem.cases(self.w) if c.rung == "normal")
        for index in range(len(self.buffers)):
            self.buffers.fill(self.problem.generate(self.w, case, rng, self.device), index)
        self.buffers.poison()

    def right(self, index: int) -> bool:
        expected = expect(self.problem, self.w, self.buffers.inputs(index))
        return compare(self.problem, self.w, expected, self.buffers.outputs(index)).passed


@pytest.fixture
def judged(tmp_path, request):
    file = tmp_path / "scaled_tanh.py"
    file.write_text(PROBLEM)
    made: list[Judged] = []

    def make(answer: str, device: str = "cpu") -> Judged:
        made.append(Judged(file, answer, device))
        return made[-1]

    yield make
    for one in made:
        one.contender.close()


def both(test):
    gpu = pytest.param("cuda", marks=pytest.mark.gpu)
    return pytest.mark.parametrize("device", ["cpu", gpu])(test)


@both
def test_results_come_back_from_runs_and_from_timed_launches(judged, device):
    one = judged(ANSWER, device)
    made = len(one.prepared)
    one.fill()
    one.contender.run(1)
    assert one.right(1) and not one.right(0)
    for mode in ("device-cold", "device-warm", "host-server"):
        one.fill()
        us, dropped = one.contender.sample(mode, 3)
        assert us >= 0 or dropped == 3  # 0: an empty request took as long, beside other load
        assert all(one.right(i) for i in range(3)), "the outputs of the timed launches themselves"
    assert one.prepared[made:] == ["device-cold", "device-warm", *["host-server"] * 3]
    if "seccomp" in sandbox.probe():
        assert one.contender.layers.count("seccomp") == 2


OWN_OUTPUT = ANSWER.replace("class ModelNew", "KEPT = torch.empty(64, 256)\nclass ModelNew").replace(
    "return torch.tanh(x) * self.scale", "return torch.mul(torch.tanh(x), self.scale, out=KEPT.to(x.device))"
)


def test_a_module_of_half_types_is_cast_to_them(judged, tmp_path):
    one = Judged(tmp_path / "scaled_tanh.py", ANSWER, dtype="bf16")
    one.fill()
    one.contender.run(0)
    assert one.right(0) and one.buffers.outputs(0)["y0"].dtype is torch.bfloat16
    one.contender.close()


def test_launches_that_share_one_output_are_made_one_at_a_time(judged):
    one = judged(OWN_OUTPUT)
    one.fill()
    us, dropped = one.contender.sample("device-warm", 3)
    assert us >= 0 or dropped == 3  # 0: an empty request took as long, beside other load
    assert all(one.right(i) for i in range(3))


def test_work_put_off_until_the_results_are_collected_is_charged(judged, monkeypatch):
    one = judged(ANSWER)
    one.fill()
    gather = one.contender._gather
    monkeypatch.setattr(one.contender, "_gather", lambda sets, seconds: gather(sets, seconds) + 90_000)
    us, _ = one.contender.sample("device-warm", 3)
    assert not us < 25_000


@both
def test_what_is_changed_of_the_inputs_is_seen(judged, device):
    one = judged(ANSWER.replace("return ", "x += 1; return "), device)
    one.fill()
    before = one.buffers.inputs(0)["x0"].clone()
    one.contender.run(0)
    assert torch.equal(one.buffers.inputs(0)["x0"], before + 1)


@both
@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (ANSWER + "\n+", Outcome.COMPILE_ERROR),
        (ANSWER.replace("ModelNew", "Other"), Outcome.COMPILE_ERROR),
        (ANSWER.replace("return ", "import os; os._exit(3)  #"), Outcome.CRASH),
        (ANSWER.replace("return ", "return x.double() #"), Outcome.WRONG_RESULT),
        (ANSWER.replace("return ", "return torch.nn.Parameter(x) #"), Outcome.CHEAT),
        (ANSWER.replace("return ", "import socket; socket.socket()  #"), Outcome.CRASH),
    ],
)
def test_faults_are_found_at_once(judged, device, answer, outcome):
    with pytest.raises(CandidateFault) as fault:
        judged(answer, device)
    assert fault.value.outcome is outcome, fault.value.evidence


LATER = """
import os
import torch
class ModelNew(torch.nn.Module):
    calls = 0
    def __init__(self, width):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.rand(width))
    def forward(self, x):
        ModelNew.calls += 1
        if ModelNew.calls > 3:  # the first run goes over all sets
            ACTION
        return torch.tanh(x) * self.scale
"""


@both
@pytest.mark.parametrize(
    ("action", "outcome"),
    [
        ("os.fork()", Outcome.CRASH),
        ("os.execv('/bin/true', ['true'])", Outcome.CRASH),
        ("open('/tmp/kernelwright-cheat', 'w')", Outcome.CRASH),
        ("os.kill(os.getppid(), 9)", Outcome.CRASH),
        ("while True: pass", Outcome.TIMEOUT),
    ],
)
def test_after_the_first_run_it_is_sealed(judged, device, action, outcome):
    if "seccomp" not in sandbox.probe():
        pytest.skip("no seccomp here")
    one = judged(LATER.replace("ACTION", action), device)
    one.fill()
    with pytest.raises(CandidateFault) as fault:
        one.contender.run(0)
    assert fault.value.outcome is outcome, fault.value.evidence


STARTS = "import subprocess\nLEFT = subprocess.Popen(['/bin/sleep', '600'], process_group=0)\n" + ANSWER


def test_compilers_in_groups_of_their_own_start_while_it_loads_and_end_with_it(judged, tmp_path):
    """ninja gives each a process group: without setpgid no answer of load_inline compiled."""
    before = sleeping()
    one = judged(STARTS)
    one.fill()
    one.contender.run(0)
    assert one.right(0) and sleeping() == before
    with pytest.raises(CandidateFault):
        Judged(tmp_path / "scaled_tanh.py", STARTS + "raise ValueError\n")
    assert sleeping() == before


def sleeping() -> int:
    found = 0
    for entry in os.scandir("/proc"):
        try:
            with open(f"/proc/{entry.name}/cmdline") as words, open(f"/proc/{entry.name}/stat") as stat:
                found += words.read() == "/bin/sleep\0600\0" and stat.read().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            continue
    return found


BESIDE = """
import subprocess
import torch
class ModelNew(torch.nn.Module):
    helper = None
    def __init__(self, width):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.rand(width))
    def forward(self, x):
        ModelNew.helper = ModelNew.helper or subprocess.Popen(["sleep", "600"])
        assert ModelNew.helper.poll() is None, "the helper is gone"
        return torch.tanh(x) * self.scale
"""


@both
def test_what_the_first_run_started_ends_with_it_and_what_starts_later_is_a_cheat(judged, device, monkeypatch):
    one = judged(BESIDE, device)
    assert not one.contender._process.others()
    one.fill()
    with pytest.raises(CandidateFault, match="the helper is gone"):
        one.contender.run(0)
    one = judged(ANSWER, device)
    one.fill()
    one.contender.run(0)
    monkeypatch.setattr(one.contender._process, "others", lambda: [12345678])
    monkeypatch.setattr(one.contender._process, "kill_others", lambda: None)
    with pytest.raises(CandidateFault) as fault:
        one.contender.run(0)
    assert fault.value.outcome is Outcome.CHEAT


@both
def test_every_instance_may_compile_in_the_first_run(judged, device):
    one = judged(
        ANSWER.replace("def forward(self, x):", "made = 0\n    def forward(self, x):\n        self.compile()").rstrip()
        + """
    def compile(self):
        import subprocess
        if not self.made:
            self.made = subprocess.run(["true"], check=True).returncode + 1
""",
        device,
    )
    one.fill()
    for index in range(3):
        one.contender.run(index)
        assert one.right(index)


def test_stale_results_are_seen_as_poison(judged):
    one = judged(
        LATER.replace("ACTION", "return self.kept").replace("return torch", "self.kept = torch").rstrip() + "\n        return self.kept\n"
    )
    one.fill()
    one.contender.run(0)
    assert not one.right(0)


@pytest.mark.gpu
def test_a_program_compiled_by_triton_runs_and_streams_of_its_own_are_waited_for(judged):
    side = ANSWER.replace(
        "return torch.tanh(x) * self.scale",
        "s = torch.cuda.Stream(); s.wait_stream(torch.cuda.current_stream())\n"
        "        with torch.cuda.stream(s): torch.cuda._sleep(10_000_000); y = torch.tanh(x) * self.scale\n"
        "        return y",
    )
    compiled = ANSWER.replace("return torch.tanh(x) * self.scale", "return torch.compile(lambda t, s: torch.tanh(t) * s)(x, self.scale)")
    one = judged(compiled, "cuda")
    one.fill()
    one.contender.run(0)
    assert one.right(0)
    # a result that its stream has not finished when it is copied: wrong, or right if the copy waited
    other = judged(side, "cuda")
    other.fill()
    us, _ = other.contender.sample("device-warm", 1)
    assert not us > 0 or not other.right(0) or us > 1000


def test_the_environment_of_the_user_is_not_handed_on(judged, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "secret")
    one = judged(ANSWER.replace("return ", "import os; assert 'MY_API_KEY' not in os.environ; return "))
    one.fill()
    one.contender.run(0)
    assert one.right(0) and os.environ["MY_API_KEY"] == "secret"
