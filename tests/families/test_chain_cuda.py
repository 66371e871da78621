"""Kernels of chain_cuda: they compile for Ampere and Hopper, and they compute the right thing (emulated on the host)."""

from __future__ import annotations

import random
import re
import shutil

import pytest
import torch
from cuda_emulator import Emulated
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelwright.families import family
from kernelwright.families.chain_cuda.program import ChainProgram, follow_cols
from kernelwright.families.chain_cuda.render import render
from kernelwright.families.family import Config, DeviceFacts
from kernelwright.problems import problem_of
from kernelwright.problems.chains import CHAINS
from kernelwright.problems.lower import run
from kernelwright.problems.problem import TensorSpec
from kernelwright.problems.rowprogram import Node, RowProgram
from kernelwright.records import Candidate, Origin, Workload
from kernelwright.targets import nvrtc, sass
from kernelwright.targets.target import TargetUnavailable

HOPPER = DeviceFacts(target="cuda:sm_90", sms=132)
AMPERE = DeviceFacts(target="cuda:sm_80", sms=108)
NAMES = [chain.name for chain in CHAINS]
CHAIN_CUDA = family("chain_cuda")


def workload(name: str, rows: int, cols: int, dtype: str = "fp32") -> Workload:
    return Workload(problem=f"chain:{name}", axes={"rows": rows, "cols": cols}, dtype=dtype)


def config(w: Workload, device: DeviceFacts = HOPPER, **choices) -> Config:
    """The first seed with some choices changed."""
    return {**CHAIN_CUDA.seeds(w, device)[0], **choices}


def compiled(candidate: Candidate, device: DeviceFacts):
    """(cubin, resources of its one kernel)."""
    try:
        cubin, log = nvrtc.compile_cubin(candidate.source, nvrtc.architecture(device.sm))
    except TargetUnavailable as reason:
        pytest.skip(str(reason))
    resources, rest = nvrtc.parse_resources(log)
    assert rest == "", "the compiler warns"
    (only,) = resources.values()
    return cubin, only


# ------------------------------------------------------------------------------------------------------------- compile


def check_compiles(candidate: Candidate, device: DeviceFacts) -> None:
    _, resources = compiled(candidate, device)
    threads = candidate.plan.launches[0].block[0]
    assert resources.spill_stores == resources.spill_loads == resources.stack == 0
    assert resources.registers * threads <= 65536


@pytest.mark.parametrize("device", [HOPPER, AMPERE], ids=["sm_90", "sm_80"])
@pytest.mark.parametrize("name", NAMES)
def test_best_guesses_compile_without_spills(name, device):
    w = workload(name, 1024, 1024, "bf16" if device is HOPPER else "fp32")
    check_compiles(CHAIN_CUDA.render(CHAIN_CUDA.seeds(w, device)[0], w, device), device)


