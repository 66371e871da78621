from __future__ import annotations

import ctypes
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from chain_cpu_kernels import DEVICE, FAMILY, best, compiled, outputs_of
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelwright.evaluate.buffers import Shape
from kernelwright.evaluate.verify import Judged, compare, expect
from kernelwright.families.chain_cpu.render import Choices, Kernel, header
from kernelwright.families.chain_cpu.task import Buffer
from kernelwright.families.family import DeviceFacts
from kernelwright.problems import problem_of, resolve
from kernelwright.problems.chains import CHAINS
from kernelwright.problems.lower import run as meaning
from kernelwright.problems.rowprogram import BINARY, COMPARE, UNARY, Node, RowProgram
from kernelwright.records import WorkspaceArg


def judge(problem, w, inputs, outputs, rung: str = "adversarial") -> Judged:
    """As the ladder does it: bit-equal on the exact rung, against the vendor's error on the normal one."""
    return compare(problem, w, expect(problem, w, inputs, exact=rung == "exact", vendor=rung == "normal"), outputs)


FLAGS = ("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
NATIVE, AVX2, SSE2 = "-march=native", "-march=x86-64-v3", "-march=x86-64"
AS_ALL = [NATIVE] + ([AVX2] if "avx2" in DEVICE.isa else []) + [SSE2]
NAMES = [c.name for c in CHAINS]


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("chain_cpu")


# ---------------------------------------------------------------------------------------------------------------- the chains


def assert_right(text: str, directory: Path, **changes) -> None:
    """The candidate for one workload: every case on its own shape, two cases in turn on each variant, padded and misaligned."""
    w = resolve(text)
    problem = problem_of(w)
    candidate = FAMILY.render(best(w, **changes), w, DEVICE)
    rng = torch.Generator().manual_seed(5)
    for i, variant in enumerate((w, *problem.variants(w))):
        cases = problem.cases(variant)
        for case in cases if i == 0 else {cases[i % len(cases)], cases[(i + 4) % len(cases)]}:
            if 0 in variant.axes.values() and case.rung == "adversarial":
                continue
            inputs = problem.generate(variant, case, rng, "cpu")
            outputs = outputs_of(candidate, variant, inputs, Shape(pad=(0, 3, 16)[i % 3], offset=i % 2), directory)
            judged = judge(problem, variant, inputs, outputs, case.rung)
            assert judged.passed, f"{variant.name} {case.name}: {judged}"


@pytest.mark.parametrize("name", NAMES)
def test_every_chain_is_right_for_every_shape_and_case(name, directory):
    assert_right(f"chain:{name}:33x130", directory)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("name", ["softmax", "log-softmax-nll", "rotary", "bias-gelu-residual"])
def test_half_precision_chains_are_right(name, dtype, directory):
    assert_right(f"chain:{name}:33x130:{dtype}", directory)


@pytest.mark.parametrize(
    "changes",
    [
        {"unroll": 1, "accumulators": 1, "keep": "recompute"},
        {"unroll": 8, "accumulators": 2, "keep": "scratch", "exp_degree": 6, "prefetch": 4096},
    ],
)
def test_other_configs_of_softmax_are_right(changes, directory):
    assert_right("chain:softmax:33x130", directory, **changes)


def test_newton_quotient_is_right(directory):
    if "avx512dq" not in DEVICE.isa:
        pytest.skip("the choice exists with AVX-512 only")
    assert_right("chain:swish-div-clamp-tanh-clamp:33x130", directory, quotient="newton", unroll=2)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_streaming_stores_are_right_where_rows_are_aligned_and_where_not(dtype, directory):
    w = resolve(f"chain:softmax:1024x{1024 if dtype == 'fp32' else 2048}:{dtype}")
    candidate = FAMILY.render(best(w, stores="streaming", keep="scratch"), w, DEVICE)
    assert "stream(y_row" in candidate.source
    problem = problem_of(w)
    for cols, shape in ((256, Shape()), (256, Shape(pad=1)), (37, Shape(offset=1))):
        small = w.replace(axes={"rows": 5, "cols": cols})
        inputs = problem.generate(small, problem.cases(small)[0], torch.Generator().manual_seed(1), "cpu")
        outputs = outputs_of(candidate, small, inputs, shape, directory)
        assert judge(problem, small, inputs, outputs).passed


@pytest.mark.parametrize("name", ["softmax", "new-gelu"])
def test_threads_share_the_rows(name, directory):
    two = DeviceFacts(target="cpu", l2_bytes=2 << 20, threads=2, isa=DEVICE.isa)
    w = resolve(f"chain:{name}:33x130")
    assert FAMILY.space(w, two)["threads"] == (1, 2)
    config = {**FAMILY.seeds(w, two)[0], "threads": 2}
    if "keep" in config:
        config["keep"] = "scratch"
    candidate = FAMILY.render(config, w, two)
    assert "num_threads(2)" in candidate.source
    problem = problem_of(w)
    inputs = problem.generate(w, problem.cases(w)[0], torch.Generator().manual_seed(1), "cpu")
    outputs = outputs_of(candidate, w, inputs, Shape(), directory)
    assert judge(problem, w, inputs, outputs).passed


@pytest.mark.parametrize("march", AS_ALL[1:])
@pytest.mark.parametrize("name", ["softmax", "swish-div-clamp-tanh-clamp", "cumsum"])
def test_narrower_instruction_sets_give_right_results(name, march, directory):
    w = resolve(f"chain:{name}:9x130")
    candidate = FAMILY.render(best(w), w, DEVICE)
    narrow = candidate.replace(flags=tuple(march if f == NATIVE else f for f in candidate.flags))
    problem = problem_of(w)
    for case in problem.cases(w):
        inputs = problem.generate(w, case, torch.Generator().manual_seed(1), "cpu")
        outputs = outputs_of(narrow, w, inputs, Shape(pad=3), directory)
        judged = judge(problem, w, inputs, outputs, case.rung)
        assert judged.passed, f"{case.name}: {judged}"


def test_a_kernelbench_module_of_three_axes_is_one_matrix(tmp_path, directory):
    file = tmp_path / "scaled.py"
    file.write_text(
        "import torch\nfrom torch import nn\n\n"
        "class Model(nn.Module):\n"
        "    def __init__(self, n):\n        super().__init__()\n        self.max1 = nn.Parameter(torch.ones(n))\n"
        "    def forward(self, new):\n"
        "        return torch.softmax(new * self.max1, -1) - new.mean(-1, keepdim=True)\n\n"
        "def get_inputs():\n    return [torch.randn(3, 5, 70)]\n\ndef get_init_inputs():\n    return [70]\n"
    )
    w = resolve(str(file))
    assert FAMILY.refuses(w, DEVICE) is None
    candidate = FAMILY.render(best(w), w, DEVICE)
    problem = problem_of(w)
    inputs = problem.generate(w, problem.cases(w)[0], torch.Generator().manual_seed(1), "cpu")
    outputs = outputs_of(candidate, w, inputs, Shape(pad=2), directory)
    assert judge(problem, w, inputs, outputs).passed


# ------------------------------------------------------------------------------------------------------- every node of a program


def _program_of_every_op() -> tuple[RowProgram, dict[str, str]]:
    """One output for each elementwise op, on x, z (rows, cols), a column, a row and a one-element tensor; and the structural ops."""
    nodes: list[Node] = []
    outputs: dict[str, int] = {}

    def add(op: str, *args: int, shape: str = "full", name: str = "", value: float = 0.0) -> int:
        nodes.append(Node(op=op, args=args, name=name, value=value, shape=shape))  # pyright: ignore[reportArgumentType]
        return len(nodes) - 1

    x, z = add("input", name="x"), add("input", name="z")
    col, row = add("input", name="col", shape="col"), add("input", name="per_row", shape="row")
    one, count = add("input", name="single", shape="one"), add("input", name="count", shape="row")
    half = add("const", value=0.5, shape="one")
    positive = add("abs", x)
    for op in UNARY:
        source = positive if op in ("log", "sqrt", "rsqrt") else x
        outputs[f"o_{op}"] = add(op, source)
    for op in BINARY:
        outputs[f"o_{op}"] = add(op, positive if op == "pow" else x, z)
    for power in (2.0, 3.0, 4.0, 0.5, -0.5, -1.0):
        outputs[f"o_pow_{len(nodes)}"] = add("pow", positive, add("const", value=power, shape="one"))
    for op in COMPARE:
        outputs[f"o_{op}"] = add(op, x, z)
        outputs[f"o_where_{op}"] = add("where", add(op, x, half), z, col)
    outputs["o_where_number"] = add("where", x, z, half)
    outputs["o_mask"] = add("where", add("lt", add("index", shape="col"), count), x, half)
    outputs["o_row"] = add("add", add("mul", x, row), add("sub", one, col, shape="col"))
    outputs["o_by_one"] = add("div", x, one)
    outputs["o_by_col"] = add("div", x, add("add", add("abs", col, shape="col"), half, shape="col"))
    least, most = (add("reduce", add("mul", x, z), name=k, shape="row") for k in ("min", "max"))
    outputs["o_span"] = add("div", add("sub", x, least), add("sub", most, least, shape="row"))
    outputs["o_least"] = least
    running = add("scan", add("tanh", x))
    outputs["o_rotated_scan"] = add("rotate_half", running)
    outputs["o_rotated"] = add("add", add("rotate_half", add("sub", z, least)), x)
    column = add("input", name="column", shape="row")
    outputs["o_picked_scan"] = add("pick", running, column, shape="row")
    outputs["o_picked"] = add("pick", add("mul", add("exp", x), row), column, shape="row")
    outputs["o_deviation"] = add("sub", running, add("reduce", running, name="sum", shape="row"))
    kinds = {"x": "full", "z": "full", "col": "col", "per_row": "row", "single": "one", "count": "row", "column": "row"}
    kinds |= {name: nodes[n].shape for name, n in outputs.items()}
    return RowProgram(nodes=tuple(nodes), outputs=outputs), kinds


@pytest.mark.parametrize(("keep", "cols"), [("recompute", 64), ("scratch", 50), ("output", 18)])
def test_every_node_means_what_the_program_says(keep, cols, directory):
    program, kinds = _program_of_every_op()
    rows, dtypes = 3, {"count": "int32", "column": "int64"}
    buffers = tuple(
        Buffer(n, n, dtypes.get(n, "fp32"), "out" if n in program.outputs else "in", kind, kind == "full") for n, kind in kinds.items()
    )
    kernel = Kernel("every op", program, buffers, {}, Choices(unroll=2, accumulators=2, keep=keep))
    torch.manual_seed(1)
    shape = {"full": (rows, cols), "row": (rows,), "col": (cols,), "one": (1,)}
    tensors = {b.name: torch.randn(shape[b.shape]) if b.role == "in" else torch.full(shape[b.shape], math.nan) for b in buffers}
    tensors["count"] = torch.tensor([0, 7, cols], dtype=torch.int32)
    tensors["column"] = torch.tensor([0, cols - 1, 5])
    tensors["x"][1, 3] = 0.5
    tensors["z"][0, :4] = tensors["x"][0, :4]
    scratch = torch.empty(len(kernel.slots) * cols + 1)
    numbers = [rows, cols, *(cols for b in buffers if b.strided)]
    pointers = [tensors[b.name] for b in buffers]
    function = compiled(kernel.source(), (*FLAGS, NATIVE), directory).kernel
    tail = [ctypes.c_void_p(scratch.data_ptr())] if kernel.slots else []
    function(*(ctypes.c_void_p(t.data_ptr()) for t in pointers), *map(ctypes.c_int64, numbers), *tail)

    inputs = {b.name: tensors[b.name] for b in buffers if b.role == "in"}
    for name, want in meaning(program, inputs, torch.float64).items():
        got = tensors[name].double()
        assert torch.allclose(got, want.reshape(got.shape), rtol=2e-5, atol=2e-6, equal_nan=True), name


def test_reductions_and_comparisons_treat_nan_as_pytorch_does(directory):
    nodes = [Node(op="input", name="x"), Node(op="input", name="z")]
    nodes += [Node(op="reduce", name=k, args=(0,), shape="row") for k in ("sum", "max", "min")]
    nodes += [Node(op=op, args=(0, 1)) for op in ("maximum", "minimum", "lt", "ne")] + [Node(op="relu", args=(0,))]
    nodes += [Node(op="const", value=0.25, shape="one"), Node(op="maximum", args=(0, 10)), Node(op="minimum", args=(10, 0))]
    names = {f"out{i}": i for i in (*range(2, 10), 11, 12)}
    program = RowProgram(nodes=tuple(nodes), outputs=names)
    kinds = {"x": "full", "z": "full", **{name: nodes[n].shape for name, n in names.items()}}
    buffers = tuple(Buffer(n, n, "fp32", "in" if n in ("x", "z") else "out", kind, kind == "full") for n, kind in kinds.items())
    kernel = Kernel("nan", program, buffers, {}, Choices(unroll=4, accumulators=4))
    cols = 16 * 9 + 5
    x = torch.randn(cols + 2, cols)
    for i in range(cols):
        x[i, i] = math.nan  # in every lane, accumulator and tail
    x[cols] = -math.inf
    x[cols + 1] = math.inf
    z = x.flip(0).contiguous()
    for march in AS_ALL:
        tensors = {"x": x, "z": z}
        tensors |= {n: torch.empty(x.shape if kinds[n] == "full" else x.shape[:1]) for n in names}
        numbers = [*x.shape, *(cols for b in buffers if b.strided)]
        function = compiled(kernel.source(), (*FLAGS, march), directory).kernel
        function(*(ctypes.c_void_p(tensors[b.name].data_ptr()) for b in buffers), *map(ctypes.c_int64, numbers))
        for name, want in meaning(program, {"x": x, "z": z}).items():
            assert torch.allclose(tensors[name], want, rtol=1e-5, atol=1e-5, equal_nan=True), (march, name)


# --------------------------------------------------------------------------------------------------------- mathematical functions

FUNCTIONS = {"exp": 3.0, "tanh": 6.0, "sigmoid": 5.0, "erf": 7.0, "log": 2.0, "sqrt": 1.0, "rsqrt": 1.6}
"""Largest error, in units of 2^-24 of the true value; below the normal range, of the smallest normal number."""


def mapped(name: str, x: np.ndarray, march: str, directory: Path) -> np.ndarray:
    lines = [header()]
    for f in FUNCTIONS:
        body = f"store(y + j, {f}(load(x + j, lanes)), lanes);"
        head = f'extern "C" void map_{f}(const float* x, float* y, long n)'
        lines.append(f"{head} {{ sweep<2>(0, n, [&](long j, auto lanes, auto) INLINE {{ {body} }}); }}")
    for kind in ("fp16", "bf16"):
        head = f'extern "C" void to_{kind}(const float* x, {kind}* y, long n)'
        lines.append(f"{head} {{ sweep<1>(0, n, [&](long j, auto lanes, auto) INLINE {{ store(y + j, load(x + j, lanes), lanes); }}); }}")
        head = f'extern "C" void from_{kind}(const {kind}* x, float* y, long n)'
        lines.append(f"{head} {{ sweep<1>(0, n, [&](long j, auto lanes, auto) INLINE {{ store(y + j, load(x + j, lanes), lanes); }}); }}")
    library = compiled("\n".join(lines), (*FLAGS, march), directory)
    out = {"to_fp16": np.float16, "to_bf16": np.uint16}.get(name, np.float32)
    y = np.zeros(len(x), out)
    getattr(library, name)(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), ctypes.c_int64(len(x)))
    return y


