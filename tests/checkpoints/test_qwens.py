"""Masked and block models of Llama's family, against transformers' own forward pass under the same attention mask."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers import generator
from unmask.checkpoints.contents import look
from unmask.checkpoints.formats import recognise
from unmask.checkpoints.qwens import FAMILIES

transformers = pytest.importorskip("transformers")

V, MASK, LENGTH = 40, 39, 14
TOLERANCE = 1e-4  # of log-probabilities in float32
SIZES: dict[str, Any] = {
    "vocab_size": V,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}
STRETCHED = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
}
# Name, class of transformers, its settings, the settings of the format, whether it shifts, and its blocks.
CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any], bool, int]] = {
    "a2d-qwen3": ("dLLM's", "Qwen3", {"head_dim": 16, "tie_word_embeddings": True}, {}, False, 0),
    "a2d-qwen3 in blocks": ("dLLM's", "Qwen3", {"head_dim": 16}, {"block_size": 4}, False, 4),
    "a2d-qwen2": ("dLLM's", "Qwen2", {}, {}, False, 0),
    "a2d-llama": ("dLLM's", "Llama", {"attention_bias": True}, {}, False, 0),
    **{
        f"a2d-llama {kind}": ("dLLM's", "Llama", {"rope_scaling": how}, {}, False, 0) for kind, how in STRETCHED.items()
    },
    "sdar": ("SDAR", "Qwen3", {"head_dim": 16}, {"block_size": 4}, False, 4),
    "sdar_moe": ("SDAR", "Qwen3Moe", {"head_dim": 16, **EXPERTS}, {"block_size": 5}, False, 5),
    "Fast_dLLM_Qwen": ("Fast-dLLM v2", "Qwen2", {}, {"bd_size": 4}, True, 4),
    "rnd1": ("RND1", "Qwen3Moe", {"head_dim": 16, **EXPERTS, "mlp_only_layers": [0]}, {}, False, 0),
    "qwen3": ("Efficient-DLM", "Qwen3", {"head_dim": 16}, {"dlm_paradigm": "bidirectional"}, False, 0),
    "qwen2": ("Open-dLLM", "Qwen2", {}, {}, True, 0),
    "Dream": ("Dream", "Qwen2", {}, {}, True, 0),
}


def written(folder: Path, case: str) -> tuple[Any, Path]:
    """A random model of transformers, saved, with the format's name in its config."""
    _, kind, more, settings, _, _ = CASES[case]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = getattr(transformers, f"{kind}Config")(**SIZES, **more)
        model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
        for parameter in model.parameters():
            parameter.data += 0.3 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    said = json.loads((folder / "config.json").read_text())
    said |= {"model_type": case.split()[0], "mask_token_id": MASK} | settings
    (folder / "config.json").write_text(json.dumps(said))
    return model, folder


def tokens_of(case: str) -> Tensor:
    tokens = torch.randint(0, MASK, (2, LENGTH), generator=generator(3))
    tokens[:, 9:] = MASK
    tokens[0, 3] = MASK
    return tokens


def expected(model: Any, tokens: Tensor, shifted: bool, block: int) -> Tensor:
    place = torch.arange(LENGTH) // (block or LENGTH)
    mask = torch.zeros(LENGTH, LENGTH).masked_fill(place > place.unsqueeze(1), -torch.inf)
    with torch.no_grad():
        logits = model(input_ids=tokens, attention_mask=mask.expand(len(tokens), 1, -1, -1)).logits
    return torch.cat((logits[:, :1], logits[:, :-1]), 1) if shifted else logits


def difference(ours: Tensor, theirs: Tensor) -> float:
    """The largest of log-probabilities among the data tokens: the mask is the last id."""
    return float((ours[..., :MASK].log_softmax(-1) - theirs[..., :MASK].log_softmax(-1)).abs().max())


