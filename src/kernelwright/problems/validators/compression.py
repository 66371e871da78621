"""A format for error-bounded compression, with the judge's own decoder: bound, ratio and round trip come from the bytes.

The values, in memory order, are cut into blocks of 64, the last one filled up with anything. A value is stored as an integer q and stands
for 2 * bound * q. A stream is

    one byte a block:  predictor << 6 | width          width 0 to 32
    then, block after block, 64 numbers of `width` bits, the least significant bit of the first number first: 8 * width bytes
    (predictors 1 to 3: four bytes before them, the block's first q as a little-endian int32)

A number n of `width` bits is a residual in zigzag code: r = (n >> 1) ^ -(n & 1). With a block's first q as `base`:

    0   q_i = r_i
    1   q_i = base + r_i
    2   q_i = q_(i-1) + r_i,  q_(-1) = base
    3   d_i = d_(i-1) + r_i, d_(-1) = 0;  q_i = q_(i-1) + d_i,  q_(-1) = base
"""

from __future__ import annotations

import torch

from kernelwright.problems.validators import Finding, Tensors, right, wrong

BLOCK = 64
WIDEST = 32
ROUNDING = 2.0**-20
"""By which an error may pass the bound, relative to it: a quotient computed in float32 lies that near a half."""
SHARE = 0.97
"""Of the plain coder's ratio, which an answer that is scored by its speed must reach."""