def assert_accurate(name: str, x: np.ndarray, march: str, directory: Path) -> None:
    got = mapped(f"map_{name}", x, march, directory)
    want = getattr(torch, name)(torch.from_numpy(x).double()).numpy()
    rounded = torch.from_numpy(want).float().numpy()
    special = ~np.isfinite(rounded)
    assert np.array_equal(got[special], rounded[special], equal_nan=True), x[special][got[special] != rounded[special]][:5]
    error = np.abs(got[~special] - want[~special]) / (2.0**-24 * np.maximum(np.abs(want[~special]), 2.0**-126))
    assert error.size == 0 or error.max() <= FUNCTIONS[name], (x[~special][error.argmax()], error.max())


@pytest.mark.parametrize("march", AS_ALL)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_accurate_over_the_whole_range(name, march, directory):
    spread = np.arange(0, 2**32, 40961, dtype=np.uint64).astype(np.uint32).view(np.float32)
    named = np.array([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 3.4028235e38, 88.72284, 88.72283, -103.97], np.float32)
    rng = np.random.default_rng(1)
    dense = np.concatenate([rng.uniform(-105, 90, 20000), rng.normal(size=20000), rng.uniform(0.5, 2, 10000)]).astype(np.float32)
    assert_accurate(name, np.concatenate([spread, named, dense]), march, directory)