@pytest.mark.parametrize("case", CASES)
def test_the_forward_pass_is_that_of_transformers(case: str, tmp_path: Path) -> None:
    name, _, _, _, shifted, block = CASES[case]
    model, folder = written(tmp_path, case)
    family, found, tokens = recognise(look(folder)), look(folder), tokens_of(case)
    assert family.NAME.startswith(name)
    loaded = family.load(found)
    theirs = expected(model, tokens, shifted, block)
    ours = loaded.denoiser(tokens)
    assert theirs.std() > 0.5 and difference(ours, theirs) < TOLERANCE
    assert bool((ours[..., MASK] == -torch.inf).all())
    rows = torch.tensor([[5, 0, 9], [13, 8, 10]])
    asked = theirs.gather(1, rows.unsqueeze(-1).expand(-1, -1, V))
    assert difference(loaded.denoiser(tokens, rows=rows), asked) < TOLERANCE
    assert family.about(found) == loaded.about and not loaded.about["missing"]
    # It is written back in the format that it came in: the names of its files are those of our tensors, one for one.
    state = loaded.denoiser.state_dict()
    assert set(loaded.names) == set(found.tensors) and {*loaded.names.values()} <= {*state}


@pytest.mark.parametrize("case", ["sdar", "sdar_moe", "Fast_dLLM_Qwen", "a2d-qwen3 in blocks"])
def test_the_cache_gives_what_the_network_gives(case: str, tmp_path: Path) -> None:
    """Block by block, position by position, in sequences whose canvases differ; and again after a token has changed."""
    block = CASES[case][5]
    network = recognise(look(written(tmp_path, case)[1])).load(look(tmp_path)).denoiser
    clean = torch.randint(0, MASK, (2, LENGTH), generator=generator(5))
    cached, x = network.for_sampling(), torch.full_like(clean, MASK)
    x[0, :3] = clean[0, :3]
    for first in range(0, LENGTH, block):
        for position in range(first, min(first + block, LENGTH)):
            rows = torch.arange(first, min(first + block, LENGTH)).expand(2, -1)
            whole = network(x, rows=rows)
            assert difference(cached(x, rows=rows), whole) < 1e-5
            x[:, position] = clean[:, position]
    x[1, 2] = (x[1, 2] + 1) % MASK
    rows = torch.arange(LENGTH).expand(2, -1)
    assert difference(cached(x, rows=rows), network(x, rows=rows)) < 1e-5


@pytest.mark.parametrize("case", ["sdar", "Fast_dLLM_Qwen"])
def test_two_streams_are_one_call_for_each_block(case: str, tmp_path: Path) -> None:
    """A pass of 2 L gives for every noised block what a call gives that shows the clean blocks before it."""
    block = CASES[case][5]
    network = recognise(look(written(tmp_path, case)[1])).load(look(tmp_path)).denoiser
    clean = torch.randint(0, MASK, (2, LENGTH), generator=generator(5))
    hidden = torch.rand(clean.shape, generator=generator(6)) < 0.5
    noised = clean.masked_fill(hidden, MASK)
    every = network.packed(noised, None, torch.ones_like(hidden), clean=clean).view(2, LENGTH, V)
    number = torch.arange(LENGTH) // block
    for k in range(int(number[-1]) + 1):
        x = torch.where(number < k, clean, torch.where(number == k, noised, MASK))
        assert difference(every[:, number == k], network(x)[:, number == k]) < 1e-5


def test_sampling_goes_block_by_block(tmp_path: Path) -> None:
    """The samples of a cached run are those of the network without a cache, and its bound is finite."""
    from unmask import nelbo, sample

    network = recognise(look(written(tmp_path, "sdar")[1])).load(look(tmp_path)).denoiser
    assert network.process.size == 4
    drawn = sample(network, num=3, length=LENGTH, seed=1)
    assert drawn.calls == LENGTH and not bool((drawn.tokens == MASK).any())

    class Plain:
        vocab_size, mask_id, process = V, MASK, network.process

        def __call__(self, tokens: Tensor, rows: Tensor | None = None) -> Tensor:
            logits: Tensor = network(tokens, rows=rows)
            return logits

    assert torch.equal(sample(Plain(), num=3, length=LENGTH, seed=1).tokens, drawn.tokens)
    assert bool(nelbo(network, drawn.tokens, passes=4).nats.isfinite().all())


