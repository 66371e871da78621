"""Experts for the single kernels: cuBLAS, cuBLASLt, cuDNN, CUB, cuFFT and PyTorch's own, without an allocation where they allow it."""

# pyright: reportPrivateImportUsage=false
# (torch._scaled_mm and its like are how PyTorch offers these libraries' products)

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F

from kernelwright.problems.experts.convolution import first, gradients, last
from kernelwright.problems.experts.normalisation import EPS
from kernelwright.rivals.experts.expert_rival import ExpertRival

aten = torch.ops.aten


@contextmanager
def tf32() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def autotuned() -> Any:
    """cuDNN tries its algorithms on the first call of a shape."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=False)


def _gemm_tf32(n: Any, o: Any, a: Any, b: Any) -> Any:
    with tf32():
        return torch.mm(a, b.T, out=o["c"])


def _gemm_fp8(n: Any, o: Any, a: Any, b: Any, sa: Any, sb: Any) -> Any:
    return torch._scaled_mm(a, b.T, scale_a=sa[:, None], scale_b=sb[None, :], out_dtype=torch.bfloat16, out=o["c"])


def _gemm_fp8_fast(n: Any, o: Any, a: Any, b: Any, sa: Any, sb: Any) -> Any:
    """Sums in the tensor cores' own precision throughout."""
    return torch._scaled_mm(a, b.T, scale_a=sa[:, None], scale_b=sb[None, :], out_dtype=torch.bfloat16, use_fast_accum=True, out=o["c"])