@settings(max_examples=100, deadline=None)
@given(name=st.sampled_from(sorted(FUNCTIONS)), values=st.lists(st.floats(width=32), min_size=1, max_size=40))
def test_functions_are_accurate_for_any_floats(directory, name, values):
    assert_accurate(name, np.array(values, np.float32), NATIVE, directory)


@pytest.mark.parametrize("march", AS_ALL)
def test_saturated_functions_are_exactly_one(march, directory):
    far = np.array([9.04, 20, 3e38, math.inf], np.float32)
    for name in ("tanh", "erf"):
        assert (mapped(f"map_{name}", far, march, directory) == 1).all()
        assert (mapped(f"map_{name}", -far, march, directory) == -1).all()


@pytest.mark.parametrize("march", AS_ALL)
def test_half_precision_conversions_are_pytorchs(march, directory):
    bits = np.arange(2**16, dtype=np.uint16)
    wide = mapped("from_fp16", bits, march, directory)
    assert np.array_equal(wide, bits.view(np.float16).astype(np.float32), equal_nan=True)
    wide = mapped("from_bf16", bits, march, directory)
    assert np.array_equal(wide, (bits.astype(np.uint32) << 16).view(np.float32), equal_nan=True)

    x = np.arange(0, 2**32, 9973, dtype=np.uint64).astype(np.uint32).view(np.float32)
    for kind, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
        got = torch.from_numpy(mapped(f"to_{kind}", x, march, directory).view(np.int16)).view(dtype)
        assert torch.equal(got.nan_to_num(7.0), torch.from_numpy(x).to(dtype).nan_to_num(7.0))


