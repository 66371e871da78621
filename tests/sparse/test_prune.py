"""Pruning against references small enough to be checked by hand or by least squares, and the order of quality that the papers report."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from kernelwright import sparse
from kernelwright.sparse import calibration, prune, sparsegpt
from kernelwright.sparse.prune import output_error
from kernelwright.sparse.scores import lowest_in_layer, lowest_in_rows, wanda


def correlated(tokens: int, columns: int, seed: int = 0) -> torch.Tensor:
    """Inputs whose columns share a few factors and differ in scale, as activations do."""
    g = torch.Generator().manual_seed(seed)
    factors = torch.randn(tokens, 8, generator=g) @ torch.randn(8, columns, generator=g)
    return (factors + 0.5 * torch.randn(tokens, columns, generator=g)) * torch.logspace(-1, 1, columns)[
        torch.randperm(columns, generator=g)
    ]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_exact_counts_also_where_scores_are_equal():
    scores = torch.tensor([[3.0, 1.0, 2.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    assert lowest_in_rows(scores, 2).tolist() == [[False, True, False, True, False], [True, True, False, False, False]]
    assert lowest_in_layer(scores, 6).tolist() == [[False, True, False, False, False], [True] * 5]
    assert not lowest_in_rows(scores, 0).any() and lowest_in_rows(scores, 5).all()


def test_wanda_by_hand():
    """Wanda keeps what magnitude would prune where the input is large: |w| * ||x|| = [[3, 4, 2, 4], [12, 1, 0.5, 2]]."""
    layer = nn.Linear(4, 2, bias=False)
    layer.weight.data = torch.tensor([[1.0, -2.0, 0.5, 4.0], [-4.0, 0.5, 0.125, 2.0]])
    x = torch.zeros(3, 4)
    x[0] = torch.tensor([3.0, 2.0, 0.0, 1.0])
    x[2, 2] = -4.0
    assert wanda(layer.weight.data, x.square().sum(0)).tolist() == [[3, 4, 2, 4], [12, 1, 0.5, 2]]
    (done,) = sparse.prune_(nn.Sequential(layer), "wanda", 0.5, [x[:1], x[1:]])
    assert layer.weight.tolist() == [[0.0, -2.0, 0.0, 4.0], [-4.0, 0.0, 0.0, 2.0]]
    assert done.name == "0" and done.sparsity == 0.5 and done.error is None


def test_magnitude_in_rows_and_in_the_layer():
    for scope, kept in (("row", [[0, 0, 3, 4], [0, 0, 7, 8]]), ("layer", [[0, 0, 0, 0], [5, 6, 7, 8]])):
        layer = nn.Linear(4, 2, bias=False)
        layer.weight.data = torch.tensor([[1.0, 2, 3, 4], [5, 6, 7, 8]])
        sparse.prune_(nn.Sequential(layer), "magnitude", 0.5, scope=scope)
        assert layer.weight.tolist() == kept
        assert not torch.signbit(layer.weight).any()  # no -0.0


def test_sparsegpt_is_least_squares_step_by_step():
    """With its mask given: once a column is decided, the columns right of it are the least-squares answer to all that was decided."""
    rows, columns = 5, 12
    w, x = random(rows, columns), correlated(60, columns)
    hessian = x.T @ x
    pruned = sparsegpt.prune(w, hessian, 0.5, "row", block=4)
    mask = pruned == 0
    assert (mask.sum(1) == 6).all()

    h = hessian.double()
    h += sparsegpt.DAMPING * h.diagonal().mean() * torch.eye(columns, dtype=torch.float64)
    original = w.double()
    for r in range(rows):
        row = original[r].clone()
        for c in range(columns):
            if mask[r, c]:
                row[c] = 0
            change = row[: c + 1] - original[r, : c + 1]
            if c + 1 < columns:  # min over d of (change, d) H (change, d)^T
                row[c + 1 :] = original[r, c + 1 :] - torch.linalg.solve(h[c + 1 :, c + 1 :], h[c + 1 :, : c + 1] @ change)
        assert torch.allclose(pruned[r].double(), row, atol=2e-4), r


def test_sparsegpt_with_one_pruned_column_is_the_least_squares_optimum():
    w, x = random(3, 6), correlated(50, 6)
    w[:, 0] = 1e-6  # the first column costs least in every row, so all others may answer
    pruned = sparsegpt.prune(w, x.T @ x, 1 / 6, "row", damping=1e-6)
    assert (pruned[:, 0] == 0).all()
    best = torch.linalg.lstsq(x[:, 1:].double(), (x @ w.T).double()).solution.T
    assert torch.allclose(pruned[:, 1:].double(), best, atol=1e-4)


@pytest.mark.parametrize("scope", ["row", "layer"])
@pytest.mark.parametrize("block", [1, 7, 128])
def test_sparsegpt_prunes_exactly_what_it_was_asked_for(scope, block):
    w, x = random(9, 37), correlated(100, 37)
    pruned = sparsegpt.prune(w, x.T @ x, 0.6, scope, block=block)
    zeros = (pruned == 0).sum(1)
    assert int(zeros.sum()) == (9 * round(0.6 * 37) if scope == "row" else round(0.6 * 9 * 37))
    assert scope == "layer" or (zeros == round(0.6 * 37)).all()


def test_sparsegpt_with_inputs_that_are_always_zero_and_refusal():
    x = correlated(100, 16)
    x[:, 3] = 0
    pruned = sparsegpt.prune(random(4, 16), x.T @ x, 0.5, "row")
    assert torch.isfinite(pruned).all() and (pruned[:, 3] == 0).all()
    with pytest.raises(ValueError, match="not positive definite"):
        sparsegpt.prune(random(4, 16), -torch.ones(16, 16), 0.5, "row")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scope", ["row", "layer"])
def test_order_of_quality(scope, seed):
    """Output error on correlated inputs: sparsegpt <= wanda <= magnitude."""
    w, x = random(96, 192, seed=seed), correlated(1000, 192, seed)
    error = {}
    for method in ("magnitude", "wanda", "sparsegpt"):
        layer = nn.Linear(192, 96, bias=False)
        layer.weight.data.copy_(w)
        (done,) = sparse.prune_(nn.Sequential(layer), method, 0.5, [x], scope=scope, errors=True)
        y, reference = x @ layer.weight.data.T, x @ w.T
        assert done.error == pytest.approx(float((y - reference).square().sum() / reference.square().sum()), rel=1e-2)
        assert done.error == pytest.approx(output_error(w, layer.weight.data, x.T @ x), rel=1e-3)
        error[method] = done.error
    assert error["sparsegpt"] < error["wanda"] < error["magnitude"]


class Block(nn.Module):
    def __init__(self, width: int, returns_tuple: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.returns_tuple = returns_tuple

    def forward(self, x, scale, *, shift):
        y = x + scale * self.down(torch.relu(self.up(x))) + shift
        return (y, None) if self.returns_tuple else y


class Chain(nn.Module):
    """As transformers are built: an embedding, blocks in a list, a head."""

    def __init__(self, returns_tuple: bool = False, again: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(50, 24)
        self.blocks = nn.ModuleList(Block(24, returns_tuple) for _ in range(3))
        self.lm_head = nn.Linear(24, 50)
        self.project = nn.Linear(24, 24)
        self.again = again
        self.runs = 0

    def forward(self, ids):
        self.runs += 1
        x = self.embedding(ids)
        for i, block in enumerate(self.blocks):
            x = block(x, 0.5 + i, shift=torch.full((1,), float(i), dtype=x.dtype))
            x = x[0] if isinstance(x, tuple) else x
            if self.again:
                x = x + 1
        return self.lm_head(self.project(x))


IDS = [torch.randint(50, (2, 16), generator=torch.Generator().manual_seed(i)) for i in range(3)]


@pytest.mark.parametrize("returns_tuple", [False, True])
def test_blocks_see_what_pruned_blocks_put_out(returns_tuple, monkeypatch):
    """The same as running the whole, so far pruned, model for each block; in two runs of it instead of one for each."""
    model, by_block = Chain(returns_tuple), []
    monkeypatch.setattr(prune, "calibrate", lambda *args, **kwargs: by_block.append(calibration.calibrate(*args, **kwargs)))
    model.train()
    done = sparse.prune_(model, "sparsegpt", 0.5, IDS, skip=("lm_head",))
    assert by_block == [True] and model.training and model.runs == 2 * len(IDS)
    assert [p.name for p in done] == [*(f"blocks.{i}.{n}" for i in range(3) for n in ("up", "down")), "project"]
    assert all(abs(p.sparsity - 0.5) < 1e-3 for p in done) and float((model.lm_head.weight == 0).sum()) == 0

    reference = Chain(returns_tuple)
    groups = [[b.up, b.down] for b in reference.blocks] + [[reference.project]]
    with torch.no_grad():
        for group in groups:
            inputs = {layer: [] for layer in group}
            hooks = [
                layer.register_forward_pre_hook(lambda m, args, i=inputs: i[m].append(args[0].reshape(-1, m.in_features)))
                for layer in group
            ]
            for ids in IDS:
                reference(ids)
            for hook in hooks:
                hook.remove()
            for layer in group:
                x = torch.cat(inputs[layer])
                layer.weight.copy_(sparsegpt.prune(layer.weight, x.T @ x, 0.5))
    for (name, a), b in zip(model.named_parameters(), reference.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-3), name


def test_a_model_that_is_no_chain_is_run_as_a_whole():
    model = Chain(again=True)
    sparse.prune_(model, "wanda", 0.5, IDS)
    assert model.runs == 1 + len(IDS)  # the first batch finds out
    assert float((model.blocks[2].up.weight == 0).float().mean()) == 0.5


def test_refusals():
    model = nn.Sequential(nn.Linear(8, 8))
    x = [torch.randn(2, 8)]
    for arguments, said in (
        (("obd", 0.5, x), "no pruning method 'obd'; choose one of magnitude, wanda, sparsegpt"),
        (("wanda", 1.0, x), "not between 0 and 1"),
        (("wanda", 0.5, None), "wanda needs calibration data"),
        (("sparsegpt", 0.5, []), "calibration data is empty"),
        (("wanda", 0.5, x[0]), "pass a list of batches"),
    ):
        with pytest.raises(ValueError, match=said):
            sparse.prune_(model, *arguments)
    with pytest.raises(ValueError, match="neither 'row' nor 'layer'"):
        sparse.prune_(model, "magnitude", 0.5, scope="model")
    with pytest.raises(ValueError, match=r"no nn\.Linear to prune"):
        sparse.prune_(model, "magnitude", 0.5, skip=("0",))
    idle = nn.ModuleDict({"used": nn.Linear(8, 8), "idle": nn.Linear(8, 8)})
    idle.forward = lambda x: idle["used"](x)
    with pytest.raises(ValueError, match="idle saw no calibration data"):
        sparse.prune_(idle, "wanda", 0.5, x)
    assert int((idle["used"].weight == 0).sum()) == 0  # refused before anything was changed
    with pytest.raises(ValueError, match="0 saw NaN or infinity"):
        sparse.prune_(model, "wanda", 0.5, [torch.full((2, 8), torch.inf)])
    blocks = Chain()
    blocks.blocks[1].idle = nn.Linear(8, 8)
    before = copy.deepcopy(blocks.state_dict())
    with pytest.raises(ValueError, match="idle saw no calibration data"):
        sparse.prune_(blocks, "wanda", 0.5, IDS)
    assert all(torch.equal(t, before[name]) for name, t in blocks.state_dict().items()), "the first block is not pruned either"


def test_pruned_half_precision_model_converts():
    model = Chain().bfloat16()
    sparse.prune_(model, "wanda", 0.5, IDS)
    with torch.no_grad():
        y = model(IDS[0])
        done = sparse.convert(model)
        assert len(done.converted) == 7 and torch.equal(model(IDS[0]), y)
