"""Exact modular arithmetic: number-theoretic transforms over the prime 15 * 2^27 + 1, and sums over the curve BN254.

A transform is linear and its matrix symmetric, so <r, NTT(x)> = <NTT(r), x> for any r: with r random, one wrong element is missed with
probability 1 / p (Freivalds 1977). Several sums over the same points are checked together in the same way.
"""

from __future__ import annotations

import functools
import secrets

import torch

from kernelwright.problems.validators import Finding, Tensors, right, wrong

PRIME = 15 * 2**27 + 1
GENERATOR = 31
"""Of the group of units of PRIME, whose order is 2^27 * 15."""
LARGEST_COMPARED = 2**12
"""Values of a transform up to which each is compared as well."""


def root(length: int) -> int:
    """The root of unity that a transform of that length, a power of two, uses."""
    return pow(GENERATOR, (PRIME - 1) // length, PRIME)


@functools.lru_cache(maxsize=64)
def _powers(length: int, count: int, device: str) -> torch.Tensor:
    """root(length)^0 ... root(length)^(count - 1): by doubling."""
    powers = torch.ones(1, dtype=torch.int64, device=device)
    w = root(length)
    while len(powers) < count:
        powers = torch.cat([powers, powers * pow(w, len(powers), PRIME) % PRIME])
    return powers[:count]


def transform(x: torch.Tensor) -> torch.Tensor:
    """y_k = sum_j x_j w^(j k) mod p along the last axis, int64, in natural order; x of 0 to p - 1."""
    n = x.shape[-1]
    if n == 1:
        return x.clone()
    # Stockham's order: no bit reversal, each stage a view
    y, half, groups = x.reshape(*x.shape[:-1], 1, n), n // 2, 1
    while half:
        y = y.reshape(*x.shape[:-1], groups, 2, half)
        a, b = y[..., 0, :], y[..., 1, :]
        w = _powers(2 * half, half, str(x.device))
        y = torch.stack([(a + b) % PRIME, (a - b) % PRIME * w % PRIME], dim=-3)
        groups, half = 2 * groups, half // 2
    return y.reshape(x.shape)


def ntt(inputs: Tensors, outputs: Tensors) -> Finding:
    """Input x (batch, n), output y (batch, n), both of 0 to p - 1, n a power of two."""
    x, y = inputs["x"].long(), outputs["y"].long()
    if bool(((y < 0) | (y >= PRIME)).any()):
        return wrong(f"{int(((y < 0) | (y >= PRIME)).sum())} values lie outside 0 to p - 1")
    if not y.numel():
        return right()
    if y.numel() <= LARGEST_COMPARED:
        off = transform(x) != y
        if bool(off.any()):
            return wrong(f"{int(off.sum())} of {y.numel()} values are wrong, first at {off.nonzero()[0].tolist()}")
    for _ in range(2):
        r = _random(y.shape[1], y.device)
        rows = _random(y.shape[0], y.device)
        if not torch.equal(_dot(_dot(y, r), rows), _dot(_dot(x, transform(r)), rows)):
            return wrong("a random combination of the values is not that of the transform")
    return right()


def _random(count: int, device: torch.device) -> torch.Tensor:
    seed = torch.Generator(device=device).manual_seed(secrets.randbits(62))
    return torch.randint(PRIME, (count,), generator=seed, device=device)


def _dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Along the last axis: products are below 2^62, their residues below 2^31, so sums of 2^32 of them stay exact."""
    return (a * b % PRIME).sum(-1) % PRIME


# --------------------------------------------------------------------------------------------------------- the curve BN254

FIELD = 0x30644E72E131A029B85045B68181585D97816A916871CA8D3C208C16D87CFD47
ORDER = 0x30644E72E131A029B85045B68181585D2833E84879B9709143E1F593F0000001
"""Of the group of points of y^2 = x^3 + 3 over the integers mod FIELD (EIP-196)."""
LIMBS = 8
"""32-bit parts of a number, the least first, stored as int32."""

Point = tuple[int, int] | None
"""None is the identity, stored as zeros."""


def numbers(limbs: torch.Tensor) -> list[int]:
    """The 256-bit numbers of an int32 tensor (..., 8), flattened."""
    raw = limbs.contiguous().cpu().numpy().tobytes()
    return [int.from_bytes(raw[i : i + 32], "little") for i in range(0, len(raw), 32)]


def limbs(values: list[int]) -> torch.Tensor:
    """int32 (len, 8) of numbers below 2^256."""
    raw = bytearray(b"".join(v.to_bytes(32, "little") for v in values))
    return torch.frombuffer(raw, dtype=torch.int32).view(-1, LIMBS) if raw else torch.empty(0, LIMBS, dtype=torch.int32)


def points(tensor: torch.Tensor) -> list[Point]:
    """Affine points of an int32 tensor (..., 16)."""
    flat = numbers(tensor)
    return [(x, y) if x or y else None for x, y in zip(flat[::2], flat[1::2], strict=True)]


def on_curve(p: Point) -> bool:
    return p is None or (p[0] < FIELD and p[1] < FIELD and (p[1] * p[1] - p[0] ** 3 - 3) % FIELD == 0)


def add(p: Point, q: Point) -> Point:
    if p is None or q is None:
        return q if p is None else p
    (x1, y1), (x2, y2) = p, q
    if x1 == x2:
        if (y1 + y2) % FIELD == 0:
            return None
        slope = 3 * x1 * x1 * pow(2 * y1, -1, FIELD) % FIELD
    else:
        slope = (y2 - y1) * pow(x2 - x1, -1, FIELD) % FIELD
    x = (slope * slope - x1 - x2) % FIELD
    return x, (slope * (x1 - x) - y1) % FIELD


def random_point() -> tuple[int, int]:
    """A point whose logarithm nobody knows: a random x for which x^3 + 3 is a square."""
    while True:
        x = secrets.randbelow(FIELD)
        y = pow(square := (x**3 + 3) % FIELD, (FIELD + 1) // 4, FIELD)
        if y * y % FIELD == square:
            return x, y if secrets.randbits(1) else FIELD - y


def shifted(bases: list[tuple[int, int]], by: tuple[int, int]) -> list[Point]:
    """Each point plus the same one, with one inversion in all (Montgomery's trick)."""
    products = [1]
    for x, _ in bases:
        products.append(products[-1] * ((by[0] - x) or 1) % FIELD)
    inverse, found = pow(products[-1], -1, FIELD), []
    for (x, y), before in zip(reversed(bases), reversed(products[:-1]), strict=True):
        if x == by[0]:
            found.append(add((x, y), by))
            continue
        slope = (by[1] - y) * inverse * before % FIELD
        inverse = inverse * (by[0] - x) % FIELD
        there = (slope * slope - x - by[0]) % FIELD
        found.append((there, (slope * (x - there) - y) % FIELD))
    return found[::-1]


_Jacobian = tuple[int, int, int]
_ZERO: _Jacobian = (1, 1, 0)


def _double(p: _Jacobian) -> _Jacobian:
    x, y, z = p
    if not z:
        return p
    a, b = x * x % FIELD, y * y % FIELD
    c = b * b % FIELD
    d = 2 * ((x + b) * (x + b) - a - c)
    e = 3 * a
    x3 = (e * e - 2 * d) % FIELD
    return x3, (e * (d - x3) - 8 * c) % FIELD, 2 * y * z % FIELD


def _plus(p: _Jacobian, q: _Jacobian) -> _Jacobian:
    (x1, y1, z1), (x2, y2, z2) = p, q
    if not z1:
        return q
    if not z2:
        return p
    z11, z22 = z1 * z1 % FIELD, z2 * z2 % FIELD
    u1, u2 = x1 * z22 % FIELD, x2 * z11 % FIELD
    s1, s2 = y1 * z2 * z22 % FIELD, y2 * z1 * z11 % FIELD
    h, r = (u2 - u1) % FIELD, (s2 - s1) % FIELD
    if not h:
        return _double(p) if not r else _ZERO
    hh = h * h % FIELD
    hhh, v = h * hh % FIELD, u1 * hh % FIELD
    x3 = (r * r - hhh - 2 * v) % FIELD
    return x3, (r * (v - x3) - s1 * hhh) % FIELD, h * z1 * z2 % FIELD


def _affine(p: _Jacobian) -> Point:
    x, y, z = p
    if not z:
        return None
    inverse = pow(z, -1, FIELD)
    square = inverse * inverse % FIELD
    return x * square % FIELD, y * square * inverse % FIELD


def multi_scalar(scalars: list[int], bases: list[Point]) -> Point:
    """Sum of scalar times point, by Pippenger's buckets."""
    terms = [(s % ORDER, (*p, 1)) for s, p in zip(scalars, bases, strict=True) if p is not None and s % ORDER]
    width = max(2, len(terms).bit_length() - 3)
    total = _ZERO
    for window in reversed(range(-(-254 // width))):
        for _ in range(width):
            total = _double(total)
        buckets = [_ZERO] * (1 << width)
        for s, p in terms:
            if digit := (s >> (window * width)) & ((1 << width) - 1):
                buckets[digit] = _plus(buckets[digit], p)
        running = inner = _ZERO
        for bucket in reversed(buckets[1:]):
            running = _plus(running, bucket)
            inner = _plus(inner, running)
        total = _plus(total, inner)
    return _affine(total)


def msm(inputs: Tensors, outputs: Tensors) -> Finding:
    """Inputs points (n, 16) and scalars (batch, n, 8), int32 limbs; output sums (batch, 16), affine, both coordinates below FIELD.

    The scalars of all sums are combined with random weights of 128 bits, and one sum is computed: a set of sums with a wrong one passes
    with probability 2^-128, since the group's order is prime."""
    found = points(outputs["sums"])
    if bad := [i for i, p in enumerate(found) if not on_curve(p)]:
        return wrong(f"sum {bad[0]} is no point of the curve")
    weights = [secrets.randbits(128) | 1 for _ in found] if len(found) > 1 else [1] * len(found)
    n = inputs["points"].shape[0]
    scalars = numbers(inputs["scalars"])
    combined = [sum(w * scalars[b * n + i] for b, w in enumerate(weights)) % ORDER for i in range(n)]
    if multi_scalar(combined, points(inputs["points"])) != multi_scalar(weights, found):
        return wrong("the sums are wrong: " + ("a random combination of them differs" if len(found) > 1 else "the only one differs"))
    return right()