# ------------------------------------------------------------------------------------------------------------------- the space


@pytest.mark.parametrize("name", NAMES)
def test_seeds_are_legal_and_every_choice_changes_the_source(name):
    w = resolve(f"chain:{name}:2048x1024")
    device = DeviceFacts(target="cpu", l2_bytes=2 << 20, threads=4, isa=DEVICE.isa | {"avx512dq"})
    space, seeds = FAMILY.space(w, device), FAMILY.seeds(w, device)
    assert seeds and all(FAMILY.illegal(s, w, device) is None for s in seeds)
    seed = {**seeds[0], "unroll": 8}
    sources = [FAMILY.render(seed, w, device).source]
    for choice, values in space.items():
        for value in values:
            config = {**seed, choice: value}
            if config != seed and FAMILY.illegal(config, w, device) is None:
                sources.append(FAMILY.render(config, w, device).source)
    assert len(set(sources)) == len(sources)


def test_choices_without_effect_are_not_offered():
    small = FAMILY.space(resolve("chain:hardswish:64x64"), DEVICE)
    assert set(small) == {"unroll", "prefetch"}
    assert "stores" in FAMILY.space(resolve("chain:hardswish:2048x1024"), DEVICE)
    assert "keep" not in FAMILY.space(resolve("chain:layernorm"), DEVICE)
    assert FAMILY.space(resolve("chain:softmax:64x64:bf16"), DEVICE)["keep"] == ("recompute", "scratch")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"accumulators": 8, "unroll": 2}, "8 accumulators need as many unrolled steps"),
        ({"unroll": 3}, "unroll = 3 is not one of 1, 2, 4, 8"),
        ({"tile": 4}, "'tile' is no choice here"),
        ({"keep": "output", "stores": "streaming"}, "streaming stores would drop"),
    ],
)
def test_illegal_configs_are_refused_with_the_reason(changes, reason):
    w = resolve("chain:softmax:2048x1024")
    config = best(w, **changes)
    assert reason in str(FAMILY.illegal(config, w, DEVICE))
    with pytest.raises(ValueError, match="chain_cpu cannot render this config for chain:softmax"):
        FAMILY.render(config, w, DEVICE)


