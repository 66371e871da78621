"""What kw.accelerate leaves to torch and why, and calls of served layers that are torch's business."""

from __future__ import annotations

import re

import pytest
import torch
from server import Server, tensors
from test_models import TOKENS, close
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import kernelwright as kw


class Own(nn.Linear):
    def forward(self, input):
        return super().forward(input) * 2


class QuantLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("qweight", torch.zeros(8, 4, dtype=torch.int8))


class LoraLinear(nn.Module):
    """As in peft: the layer it wraps, and two of its own."""

    def __init__(self, base: nn.Linear):
        super().__init__()
        self.base_layer, self.lora_A, self.lora_B = base, nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.lora_B(self.lora_A(x))


def pruned() -> nn.Linear:
    layer = nn.Linear(8, 8)
    prune.l1_unstructured(layer, "weight", 0.5)
    return layer


def replaced() -> nn.Linear:
    layer = nn.Linear(8, 8)
    layer.forward = lambda input: input
    return layer


def sparse() -> nn.Linear:
    layer = nn.Linear(8, 8)
    layer.weight = nn.Parameter(layer.weight.detach().half().to_sparse())
    return layer


class Sharded(nn.Parameter):
    """Stands for a DTensor, or a weight of torchao."""


def subclassed() -> nn.Linear:
    layer = nn.Linear(8, 8).half()
    layer.weight = Sharded(layer.weight.detach())
    return layer


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (Own(8, 8), r"a test_models_left.Own, which may compute in its own way"),
        (QuantLinear(), r"a test_models_left.QuantLinear, which may compute in its own way"),
        (parametrizations.weight_norm(nn.Linear(8, 8)), r"ParametrizedLinear, which may"),
        (pruned(), r"its weight is no parameter but made from others"),
        (replaced(), r"its forward was replaced on the object itself"),
        (nn.Linear(8, 8, device="meta"), r"its weight is on the meta device"),
        (nn.Linear(8, 8).double(), r"its weight is float64"),
        (sparse(), r"its weight is sparse"),
        (subclassed(), r"its weight is a Sharded"),
        (nn.LazyLinear(8), r"LazyLinear, which may compute in its own way"),
        (nn.MultiheadAttention(8, 2).out_proj, r"NonDynamicallyQuantizableLinear, which may"),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, nn.Module) else "",
)
def test_what_is_left_is_named(layer, reason):
    if type(layer) is nn.Linear and layer.weight.dtype == torch.float32:
        layer.half()
    model = nn.Sequential(nn.Linear(8, 8).half(), layer)
    kind = type(layer)
    report = kw.accelerate(model)
    assert type(layer) is kind and [named.name for named in report.changed] == ["0"]
    ((name, why),) = report.left
    assert name == "1"
    assert re.search(reason, why), why
    assert f"1 x *  left: {why}" in str(report) and str(report).startswith("1 layer served by kw.linear, 1 left to torch")


def test_a_lora_wrappers_layers_are_served(server: Server):
    model = nn.Sequential(LoraLinear(nn.Linear(8, 8))).half()
    (x,) = tensors((3, 8))
    want = model(x)
    report = kw.accelerate(model)
    close(model(x), want)
    assert len(server.calls) == 3 and not report.left


def test_a_layer_alone():
    layer = nn.Linear(8, 4).half()
    report = kw.accelerate(layer)
    assert "1 x the model itself  8 -> 4 float16 with bias" in (said := str(report))
    assert report.explain(tokens=[7]).startswith("7 tokens: a kernel for 0 of 1 layers\n1 x 8 -> 4 float16 with bias: the model itself\n")
    report.undo()
    assert type(layer) is nn.Linear and str(report) == said
    assert report.explain(tokens=[7]) == "7 tokens: a kernel for 0 of 1 layers", "nothing is served any more"