def capacity(count: int) -> int:
    """int32 words that the longest stream of so many values takes."""
    blocks = -(-count // BLOCK)
    return -(-blocks * (1 + 4 + 8 * WIDEST) // 4)


def decode(stream: torch.Tensor, length: int, count: int) -> torch.Tensor | str:
    """The integers q of the first `length` bytes of an int32 stream, int64 (count); or why they are none. Bytes beyond are not looked
    at."""
    blocks = -(-count // BLOCK)
    if not blocks <= length <= 4 * stream.numel():
        return f"a length of {length} bytes; {blocks} are needed for the headers, and {4 * stream.numel()} are there"
    data = stream.contiguous().view(torch.uint8)[:length].long()
    predictor, width = data[:blocks] >> 6, data[:blocks] & 63
    if bool((width > WIDEST).any()):
        return f"block {int((width > WIDEST).nonzero()[0])} has numbers of {int(width.max())} bits; at most {WIDEST} are there"
    sizes = 8 * width + 4 * (predictor > 0)
    starts = blocks + sizes.cumsum(0) - sizes
    if (needed := blocks + int(sizes.sum())) != length:
        return f"a length of {length} bytes; the headers say {needed}"
    data = torch.cat([data, data.new_zeros(9)])  # a number's bits are gathered from five bytes, whichever it has
    base = sum((data[(starts + i).clamp_max(length)] << (8 * i) for i in range(4)), torch.zeros_like(starts))
    base = torch.where(predictor > 0, (base ^ 2**31) - 2**31, 0)
    bit = torch.arange(BLOCK, device=stream.device) * width[:, None]
    at = (starts + 4 * (predictor > 0))[:, None] + bit // 8
    raw = sum((data[(at + i).clamp_max(length + 8)] << (8 * i) for i in range(5)), torch.zeros_like(at))
    number = (raw >> (bit % 8)) & ((1 << width[:, None]) - 1)
    residual = (number >> 1) ^ -(number & 1)
    kind = predictor[:, None]
    once = residual.cumsum(1)
    q = torch.where(kind == 0, residual, base[:, None] + torch.where(kind == 1, residual, torch.where(kind == 2, once, once.cumsum(1))))
    return q.flatten()[:count]


def zigzag(r: torch.Tensor) -> torch.Tensor:
    return (r << 1) ^ (r >> 63)


def residuals(q: torch.Tensor) -> torch.Tensor:
    """Zigzag codes (4, blocks, 64) of integers under each predictor; the last block is filled up with its last value."""
    full = torch.cat([q, q[-1:].expand(-len(q) % BLOCK)]).view(-1, BLOCK)
    base = full[:, :1]
    delta = full - torch.cat([base, full[:, :-1]], 1)
    second = delta - torch.cat([torch.zeros_like(base), delta[:, :-1]], 1)
    return zigzag(torch.stack([full, full - base, delta, second]))


def widths(codes: torch.Tensor) -> torch.Tensor:
    """Bits of the largest code of each block: (4, blocks)."""
    largest = codes.amax(-1)
    powers = 1 << torch.arange(62, device=codes.device)
    return (largest[..., None] >= powers).sum(-1)


def quantised(x: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
    """The nearest q of each value, int64 (count)."""
    return torch.round(x.double().flatten() / (2 * bound.double())).long()


def plain_bytes(x: torch.Tensor, bound: torch.Tensor) -> int:
    """Bytes that values rounded to their nearest q take, each block under its best predictor."""
    each = 8 * widths(residuals(quantised(x, bound))) + torch.tensor([0, 4, 4, 4], device=x.device)[:, None]
    return int(each.amin(0).sum()) + each.shape[1]


def encode(x: torch.Tensor, bound: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The plain coder: the stream as int32, of full capacity, and its length in bytes. Values are rounded to their nearest q."""
    q = quantised(x, bound)
    codes = residuals(q)
    bits = widths(codes)
    sizes = 8 * bits + torch.tensor([0, 4, 4, 4], device=x.device)[:, None]
    sizes = torch.where(bits > WIDEST, torch.iinfo(torch.int64).max, sizes)
    size, predictor = sizes.min(0)
    chosen = predictor[None, :, None]
    code = codes.gather(0, chosen.expand(1, *codes.shape[1:]))[0]
    width = bits.gather(0, predictor[None])[0]
    blocks = len(size)
    starts = blocks + size.cumsum(0) - size
    length = blocks + int(size.sum())
    out = torch.zeros(4 * capacity(q.numel()) + 8, dtype=torch.int64, device=x.device)
    out[:blocks] = predictor << 6 | width
    based = predictor > 0
    first = q[::BLOCK]
    for i in range(4):
        out[starts[based] + i] = (first[based] >> (8 * i)) & 255
    bit = torch.arange(BLOCK, device=x.device) * width[:, None]
    at = (starts + 4 * based)[:, None] + bit // 8
    shifted = code << (bit % 8)
    for i in range(5):
        part = (shifted >> (8 * i)) & 255
        # numbers meet in a byte, with bits of their own: their sum joins them
        out.index_add_(0, torch.where(part > 0, at + i, 0).flatten(), torch.where(part > 0, part, 0).flatten())
    return out[: 4 * capacity(q.numel())].to(torch.uint8).view(torch.int32), length


def compressed(inputs: Tensors, outputs: Tensors, *, least_share: float = SHARE) -> Finding:
    """Inputs x (any shape, float32) and bound (1); outputs stream (capacity), length (1) in bytes. The score is the ratio."""
    x, bound = inputs["x"], inputs["bound"]
    q = decode(outputs["stream"], int(outputs["length"]), x.numel())
    if isinstance(q, str):
        return wrong(q)
    limit = float(bound.double())
    error = (x.double().flatten() - 2 * limit * q.double()).abs()
    worst = float((error / limit).max())
    if not worst <= 1 + ROUNDING:
        at = int(error.argmax())
        return wrong(f"value {at} is off by {float(error[at]):.9g}, the bound is {limit:.9g}", worst, 1 + ROUNDING)
    length = int(outputs["length"])
    least = least_share * 4 * x.numel() / plain_bytes(x, bound) if least_share else 0.0
    ratio = 4 * x.numel() / length
    if not ratio >= least:
        return wrong(f"it compresses {ratio:.3f} to 1, at least {least:.3f} is asked for", least / ratio, 1.0)
    return right(worst, 1 + ROUNDING, score=ratio, note=f"{ratio:.3f} to 1")
