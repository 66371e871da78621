from __future__ import annotations

import ctypes
import math
import subprocess
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelwright.families import DeviceFacts, gemm_cpu
from kernelwright.families.gemm_cpu import GemmCpu
from kernelwright.plan import evaluate
from kernelwright.problems import LAYOUTS
from kernelwright.problems.gemm import Gemm
from kernelwright.problems.problem import TORCH_DTYPES
from kernelwright.records import Candidate, ScalarArg, TensorArg, Workload

FLAGS = frozenset(Path("/proc/cpuinfo").read_text().partition("\nflags")[2].partition("\n")[0].split())
DEVICE = DeviceFacts(target="cpu", threads=2, l2_bytes=2 << 20, isa=FLAGS)
EVERY_ISA = DeviceFacts(
    target="cpu",
    threads=2,
    l2_bytes=2 << 20,
    isa=frozenset(["avx2", "fma", "f16c", "bmi2", "avx512f", "avx512bw", "avx512vl", "avx512_bf16", "amx_tile", "amx_bf16"]),
)
FAMILY = GemmCpu()
PROBLEM = Gemm()
VECTOR = "avx512" if "avx512bw" in FLAGS else "avx2" if "avx2" in FLAGS else "portable"


def workload(m: int, n: int, k: int, dtype: str = "fp32", layout: str = "nn") -> Workload:
    return Workload(problem="gemm", axes={"M": m, "N": n, "K": k}, dtype=dtype, layout=layout)


def config(**changes) -> dict:
    base = {"kernel": "fma", "vector": VECTOR, "swap": False, "pack_a": True, "pack_b": True, "mr": 4, "nr": 2}
    return {**base, "mc": 32, "kc": 64, "nc": 64, "unroll": 1, "prefetch": 0, "threads": 1, **changes}


@cache
def load(candidate: Candidate, directory: Path):
    path = directory / f"{candidate.id}.cpp"
    path.write_text(candidate.source)
    command = ["g++", "-std=c++20", "-shared", "-fPIC", "-O3", "-march=native", "-fopenmp", *candidate.flags]
    done = subprocess.run([*command, str(path), "-o", str(path.with_suffix(".so"))], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:2000]
    function = ctypes.CDLL(str(path.with_suffix(".so"))).kernel
    function.restype = None
    return function


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("gemm")