def test_an_incomplete_config_is_refused():
    assert "'unroll' is missing" in str(FAMILY.illegal({}, resolve("chain:hardswish:64x64"), DEVICE))


def test_other_problems_and_devices_are_refused():
    gemm = resolve("gemm:64x64x64:fp32")
    assert "element-wise" in str(FAMILY.refuses(gemm, DEVICE))
    assert "cpu" in str(FAMILY.refuses(resolve("chain:softmax"), DeviceFacts(target="cuda:sm_90")))
    assert FAMILY.refuses(resolve("chain:softmax"), DEVICE) is None


def test_one_kernel_serves_every_shape_and_reads_like_its_formula():
    small, large = resolve("chain:rmsnorm:4x64"), resolve("chain:rmsnorm:512x96")
    config = best(small)
    one, two = (FAMILY.render(config, w, DEVICE) for w in (small, large))
    assert one.source == two.source and one.plan == two.plan
    assert one.plan is not None and one.plan.requires == ()
    kernel = one.source.rpartition("// ----")[2]
    assert "rsqrt(parts_sum1.total() / (float)cols + 1e-06f)" in kernel
    assert "Sum<4> parts_sum1;" in kernel
    assert not any(isinstance(a, WorkspaceArg) for a in one.plan.launches[0].args)
    assert "-ffast-math" not in one.flags
