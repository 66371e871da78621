"""Suites: named lists of Workloads.

Projection shapes come from the models' public `config.json` files: hidden and intermediate size, heads, key-value heads, head size,
vocabulary. A linear layer of `out` x `in` weights on M tokens is the GEMM M x out x in, layout `nt`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernelwright.records import Workload

HGEMM = "hgemm-1000"
HGEMM_SIZES = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 12288, 16384)
SIZE_CLASSES = {"small": 2**27, "mid": 2**32, "large": 2**37, "huge": math.inf}
"""Name to the floating-point operations (2 M N K of a product) that a Workload of the class stays below: figures are given by class."""

UNFUSED = {"llama-3.1-8b": "Llama-3.1-8B", "qwen2.5-7b": "Qwen2.5-7B"}
"""Suite to the model whose projections it has, each by itself, as transformers computes them."""

SUITES: dict[str, str] = {
    HGEMM: "all 1,000 fp16 products with M, N, K of 64 to 16384, the grid of CUDA-L2",
    **{f"{HGEMM}-{name}": f"those of them of the class {name}" for name in SIZE_CLASSES},
    "llm-shapes": "bf16 projections of eight open language models at batches of 1 to 2048 tokens",
    **{name: f"the linear layers of transformers' {model}, bf16, for prefill and decode" for name, model in UNFUSED.items()},
    "chains": "every chain at 1024 x 1024, fp32",
    "chains-llm": "chains at the shapes of language models, fp16 and bf16",
    "gemm-small": "20 small and skinny fp32 products, for the CPU",
    "sparse-50": "layers with half-empty weights: nine shapes at 1 to 64 activation rows, fp16, and each weight unpacked",
    "sparse-50-three-layer": "those layers, kept in three layers",
    **{
        f"sparse-{name}": f"layers of {name} at half zeros as `sparse.fuse` joins them, for decoding"
        for name in ("llama-2-7b", "llama-2-13b")
    },
    "gemm-dozen": "12 representative fp16 products, for a GPU",
    "experts": "kernels, modules and applications against experts' libraries, at the sizes of a large GPU",
    "experts-kernels": "the single kernels among them",
    "experts-modules": "the modules among them",
    "experts-applications": "applications whose answers a validator judges, at the sizes of a large GPU",
    "experts-challenges": "open challenges, scored by what is measured of an answer within a time",
    "experts-tiny": "each kernel and module once at a size for tests, for the CPU",
    "experts-applications-tiny": "each application and challenge once at a size for tests, for the CPU",
}
"""Name to description."""

LLM_BATCHES = (1, 8, 16, 32, 64, 128, 512, 2048)
DECODE_TOKENS = (1, 8, 32, 128)
PREFILL_TOKENS = (512, 2048, 4096, 16384, 65536)
"""One to 128 sequences of 512 and 2048 tokens, at most 65,536 tokens together."""


@dataclass(frozen=True)
class Model:
    """The sizes of one transformer."""

    name: str
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int
    biased: bool = False
    """Whether the query, key and value projections have a bias."""
    blocks: int = 0

    def projections(self) -> dict[str, tuple[int, int]]:
        """Name to (N, K), with query, key and value fused, and gate and up."""
        return {
            "qkv": ((self.heads + 2 * self.kv_heads) * self.head, self.hidden),
            "o": (self.hidden, self.heads * self.head),
            "gate_up": (2 * self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
            "lm_head": (self.vocabulary, self.hidden),
        }

    def layers(self, dtype: str) -> list[Workload]:
        """The linear layers, nothing fused, for each number of tokens; lm_head for the last token of each sequence."""
        rows = (*DECODE_TOKENS, *PREFILL_TOKENS)
        kv, inner = self.kv_heads * self.head, self.heads * self.head
        attention = [(m, n, self.hidden) for n in (inner, kv) for m in rows]
        others = ((self.hidden, inner), (self.intermediate, self.hidden), (self.hidden, self.intermediate))
        plain = [(m, n, k) for n, k in others for m in rows] + [(m, self.vocabulary, self.hidden) for m in DECODE_TOKENS]
        biased = {"problem": "linear", "epilogue": "bias"} if self.biased else {}
        return [_gemm(*s, dtype, "nt").replace(**biased) for s in attention] + [_gemm(*s, dtype, "nt") for s in plain]


MODELS = (
    Model("Llama-3.1-8B", 4096, 14336, 32, 8, 128, 128256),
    Model("Llama-3.1-70B", 8192, 28672, 64, 8, 128, 128256),
    Model("Qwen2.5-7B", 3584, 18944, 28, 4, 128, 152064, biased=True),
    Model("Qwen3-32B", 5120, 25600, 64, 8, 128, 151936),
    Model("Mistral-7B-v0.3", 4096, 14336, 32, 8, 128, 32768),
    Model("Gemma-2-9B", 3584, 14336, 16, 8, 256, 256000),
    Model("Phi-4", 5120, 17920, 40, 10, 128, 100352),
)

# multi-head latent attention: 128 heads, query rank 1536, key-value rank 512 plus 64 rotary, heads of 128 + 64 (q), 128 + 128 (kv)
_DEEPSEEK_V3 = {
    "q_a+kv_a": (1536 + 512 + 64, 7168),
    "q_b": (128 * (128 + 64), 1536),
    "kv_b": (128 * (128 + 128), 512),
    "o": (7168, 128 * 128),
    "dense gate_up": (2 * 18432, 7168),
    "dense down": (7168, 18432),
    "shared gate_up": (2 * 2048, 7168),
    "shared down": (7168, 2048),
    "lm_head": (129280, 7168),
}

LLM_SHAPES: tuple[tuple[str, str, int, int], ...] = (
    *((m.name, layer, n, k) for m in MODELS for layer, (n, k) in m.projections().items()),
    *(("DeepSeek-V3", layer, n, k) for layer, (n, k) in _DEEPSEEK_V3.items()),
)
"""(model, projection, N, K)."""

_CHAINS_LLM = (
    ("rmsnorm", 4096, 4096),
    ("rmsnorm", 2048, 8192),
    ("layernorm", 4096, 5120),
    ("silu-mul", 4096, 14336),
    ("new-gelu", 4096, 16384),
    ("bias-gelu-residual", 4096, 4096),
    ("rotary", 4096 * 32, 128),
    ("softmax", 4096, 4096),
    ("log-softmax-nll", 2048, 128256),
    ("l2-normalise", 8192, 1024),
    ("cumsum", 4096, 4096),
)

_GEMM_SMALL = (
    (16, 16, 16), (32, 32, 32), (48, 48, 48), (64, 64, 64), (96, 96, 96), (128, 128, 128), (192, 192, 192), (256, 256, 256),
    (384, 384, 384), (1, 512, 512), (1, 1024, 1024), (4, 1024, 1024), (8, 512, 2048), (16, 1024, 256), (32, 2048, 128),
    (512, 8, 512), (1024, 16, 64), (64, 64, 4096), (17, 33, 65), (127, 129, 255),
)  # fmt: skip

_GEMM_DOZEN = (
    (64, 64, 64), (64, 64, 4096), (64, 4096, 4096), (128, 4096, 4096), (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048),
    (64, 12288, 12288), (4096, 4096, 512), (4096, 4096, 4096), (8192, 8192, 8192), (16384, 16384, 16384),
)  # fmt: skip


SPARSE_LAYERS = (
    (4096, 4096), (12288, 4096), (11008, 4096), (4096, 11008), (5120, 5120), (13824, 5120), (8192, 8192), (28672, 8192), (8192, 28672),
)  # fmt: skip
"""Rows and columns of weights: attention and feed-forward layers of Llama-2 7B, 13B and 70B."""
SPARSE_ROWS = (1, 8, 16, 32, 64)
SPARSE_MODELS = (
    Model("Llama-2-7B", 4096, 11008, 32, 32, 128, 32000, blocks=32),
    Model("Llama-2-13B", 5120, 13824, 40, 40, 128, 32000, blocks=40),
)
SPARSE_DECODE = (1, 8, 16, 32)


def suite(name: str, *, dtype: str | None = None) -> tuple[Workload, ...]:
    """The Workloads of a suite, each once; `dtype` overrides theirs. Raises ProblemError for an unknown name."""
    from kernelwright.problems import ProblemError

    if name not in SUITES:
        raise ProblemError(f"unknown suite {name!r}; known are {', '.join(SUITES)}")
    workloads = dict.fromkeys(w.replace(dtype=dtype) if dtype else w for w in _members(name))
    return tuple(workloads)


def _members(name: str) -> list[Workload]:
    if name.startswith(HGEMM):
        every = [_gemm(m, n, k, "fp16", "nn") for m in HGEMM_SIZES for n in HGEMM_SIZES for k in HGEMM_SIZES]
        return [w for w in every if name == HGEMM or size_class(2 * math.prod(w.axes.values())) == name.removeprefix(f"{HGEMM}-")]
    if name == "llm-shapes":
        return [_gemm(m, n, k, "bf16", "nt") for _, _, n, k in LLM_SHAPES for m in LLM_BATCHES]
    if name in UNFUSED:
        return next(m for m in MODELS if m.name == UNFUSED[name]).layers("bf16")
    if name == "chains":
        from kernelwright.problems.chains import CHAINS

        return [_chain(c.name, 1024, 1024, "fp32") for c in CHAINS]
    if name == "chains-llm":
        return [_chain(*shape, dtype) for dtype in ("fp16", "bf16") for shape in _CHAINS_LLM]
    if name.startswith("experts"):
        from kernelwright.problems.applications import APPLICATIONS, CHALLENGES
        from kernelwright.problems.experts import EXPERTS

        kind = name.removeprefix("experts").removeprefix("-").removesuffix("s")
        if kind.endswith("tiny"):
            return [p.workload(p.tiny[0]) for p in (EXPERTS if kind == "tiny" else (*APPLICATIONS, *CHALLENGES))]
        experts = (*EXPERTS, *APPLICATIONS)
        return [p.workload(sizes) for p in (CHALLENGES if kind == "challenge" else experts) if kind in ("", p.kind) for sizes in p.full]
    if name == "sparse-50":
        layers = [_sparse("spmm", N=n, M=m, K=k) for m, k in SPARSE_LAYERS for n in SPARSE_ROWS]
        return layers + [_sparse("unpack", M=m, K=k) for m, k in SPARSE_LAYERS]
    if name == "sparse-50-three-layer":
        return [_sparse("spmm", N=n, M=m, K=k).replace(layout="three-50") for m, k in SPARSE_LAYERS for n in SPARSE_ROWS]
    if name.startswith("sparse-llama"):
        model = next(m for m in SPARSE_MODELS if name == f"sparse-{m.name.lower()}")
        layers = {role: shape for role, shape in model.projections().items() if role != "lm_head"}
        found = [_sparse("spmm", N=n, M=m, K=k) for n in SPARSE_DECODE for m, k in layers.values()]
        gated = [w.replace(epilogue="swiglu") if w.axes["M"] == 2 * model.intermediate else w for w in found]
        return gated + [_sparse("unpack", M=m, K=k) for m, k in layers.values()]
    if name == "gemm-small":
        return [_gemm(*shape, "fp32", "nn") for shape in _GEMM_SMALL]
    return [_gemm(*shape, "fp16", "nn") for shape in _GEMM_DOZEN]


def size_class(flops: float) -> str:
    return next(name for name, below in SIZE_CLASSES.items() if flops < below)


def _gemm(m: int, n: int, k: int, dtype: str, layout: str) -> Workload:
    return Workload(problem="gemm", axes={"M": m, "N": n, "K": k}, dtype=dtype, layout=layout)


def _sparse(problem: str, **axes: int) -> Workload:
    return Workload(problem=problem, axes=axes, dtype="fp16", layout="quad-50")


def _chain(name: str, rows: int, cols: int, dtype: str) -> Workload:
    return Workload(problem=f"chain:{name}", axes={"rows": rows, "cols": cols}, dtype=dtype)


def labels(w: Workload) -> tuple[str, ...]:
    """Which model projections a GEMM is: `("Llama-3.1-8B o", "Mistral-7B-v0.3 o")`; empty for any other Workload."""
    if w.problem != "gemm" or w.layout != "nt":
        return ()
    return tuple(f"{model} {layer}" for model, layer, n, k in LLM_SHAPES if (n, k) == (w.axes["N"], w.axes["K"]))