@pytest.mark.slow
@pytest.mark.parametrize("device", [HOPPER, AMPERE], ids=["sm_90", "sm_80"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", NAMES)
def test_all_seeds_compile_without_spills(name, dtype, device):
    w = workload(name, 16384, 4096, dtype)
    for seed in CHAIN_CUDA.seeds(w, device):
        check_compiles(CHAIN_CUDA.render(seed, w, device), device)


@pytest.mark.parametrize(
    ("w", "choices"),
    [
        (workload("new-gelu", 1024, 1024), {"scheme": "flat", "items": 4}),
        (workload("silu-mul", 1024, 1024, "bf16"), {"scheme": "tiles", "items": 2}),
        (workload("softmax", 1024, 1024), {"row_threads": 64}),
    ],
)
def test_loads_are_16_bytes_wide_and_in_flight_together(w, choices, tmp_path):
    cubin, _ = compiled(CHAIN_CUDA.render(config(w, **choices), w, HOPPER), HOPPER)
    (tmp_path / "k.cubin").write_bytes(cubin)
    try:
        listing = sass.sass(tmp_path / "k.cubin")
    except TargetUnavailable as reason:
        pytest.skip(str(reason))
    memory = re.findall(r"(LDG\.E\.128|STG\.E\.128|MUFU\.(?:EX2|TANH)|SHFL)", listing)
    before_use = memory[: next(i for i, m in enumerate(memory) if m != "LDG.E.128")]
    assert len(before_use) == 4  # items x inputs, or the four vectors of 64 threads x 4 elements
    assert "STG.E.128" in memory


# ------------------------------------------------------------------------------------------------------------- results

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs g++")


def check_results(w: Workload, candidate: Candidate, folder, shapes, *, pads=((0, 0),), cases=("normal", "nan", "inf")) -> int:
    """Emulates the candidate on the shapes that it does not refuse, and returns how many runs that were."""
    emulated = Emulated(candidate, nvrtc.device_headers(), folder)
    ran = 0
    for rows, cols in shapes:
        v = w.replace(axes={"rows": rows, "cols": cols})
        problem = problem_of(v)
        specs = problem.tensors(v)
        for case in problem.cases(v):
            if case.name not in cases:
                continue
            inputs = problem.generate(v, case, torch.Generator().manual_seed(rows * 7919 + cols), "cpu")
            reference = problem.reference(v, inputs)["y"]
            scale = problem.scale(v, inputs, {"y": reference})["y"]
            for pad, offset in pads:
                padded = {s.name: pad for s in specs if len(s.shape) == 2}
                out = emulated.run(specs, inputs, v.axes, pad=padded, offset=offset)
                if isinstance(out, str):
                    continue
                ran += 1
                y = out["y"].double()
                finite = reference.isfinite()
                assert torch.equal(y.isnan(), reference.isnan()), (case, rows, cols)
                infinite = ~finite & ~reference.isnan()
                assert torch.equal(y[infinite], reference[infinite]), (case, rows, cols)
                error = ((y - reference).abs() / scale)[finite]
                assert not error.numel() or error.max() <= problem.bound(v), (case, rows, cols, error.max())
    return ran


ODD = ((5, 264), (1, 1), (3, 17), (2, 250), (0, 8), (8, 0))
EVEN = ((5, 264), (1, 2), (3, 18), (2, 250), (0, 8), (8, 0))

SCHEMES = [
    ("new-gelu", "fp32", {"scheme": "flat", "items": 2, "blocks_per_sm": 1}),
    ("swish-div-clamp-tanh-clamp", "fp16", {"scheme": "tiles", "items": 2, "threads": 128}),
    ("bias-gelu-residual", "bf16", {"items": 4, "hints": "stream"}),
    ("rotary", "fp32", {"items": 1, "vec": 2}),
    ("rmsnorm", "bf16", {"row_threads": 16, "rows_per_block": 4, "vec": 8, "columns": "hoist", "blocks_per_sm": 1}),
    ("layernorm", "fp32", {"row_threads": 128, "rows_per_block": 1, "vec": 1}),
    ("layernorm", "fp16", {"scheme": "reread", "row_threads": 64, "rows_per_block": 1, "vec": 2, "items": 2}),
    ("softmax", "fp32", {"row_threads": 32, "rows_per_block": 2, "vec": 4, "math": "fast"}),
    ("softmax", "fp32", {"scheme": "reread", "row_threads": 8, "rows_per_block": 8, "vec": 1, "items": 4}),
    ("log-softmax-nll", "fp32", {"row_threads": 64, "rows_per_block": 1, "vec": 4}),
    ("l2-normalise", "bf16", {"row_threads": 32, "rows_per_block": 2, "vec": 1}),
    ("cumsum", "fp32", {"row_threads": 64, "rows_per_block": 1, "vec": 1}),
    ("cumsum", "bf16", {"scheme": "reread", "row_threads": 64, "rows_per_block": 1, "vec": 1, "items": 1}),
]


@needs_compiler
@pytest.mark.parametrize(("name", "dtype", "choices"), SCHEMES)
def test_every_scheme_computes_the_chain(name, dtype, choices, tmp_path):
    even = name == "rotary"
    w = workload(name, 5, 264, dtype)
    candidate = CHAIN_CUDA.render(config(w, **choices), w, HOPPER)
    shapes = [s for s in (EVEN if even else ODD) if s[1] or name != "log-softmax-nll"]
    ran = check_results(w, candidate, tmp_path, shapes, pads=((0, 0), (8, 0)))
    assert ran >= 4


@needs_compiler
def test_long_rows_are_carried_over_many_pieces(tmp_path):
    w = workload("cumsum", 2, 4099)
    choices = {"scheme": "reread", "row_threads": 32, "rows_per_block": 4, "vec": 1, "items": 8}
    candidate = CHAIN_CUDA.render(config(w, **choices), w, HOPPER)
    assert check_results(w, candidate, tmp_path, [(2, 4099), (7, 1025)], cases=("integer", "normal", "inf")) == 6


@needs_compiler
def test_scalar_kernels_take_any_address_and_stride(tmp_path):
    for name in ("hardswish", "rmsnorm"):
        w = workload(name, 5, 33, "fp16")
        choices = {"scheme": "tiles"} if name == "hardswish" else {"row_threads": 32, "rows_per_block": 4}
        candidate = CHAIN_CUDA.render(config(w, vec=1, **choices), w, HOPPER)
        assert check_results(w, candidate, tmp_path, [(5, 33)], pads=((0, 1), (3, 1)), cases=("normal",)) == 2


@needs_compiler
def test_vector_kernels_refuse_what_they_cannot_address(tmp_path):
    w = workload("rmsnorm", 4, 64)
    emulated = Emulated(CHAIN_CUDA.render(config(w, vec=4), w, HOPPER), nvrtc.device_headers(), tmp_path)
    problem = problem_of(w)
    inputs = problem.generate(w, problem.cases(w)[0], torch.Generator(), "cpu")
    refused = [emulated.run(problem.tensors(w), inputs, w.axes, pad=p, offset=o) for p, o in (({}, 1), ({"x": 3}, 0), ({"y": 1}, 0))]
    assert [str(r).split(" (")[0] for r in refused] == [
        "it requires align_x % 16 == 0", "it requires ld_x % 4 == 0", "it requires ld_y % 4 == 0",
    ]  # fmt: skip


@needs_compiler
@pytest.mark.slow
@settings(max_examples=24, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(NAMES), st.sampled_from(["fp32", "fp16", "bf16"]), st.sampled_from([96, 264, 1000]), st.randoms())
def test_any_legal_config_computes_the_chain(tmp_path, name, dtype, cols, rnd: random.Random):
    w = workload(name, 5, cols, dtype)
    space = CHAIN_CUDA.space(w, HOPPER)
    drawn = ({k: rnd.choice(v) for k, v in space.items()} for _ in range(10000))
    choices = next(c for c in drawn if CHAIN_CUDA.illegal(c, w, HOPPER) is None)
    candidate = CHAIN_CUDA.render(choices, w, HOPPER)
    shapes = [(5, cols), (3, cols - 8), (37, cols), (0, cols)]
    assert check_results(w, candidate, tmp_path, shapes, pads=((0, 0), (8, 0), (0, 1)))


# ---------------------------------------------------------------------------------------------------- programs by hand


def test_a_mean_follows_the_number_of_columns():
    def mean(cols: int) -> RowProgram:
        nodes = (
            Node(op="input", name="x"),
            Node(op="reduce", name="sum", args=(0,), shape="row"),
            Node(op="const", value=float(cols), shape="one"),
            Node(op="div", args=(1, 2), shape="row"),
        )
        return RowProgram(nodes=nodes, outputs={"y": 3})

    assert follow_cols(mean(64), 64, {66: mean(66), 70: mean(70)}) == ({2: 0}, True)
    # a constant that only happens to equal the size stays one
    assert follow_cols(mean(64), 64, {66: mean(64), 70: mean(64)}) == ({}, True)
    assert follow_cols(mean(64), 64, {}) == ({}, False)


@needs_compiler
def test_sums_of_running_sums_comparisons_and_picks(tmp_path):
    """y = where(cumsum(x - max) > column, x * s, -x) + rotate_half(x) with s a value a row; z = sum(cumsum) + (x / s)[target]."""
    nodes = (
        Node(op="input", name="x"),
        Node(op="input", name="register", shape="row"),  # a C++ keyword
        Node(op="input", name="target", shape="row"),
        Node(op="reduce", name="max", args=(0,), shape="row"),
        Node(op="sub", args=(0, 3)),
        Node(op="scan", args=(4,)),
        Node(op="index", shape="col"),
        Node(op="gt", args=(5, 6)),
        Node(op="mul", args=(0, 1)),
        Node(op="neg", args=(0,)),
        Node(op="where", args=(7, 8, 9)),
        Node(op="rotate_half", args=(0,)),
        Node(op="add", args=(10, 11)),
        Node(op="reduce", name="sum", args=(5,), shape="row"),
        Node(op="div", args=(0, 1)),
        Node(op="pick", args=(14, 2), shape="row"),
        Node(op="add", args=(13, 15), shape="row"),
    )
    program = RowProgram(nodes=nodes, outputs={"y": 12, "z": 16})
    rows, cols = 5, 48
    specs = (
        TensorSpec("x", (rows, cols), "fp32", "in"),
        TensorSpec("register", (rows, 1), "fp16", "in"),
        TensorSpec("target", (rows,), "int64", "in"),
        TensorSpec("y", (rows, cols), "fp32", "out"),
        TensorSpec("z", (rows, 1), "fp32", "out"),
    )
    chain = ChainProgram(program, {s.name: s for s in specs})
    assert chain.refuses() is None
    choices: Config = {
        "scheme": "registers", "row_threads": 32, "rows_per_block": 2, "vec": 4, "items": 1,
        "blocks_per_sm": 0, "hints": "none", "math": "accurate",
    }  # fmt: skip
    source, plan = render(chain, choices, title="by hand", rows="rows", cols="cols", cols_now=cols, dependent=True)
    candidate = Candidate(kind="cuda", source=source, plan=plan, origin=Origin(kind="script"))
    check_compiles(candidate, HOPPER)
    rng = torch.Generator().manual_seed(5)
    inputs = {
        "x": torch.randn(rows, cols, generator=rng),
        "register": (torch.rand(rows, 1, generator=rng) + 1).half(),
        "target": torch.randint(cols, (rows,), generator=rng),
    }
    out = Emulated(candidate, nvrtc.device_headers(), tmp_path).run(
        specs, inputs, {"rows": rows, "cols": cols}, pad={"x": 4, "register": 2, "z": 1}
    )
    assert isinstance(out, dict)
    expected = run(program, inputs, torch.float64)
    torch.testing.assert_close(out["y"].double(), expected["y"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out["z"][:, 0].double(), expected["z"], rtol=1e-5, atol=1e-4)


@needs_compiler
def test_axes_that_fold_into_rows_must_have_no_gaps(tmp_path):
    """A (2, 3, 8) tensor as 2 rows of 24: nothing is left of its own row stride but the demand that rows touch."""
    nodes = (Node(op="input", name="x"), Node(op="tanh", args=(0,)))
    specs = (TensorSpec("x", (2, 3, 8), "fp32", "in"), TensorSpec("y", (2, 3, 8), "fp32", "out"))
    chain = ChainProgram(RowProgram(nodes=nodes, outputs={"y": 1}), {s.name: s for s in specs})
    choices: Config = {
        "scheme": "tiles", "threads": 64, "vec": 4, "items": 1, "blocks_per_sm": 0, "hints": "none", "math": "accurate",
    }  # fmt: skip
    source, plan = render(chain, choices, title="folded", rows=2, cols=24, cols_now=24, dependent=True)
    candidate = Candidate(kind="cuda", source=source, plan=plan, origin=Origin(kind="script"))
    emulated = Emulated(candidate, nvrtc.device_headers(), tmp_path)
    x = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(1))
    out = emulated.run(specs, {"x": x}, {})
    assert isinstance(out, dict)
    torch.testing.assert_close(out["y"], x.tanh())
    assert emulated.run(specs, {"x": x}, {}, pad={"x": 4}) == "it requires ld_x == 8 (ld_x = 12)"


# ------------------------------------------------------------------------------------------------------------- choices


@pytest.mark.parametrize("name", NAMES)
def test_seeds_are_legal_and_something_serves_every_shape(name):
    for dtype in ("fp32", "fp16"):
        for shape in problem_of(workload(name, 8, 8)).variants(workload(name, 8, 8, dtype)):
            seeds = CHAIN_CUDA.seeds(shape, AMPERE)
            assert seeds
            assert all(CHAIN_CUDA.illegal(seed, shape, AMPERE) is None for seed in seeds)
            assert any(seed["vec"] == 1 for seed in seeds)


def test_rendering_is_reproducible():
    w = workload("layernorm", 64, 512, "bf16")
    first, second = (CHAIN_CUDA.render(config(w), w, HOPPER) for _ in range(2))
    assert first.id == second.id


def test_kernels_may_be_launched_dependently_where_the_device_can():
    w = workload("layernorm", 64, 512, "bf16")
    for device in (HOPPER, AMPERE):
        candidate = CHAIN_CUDA.render(CHAIN_CUDA.seeds(w, device)[0], w, device)
        assert candidate.plan.launches[0].pdl is (device is HOPPER)
        assert "grid_dependency_wait();" in candidate.source


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ({"vec": 8}, "vec must be one of 1, 2, 4"),
        ({"row_threads": 64, "rows_per_block": 2}, "rows_per_block must be 1"),
        ({"row_threads": 8, "rows_per_block": 1}, "8 threads a block|8 rows|= 8 threads"),
        ({"row_threads": 32, "rows_per_block": 4, "vec": 1}, "items a thread, at most"),
        ({"pdl": True}, "pdl is not a choice"),
        ({"items": 2}, "items is a choice of scheme reread"),
        ({"scheme": "reread", "row_threads": 1024, "rows_per_block": 1, "items": 4}, "more than the 4096 columns need"),
    ],
)
def test_illegal_configs_say_why(choices, reason):
    w = workload("softmax", 16, 4096)
    with pytest.raises(ValueError, match=reason):
        CHAIN_CUDA.render(config(w, **choices), w, HOPPER)


def test_what_it_does_not_do():
    assert "8.0 or newer" in str(CHAIN_CUDA.refuses(workload("softmax", 8, 8), DeviceFacts(target="cuda:sm_75")))
    assert "8.0 or newer" in str(CHAIN_CUDA.refuses(workload("softmax", 8, 8), DeviceFacts(target="cpu")))
    gemm = Workload(problem="gemm", axes={"M": 8, "N": 8, "K": 8}, dtype="fp16", layout="nn")
    assert "chains" in str(CHAIN_CUDA.refuses(gemm, HOPPER))