def test_a_layer_parametrised_meanwhile_is_not_torn_out_of_it(server: Server):
    layer = nn.Linear(8, 4).half()
    report = kw.accelerate(layer)
    parametrizations.weight_norm(layer)
    with pytest.warns(RuntimeWarning, match="the model itself is a ParametrizedLinear now and was left as it is: undo that first"):
        report.undo()
    close(layer(tensors((3, 8))[0]), layer(tensors((3, 8))[0]))
    parametrize.remove_parametrizations(layer, "weight")
    report.undo()
    assert type(layer) is nn.Linear


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_is_torchs(server: Server, dtype, compiled):
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)).half()
    kw.accelerate(model)
    run = torch.compile(model, fullgraph=True, backend="aot_eager") if compiled else model
    (x,) = tensors((3, 8))
    with torch.autocast("cpu", dtype=dtype):
        assert run(x).dtype == dtype
        assert len(server.calls) == (2 if dtype == torch.float16 else 0), "only what autocast would not cast"
        assert run(x.float()).dtype == dtype


def test_a_served_model_can_go_to_meta(server: Server):
    model = nn.Sequential(nn.Linear(8, 4)).half()
    kw.accelerate(model)
    model.to("meta")
    for autocast in (False, True):
        with torch.autocast("cpu", enabled=autocast):
            assert model(torch.empty(3, 8, dtype=torch.float16, device="meta")).shape == (3, 4)


def test_weights_replaced_meanwhile_by_a_subclass_are_torchs(server: Server):
    layer = nn.Linear(8, 4).half()
    kw.accelerate(layer)
    layer.weight = Sharded(layer.weight.detach())
    (x,) = tensors((3, 8))
    close(layer(x), nn.functional.linear(x, layer.weight, layer.bias))
    nested = torch.nested.nested_tensor([x, x[:2]], layout=torch.jagged)
    close(layer(nested).values(), layer(torch.cat((x, x[:2]))))
    assert not server.calls


def test_traces_record_the_operator(server: Server):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)).half().requires_grad_(False)
    kw.accelerate(model)
    first, second = tensors((3, 8), (3, 8))
    traced = torch.jit.trace(model, first)
    close(traced(second), model(second))
    assert str(traced.inlined_graph).count("kernelwright::linear") == 2


def test_functional_calls_and_transforms(server: Server):
    layer = nn.Linear(8, 4).half().requires_grad_(False)
    kw.accelerate(layer)
    (x,) = tensors((5, 3, 8))
    other = {name: p * 2 for name, p in layer.named_parameters()}
    close(torch.func.functional_call(layer, other, x), layer(x) * 2)
    assert len(server.calls) == 2
    close(torch.vmap(layer)(x), layer(x))
    loss = torch.func.grad(lambda w: torch.func.functional_call(layer, {"weight": w}, x).float().sum())
    close(loss(layer.weight.detach()), x.sum((0, 1)).expand(4, 8))
    with torch.inference_mode():
        close(layer(x), torch.func.functional_call(layer, {}, x))


@pytest.mark.parametrize("tied", [True, False])
def test_a_llama_of_transformers(server: Server, tied):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(vocab_size=64, **sizes, tie_word_embeddings=tied)
    torch.manual_seed(5)
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    keys, want = list(model.state_dict()), model(TOKENS).logits
    with kw.accelerate(model) as report:
        assert len(report.changed) == 15 and not report.left
        close(model(TOKENS).logits, want)
        assert len(server.calls) == 15 and list(model.state_dict()) == keys
        assert model.generate(TOKENS, max_new_tokens=3, do_sample=False).shape == (2, 8)
    assert torch.equal(model(TOKENS).logits, want)


def test_a_gpt2_of_transformers(server: Server):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(5)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=64)).half().eval()
    want = model(TOKENS).logits
    with kw.accelerate(model) as report:
        close(model(TOKENS).logits, want)
        assert len(report.changed) == len(server.calls) == 2 * 4 + 1
    assert torch.equal(model(TOKENS).logits, want)
