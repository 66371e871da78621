"""What a program of torch.compile calls: our function itself, with the buffer that inductor allocated, as it calls torch.mm.

    kernelwright_extern_kernels.linear_bias_gelu(x, weight, bias, out=buf0)

Through the operator such a call would cost PyTorch's dispatcher and two trampolines into Python. The program imports this module by itself
(one that a cache on disk holds is loaded without any lowering), so the names here and in MODULE are kept. Imported where inductor is in
use and nowhere else; torch._inductor takes seconds to import and is private: where it is not as expected, the operators serve.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelwright.runtime import ops

MODULE = "kernelwright_extern_kernels"
"""In a compiled program. `extern_kernels` in a name tells inductor's scheduler of communication that this is a product."""

_torchs: Callable[..., Tensor] = torch._C._nn.linear  # pyright: ignore[reportAttributeAccessIssue]: torch.nn.functional's, with `out`

_IN_PLACE: dict[str, Callable[[Tensor], object]] = {
    "gelu": torch._C._nn.gelu_,  # pyright: ignore[reportAttributeAccessIssue]: compiled, without stubs
    "gelu-tanh": lambda x: torch._C._nn.gelu_(x, approximate="tanh"),  # pyright: ignore[reportAttributeAccessIssue]
    "silu": torch._C._nn.silu_,  # pyright: ignore[reportAttributeAccessIssue]
}


# --------------------------------------------------------------------------------------------------- at run time


def matmul(a: Tensor, b: Tensor, *, out: Tensor) -> None:
    """a @ b."""
    done = None if ops.serve is ops.nobody else ops.fast(ops.numbers["", False], a, b, None, out, False)
    if done is out:
        return
    if done is None:
        a, b = ops.bare(a), ops.bare(b)
        if _serve(a, b, None, out, ""):
            return
    torch.mm(a, b, out=out)


def _linear(activation: str, biased: bool) -> Callable[..., None]:
    key, epilogue = (activation, biased), ops.epilogue_of(activation, biased)

    def run(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, out: Tensor) -> None:
        done = None if ops.serve is ops.nobody else ops.fast(ops.numbers[key], x, weight, bias, out, True)
        if done is out:
            return
        if done is None:
            x, weight, bias = ops.bare(x), ops.bare(weight), None if bias is None else ops.bare(bias)
            if _serve(x, weight.t(), bias, out, epilogue):
                return
        _torchs(x, weight, bias, out=out)  # it turns the weight in C++, which takes half the time of `weight.t()`
        if activation:
            _IN_PLACE[activation](out)

    return run


def _serve(a: Tensor, b: Tensor, bias: Tensor | None, out: Tensor, epilogue: str) -> bool:
    """Whether a kernel of ours wrote `out`, as `ops.linear` asks for it."""
    if ops.serve is ops.nobody or not ops.pair(a, b) or (bias is not None and not ops.vector(bias, b)):
        return False
    return ops.serve(a, b, out, epilogue, bias)


def name(activation: str, biased: bool) -> str:
    return "_".join(("linear", *ops.epilogue_of(activation, biased).replace("-", "_").split("+"))).rstrip("_")


for _activation in ops.ACTIVATIONS:
    for _biased in (False, True):
        globals()[name(_activation, _biased)] = _linear(_activation, _biased)


# --------------------------------------------------------------------------------------------------- at compile time


def register() -> None:
    """Tells inductor of the above. Raises ImportError, AttributeError or TypeError where its private interface is another."""
    from torch._inductor import ir, lowering
    from torch._inductor.select_algorithm import realize_inputs
    from torch._inductor.virtualized import V

    class Product(ir.ExternKernelOut):
        def codegen(self, wrapper: Any) -> None:
            wrapper.add_import_once(f"from kernelwright.runtime import inductor as {MODULE}")
            super().codegen(wrapper)

    def product(function: str, size: list[Any], *tensors: Any) -> Any:
        layout = ir.FixedLayout(tensors[0].get_device(), tensors[0].get_dtype(), size)
        inputs = [realize_inputs(t) for t in tensors]
        return ir.TensorBox.create(Product(layout=layout, inputs=inputs, python_kernel_name=f"{MODULE}.{function}"))

    def ours(*tensors: Any) -> bool:
        """Programs in C++, or in FX, can call operators alone; so are other dtypes, mixed ones too, the operator's."""
        if V.graph.cpp_wrapper or getattr(V.graph, "fx_wrapper", False) or tensors[0].get_dtype() not in ops.HALF:
            return False
        return len({(t.get_dtype(), t.get_device()) for t in tensors}) == 1

    def lower(op: Any, directly: Callable[..., Any]) -> None:
        operator = lowering.fallback_handler(op, add_to_fallback_set=False)

        def either(*arguments: Any) -> Any:
            with contextlib.suppress(AttributeError, TypeError):  # another inductor
                if (made := directly(*arguments)) is not None:
                    return made
            return operator(*arguments)

        lowering.register_lowering(op, type_promotion_kind=None)(either)

    def matmul(a: Any, b: Any) -> Any:
        return product("matmul", [a.get_size()[0], b.get_size()[1]], a, b) if ours(a, b) else None

    def linear(x: Any, weight: Any, bias: Any, activation: str) -> Any:
        tensors = (weight,) if bias is None else (weight, bias)
        *stack, inner = x.get_size()
        if not ours(x, *tensors) or len(weight.get_size()) != 2:
            return None
        outer, rows = weight.get_size()[0], math.prod(stack)
        flat: list[Any] = [rows, inner]
        y = product(name(activation, bias is not None), [rows, outer], x if len(stack) == 1 else lowering.view(x, flat), *tensors)
        return y if len(stack) == 1 else lowering.view(y, [*stack, outer])

    lower(torch.ops.kernelwright.matmul.default, matmul)
    lower(torch.ops.kernelwright.linear.default, linear)
