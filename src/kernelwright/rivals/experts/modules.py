"""Experts for the modules: FlashAttention and cuDNN through SDPA, cuSPARSELt, fused ATen operations, and the algorithms that experts use
(chunks, doubling scans, sorted tokens) over cuBLAS."""

# pyright: reportPrivateImportUsage=false
# (torch._scaled_mm and its like are how PyTorch offers these libraries' products)

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernelwright.problems.experts.attention import visible
from kernelwright.problems.experts.convolution import first, last
from kernelwright.problems.experts.normalisation import EPS
from kernelwright.problems.experts.training import ADAM_EPS, BETA1, BETA2, CLIP, DECAY, RATE, STEP, BatchNorm
from kernelwright.rivals.experts.expert_rival import ExpertRival
from kernelwright.rivals.experts.kernels import ATEN, autotuned

aten = torch.ops.aten
CHUNK = 64
"""Tokens that the chunked algorithms multiply at once: a tile of the tensor cores."""


# ------------------------------------------------------------------------------------------------------------ attention


def _attention(backend: SDPBackend, causal: bool) -> Any:
    def call(n: Any, o: Any, q: Any, k: Any, v: Any) -> Any:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return call


def _attention_backward(causal: bool) -> Any:
    def call(n: Any, outputs: Any, /, do: Any, q: Any, k: Any, v: Any, o: Any, lse: Any) -> Any:
        if not q.is_cuda:
            return aten._scaled_dot_product_flash_attention_for_cpu_backward(do, q, k, v, o, lse, 0.0, causal)
        seed, offset = _random_state(q.dtype)
        return aten._scaled_dot_product_flash_attention_backward(do, q, k, v, o, lse, None, None, n.S, n.S, 0.0, causal, seed, offset)

    return call


@lru_cache(maxsize=2)
def _random_state(dtype: torch.dtype) -> tuple[Any, Any]:
    """What the backward kernel wants of the forward one's random state; without dropout it reads nothing of it."""
    x = torch.zeros(1, 1, 64, 64, dtype=dtype, device="cuda")
    forward = aten._scaled_dot_product_flash_attention(x, x, x)
    return forward[6], forward[7]


def _decode(backend: SDPBackend) -> Any:
    def call(n: Any, o: Any, q: Any, k: Any, v: Any) -> Any:
        with sdpa_kernel(backend):  # the G heads of a group stand as G queries: the cache is read once
            return F.scaled_dot_product_attention(q, k, v)

    return call


def _flex(n: Any, o: Any, q: Any, k: Any, v: Any) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    key = (n.S, n.W, str(q.device))
    if key not in _masks:
        window = n.W

        def mask(b: Any, h: Any, i: Any, j: Any) -> Any:
            return (j <= i) & (i - j < window)

        # made once: it depends on sizes alone
        _masks[key] = (
            create_block_mask(mask, None, None, n.S, n.S, device=str(q.device)),
            torch.compile(flex_attention, dynamic=False),
        )
    block_mask, attention = _masks[key]
    return attention(q, k, v, block_mask=block_mask)


_masks: dict[Any, Any] = {}


def _masked(n: Any, o: Any, q: Any, k: Any, v: Any, kept: Any) -> Any:
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=kept)


def _latent(n: Any, o: Any, q: Any, c: Any) -> Any:
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):  # the heads stand as queries: one cache for all
        return F.scaled_dot_product_attention(q[:, None], c[:, None], c[:, None, :, : n.L])[:, 0]


# --------------------------------------------------------------------------------------------------------- feed-forward


def _swiglu(n: Any, o: Any, x: Any, gate: Any, up: Any, down: Any, kept: Any) -> Any:
    both = x @ kept.T
    h = F.silu(both[..., : n.F]).mul_(both[..., n.F :])
    return torch.mm(h, down.T, out=o["y"])


