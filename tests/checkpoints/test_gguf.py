"""GGUF files of LLaDA and Dream, written by the gguf package as llama.cpp's converter does."""

import pytest
import torch

import unmask
from tests.checkpoints import llama_checkpoints as small
from unmask.checkpoints import gguf_file
from unmask.checkpoints.contents import look

gguf = pytest.importorskip("gguf")
VOCAB, MASK, WIDTH, HIDDEN = 13, 11, 32, 64
SIZES = {
    "llada": (small.llada, {"d_model": WIDTH, "mlp_hidden_size": HIDDEN}),
    "dream": (small.dream, {"hidden_size": WIDTH, "intermediate_size": HIDDEN}),
}


def paired(weight, heads):
    """Row k of a head's first half beside row k of its second, as llama.cpp rotates them."""
    rows = weight.view(heads, -1, *weight.shape[1:])
    half = rows.shape[1] // 2
    return torch.stack([rows[:, :half], rows[:, half:]], 2).reshape(weight.shape)


def written(path, kind, weights, stored="F32", **more):
    its = gguf_file.ARCHITECTURES[kind]
    key_heads = {"llada": 4, "dream": 2}[kind]
    writer = gguf.GGUFWriter(path, kind)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(small.LAYERS)
    writer.add_head_count(small.HEADS)
    writer.add_head_count_kv(key_heads)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_context_length(32)
    writer.add_rope_freq_base({"llada": 500000.0, "dream": 1000000.0}[kind])
    writer.add_layer_norm_rms_eps({"llada": 1e-5, "dream": 1e-6}[kind])
    writer.add_mask_token_id(MASK)
    writer.add_diffusion_shift_logits(kind == "dream")
    for name, value in more.items():
        writer.add_string(name.replace("__", "."), value)
    theirs = {"token_embd": its.top[0], "output_norm": its.top[1], "output": its.top[2]}
    for i in range(small.LAYERS):
        theirs |= {
            f"blk.{i}.{ours}": f"{its.blocks}.{i}.{part}" for ours, part in zip(gguf_file.PARTS, its.parts, strict=True)
        }
    for name, module in theirs.items():
        for part in ("weight", "bias"):
            if (weight := weights.get(f"{module}.{part}")) is None:
                continue
            if kind == "llada" and name.endswith(("attn_q", "attn_k")):
                weight = paired(weight, small.HEADS)
            data, how = weight.numpy(), gguf.GGMLQuantizationType[stored if weight.ndim == 2 else "F32"]
            if how.name in ("F32", "F16"):
                writer.add_tensor(f"{name}.{part}", data.astype({"F32": "f4", "F16": "f2"}[how.name]))
            else:
                writer.add_tensor(f"{name}.{part}", gguf.quants.quantize(data, how), raw_dtype=how)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(params=SIZES)
def checkpoint(request, tmp_path, monkeypatch):
    monkeypatch.setattr(small, "WIDTH", WIDTH)
    monkeypatch.setattr(small, "HIDDEN", HIDDEN)
    write, sizes = SIZES[request.param]
    (tmp_path / "hub").mkdir()
    return request.param, write(tmp_path / "hub", VOCAB, MASK, **sizes), tmp_path


def logits(path):
    return unmask.load(path).denoiser(small.canvases(3, 5, 6, VOCAB, MASK))


def test_the_network_is_that_of_the_hub_folder(checkpoint):
    kind, weights, folder = checkpoint
    assert torch.equal(logits(written(folder / "model.gguf", kind, weights)), logits(folder / "hub"))


@pytest.mark.parametrize("stored", ["F16", "BF16", "Q8_0", "Q4_0"])
def test_weights_are_read_to_the_precision_of_their_type(checkpoint, stored):
    kind, weights, folder = checkpoint
    path = written(folder / "model.gguf", kind, weights, stored)
    there, largest = look(path).read(), 0.0
    assert there.keys() == weights.keys()
    for name, weight in weights.items():
        step = {"F16": 2.0**-11 * weight.abs(), "BF16": 2.0**-8 * weight.abs()}.get(stored)
        if step is None:  # half a step of its group, and a rounded scale
            step = weight.abs().amax(-1, keepdim=True) * {"Q8_0": 0.6 / 127, "Q4_0": 1.01 / 8}[stored]
        error = (there[name].float() - weight).abs()
        assert bool((error <= step + 1e-7).all())
        largest = max(largest, float(error.max()))
    assert largest > 0
    assert bool(logits(path).nan_to_num(neginf=0).isfinite().all())


def test_a_folder_with_one_file_is_sampled_and_stored_in_fewer_bits(checkpoint):
    kind, weights, folder = checkpoint
    (folder / "one").mkdir()
    written(folder / "one" / "model.gguf", kind, weights, "Q8_0")
    model = unmask.load(folder / "one", weights="int8")
    assert model.sample(2, length=6, seed=1).tokens.shape == (2, 6)


def test_what_is_not_read_is_refused_by_name(checkpoint):
    kind, weights, folder = checkpoint
    with pytest.raises(ValueError, match=r"rope\.scaling\.type='yarn' is not supported"):
        look(written(folder / "scaled.gguf", kind, weights, **{f"{kind}__rope__scaling__type": "yarn"}))
    more_weights = weights | {f"{gguf_file.ARCHITECTURES[kind].top[1]}.bias": torch.zeros(WIDTH)}
    with pytest.raises(ValueError, match=r"has 1 tensors that a (LLaDA|Dream) does not have"):
        unmask.load(written(folder / "more.gguf", kind, more_weights))
    writer = gguf.GGUFWriter(folder / "other.gguf", "rwkv7")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ValueError, match="is a GGUF file of a rwkv7: of these only llada and dream are read"):
        look(folder / "other.gguf")
    writer = gguf.GGUFWriter(folder / "bare.gguf", kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ValueError, match=r"its (llada|dream)\.embedding_length must be a positive number, got None"):
        look(folder / "bare.gguf")
    whole = (folder / "scaled.gguf").read_bytes()
    for size in (70, len(whole) // 2, len(whole) - 200):
        (folder / "short.gguf").write_bytes(whole[:size])
        with pytest.raises(ValueError, match="is a GGUF file that cannot be read"):
            look(folder / "short.gguf")
