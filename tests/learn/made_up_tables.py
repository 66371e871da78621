"""A made-up device and made-up measurements of the scripted Family, small enough for a model that trains in seconds."""

from __future__ import annotations

import random
from itertools import product

from kernelwright.families.family import DeviceFacts
from kernelwright.families.scripted import Scripted
from kernelwright.learn.policy_data import is_held_out, split
from kernelwright.learn.table import Row
from kernelwright.problems import resolve
from kernelwright.records import Outcome

DEVICE = DeviceFacts(target="fake", name="scripted device", sms=4, smem_per_block=64 << 10)


def rows_of(name: str, noise: float = 0.0) -> list[Row]:
    """Every legal config of the scripted Family: fastest at a tile that grows with the product's rows; a few fail."""
    w, family, rng = resolve(name), Scripted(), random.Random(name)
    best = 16 if w.axes["M"] < 512 else 64
    found = []
    for values in product(*family.space(w, DEVICE).values()):
        config = dict(zip(family.space(w, DEVICE), values, strict=True))
        if family.illegal(config, w, DEVICE) is not None:
            continue
        wrong = config["tile"] == 256
        steps: float = abs(int(config["tile"]).bit_length() - best.bit_length())
        steps += abs(int(config["unroll"]).bit_length() - 3) * 0.5 + (config["order"] == "columns")
        ratio = 0.0 if wrong else 2.0 / (1 + 0.25 * steps) * (1 + noise * rng.gauss(0, 1))
        outcome = Outcome.WRONG_RESULT if wrong else Outcome.OK
        reward = max(0.01, ratio) if ratio else 0.0
        us = 20 / ratio if ratio else 0.0
        found.append(Row(workload=name, family="scripted", config=config, outcome=outcome, ratio=ratio, microseconds=us, reward=reward))
    return found


def _training() -> list[str]:
    """As widely spread as the held-out shapes: with few sizes a model learns those sizes."""
    rng, sizes = random.Random(1), (64, 128, 256, 384, 512, 1024, 2048, 4096, 8192)
    drawn = {f"gemm:{rng.choice(sizes)}x{rng.choice(sizes)}x{rng.choice(sizes)}:fp16:nn" for _ in range(60)}
    return [name for name in sorted(drawn) if not is_held_out(resolve(name))][:40]


TRAINING = _training()


def rows() -> list[Row]:
    """Of training shapes and of four held-out ones."""
    held = [w.name for w in split().held_out[:4]]
    return [r for name in (*TRAINING, *held) for r in rows_of(name)]