@pytest.fixture(autouse=True)
def one_thread():
    """The float64 references are small; waiting for torch's other threads took most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


GUARD = 0x5A


class Guarded:
    """A tensor with rows `pad` elements longer than needed, and guard bytes before, between and after its rows."""

    def __init__(self, shape, dtype, pad: int):
        rows, cols = shape
        size = torch.empty(0, dtype=dtype).element_size()
        self.ld = max(1, cols + pad)
        self.raw = torch.full((128 + rows * self.ld * size,), GUARD, dtype=torch.uint8)
        self.view = self.raw[64 : 64 + rows * self.ld * size].view(dtype).view(rows, self.ld)[:, :cols]
        self.outside = torch.ones_like(self.raw, dtype=torch.bool)
        self.outside[64 : 64 + rows * self.ld * size].view(rows, self.ld * size)[:, : cols * size] = False

    def intact(self) -> bool:
        return bool((self.raw[self.outside] == GUARD).all())


def run(candidate: Candidate, w: Workload, inputs: dict, directory: Path, pads=(0, 0, 0)) -> torch.Tensor:
    """Executes the plan as a cpu target would; asserts that nothing outside C and the workspace changed."""
    dtype = TORCH_DTYPES[w.dtype]
    buffers = {spec.name: Guarded(spec.shape, dtype, pad) for spec, pad in zip(PROBLEM.tensors(w), pads, strict=True)}
    for name, tensor in inputs.items():
        buffers[name].view.copy_(tensor)
    buffers["c"].view.fill_(math.nan)
    names = {**w.axes, **{f"ld_{name}": b.ld for name, b in buffers.items()}, "sms": 1}
    assert candidate.plan is not None
    size = evaluate(candidate.plan.workspace, names)
    workspace = torch.full((size + 512,), GUARD, dtype=torch.uint8)
    aligned = -workspace.data_ptr() % 256
    before = {name: buffers[name].raw.clone() for name in inputs}
    arguments = []
    for arg in candidate.plan.launches[0].args:
        if isinstance(arg, TensorArg):
            arguments.append(ctypes.c_void_p(buffers[arg.name].view.data_ptr()))
        elif isinstance(arg, ScalarArg):
            arguments.append(ctypes.c_int64(evaluate(arg.value, names)))
        else:
            arguments.append(ctypes.c_void_p(workspace.data_ptr() + aligned))
    load(candidate, directory)(*arguments)
    assert (workspace[:aligned] == GUARD).all() and (workspace[aligned + size :] == GUARD).all()
    assert all(torch.equal(buffers[name].raw, before[name]) for name in inputs)
    assert buffers["c"].intact()
    return buffers["c"].view.clone()


def check(candidate: Candidate, w: Workload, case_name: str, seed: int, directory: Path, pads=(0, 0, 0)) -> None:
    case = next(c for c in PROBLEM.cases(w) if c.name == case_name)
    inputs = PROBLEM.generate(w, case, torch.Generator().manual_seed(seed), "cpu")
    got = run(candidate, w, inputs, directory, pads)
    reference = PROBLEM.reference(w, inputs)["c"]
    if case.rung == "exact":
        assert torch.equal(got, reference.to(got.dtype))
        return
    expected = reference.to(got.dtype)  # Inf where the result overflows the type
    assert torch.equal(got.isnan(), expected.isnan())
    assert torch.equal(got.isinf() & (got > 0), expected.isinf() & (expected > 0))
    assert torch.equal(got.isinf() & (got < 0), expected.isinf() & (expected < 0))
    finite = expected.isfinite()
    scale = PROBLEM.scale(w, inputs, {"c": reference})["c"]
    error = ((got.double() - reference).abs() / scale)[finite]
    assert error.numel() == 0 or error.max() <= PROBLEM.bound(w)


FP32 = [
    ("nn", config()),
    ("nn", config(pack_a=False, pack_b=False, unroll=2, prefetch=4, mr=6)),
    ("tn", config(swap=True, pack_a=False, pack_b=False, kc=8, mr=3)),
    ("tt", config(swap=True, nr=1, mr=8)),
    ("nt", config(kernel="dot", pack_a=False, pack_b=False, mr=3, nr=4)),
    ("tn", config(kernel="dot", mr=1, nr=3, threads=2)),
    ("nt", config(threads=2, nc=4096)),
    ("nn", config(vector="portable", mr=2, nr=3)),
    ("tt", config(vector="avx2", mr=4, nr=2)),
]
HALF = [
    ("fp16", "nn", config(pack_a=False, pack_b=False)),
    ("bf16", "nt", config(kernel="dot", pack_a=False, pack_b=False, swap=True, mr=2, nr=2)),
    ("bf16", "tt", config(vector="avx2", mr=2, nr=2)),
    ("fp16", "tn", config(vector="portable", mr=2, nr=2)),
    ("bf16", "nn", config(kernel="dpbf16", mr=3, nr=2)),
    ("bf16", "tt", config(kernel="dpbf16", swap=True, mr=3, nr=2)),
    ("bf16", "nn", config(kernel="amx", mr=2, nr=2, kc=96)),
    ("bf16", "tt", config(kernel="amx", mr=2, nr=2, threads=2)),
]
KERNELS = [("fp32", *entry) for entry in FP32] + HALF
IDS = [f"{d}-{lay}-{c['kernel']}-{c['vector']}-{i}" for i, (d, lay, c) in enumerate(KERNELS)]

sizes = st.one_of(st.integers(0, 4), st.integers(1, 40), st.integers(60, 200))


@pytest.mark.parametrize(("dtype", "layout", "choices"), KERNELS, ids=IDS)
def test_kernel_is_right_on_any_shape(dtype, layout, choices, directory):
    w0 = workload(64, 64, 64, dtype, layout)
    if FAMILY.illegal(choices, w0, DEVICE):
        pytest.skip("this CPU lacks the instructions")
    candidate = FAMILY.render(choices, w0, DEVICE)
    names = [case.name for case in PROBLEM.cases(w0)]

    @settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(sizes, sizes, sizes, st.sampled_from(names), st.integers(0, 2**31), st.tuples(*[st.integers(0, 9)] * 3))
    def right(m, n, k, case, seed, pads):
        w = workload(m, n, k, dtype, layout)
        if case in [c.name for c in PROBLEM.cases(w)]:
            check(candidate, w, case, seed, directory, pads)

    right()
    for w in PROBLEM.variants(w0):
        check(candidate, w, "ternary", 1, directory, (3, 5, 7))
    for case in names:
        check(candidate, workload(70, 90, 130, dtype, layout), case, 2, directory)


def test_every_choice_changes_the_candidate():
    w = workload(512, 512, 512, "bf16", "nn")
    base = config(vector="avx512", mr=3, nr=2)
    seen = {FAMILY.render(base, w, EVERY_ISA).id}
    for name, values in FAMILY.space(w, EVERY_ISA).items():
        others = [{**base, name: value} for value in values if value != base[name]]
        legal = [c for c in others if FAMILY.illegal(c, w, EVERY_ISA) is None]
        if name == "kernel":  # amx has a tile of its own
            legal.append({**base, "kernel": "amx", "mr": 2, "nr": 2})
        assert legal, name
        for choices in legal:
            candidate = FAMILY.render(choices, w, EVERY_ISA)
            assert candidate.id not in seen, choices
            assert candidate.origin.config == choices
            seen.add(candidate.id)


@pytest.mark.parametrize(
    ("w", "choices", "device", "reason"),
    [
        (workload(64, 64, 64), config(vector="avx512", mr=14, nr=4), EVERY_ISA, "registers"),
        (workload(64, 64, 64), config(vector="avx2", mr=6, nr=3), EVERY_ISA, "registers"),
        (workload(64, 64, 64), config(vector="avx2", mr=8, nr=1, unroll=16), EVERY_ISA, "multiply-adds"),
        (workload(64, 64, 64), config(vector="avx512"), DeviceFacts(target="cpu", isa=frozenset(["avx2"])), "avx512bw"),
        (workload(2048, 64, 4096), config(mc=1024, kc=1024, vector="portable"), EVERY_ISA, "L2"),
        (workload(64, 64, 64, layout="nt"), config(vector="avx2", pack_b=False), EVERY_ISA, "pack_b"),
        (workload(64, 64, 64, layout="nn"), config(vector="avx2", pack_a=False, swap=True), EVERY_ISA, "pack_a"),
        (workload(64, 64, 64, layout="tn"), config(vector="avx2", kernel="dot", pack_b=False), EVERY_ISA, "pack_b"),
        (workload(64, 64, 64), config(vector="avx512", kernel="dpbf16"), EVERY_ISA, "fp32"),
        (workload(64, 64, 64, "bf16"), config(vector="avx512", kernel="dpbf16", pack_a=False), EVERY_ISA, "pack_a"),
        (workload(64, 64, 64, "bf16"), config(vector="avx512", kernel="amx"), EVERY_ISA, "mr must be 2"),
        (workload(64, 64, 64, "bf16"), config(kernel="amx", vector="avx2", mr=2), DeviceFacts(target="cpu"), "amx_bf16"),
        (workload(64, 64, 64), config(vector="portable", threads=4), EVERY_ISA, "threads"),
        (workload(64, 64, 64), config(vector="portable", kc=0), EVERY_ISA, "kc"),
    ],
)
def test_illegal_configs_say_why(w, choices, device, reason):
    said = FAMILY.illegal(choices, w, device)
    assert said is not None and reason in said
    with pytest.raises(ValueError, match="cannot run gemm:"):
        FAMILY.render(choices, w, device)


def test_refuses_what_it_does_not_write():
    w = workload(8, 8, 8)
    assert FAMILY.refuses(w, DEVICE) is None
    assert "CPU" in str(FAMILY.refuses(w, DeviceFacts(target="cuda:sm_90")))
    assert "int32" in str(FAMILY.refuses(w.replace(dtype="int32"), DEVICE))
    assert "fp16" in str(FAMILY.refuses(w.replace(accumulate="fp16"), DEVICE))
    assert "xy" in str(FAMILY.refuses(w.replace(layout="xy"), DEVICE))
    assert FAMILY.refuses(w.replace(problem="chain:softmax"), DEVICE)


@pytest.mark.parametrize(
    "device", [EVERY_ISA, DeviceFacts(target="cpu", isa=frozenset(["avx2", "fma", "f16c"])), DeviceFacts(target="cpu")]
)
def test_seeds_are_legal_and_inside_the_space(device):
    sizes = (1, 8, 33, 512, 4096)
    for m in sizes:
        for n in sizes:
            for k in (0, 1, 64, 4096):
                for dtype in ("fp32", "bf16", "fp16"):
                    for layout in LAYOUTS:
                        w = workload(m, n, k, dtype, layout)
                        seeds = FAMILY.seeds(w, device)
                        assert seeds
                        choices = FAMILY.space(w, device)
                        for seed in seeds:
                            assert FAMILY.illegal(seed, w, device) is None
                            assert seed.keys() == choices.keys()
                            assert all(value in choices[name] for name, value in seed.items()), (w.name, seed)


def test_one_thread_where_the_device_has_one():
    w = workload(512, 512, 512)
    assert FAMILY.space(w, DeviceFacts(target="cpu", threads=1))["threads"] == (1,)


def test_two_kernels_in_one_process_stay_apart(directory):
    w = workload(60, 60, 60)
    one, other = (FAMILY.render(config(pack_a=a, pack_b=b), w, DEVICE) for a, b in ((True, True), (False, False)))
    for candidate in (one, other, one):
        check(candidate, w, "ternary", 3, directory)


def test_source_compiles_by_hand():
    """The folder's kernel.cpp is real code: its default configuration builds as it lies there."""
    if VECTOR != "avx512":
        pytest.skip("kernel.cpp is configured for AVX-512")
    folder = Path(gemm_cpu.__file__).parent
    command = ["g++", "-std=c++20", "-fsyntax-only", "-march=native", "-fopenmp", "-Wall", "-Wextra", str(folder / "kernel.cpp")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "warning" not in done.stderr, done.stderr[:2000]
