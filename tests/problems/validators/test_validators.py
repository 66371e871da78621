"""Right answers of independent solvers are accepted; of each, mutants and forged reports are not."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from solvers import compress, dijkstra, dpll, fluid, random_graph, ranks, simulate

from kernelwright.problems.validators import Tensors, compression, dynamics, graphs, modular, satisfiability, training

few = settings(max_examples=12, deadline=None)
seeds = st.integers(0, 2**32)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def changed(outputs: Tensors, name: str, change: Callable[[torch.Tensor], object]) -> Tensors:
    copy = {k: t.clone() for k, t in outputs.items()}
    change(copy[name])
    return copy


# --------------------------------------------------------------------------------------------------------------- graphs


def searched(seed: int, weighted: bool) -> tuple[Tensors, Tensors]:
    draw = random.Random(seed)
    offsets, targets, weights = random_graph(draw, 30, draw.choice((40, 120)))
    source = draw.randrange(30)
    distance, parent = dijkstra(offsets, targets, weights if weighted else [1] * len(targets), source)
    inputs = {"offsets": ints(*offsets), "targets": ints(*targets), "source": ints(source)} | (
        {"weights": ints(*weights)} if weighted else {}
    )
    return inputs, {"distance": ints(*distance), "parent": ints(*parent)}


@few
@given(seeds, st.booleans())
def test_distances_and_parents(seed: int, weighted: bool) -> None:
    inputs, outputs = searched(seed, weighted)
    assert graphs.shortest_paths(inputs, outputs).passed
    source, distance = int(inputs["source"]), outputs["distance"]
    others = [v for v in range(30) if v != source and 0 < int(distance[v]) < graphs.FAR]
    for v in others[:4]:
        for by in (1, -1):
            assert not graphs.shortest_paths(inputs, changed(outputs, "distance", lambda t, v=v, by=by: t[v].add_(by))).passed
        assert not graphs.shortest_paths(inputs, changed(outputs, "parent", lambda t, v=v: t[v].fill_(v))).passed
        assert not graphs.shortest_paths(inputs, changed(outputs, "parent", lambda t, v=v: t[v].fill_(-1))).passed
        cut = changed(outputs, "distance", lambda t, v=v: t[v].fill_(graphs.FAR))
        cut["parent"][v] = v
        assert not graphs.shortest_paths(inputs, cut).passed, "called out of reach"
    if len(others) > 1:
        nothing = {"distance": torch.full_like(distance, graphs.FAR), "parent": torch.arange(30, dtype=torch.int32)}
        nothing["distance"][source] = 0
        assert not graphs.shortest_paths(inputs, nothing).passed


def test_a_ring_of_parents_is_no_tree() -> None:
    """0 -> 1 <-> 2: two vertices that vouch for one another, away from the source."""
    inputs = {"offsets": ints(0, 0, 1, 2), "targets": ints(2, 1), "source": ints(0)}
    assert not graphs.shortest_paths(inputs, {"distance": ints(0, 1, 1), "parent": ints(0, 2, 1)}).passed
    assert not graphs.shortest_paths(inputs, {"distance": ints(0, 5, 6), "parent": ints(0, 2, 1)}).passed
    assert graphs.shortest_paths(inputs, {"distance": ints(0, graphs.FAR, graphs.FAR), "parent": ints(0, 1, 2)}).passed


@few
@given(seeds)
def test_ranks(seed: int) -> None:
    draw = random.Random(seed)
    offsets, targets, _ = random_graph(draw, 30, 70)
    inputs = {"offsets": ints(*offsets), "targets": ints(*targets)}
    outputs = {"rank": torch.tensor(ranks(offsets, targets), dtype=torch.float32)}
    assert graphs.pagerank(inputs, outputs).passed
    v = draw.randrange(30)
    mutants = (
        lambda t: t[v].mul_(1 + 1e-4),
        lambda t: t.fill_(1 / 30),
        lambda t: t.mul_(1.001),
        lambda t: t[v].fill_(float("nan")),
        lambda t: t.copy_(torch.tensor(ranks(offsets, targets, 0.9))),
    )
    for mutant in mutants:
        assert not graphs.pagerank(inputs, changed(outputs, "rank", mutant)).passed


def test_an_independent_set_is_counted_by_the_judge() -> None:
    ring = {"offsets": ints(*range(0, 21, 2)), "targets": ints(*[v % 10 for u in range(10) for v in (u - 1, u + 1)])}
    every_second = torch.arange(10, dtype=torch.int32) % 2
    assert graphs.independent_set(ring, {"member": every_second}).score == 5
    for mutant in (lambda t: t[0].fill_(1), lambda t: t.fill_(1), lambda t: t[1].fill_(1000), lambda t: t[0].fill_(-1)):
        assert not graphs.independent_set(ring, changed({"member": every_second}, "member", mutant)).passed


def test_a_tour_is_measured_by_the_judge() -> None:
    square = {"place": torch.tensor([[0.0, 0], [1, 1], [0, 1], [1, 0]])}
    outputs = {"order": ints(0, 2, 1, 3)}
    assert graphs.tour(square, outputs).score == 4
    for mutant in (lambda t: t[0].fill_(2), lambda t: t[0].fill_(-1), lambda t: t[0].fill_(9), lambda t: t.zero_()):
        assert not graphs.tour(square, changed(outputs, "order", mutant)).passed


# ---------------------------------------------------------------------------------------------------------- compression


@few
@given(seeds, st.integers(1, 300), st.sampled_from((1e-1, 1e-3)))
def test_compression(seed: int, count: int, bound: float) -> None:
    draw = torch.Generator().manual_seed(seed)
    x = torch.sin(torch.arange(count) / 9) * 3 + 0.02 * torch.randn(count, generator=draw)
    inputs = {"x": x, "bound": torch.tensor([bound])}
    raw = compress(x.double().tolist(), float(inputs["bound"]))
    stream = torch.full((compression.capacity(count),), -1, dtype=torch.int32)
    stream.view(torch.uint8)[: len(raw)] = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    outputs = {"stream": stream, "length": ints(len(raw))}
    judge = lambda outputs: compression.compressed(inputs, outputs, least_share=0)  # noqa: E731
    found = judge(outputs)
    assert found.passed, found
    assert found.score == pytest.approx(4 * count / len(raw))
    for mutant in (lambda t: t.add_(1), lambda t: t.sub_(1), lambda t: t.fill_(1), lambda t: t.fill_(-1), lambda t: t.fill_(2**31 - 1)):
        assert not judge(changed(outputs, "length", mutant)).passed, "a length that was made up"
    bytes_of = lambda t: t.view(torch.uint8)  # noqa: E731
    first = -(-count // 64)
    for mutant in (
        lambda t: bytes_of(t)[0].fill_(63),
        lambda t: bytes_of(t)[0].bitwise_xor_(1 << 6),
        lambda t: bytes_of(t)[first].add_(100),
        lambda t: bytes_of(t)[first:].zero_(),
    ):
        mutated = changed(outputs, "stream", mutant)
        decoded = compression.decode(mutated["stream"], len(raw), count)
        # a byte may say the same in two ways; what is decoded decides
        same = not isinstance(decoded, str) and bool(((x.double() - 2 * float(inputs["bound"]) * decoded).abs() <= 1.00001 * bound).all())
        assert judge(mutated).passed == same
    beyond = changed(outputs, "stream", lambda t: bytes_of(t)[len(raw) :].fill_(7))
    assert judge(beyond) == found, "what is beyond the length does not count"


@few
@given(seeds)
def test_the_plain_coder_is_within_the_bound_and_its_size_is_known(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(7, 33, generator=draw).cumsum(1)
    inputs = {"x": x, "bound": torch.tensor([2e-3])}
    stream, length = compression.encode(x, inputs["bound"])
    assert length == compression.plain_bytes(x, inputs["bound"])
    outputs = {"stream": stream, "length": ints(length)}
    assert compression.compressed(inputs, outputs).passed
    coarse, short = compression.encode(x, 2 * inputs["bound"])
    assert not compression.compressed(inputs, {"stream": coarse, "length": ints(short)}).passed, "twice the bound"
    wide = torch.zeros_like(stream)
    raw = compress(x.flatten().double().tolist(), 2e-3 / 4096)
    wide.view(torch.uint8)[: len(raw)] = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    assert not compression.compressed(inputs, {"stream": wide, "length": ints(len(raw))}).passed, "another bound, and a poor ratio"


def test_a_stream_within_the_bound_that_hardly_compresses_is_not_enough() -> None:
    x = torch.sin(torch.arange(512) / 40)
    inputs = {"x": x, "bound": torch.tensor([1e-3])}
    raw = compress(x.double().tolist(), float(inputs["bound"]))
    blocks = 8
    q = [round(v / (2 * float(inputs["bound"]))) for v in x.double().tolist()]
    loose = bytes([32] * blocks) + b"".join((2 * n if n >= 0 else -2 * n - 1).to_bytes(4, "little") for n in q)
    for data, passed in ((raw, True), (loose, False)):
        stream = torch.zeros(compression.capacity(512), dtype=torch.int32)
        stream.view(torch.uint8)[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        assert compression.compressed(inputs, {"stream": stream, "length": ints(len(data))}, least_share=0.7).passed == passed


# -------------------------------------------------------------------------------------------------------------- modular


@few
@given(seeds, st.sampled_from((1, 2, 16, 64)), st.integers(1, 3))
def test_transforms(seed: int, n: int, batch: int) -> None:
    draw = random.Random(seed)
    x = [[draw.randrange(modular.PRIME) for _ in range(n)] for _ in range(batch)]
    w = pow(31, (modular.PRIME - 1) // n, modular.PRIME)
    y = [[sum(v * pow(w, j * k, modular.PRIME) for j, v in enumerate(row)) % modular.PRIME for k in range(n)] for row in x]
    inputs, outputs = {"x": torch.tensor(x, dtype=torch.int32)}, {"y": torch.tensor(y, dtype=torch.int32)}
    assert modular.ntt(inputs, outputs).passed
    row, k = draw.randrange(batch), draw.randrange(n)
    for mutant in (lambda t: t[row, k].bitwise_xor_(1), lambda t: t[row, k].fill_(-1), lambda t: t[row, k].sub_(modular.PRIME - 1)):
        assert not modular.ntt(inputs, changed(outputs, "y", mutant)).passed


def test_one_wrong_value_of_a_long_transform_is_found_by_a_random_combination() -> None:
    x = torch.randint(modular.PRIME, (3, 4096), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    outputs = {"y": modular.transform(x.long()).int()}
    assert modular.ntt({"x": x}, outputs).passed
    for mutant in (
        lambda t: t[2, 77].bitwise_xor_(1),
        lambda t: t[1].copy_(t[1].roll(1)),
        lambda t: t.copy_(t[:, torch.arange(4096) ^ 1]),
    ):
        assert not modular.ntt({"x": x}, changed(outputs, "y", mutant)).passed


def double_and_add(scalars: list[int], bases: list[modular.Point]) -> modular.Point:
    total: modular.Point = None
    for s, p in zip(scalars, bases, strict=True):
        q: modular.Point = None
        for bit in bin(s)[2:]:
            q = modular.add(q, q)
            if bit == "1":
                q = modular.add(q, p)
        total = modular.add(total, q)
    return total


def test_random_points_are_shifted_on_the_curve() -> None:
    bases, by = [modular.random_point() for _ in range(5)], modular.random_point()
    bases += [by, (by[0], modular.FIELD - by[1])]
    assert all(modular.on_curve(p) for p in bases) and len(set(bases)) == 7
    assert modular.shifted(bases, by) == [modular.add(p, by) for p in bases]
    assert modular.shifted(bases, by)[-1] is None


@settings(max_examples=5, deadline=None)
@given(seeds, st.integers(1, 5), st.integers(1, 3))
def test_sums_of_points(seed: int, n: int, batch: int) -> None:
    draw = random.Random(seed)
    base: list[modular.Point] = [modular.multi_scalar([draw.randrange(1, 2**40)], [(1, 2)]) for _ in range(n)]
    if n > 2:
        base[2] = None
    scalars = [[draw.choice((0, 1, modular.ORDER - 1, draw.randrange(modular.ORDER))) for _ in range(n)] for _ in range(batch)]
    sums = [double_and_add(row, base) for row in scalars]
    stored = lambda points: modular.limbs([c for p in points for c in (p or (0, 0))]).view(-1, 16)  # noqa: E731
    inputs = {"points": stored(base), "scalars": modular.limbs([s for row in scalars for s in row]).view(batch, n, 8)}
    outputs = {"sums": stored(sums)}
    assert modular.msm(inputs, outputs).passed
    row = draw.randrange(batch)
    other = modular.add(sums[row], (1, 2))
    for mutant in (
        lambda t: t[row, 3].add_(1),
        lambda t: t.fill_(-1),
        lambda t: t[row].copy_(stored([other])[0]),
        lambda t: t[row].copy_(stored([None])[0] if sums[row] else stored([(1, 2)])[0]),
    ):
        assert not modular.msm(inputs, changed(outputs, "sums", mutant)).passed


# ------------------------------------------------------------------------------------------------------- satisfiability


def formula(draw: random.Random, variables: int, count: int) -> list[list[int]]:
    return [[v * draw.choice((1, -1)) for v in draw.sample(range(1, variables + 1), 3)] for _ in range(count)]


def answered(clauses: list[list[int]], variables: int, capacity: int = 4096) -> Tensors:
    assignment, proof = dpll(clauses, variables)
    marks = [int((assignment or {}).get(v, False)) for v in range(1, variables + 1)]
    assert len(proof) <= capacity
    return {
        "verdict": ints(int(assignment is not None)),
        "assignment": ints(*marks)[None],
        "proof": ints(*proof, *[-1] * (capacity - len(proof)))[None],
        "proof_length": ints(len(proof)),
    }


@few
@given(seeds, st.integers(5, 9))
def test_assignments_and_proofs(seed: int, variables: int) -> None:
    clauses = formula(random.Random(seed), variables, round(4.8 * variables))
    inputs, outputs = {"clauses": ints(*itertools.chain(*clauses)).view(1, -1, 3)}, answered(clauses, variables)
    assert satisfiability.solved(inputs, outputs).passed
    assert not satisfiability.solved(inputs, changed(outputs, "verdict", lambda t: t.copy_(1 - t))).passed
    assert not satisfiability.solved(inputs, changed(outputs, "verdict", lambda t: t.fill_(2))).passed
    assert satisfiability.solved(inputs, changed(outputs, "verdict", lambda t: t.fill_(2)), open_allowed=True).score == 0
    if int(outputs["verdict"]):
        first = clauses[0]

        def against(t: torch.Tensor) -> None:
            for literal in first:
                t[0, abs(literal) - 1] = int(literal < 0)

        assert not satisfiability.solved(inputs, changed(outputs, "assignment", against)).passed
        assert not satisfiability.solved(inputs, changed(outputs, "assignment", lambda t: t[0, 0].fill_(7))).passed
    else:
        length = int(outputs["proof_length"])
        for forged in (0, -1, 1, length - 1, 10**9):
            finding = satisfiability.solved(inputs, changed(outputs, "proof_length", lambda t, forged=forged: t.fill_(forged)))
            # the empty clause alone is a proof where propagation refutes the formula
            assert not finding.passed or (forged == 1 and outputs["proof"][0, 0] == 0)
        for mutant in (lambda t: t[0, 0].fill_(variables + 1), lambda t: t.fill_(-(2**31)), lambda t: t.fill_(1)):
            assert not satisfiability.solved(inputs, changed(outputs, "proof", mutant)).passed


@few
@given(seeds)
def test_nothing_refutes_what_is_satisfiable(seed: int) -> None:
    """Whatever the proof says: a formula that a hidden assignment satisfies has none."""
    draw = random.Random(seed)
    hidden = {v: draw.random() < 0.5 for v in range(1, 7)}
    clauses = [c for c in formula(draw, 6, 60) if any(hidden[abs(x)] == (x > 0) for x in c)]
    lemmas = [[v * draw.choice((1, -1)) for v in draw.sample(range(1, 7), draw.randint(1, 3))] for _ in range(8)] + [[]]
    assert satisfiability.propagates(ints(*itertools.chain(*clauses)).view(-1, 3), lemmas, 6) is not None


def test_a_clause_is_not_proved_by_a_later_one() -> None:
    """Each of the two empty-ended clauses would follow from the other."""
    clauses = ints(1, 2, 3, -1, 2, 3).view(2, 3)
    assert satisfiability.propagates(clauses, [[2], [2, 3]], 3) == 0
    assert satisfiability.propagates(clauses, [[2, 3]], 3) is None


# ------------------------------------------------------------------------------------------------------------- dynamics


def test_a_fluid_in_float32_is_followed_and_other_physics_is_not() -> None:
    x, v, box = fluid(3, torch.Generator().manual_seed(4))
    inputs = {"position": x, "velocity": v, "box": torch.tensor([box])}
    judge = lambda outputs: dynamics.molecular(inputs, outputs, every=4)  # noqa: E731
    outputs = simulate(x, v, float(inputs["box"]), 4, 3)
    finding = judge(outputs)
    assert finding.passed, finding
    assert judge(changed(outputs, "positions", lambda t: t.add_(float(inputs["box"])))).passed, "whole boxes do not count"
    for name, mutant in (
        ("positions", lambda t: t[1, 5, 0].add_(1e-3)),
        ("velocities", lambda t: t[2].mul_(1.0001)),
        ("forces", lambda t: t[0, 3, 1].add_(1e-2)),
        ("forces", lambda t: t.zero_()),
        ("positions", lambda t: t[2].copy_(t[1])),
        ("velocities", lambda t: t[0, 0, 0].fill_(float("nan"))),
    ):
        assert not judge(changed(outputs, name, mutant)).passed
    assert not judge(simulate(x, v, float(inputs["box"]), 4, 3, dt=0.00401)).passed
    assert not judge(simulate(x, v, float(inputs["box"]), 5, 3)).passed
    still = {name: t.expand_as(outputs[name]).clone() for name, t in (("positions", x), ("velocities", v))}
    assert not judge(still | {"forces": outputs["forces"]}).passed


# ------------------------------------------------------------------------------------------------------------- training


def reference_model(shape: training.Shape, weights: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The loss, written with torch.nn's own modules."""
    w, d = shape.parts(weights), shape.width
    t = tokens.shape[1] - 1
    x = w["token"][tokens[:, :-1]] + w["position"][:t]
    mask = torch.full((t, t), float("-inf"), dtype=weights.dtype).triu(1)
    for i in range(shape.layers):
        h = torch.nn.functional.layer_norm(x, (d,), *w[f"norm1.{i}"])
        q, k, v = (h @ w[f"qkv.{i}"].T).split(d, -1)
        split = lambda z: z.view(*z.shape[:2], shape.heads, -1).transpose(1, 2)  # noqa: E731
        score = split(q) @ split(k).mT / (d // shape.heads) ** 0.5 + mask
        x = x + (score.softmax(-1) @ split(v)).transpose(1, 2).flatten(2) @ w[f"out.{i}"].T
        h = torch.nn.functional.layer_norm(x, (d,), *w[f"norm2.{i}"])
        x = x + torch.nn.GELU(approximate="tanh")(h @ w[f"up.{i}"].T) @ w[f"down.{i}"].T
    logits = torch.nn.functional.layer_norm(x, (d,), *w["norm"]) @ w["token"].T
    return -logits.log_softmax(-1).gather(-1, tokens[:, 1:, None]).mean()


SHAPE = training.Shape(2, 64, 17, 12)


def trained(weights: torch.Tensor, tokens: torch.Tensor, rate: float = 1e-3) -> Tensors:
    """Adam with decoupled weight decay in the form of torch.optim (whose import takes seconds)."""
    weights, found = weights.clone(), {"losses": [], "gradients": [], "trajectory": []}
    mean, square = torch.zeros_like(weights), torch.zeros_like(weights)
    for step, batch in enumerate(tokens, 1):
        leaf = weights.clone().requires_grad_()
        loss = reference_model(SHAPE, leaf, batch)
        loss.backward()
        weights.mul_(1 - rate * 0.1)
        mean.lerp_(leaf.grad, 1 - 0.9)
        square.mul_(0.95).addcmul_(leaf.grad, leaf.grad, value=1 - 0.95)
        weights.addcdiv_(mean, (square.sqrt() / (1 - 0.95**step) ** 0.5).add_(1e-8), value=-rate / (1 - 0.9**step))
        for name, t in (("losses", loss.detach()), ("gradients", leaf.grad), ("trajectory", weights)):
            found[name].append(t.clone())
    return {name: torch.stack(ts) for name, ts in found.items()}


def test_training_is_followed_step_by_step_and_a_report_is_not_believed() -> None:
    draw = torch.Generator().manual_seed(2)
    weights = 0.05 * torch.randn(SHAPE.parameters, generator=draw)
    inputs = {"weights": weights, "tokens": torch.randint(17, (3, 4, 13), generator=draw)}
    judge = lambda outputs: training.trained(inputs, outputs, shape=SHAPE, precision=training.FINE)  # noqa: E731
    outputs = trained(weights, inputs["tokens"])
    finding = judge(outputs)
    assert finding.passed, finding
    bias = slice(17 * 64, 17 * 64 + 8)
    for name, mutant in (
        ("losses", lambda t: t[2].mul_(0.999)),
        ("losses", lambda t: t.copy_(torch.linspace(9, 4, 3))),
        ("gradients", lambda t: t[1].mul_(1.0001)),
        ("gradients", lambda t: t[2, bias].zero_()),
        ("trajectory", lambda t: t[1].copy_(t[0])),
        ("trajectory", lambda t: t[2, bias].add_(1e-5)),
        ("trajectory", lambda t: t[0, 0].fill_(float("inf"))),
    ):
        assert not judge(changed(outputs, name, mutant)).passed, name
    assert not judge(trained(weights, inputs["tokens"], rate=1.01e-3)).passed
    assert not judge(trained(weights, inputs["tokens"].flip(0))).passed, "the batches in another order"
    half = training.gradient(SHAPE, weights, inputs["tokens"][0], torch.bfloat16)[1]
    assert not judge(changed(outputs, "gradients", lambda t: t[0].copy_(half))).passed, "products in bf16 where float32 is asked for"
