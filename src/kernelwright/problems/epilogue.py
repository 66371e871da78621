"""What `linear` does to its product, as a text: steps joined by `+`, applied from left to right.

    [alpha=NUMBER] [beta=NUMBER] [bias] [residual] [gelu | gelu-tanh | silu] [residual]

alpha      the product times NUMBER
beta       plus NUMBER times `addend`, an M x N matrix (BLAS's C; here an input of its own, not the memory of the result)
bias       plus `bias`, a vector of N, to every row
residual   plus `addend`: before the activation or after it, as written; `beta` and `residual` exclude each other
gelu       x Phi(x), `torch.nn.functional.gelu`; gelu-tanh is its approximate="tanh"; silu is x / (1 + e^-x)
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

ACTIVATIONS = ("gelu", "gelu-tanh", "silu")
STEPS = ("alpha=NUMBER", "beta=NUMBER", "bias", "residual", *ACTIVATIONS)
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?", re.ASCII)


@dataclass(frozen=True)
class Epilogue:
    """x = alpha (A B); x += beta addend if `added` is "before"; x += bias; x = activation(x); x += addend if `added` is "after"."""

    alpha: float = 1.0
    beta: float | None = None
    """Factor of the addend where it is written as `beta`."""
    bias: bool = False
    added: Literal["", "before", "after"] = ""
    """Whether there is an addend, and on which side of the activation."""
    activation: str = ""
    """Empty, or one of ACTIVATIONS."""

    @property
    def factor(self) -> float:
        """Of the addend."""
        return 1.0 if self.beta is None else self.beta

    @property
    def text(self) -> str:
        """The text that `parse` takes: one for each Epilogue."""
        steps = [f"alpha={_number(self.alpha)}"] if self.alpha != 1.0 else []
        steps += [f"beta={_number(self.beta)}"] if self.beta is not None else []
        steps += ["bias"] if self.bias else []
        steps += ["residual"] if self.added == "before" and self.beta is None else []
        steps += [self.activation] if self.activation else []
        steps += ["residual"] if self.added == "after" else []
        return "+".join(steps)


@lru_cache(maxsize=256)
def parse(text: str) -> Epilogue:
    """Raises ValueError with one sentence that says what to write."""
    alpha, beta, bias = 1.0, None, False
    added: Literal["", "before", "after"] = ""
    activation = ""
    place = 0  # steps stand in the order of the formula
    for step in text.split("+"):
        name, _, number = step.partition("=")
        if name in ("alpha", "beta"):
            value = _parse_number(name, number)
        elif step not in STEPS:
            raise ValueError(f"{step!r} is no step of an epilogue; use {', '.join(STEPS)}, joined by +")
        else:
            value = 1.0
        if name == "residual" and added:
            raise ValueError("beta and residual add the same matrix, which an epilogue can do once; leave one of them out")
        rank = {"alpha": 1, "beta": 2, "bias": 3, "residual": 6 if activation else 4}.get(name, 5)
        if rank <= place:
            order = "alpha, beta, bias, residual, activation, residual"
            raise ValueError(f"{step!r} comes too late in {text!r}; write each step once, in the order {order}")
        place = rank
        match name:
            case "alpha":
                alpha = value
            case "beta":
                beta, added = value, "before"
            case "bias":
                bias = True
            case "residual":
                added = "after" if activation else "before"
            case _:
                activation = name
    return Epilogue(alpha=alpha, beta=beta, bias=bias, added=added, activation=activation)


def _parse_number(name: str, text: str) -> float:
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    # the kernel computes with it in fp32, where it must neither vanish nor overflow
    if not 2.0**-126 <= abs(value) < 2.0**127:
        raise ValueError(f"{name}={text} is no factor; write a decimal number other than 0, as in {name}=0.5")
    if name == "alpha" and value == 1:
        raise ValueError("alpha=1 changes nothing; leave it out")
    return value


def _number(value: float) -> str:
    return repr(value).removesuffix(".0").replace("e+", "e")
