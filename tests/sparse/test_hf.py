"""The real transformers: a tiny Llama pruned, converted, saved, loaded through AutoModel, run, compiled, saved again and reverted."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
import torch

from kernelwright import sparse

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own

IDS = torch.arange(32).view(2, 16)


def config(**changes):
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    return transformers.LlamaConfig(**{"vocab_size": 100, "tie_word_embeddings": False, **sizes, **changes})


@pytest.fixture
def pruned(tmp_path):
    """A dense pruned model in bfloat16, as saved and loaded, its logits and its folder."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config()).to(torch.bfloat16).eval()
    sparse.prune_(model, "wanda", 0.5, [{"input_ids": IDS}])
    model.save_pretrained(tmp_path / "dense")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "dense")
    return model, logits(model), tmp_path


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits


def sparse_layers(model) -> int:
    return sum(isinstance(m, sparse.SparseLinear) for m in model.modules())


def test_pruning_goes_block_by_block_and_leaves_the_cache_setting(monkeypatch):
    model = transformers.LlamaForCausalLM(config())
    runs = []
    model.register_forward_hook(lambda *_: runs.append(1))
    done = sparse.prune_(model, "sparsegpt", 0.5, [{"input_ids": IDS}, {"input_ids": IDS + 40}])
    assert len(done) == 14 and len(runs) == 2 and model.config.use_cache
    assert all(p.sparsity == pytest.approx(0.5, abs=1e-3) for p in done)
    assert float((model.lm_head.weight == 0).sum()) == 0


def test_saved_and_loaded_by_automodel(pruned):
    model, y, path = pruned
    sparse.convert(model)
    assert sparse_layers(model) == 14 and torch.equal(logits(model), y)
    sparse.save_pretrained(model, path / "sparse")
    said = json.loads((path / "sparse" / "config.json").read_text())["quantization_config"]
    assert said["quant_method"] == "kernelwright-sparse" and len(said["modules"]) == 14
    size = [(path / name / "model.safetensors").stat().st_size for name in ("dense", "sparse")]
    assert size[1] < 0.75 * size[0]

    loaded = transformers.AutoModelForCausalLM.from_pretrained(path / "sparse")
    assert sparse_layers(loaded) == 14 and loaded.model.layers[0].mlp.up_proj.layout == "quad-bitmap"
    assert torch.equal(logits(loaded), y)
    ours = loaded.generate(IDS, max_new_tokens=6, do_sample=False)
    assert torch.equal(ours, model.generate(IDS, max_new_tokens=6, do_sample=False)) and ours.shape == (2, 22)


def test_loaded_models_are_saved_again_reverted_and_cast(pruned):
    model, y, path = pruned
    sparse.convert(model)
    sparse.save_pretrained(model, path / "sparse", max_shard_size="40KB")
    assert len(list((path / "sparse").glob("*.safetensors"))) > 2
    loaded = sparse.from_pretrained(path / "sparse")
    assert type(loaded).__name__ == "LlamaForCausalLM"
    loaded.save_pretrained(path / "again")
    assert torch.equal(logits(sparse.from_pretrained(path / "again")), y)
    half = sparse.from_pretrained(path / "again", transformers.AutoModelForCausalLM, dtype=torch.float16)
    assert half.model.layers[1].self_attn.q_proj.dtype == torch.float16 and torch.allclose(logits(half).float(), y.float(), atol=0.02)
    assert sparse.revert(loaded) == 14
    loaded.save_pretrained(path / "reverted")
    assert "quantization_config" not in json.loads((path / "reverted" / "config.json").read_text())
    assert torch.equal(logits(transformers.AutoModelForCausalLM.from_pretrained(path / "reverted")), y)


def test_a_converted_folder_is_loaded(pruned):
    _, y, path = pruned
    sparse.convert_checkpoint(path / "dense", path / "converted")
    loaded = sparse.from_pretrained(path / "converted")
    assert sparse_layers(loaded) == 14 and torch.equal(logits(loaded), y)


def test_the_model_s_own_save_pretrained_writes_what_loads(pruned):
    model, y, path = pruned
    sparse.convert(model)
    sparse.fuse(model)
    model.save_pretrained(path / "own")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(path / "own")
    assert sparse_layers(loaded) == 14 and torch.equal(logits(loaded), y)
    assert sparse_layers(loaded.dequantize()) == 0 and torch.equal(logits(loaded), y)


def test_a_pickled_model_is_whole(pruned):
    model, y, path = pruned
    sparse.convert(model)
    sparse.fuse(model)
    for copied in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert torch.equal(logits(copied), y) and sparse.revert(copied) == 14
    sparse.save_pretrained(model, path / "sparse")
    loaded = pickle.loads(pickle.dumps(sparse.from_pretrained(path / "sparse")))
    assert torch.equal(logits(loaded), y)


def test_a_model_with_a_head_is_loaded_without_one(pruned):
    model, _, path = pruned
    ids, dense = IDS, model.model
    with torch.no_grad():
        hidden = dense(ids).last_hidden_state
    sparse.convert_checkpoint(path / "dense", path / "sparse")
    without = sparse.from_pretrained(path / "sparse", transformers.AutoModel)
    with torch.no_grad():
        assert sparse_layers(without) == 14 and torch.equal(without(ids).last_hidden_state, hidden)
    without.save_pretrained(path / "base")
    with torch.no_grad():
        assert torch.equal(sparse.from_pretrained(path / "base")(ids).last_hidden_state, hidden)
    with pytest.raises(sparse.SparseError, match=r"no nn\.Linear in BertModel"):
        transformers.BertModel.from_pretrained(path / "sparse", config=bert(path / "sparse"))


