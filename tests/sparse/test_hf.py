"""The real transformers: a tiny Llama pruned, converted, saved, loaded through AutoModel, run, compiled, saved again and reverted."""

from __future__ import annotations

import json

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
    assert not hasattr(model, "hf_quantizer") and not hasattr(model.config, "quantization_config")

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
    change()
    weights = path / "sparse" / "model.safetensors"
    whole = bytearray(weights.read_bytes())
    header = 8 + int.from_bytes(whole[:8], "little")
    place = json.loads(whole[8:header])["model.layers.0.mlp.up_proj.compressed"]["data_offsets"][0]
    whole[header + place] ^= 1
    weights.write_bytes(whole)
    with pytest.raises(sparse.SparseError, match=r"up_proj\.weight is damaged: its checksum is wrong"):
        sparse.from_pretrained(path / "sparse")