def _gelu(n: Any, o: Any, x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    return torch.addmm(b2, aten._addmm_activation(b1, x, w1.T, use_gelu=True), w2.T, out=o["y"])


def _route(n: Any, o: Any, logits: Any) -> Any:
    top, index = logits.topk(n.k, -1)
    return torch.softmax(top, -1, out=o["weight"]), index


def _moe(n: Any, o: Any, x: Any, weight: Any, index: Any, gate: Any, up: Any, down: Any) -> Any:
    """Tokens sorted by expert, three grouped products, tokens brought back; nothing waits for the host."""
    order = index.flatten().argsort(stable=True)
    ends = torch.searchsorted(index.flatten()[order], torch.arange(n.E, device=x.device), right=True).to(torch.int32)
    rows = x[order // n.k]
    h = F.silu(torch._grouped_mm(rows, gate.transpose(1, 2), offs=ends)) * torch._grouped_mm(rows, up.transpose(1, 2), offs=ends)
    y = torch._grouped_mm(h, down.transpose(1, 2), offs=ends)
    back = torch.empty_like(order)
    back[order] = torch.arange(order.numel(), device=x.device)
    return (y[back].view(n.T, n.k, n.D).float() * weight[..., None]).sum(1)


def _layer(n: Any, o: Any, x: Any, norm1: Any, norm2: Any, cos: Any, sin: Any, qkv: Any, out: Any, gate: Any, up: Any, down: Any,
           kept: Any) -> Any:  # fmt: skip
    d = 2 * n.H * n.E
    q, k, v = F.linear(F.rms_norm(x, (d,), norm1, EPS), qkv).view(n.B, n.S, 3, n.H, 2 * n.E).permute(2, 0, 3, 1, 4)
    q, k = (torch.cat((t[..., : n.E] * cos - t[..., n.E :] * sin, t[..., n.E :] * cos + t[..., : n.E] * sin), -1) for t in (q, k))
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(-1, d)
    mid = torch.addmm(x.view(-1, d), a, out.T)
    both = F.rms_norm(mid, (d,), norm2, EPS) @ kept.T
    return torch.addmm(mid, F.silu(both[:, : n.F]) * both[:, n.F :], down.T).view(x.shape)


# ------------------------------------------------------------------------------------------------------------ sequences


def _chunks(q: Any, k: Any, v: Any, log_decay: Any) -> Any:
    """(..., T, D) of each: within chunks all pairs, between them states. `log_decay` is (..., T), float32."""
    t = q.shape[-2]
    lacking = -t % CHUNK
    q, k, v = (F.pad(x, (0, 0, 0, lacking)).unflatten(-2, (-1, CHUNK)) for x in (q, k, v))
    total = F.pad(log_decay, (0, lacking)).unflatten(-1, (-1, CHUNK)).cumsum(-1)
    seen = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    within = (total[..., :, None] - total[..., None, :]).masked_fill(~seen, -math.inf).exp()
    inside = ((q @ k.mT) * within.to(q.dtype)) @ v
    end = total[..., -1]
    added = (k * (end[..., None] - total).exp()[..., None].to(k.dtype)).mT.float() @ v.float()
    # the state before chunk i: what earlier chunks j added, decayed by the chunks between
    sums = end.cumsum(-1)
    earlier = torch.ones(end.shape[-1], end.shape[-1], dtype=torch.bool, device=q.device).tril(-1)
    between = ((sums - end)[..., :, None] - sums[..., None, :]).masked_fill(~earlier, -math.inf).exp()
    states = (between @ added.flatten(-2)).view(added.shape)
    carried = (q.float() * total.exp()[..., None]) @ states
    return (inside + carried.to(q.dtype)).flatten(-3, -2)[..., :t, :]


def _linear_attention(n: Any, o: Any, q: Any, k: Any, v: Any, g: Any) -> Any:
    return _chunks(q, k, v, g.log()[None, :, None].expand(n.B, n.H, n.T))


def _dual(n: Any, o: Any, x: Any, a: Any, b: Any, c: Any) -> Any:
    heads = (n.N, n.H, n.T, n.S)
    return _chunks(c[:, None].expand(heads), b[:, None].expand(heads), x, a.log())


def _doubling(a: Any, b: Any, dim: int) -> Any:
    """h_t = a_t h_(t-1) + b_t by log2 T steps, each joining twice as many (Hillis and Steele, 1986)."""
    length, reach = a.shape[dim], 1
    while reach < length:
        kept, before = (length - reach, slice(None)), [slice(None)] * a.ndim
        before[dim] = slice(0, kept[0])
        after = [slice(None)] * a.ndim
        after[dim] = slice(reach, None)
        first_part = [slice(None)] * a.ndim
        first_part[dim] = slice(0, reach)
        b = torch.cat((b[tuple(first_part)], a[tuple(after)] * b[tuple(before)] + b[tuple(after)]), dim)
        a = torch.cat((a[tuple(first_part)], a[tuple(after)] * a[tuple(before)]), dim)
        reach *= 2
    return b


def _selective(n: Any, o: Any, x: Any, dt: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    step = dt.float()[:, :, None]
    h = _doubling(torch.exp(step * a[:, :, None]), step * b.float()[:, None] * x.float()[:, :, None], 3)
    return (h * c.float()[:, None]).sum(2) + d[:, None] * x


def _gated(n: Any, o: Any, a: Any, x: Any) -> Any:
    return _doubling(a, torch.sqrt(1 - a.square()) * x, 1)


def _flat_weights(n: Any, o: Any, x: Any, wx: Any, wh: Any, bx: Any, bh: Any) -> Any:
    """One buffer in cuDNN's order, as `flatten_parameters` makes it."""
    return torch.cat([w.reshape(-1) for w in (wx, wh, bx, bh)])


def _lstm(n: Any, o: Any, x: Any, wx: Any, wh: Any, bx: Any, bh: Any, kept: Any) -> Any:
    weights, at = [], 0
    for w in (wx, wh, bx, bh):
        weights.append(kept[at : at + w.numel()].view(w.shape))
        at += w.numel()
    zero = x.new_zeros(1, n.B, n.H)
    return torch.lstm(x, (zero, zero), weights, True, 1, 0.0, False, False, False)[0]


def _long_convolution(n: Any, o: Any, x: Any, f: Any) -> Any:
    size = 1 << (2 * n.T - 1).bit_length()  # powers of two are what transforms are fastest at
    return torch.fft.irfft(torch.fft.rfft(x, size) * torch.fft.rfft(f, size), size)[..., : n.T]


# ------------------------------------------------------------------------------------------------------------ linears


def _int4_packed(n: Any, o: Any, x: Any, q: Any, s: Any) -> Any:
    scales = torch.stack((s, torch.zeros_like(s)), -1).transpose(0, 1).contiguous()  # (K / 32, N, 2): scale, and what is added
    if q.is_cuda:
        return aten._convert_weight_to_int4pack(q.view(torch.uint8), 8), scales
    byte = q.view(torch.uint8)
    nibbles = torch.stack((byte >> 4, byte & 15), -1).view(n.N, n.K).int()
    return aten._convert_weight_to_int4pack_for_cpu(nibbles, 1), scales


def _int4(n: Any, o: Any, x: Any, q: Any, s: Any, kept: Any) -> Any:
    product = aten._weight_int4pack_mm if q.is_cuda else aten._weight_int4pack_mm_for_cpu
    return product(x, kept[0], 32, kept[1])


def _lora(n: Any, o: Any, x: Any, w: Any, a: Any, b: Any) -> Any:
    y = torch.mm(x, w.T, out=o["y"])
    return y.addmm_(x @ a.T, b.T, alpha=2)


def _folded(n: Any, o: Any, x: Any, g: Any, w: Any, kept: Any) -> Any:
    rstd = torch.rsqrt(x.float().square().mean(1, keepdim=True) + EPS)
    return torch.mm(x, kept.T, out=o["y"]).mul_(rstd.to(x.dtype))


# ------------------------------------------------------------------------------------------------------------ training


def _cross_entropy(n: Any, o: Any, x: Any, target: Any) -> Any:
    return F.nll_loss(torch.log_softmax(x, -1, dtype=torch.float32), target, reduction="none")


def _cross_entropy_backward(n: Any, o: Any, x: Any, target: Any, g: Any) -> Any:
    y = torch.softmax(x, -1, dtype=torch.float32).scatter_add_(1, target[:, None], x.new_full((n.T, 1), -1, dtype=torch.float32))
    return torch.mul(y, g[:, None], out=o["dx"])


def _linear_cross_entropy(n: Any, o: Any, h: Any, w: Any, target: Any) -> Any:
    """Logits of 1,024 tokens at a time: the whole of them is never in memory."""
    rows = zip(h.split(1024), target.split(1024), strict=True)
    return torch.cat([F.cross_entropy(F.linear(part, w).float(), t, reduction="none") for part, t in rows])


def _adam_state(n: Any, o: Any, p: Any, g: Any, m: Any, v: Any) -> Any:
    """The operation works in place: it gets copies, in the outputs."""
    for name, x in (("p_new", p), ("m_new", m), ("v_new", v)):
        o[name].copy_(x)
    return torch.tensor(float(STEP), device=p.device)


def _adamw(n: Any, o: Any, p: Any, g: Any, m: Any, v: Any, kept: Any) -> Any:
    mine = (o["p_new"], o["m_new"], o["v_new"])
    torch._fused_adamw_(
        [mine[0]], [g], [mine[1]], [mine[2]], [], [kept], lr=RATE, beta1=BETA1, beta2=BETA2, weight_decay=DECAY, eps=ADAM_EPS,
        amsgrad=False, maximize=False,
    )  # fmt: skip
    return mine


def _clip(n: Any, o: Any, g: Any) -> Any:
    norm = torch.linalg.vector_norm(g, dtype=torch.float32)
    return torch.mul(g, (CLIP / (norm + 1e-6)).clamp_(max=1.0).to(g.dtype), out=o["clipped"])


def _newton_schulz(n: Any, o: Any, g: Any) -> Any:
    x = g / (torch.linalg.vector_norm(g, dtype=torch.float32) + 1e-7).to(g.dtype)
    for _ in range(5):  # sums ride along in the products
        a = x @ x.mT
        x = torch.addmm(x, torch.addmm(a, a, a, beta=-4.775, alpha=2.0315), x, beta=3.4445)
    return x


def _bottleneck(n: Any, o: Any, x: Any, w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, b3: Any) -> Any:
    if not x.is_cuda:
        h = F.relu_(F.conv2d(first(x), w1[..., None, None], b1))
        h = F.relu_(F.conv2d(h, first(w2), b2, padding=1))
        return last(F.conv2d(h, w3[..., None, None], b3).add_(first(x)).relu_())
    plain, one = ([1, 1], [0, 0], [1, 1], 1), torch.channels_last
    with autotuned():
        h = aten.cudnn_convolution_relu(first(x), w1[..., None, None].contiguous(memory_format=one), b1, *plain)
        h = aten.cudnn_convolution_relu(h, first(w2), b2, [1, 1], [1, 1], [1, 1], 1)
        return last(aten.cudnn_convolution_add_relu(h, w3[..., None, None].contiguous(memory_format=one), first(x), 1.0, b3, *plain))


FLASH = "FlashAttention through SDPA, pinned; PyTorch's own for CPUs there"
CHUNKED = f"chunks of {CHUNK} tokens over cuBLAS, through torch.compile"
DOUBLING = "a parallel scan of log2 T steps, through torch.compile"
CUDNN_ATTENTION = "cuDNN's attention through SDPA, pinned"
NO_CUDNN = "cuDNN is for GPUs"
NO_EFFICIENT = "PyTorch has the memory-efficient kernel for GPUs only"

MODULES: dict[str, tuple[ExpertRival, ...]] = {
    "attention": (
        ExpertRival("flash", FLASH, _attention(SDPBackend.FLASH_ATTENTION, False)),
        ExpertRival("cudnn", CUDNN_ATTENTION, _attention(SDPBackend.CUDNN_ATTENTION, False), cuda_only=NO_CUDNN),
    ),
    "attention-causal": (
        ExpertRival("flash", FLASH, _attention(SDPBackend.FLASH_ATTENTION, True)),
        ExpertRival("cudnn", CUDNN_ATTENTION, _attention(SDPBackend.CUDNN_ATTENTION, True), cuda_only=NO_CUDNN),
    ),
    "attention-backward": (ExpertRival("flash", "FlashAttention's backward kernel", _attention_backward(False)),),
    "attention-causal-backward": (
        ExpertRival("flash", "FlashAttention's backward kernel", _attention_backward(True)),
    ),
    "attention-decode": (
        ExpertRival("flash", f"{FLASH}; the heads of a group as queries", _decode(SDPBackend.FLASH_ATTENTION)),
        ExpertRival("cudnn", CUDNN_ATTENTION, _decode(SDPBackend.CUDNN_ATTENTION), cuda_only=NO_CUDNN),
    ),
    "attention-sliding-window": (
        ExpertRival("flex", "FlexAttention with a block mask: Triton", _flex, cuda_only="it is a Triton template"),
        ExpertRival(
            "efficient", "the memory-efficient kernel through SDPA, with the mask", _masked,
            prepare=lambda n, o, q, k, v: q.new_zeros(n.S, n.S).masked_fill_(~visible(n.S, n.S, q.device, n.W), -math.inf),
            cuda_only=NO_EFFICIENT,
        ),
    ),
    "attention-latent-decode": (
        ExpertRival("efficient", "the memory-efficient kernel through SDPA, the heads as queries", _latent, cuda_only=NO_EFFICIENT),
        ExpertRival("inductor", "the formula through torch.compile", lambda n, o, q, c: torch.softmax(
            q @ c.mT * (n.L + n.R) ** -0.5, -1) @ c[..., : n.L], compiled=True),
    ),
    "mlp-swiglu": (
        ExpertRival("cublas", "cuBLAS, gate and up in one product", _swiglu,
                    prepare=lambda n, o, x, gate, up, down: torch.cat((gate, up))),
    ),
    "mlp-gelu": (ExpertRival("cublaslt", "cuBLASLt, bias and gelu in the product's epilogue (_addmm_activation)", _gelu),),
    "moe-route": (ExpertRival("aten", f"{ATEN}s, topk and softmax", _route),),
    "moe": (ExpertRival("grouped", "tokens sorted by expert, CUTLASS through torch._grouped_mm", _moe),),
    "decoder-layer": (
        ExpertRival("flash", "FlashAttention and cuBLAS, residuals in the products, gate and up in one", _layer,
                    prepare=lambda n, o, gate, up, **others: torch.cat((gate, up))),
        ExpertRival("inductor", "the same through torch.compile", _layer, prepare=lambda n, o, gate, up, **others: torch.cat((gate, up)),
                    compiled=True, cuda_only="compiling for it is what the rival `compile` does"),
    ),
    "linear-attention": (ExpertRival("chunked", CHUNKED, _linear_attention, compiled=True),),
    "state-space-dual": (ExpertRival("chunked", CHUNKED, _dual, compiled=True),),
    "state-space-scan": (ExpertRival("doubling", DOUBLING, _selective, compiled=True),),
    "gated-recurrence": (ExpertRival("doubling", DOUBLING, _gated, compiled=True),),
    "lstm": (ExpertRival("cudnn", "cuDNN's recurrent layers through torch.lstm, weights in one buffer", _lstm, prepare=_flat_weights),),
    "long-convolution": (ExpertRival("cufft", "cuFFT, transforms padded to a power of two", _long_convolution),),
    "linear-int8": (
        ExpertRival("cublas", "cuBLAS, weights brought to the inputs' type before, scaled after",
                    lambda n, o, x, q, s, kept: torch.mm(x, kept.T, out=o["y"]).mul_(s), prepare=lambda n, o, x, q, s: q.to(x.dtype)),
        ExpertRival("int8pack", "PyTorch's _weight_int8pack_mm; on a GPU without tensor cores",
                    lambda n, o, x, q, s: torch._weight_int8pack_mm(x, q, s)),
    ),
    "linear-int4": (ExpertRival("int4pack", "PyTorch's _weight_int4pack_mm, weights packed before", _int4, prepare=_int4_packed),),
    "linear-sparse": (
        ExpertRival(
            "cusparselt", "cuSPARSELt through torch._cslt_sparse_mm, weights compressed before",
            lambda n, o, x, w, kept: torch._cslt_sparse_mm(kept, x.T, transpose_result=True),
            prepare=lambda n, o, x, w: torch._cslt_compress(w), cuda_only="cuSPARSELt is for GPUs",
        ),
        ExpertRival("cublas", "the dense product, torch.mm into the output", lambda n, o, x, w: torch.mm(x, w.T, out=o["y"])),
    ),
    "linear-lora": (ExpertRival("cublas", "cuBLAS, the adapter added in its product", _lora),),
    "norm-linear": (
        ExpertRival("cublas", "cuBLAS, the norm's weight folded into w before, rows scaled after", _folded,
                    prepare=lambda n, o, x, g, w: w * g),
    ),
    "cross-entropy": (ExpertRival("aten", f"{ATEN}s, log_softmax to float32 and nll_loss", _cross_entropy),),
    "cross-entropy-backward": (ExpertRival("aten", f"{ATEN}s, softmax to float32 and scatter_add_", _cross_entropy_backward),),
    "linear-cross-entropy": (ExpertRival("chunked", "1,024 tokens' logits at a time", _linear_cross_entropy),),
    "adamw": (ExpertRival("fused", "PyTorch's fused AdamW", _adamw, prepare=_adam_state),),
    "gradient-clip": (ExpertRival("aten", f"{ATEN}s, vector_norm and mul", _clip),),
    "newton-schulz": (ExpertRival("cublas", "cuBLAS, sums in the products", _newton_schulz),),
    "batchnorm-training": (
        ExpertRival("cudnn", "cuDNN's batch normalisation through F.batch_norm",
                    lambda n, o, x, w, b: BatchNorm().eager_form(n, x, w, b)),
    ),
    "residual-bottleneck": (ExpertRival("cudnn", "cuDNN, bias, residual and relu fused; oneDNN on a CPU", _bottleneck),),
}  # fmt: skip