def bert(folder):
    said = json.loads((folder / "config.json").read_text())["quantization_config"]
    return transformers.BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, quantization_config=said
    )


SMALL = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=2, n_positions=32)).half()


def mixtral():
    sizes = {**SMALL, "num_key_value_heads": 2, "num_local_experts": 2, "num_experts_per_tok": 1}
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes)).half()


@pytest.mark.parametrize("method", ["wanda", "sparsegpt"])
def test_an_encoder_and_decoder_is_pruned(method):
    """T5's decoder has a config, and so a cache, of its own; a second run of a block would find keys and values there."""
    sizes = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=100, **sizes))
    done = sparse.prune_(model, method, 0.5, [{"input_ids": IDS, "decoder_input_ids": IDS}])
    assert len(done) == 32 and model.config.use_cache and model.decoder.config.use_cache and not model.encoder.config.use_cache


@pytest.mark.filterwarnings("default:.*of this model's weights were left alone")
def test_matrices_that_are_no_linear_layers_are_named():
    with pytest.raises(ValueError, match=r"no nn\.Linear to prune .*h\.0\.attn\.c_attn is none"):
        sparse.prune_(gpt2(), "magnitude")
    with pytest.raises(sparse.SparseError, match=r"h\.0\.attn\.c_attn is no nn\.Linear"):
        sparse.convert(gpt2())
    model = mixtral()
    with pytest.warns(UserWarning, match=r"% of this model's weights were left alone, as model\.layers\.0\.mlp\.experts\.gate_up_proj"):
        assert len(sparse.prune_(model, "magnitude")) == 8
    assert sparse.convert(model).left["model.layers.1.mlp.experts.down_proj"] == "is no nn.Linear"


@pytest.mark.parametrize("make", [gpt2, mixtral])
def test_checkpoints_are_converted_only_as_far_as_they_load(tmp_path, make):
    torch.manual_seed(0)
    model = make().eval()
    for parameter in model.parameters():
        if parameter.ndim > 1 and parameter is not model.get_input_embeddings().weight:
            parameter.data[..., ::2] = 0
    model.save_pretrained(tmp_path / "dense")
    if make is gpt2:
        with pytest.raises(sparse.SparseError, match=r"no matrix .* was compressed; .*no nn\.Linear of its name"):
            sparse.convert_checkpoint(tmp_path / "dense", tmp_path / "sparse")
    else:
        done = sparse.convert_checkpoint(tmp_path / "dense", tmp_path / "sparse")
        assert sum(r.compressed for r in done) == 8 and any("experts" in r.name and not r.compressed for r in done)
        assert torch.allclose(logits(sparse.from_pretrained(tmp_path / "sparse").eval()), logits(model), atol=1e-2)


def test_tied_embeddings_stay_tied(tmp_path):
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config(tie_word_embeddings=True)).to(torch.bfloat16)
    sparse.prune_(model, "magnitude", 0.5)
    done = sparse.convert(model)
    assert "lm_head" in done.left and len(done.converted) == 14
    sparse.save_pretrained(model, tmp_path / "x")
    loaded = sparse.from_pretrained(tmp_path / "x")
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight


def test_compiles_whole(pruned):
    model, _, _ = pruned
    sparse.convert(model)
    torch._dynamo.reset()
    y = logits(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert torch.allclose(compiled(IDS, use_cache=False).logits, y, atol=1e-2)


def test_refusals(pruned):
    model, _, path = pruned
    with pytest.raises(sparse.SparseError, match="has no SparseLinear"):
        sparse.save_pretrained(model, path / "none")
    sparse.convert(model)
    sparse.save_pretrained(model, path / "sparse")
    file = path / "sparse" / "config.json"
    said = json.loads(file.read_text())

    def change(**entries):
        file.write_text(json.dumps({**said, "quantization_config": {**said["quantization_config"], **entries}}))

    change(format_version=2)
    with pytest.raises(sparse.SparseError, match="in version 2 of the sparse format, this kernelwright reads 1; upgrade it"):
        sparse.from_pretrained(path / "sparse")
    change(modules=["model.norm"])
    with pytest.raises(sparse.SparseError, match=r"no nn\.Linear"):
        sparse.from_pretrained(path / "sparse")
    change(modules=[*said["quantization_config"]["modules"], "lm_head"])
    with pytest.raises(sparse.SparseError, match=r"lm_head\.weight is not in the checkpoint"):
        sparse.from_pretrained(path / "sparse")
    with pytest.raises(sparse.SparseError, match="are sparse already"):
        sparse.convert(model)
    change()
    weights = path / "sparse" / "model.safetensors"
    whole = bytearray(weights.read_bytes())
    header = 8 + int.from_bytes(whole[:8], "little")
    place = json.loads(whole[8:header])["model.layers.0.mlp.up_proj.compressed"]["data_offsets"][0]
    whole[header + place] ^= 1
    weights.write_bytes(whole)
    with pytest.raises(sparse.SparseError, match=r"up_proj\.weight is damaged: its checksum is wrong"):
        sparse.from_pretrained(path / "sparse")