def changed(folder: Path, **changes: object) -> Path:
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({k: v for k, v in (said | changes).items() if v != "gone"}))
    return folder


@pytest.mark.parametrize(
    ("case", "changes", "what"),
    [
        ("sdar", {"block_size": "gone"}, "does not say the size of a block .* give block"),
        ("sdar", {"surprise": 1}, "surprise=1, an unknown setting"),
        ("sdar", {"use_sliding_window": True}, "use_sliding_window=True is not known, only False"),
        ("sdar", {"num_hidden_layers": 1}, "num_hidden_layers=1, and there are 2"),
        ("a2d-qwen3", {"tie_word_embeddings": False}, "lacks the matrix of its head"),
        ("a2d-qwen2", {"layer_types": ["sliding_attention"] * 2}, "only full_attention is known"),
        ("qwen3", {"dlm_paradigm": "autoregressive"}, "dlm_paradigm='autoregressive' is not known"),
        ("a2d-llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4}}, "scaled by 'dynamic'"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(case: str, changes: Any, what: str, tmp_path: Path) -> None:
    folder = changed(written(tmp_path, case)[1], **changes)
    with pytest.raises(ValueError, match=what):
        recognise(look(folder)).load(look(folder))


def test_the_size_of_a_block_can_be_given(tmp_path: Path) -> None:
    folder = changed(written(tmp_path, "sdar")[1], block_size="gone")
    assert recognise(look(folder)).load(look(folder), block=8).denoiser.config.block == 8
    assert recognise(look(folder)).about(look(folder), block=8)["block"] == 8


def test_a_left_to_right_model_is_none_of_them(tmp_path: Path) -> None:
    folder = changed(written(tmp_path, "qwen2")[1], mask_token_id="gone")
    assert not any(family.recognises(look(folder)) for family in FAMILIES)
    folder = changed(folder, model_type="qwen3")
    assert not any(family.recognises(look(folder)) for family in FAMILIES)


def test_a_folder_without_a_tokenizer_gives_token_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import unmask
    from unmask.cli import main

    folder = written(tmp_path, "a2d-qwen3")[1]
    model = unmask.load(folder)
    drawn = model.sample(2, length=6, seed=1)
    assert drawn.text == ["", ""] and not bool((drawn.tokens == MASK).any())
    for text_method in (
        lambda: model.sample(prompt="a", length=6),
        lambda: model.decode([1]),
        lambda: model.bound("ab"),
    ):
        with pytest.raises(ValueError):
            text_method()
    with pytest.raises(ValueError, match=r"has no tokenizer; .* token ids only, which unmask sample --ids prints"):
        model.infill("a ____")
    arguments = ["sample", str(folder), "--length", "6", "--number", "2", "--seed", "1"]
    assert main(arguments) != 0 and "has no tokenizer" in capsys.readouterr().err
    assert main([*arguments, "--ids"]) == 0
    assert [[*map(int, line.split())] for line in capsys.readouterr().out.splitlines()] == drawn.tokens.tolist()


def published(logits: Any, tokens: Tensor, block: int, threshold: float) -> Tensor:
    """SDAR's block_diffusion_generate with low_confidence_dynamic and a step for each position, at temperature 0.

    In every call the positions of the block whose likeliest token is more likely than the threshold are filled, and if
    there is none the one with the likeliest token. LLaDA2.0 generates in the same way.
    """
    x = tokens.clone()
    for first in range(0, x.shape[1], block):
        here = slice(first, first + block)
        while bool((x[:, here] == MASK).any()):
            p = logits(x)[:, here].softmax(-1)
            best, ids = p.max(-1)
            for row in range(len(x)):
                confidence = best[row].masked_fill(x[row, here] != MASK, -torch.inf)
                chosen = confidence > threshold
                if not bool(chosen.any()) and bool((x[row, here] == MASK).any()):
                    chosen[confidence.argmax()] = True
                x[row, here] = torch.where(chosen, ids[row], x[row, here])
    return x


@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.9])
def test_the_usual_decoding_of_block_models_is_the_threshold(threshold: float, tmp_path: Path) -> None:
    from unmask import sample
    from unmask.samplers import decoding

    model, folder = written(tmp_path, "sdar")
    network = recognise(look(folder)).load(look(folder)).denoiser
    tokens = torch.full((3, LENGTH), MASK)
    tokens[:, :6] = torch.randint(0, MASK, (3, 6), generator=generator(7))

    def logits(x: Tensor) -> Tensor:
        return expected(model, x, False, 4).index_fill(-1, torch.tensor([MASK]), -torch.inf)

    drawn = sample(network, sampler=decoding.threshold(threshold), canvas=tokens, temperature=0.0)
    assert torch.equal(drawn.tokens, published(logits, tokens, 4, threshold))


def test_sequences_that_ask_for_fewer_rows_read_their_block_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unmask import sample
    from unmask.networks.cache.llama_blocks import CachedBlocks
    from unmask.samplers import decoding

    network = recognise(found := look(written(tmp_path, "sdar")[1])).load(found).denoiser
    tokens, read = torch.full((3, 12), 1), CachedBlocks.read
    tokens[0, 9:], tokens[1:, 8:] = MASK, MASK
    widths = []

    noted = lambda self, entries, *more: (widths.append(entries.shape[1]), read(self, entries, *more))[1]  # noqa: E731
    monkeypatch.setattr(CachedBlocks, "read", noted)
    sample(network, sampler=decoding.threshold(1.0), canvas=tokens, temperature=0.0)
    assert widths[0] == 12 and {*widths[1:]} == {4}


@pytest.mark.parametrize(("kind", "name"), [("wedlm", "WeDLM"), ("nemotron_labs_diffusion", "Nemotron-Labs-Diffusion")])
def test_models_with_another_attention_are_refused_by_name(kind: str, name: str, tmp_path: Path) -> None:
    folder = changed(written(tmp_path, "sdar")[1], model_type=kind)
    with pytest.raises(ValueError, match=f"is {name}, .* it is not supported"):
        recognise(look(folder))


@pytest.mark.parametrize("case", ["sdar_moe", "Fast_dLLM_Qwen", "rnd1"])
def test_every_weight_learns_and_the_model_is_written_back(case: str, tmp_path: Path) -> None:
    """A masking's terms give gradients to all weights but idle experts', and the same tensors are written back."""
    from unmask.checkpoints import write_back
    from unmask.masking import Uniforms
    from unmask.processes import process_of

    found = look(written(tmp_path / "in", case)[1])
    loaded = recognise(found).load(found)
    network = loaded.denoiser.requires_grad_(True)
    process, x0 = process_of(network), torch.randint(0, MASK, (8, LENGTH), generator=generator(5))
    parts, size = process.parts(*x0.shape)
    g = generator(6)
    u = Uniforms(torch.rand(parts, generator=g), *torch.rand(2, parts, size, generator=g).unbind())
    masking = process.masking("count", u, batch=len(x0), length=LENGTH)
    process.terms(network, x0, masking).sum().backward()
    learning = [name for name, weight in network.named_parameters() if weight.grad is not None and weight.grad.any()]
    silent = {name for name, _ in network.named_parameters()} - {*learning}
    assert all(".experts." in name for name in silent)  # to some experts no token was routed
    assert not silent or any(".experts." in name for name in learning)
    write_back.write(tmp_path / "out", found, loaded.names, network.state_dict(), {})
    again = look(tmp_path / "out")
    assert again.config == found.config and again.tensors == found.tensors
    tokens = tokens_of(case)
    assert torch.equal(recognise(again).load(again).denoiser(tokens), network.requires_grad_(False)(tokens))