def _conv(n: Any, o: Any, x: Any, w: Any) -> Any:
    with autotuned():
        return last(F.conv2d(first(x), first(w), stride=n.S, padding=n.R // 2))


def _conv_dw(n: Any, o: Any, x: Any, dy: Any) -> Any:
    with autotuned():
        return last(gradients(n, first(dy), first(x), first(o["dw"]), [False, True, False])[1])


def _conv_dx(n: Any, o: Any, dy: Any, w: Any) -> Any:
    with autotuned():
        return last(gradients(n, first(dy), first(o["dx"]), first(w), [True, False, False])[0])


def _conv_depthwise(n: Any, o: Any, x: Any, w: Any) -> Any:
    with autotuned():
        return last(F.conv2d(first(x), w[:, None], padding=n.R // 2, groups=n.C))


def _conv_causal(n: Any, o: Any, x: Any, w: Any, bias: Any) -> Any:
    return F.silu(F.conv1d(x, w[:, None], bias, padding=n.W - 1, groups=n.C)[..., : n.T])


def _conv_causal_taps(n: Any, o: Any, x: Any, w: Any, bias: Any) -> Any:
    p = F.pad(x.float(), (n.W - 1, 0))
    z = sum(p[..., j : j + n.T] * w[:, j, None] for j in range(n.W)) + bias[:, None]
    return F.silu(z).to(x.dtype)


def _argmax(n: Any, o: Any, x: Any) -> Any:
    torch.max(x, -1, out=(o["value"], o["index"]))
    return o["value"], o["index"]


def _moments(n: Any, o: Any, x: Any) -> Any:
    variance, mean = torch.var_mean(x, -1, correction=0)
    return mean, variance


def _cummax(n: Any, o: Any, x: Any) -> Any:
    return torch.cummax(x, -1).values


def _sort(n: Any, o: Any, x: Any) -> Any:
    torch.sort(x, -1, out=(o["y"], o["order"]))
    return o["y"], o["order"]


def _topk(n: Any, o: Any, x: Any) -> Any:
    torch.topk(x, n.k, -1, out=(o["values"], o["index"]))
    return o["values"], o["index"]


def _rms_norm_backward(n: Any, o: Any, dy: Any, x: Any, w: Any, rstd: Any) -> Any:
    return aten._fused_rms_norm_backward(dy, x, [n.cols], rstd[:, None], w, [True, True])


def _layer_norm_backward(n: Any, o: Any, dy: Any, x: Any, w: Any, mean: Any, rstd: Any) -> Any:
    return aten.native_layer_norm_backward(dy, x, [n.cols], mean[:, None], rstd[:, None], w, w, [True, True, True])


def _rotary(n: Any, o: Any, x: Any, cos: Any, sin: Any) -> Any:
    left, right = x.float().chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    y = o["y"]
    y[..., : n.D // 2] = left * cos - right * sin
    y[..., n.D // 2 :] = right * cos + left * sin
    return y


# without out=: with it PyTorch's transforms on a GPU write a result of their own and multiply that into the output, one more pass


def _fft(n: Any, o: Any, x: Any) -> Any:
    return torch.view_as_real(torch.fft.fft(torch.view_as_complex(x)))


def _rfft(n: Any, o: Any, x: Any) -> Any:
    return torch.view_as_real(torch.fft.rfft(x))


def _irfft(n: Any, o: Any, x: Any) -> Any:
    return torch.fft.irfft(torch.view_as_complex(x), n.N)


def _fft2(n: Any, o: Any, x: Any) -> Any:
    return torch.view_as_real(torch.fft.fft2(torch.view_as_complex(x)))


def _fft3(n: Any, o: Any, x: Any) -> Any:
    return torch.view_as_real(torch.fft.fftn(torch.view_as_complex(x), dim=(1, 2, 3)))


def _cgemm(n: Any, o: Any, a: Any, b: Any) -> Any:
    torch.mm(torch.view_as_complex(a), torch.view_as_complex(b), out=torch.view_as_complex(o["c"]))
    return o["c"]


CUDNN = "cuDNN, its fastest algorithm for the shape (benchmark mode), channels last; oneDNN on a CPU"
ATEN = "PyTorch's own kernel"
HALF_STATISTICS = "PyTorch's CPU kernel takes float32 statistics with float32 inputs only"

KERNELS: dict[str, tuple[ExpertRival, ...]] = {
    "gemm-tf32": (ExpertRival("cublas", "cuBLAS through torch.mm, TF32 allowed; float32 on a CPU", _gemm_tf32),),
    "gemm-fp8": (
        ExpertRival("cublaslt", "torch._scaled_mm with scales by row, partial sums in float32", _gemm_fp8),
        ExpertRival("cublaslt-fast", "the same with use_fast_accum", _gemm_fp8_fast, cuda_only="it is the tensor cores' fast accumulation"),
    ),
    "gemm-int8": (ExpertRival("cublaslt", "torch._int_mm", lambda n, o, a, b: torch._int_mm(a, b.T, out=o["c"])),),
    "gemm-batched": (ExpertRival("cublas", "torch.bmm into the output", lambda n, o, a, b: torch.bmm(a, b, out=o["c"])),),
    "gemm-grouped": (
        ExpertRival(
            "grouped", "CUTLASS through torch._grouped_mm", lambda n, o, a, b, ends: torch._grouped_mm(a, b.transpose(1, 2), offs=ends)
        ),
    ),
    "gemm-complex": (ExpertRival("cublas", "cuBLAS's complex product through torch.mm; MKL on a CPU", _cgemm),),
    "matrix-vector": (ExpertRival("cublas", "torch.mv into the output", lambda n, o, a, x: torch.mv(a, x, out=o["y"])),),
    "conv2d": (ExpertRival("cudnn", CUDNN, _conv),),
    "conv2d-weight-gradient": (ExpertRival("cudnn", CUDNN, _conv_dw),),
    "conv2d-input-gradient": (ExpertRival("cudnn", CUDNN, _conv_dx),),
    "conv-depthwise": (ExpertRival("cudnn", CUDNN, _conv_depthwise),),
    "conv1d-causal": (
        ExpertRival("aten", f"{ATEN}s, conv1d by channels and silu", _conv_causal),
        ExpertRival("inductor", "Triton through torch.compile", _conv_causal_taps, compiled=True,
                    cuda_only="compiling for it is what the rival `compile` does"),
    ),
    "row-sum": (ExpertRival("aten", f"{ATEN}, torch.sum", lambda n, o, x: torch.sum(x, -1, out=o["y"])),),
    "sum-all": (ExpertRival("aten", f"{ATEN}, torch.sum", lambda n, o, x: torch.sum(x, 0, keepdim=True, out=o["y"])),),
    "argmax": (ExpertRival("aten", f"{ATEN}, torch.max", _argmax),),
    "moments": (ExpertRival("aten", f"{ATEN}, torch.var_mean", _moments),),
    "logsumexp": (ExpertRival("aten", f"{ATEN}, torch.logsumexp", lambda n, o, x: torch.logsumexp(x, -1, out=o["y"])),),
    "scan": (ExpertRival("cub", "torch.cumsum: CUB for one row, PyTorch's own for many", lambda n, o, x: torch.cumsum(x, -1, out=o["y"])),),
    "running-maximum": (ExpertRival("aten", f"{ATEN}, torch.cummax", _cummax),),
    "histogram": (ExpertRival("aten", f"{ATEN}, torch.histc", lambda n, o, x: torch.histc(x, n.bins, 0, n.bins)),),
    "sort": (ExpertRival("cub", "CUB's radix sort through torch.sort", _sort),),
    "sort-stable": (ExpertRival("cub", "CUB's radix sort through torch.sort", lambda n, o, x: torch.argsort(x, dim=-1, stable=True)),),
    "top-k": (ExpertRival("cub", "torch.topk: PyTorch's radix select, sorted by CUB", _topk),),
    "transpose": (ExpertRival("aten", f"{ATEN}, copy_", lambda n, o, x: o["y"].copy_(x.T)),),
    "permute": (ExpertRival("aten", f"{ATEN}, copy_", lambda n, o, x: o["y"].copy_(x.transpose(1, 2))),),
    "gather": (ExpertRival("aten", f"{ATEN}, index_select", lambda n, o, table, index: torch.index_select(table, 0, index, out=o["y"])),),
    "scatter": (ExpertRival("aten", f"{ATEN}, index_copy_", lambda n, o, x, index: o["y"].index_copy_(0, index, x)),),
    "index-add": (
        ExpertRival("aten", f"{ATEN}, index_add", lambda n, o, base, x, index: torch.index_add(base, 0, index, x, out=o["y"])),
    ),
    "softmax": (ExpertRival("aten", f"{ATEN}, softmax", lambda n, o, x: torch.softmax(x, -1, out=o["y"])),),
    "softmax-backward": (
        ExpertRival(
            "aten",
            f"{ATEN}, _softmax_backward_data",
            lambda n, o, y, dy: aten._softmax_backward_data.out(dy, y, -1, y.dtype, grad_input=o["dx"]),
        ),
    ),
    "rmsnorm": (ExpertRival("aten", f"{ATEN}, _fused_rms_norm", lambda n, o, x, w: F.rms_norm(x, (n.cols,), w, EPS)),),
    "rmsnorm-backward": (
        ExpertRival("aten", f"{ATEN}, _fused_rms_norm_backward", _rms_norm_backward, cuda_only="PyTorch has it for GPUs only"),
    ),
    "layernorm": (ExpertRival("aten", f"{ATEN}, native_layer_norm", lambda n, o, x, w, b: F.layer_norm(x, (n.cols,), w, b, EPS)),),
    "layernorm-backward": (
        ExpertRival("aten", f"{ATEN}, native_layer_norm_backward", _layer_norm_backward, cuda_only=HALF_STATISTICS),
    ),
    "groupnorm": (ExpertRival("aten", f"{ATEN}, native_group_norm", lambda n, o, x, w, b: F.group_norm(x, n.G, w, b, EPS)),),
    "rotary": (
        ExpertRival("aten", f"{ATEN}s, halves written into the output", _rotary),
        ExpertRival("inductor", "Triton through torch.compile, halves written into the output", _rotary, compiled=True,
                    cuda_only="compiling for it is what the rival `compile` does"),
    ),
    "fft": (ExpertRival("cufft", "cuFFT through torch.fft.fft; MKL or pocketfft on a CPU", _fft),),
    "fft-real": (ExpertRival("cufft", "cuFFT through torch.fft.rfft; MKL or pocketfft on a CPU", _rfft),),
    "fft-real-inverse": (ExpertRival("cufft", "cuFFT through torch.fft.irfft; MKL or pocketfft on a CPU", _irfft),),
    "fft-2d": (ExpertRival("cufft", "cuFFT through torch.fft.fft2; MKL or pocketfft on a CPU", _fft2),),
    "fft-3d": (ExpertRival("cufft", "cuFFT through torch.fft.fftn; MKL or pocketfft on a CPU", _fft3),),
}  # fmt: skip
