"""Checkpoints of uniform-state models: DUO's runs, UDLM's hub folders and runs, SEDD with graph.type uniform."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import unmask
from tests.checkpoints import checkpoints as made
from unmask.checkpoints import mdlm, sedd
from unmask.checkpoints.contents import look
from unmask.checkpoints.formats import recognise
from unmask.network import logits_at
from unmask.processes import Uniform, process_of
from unmask.protocol import for_sampling
from unmask.uniform import clean, noisy, score_entropies

VOCAB = 11
ALPHA = torch.tensor([0.02, 0.5, 0.97], dtype=torch.float64)
SIGMA = -ALPHA.log()


def states(vocab: int = VOCAB) -> Tensor:
    """Tokens without a mask, the last id among them."""
    tokens = torch.randint(vocab, (3, made.LENGTH), generator=torch.Generator().manual_seed(5))
    tokens[:, 0] = vocab - 1
    return tokens


def outputs(loaded: Any, tokens: Tensor) -> list[Tensor]:
    """Those of the network and of its copy for sampling, at the time that the process tells it."""
    time = loaded.schedule.inverse(ALPHA)
    rows = torch.arange(tokens.shape[1]).expand_as(tokens)
    with torch.inference_mode():
        return [logits_at(one, tokens, time, rows) for one in (loaded.denoiser, for_sampling(loaded.denoiser))]


RUN = made.nested_config() | {"data": {}, "parameterization": "d3pm", "diffusion": "uniform", "time_conditioning": True}
DUO = {"algo": {"name": "duo", "parameterization": "mean", "time_conditioning": True, "T": 0}}


@pytest.mark.parametrize(
    ("variant", "config"),
    [
        ("UDLM", made.hub_config(VOCAB, model_type="udlm", time_conditioning=True, cfg=False, cfg_num_classes=-1)),
        ("UDLM", {"config": RUN}),
        ("DUO", {"config": made.nested_config() | {"data": {}} | DUO}),
    ],
)
def test_the_logits_are_those_of_the_published_network_at_sigma(variant: str, config: Any, tmp_path: Path) -> None:
    """log nu = log_softmax(out) over all ids, and sigma = -log(alpha) whatever the time is called."""
    weights, tokens = made.state(VOCAB), states()
    found = look(made.hub_folder(tmp_path, weights, config))
    assert recognise(found) is mdlm
    loaded = mdlm.load(found)
    assert loaded.about["variant"] == variant and loaded.about["special_ids"] == []
    assert process_of(loaded.denoiser) == Uniform() and loaded.denoiser.mask_id == VOCAB
    for got in outputs(loaded, tokens):
        torch.testing.assert_close(got, made.forward(weights, tokens, SIGMA), rtol=2e-4, atol=2e-3)


def test_a_run_of_duo_is_read_with_its_average(tmp_path: Path) -> None:
    weights, average = made.state(VOCAB), made.state(VOCAB, seed=9)
    shadow = [tensor for name, tensor in average.items() if "inv_freq" not in name]
    content = {
        "state_dict": {f"backbone.{name}": tensor for name, tensor in weights.items()},
        "ema": {"decay": 0.9999, "num_updates": 3, "shadow_params": shadow},
        "hyper_parameters": {"config": made.nested_config() | {"data": {}} | DUO},
    }
    torch.save(content, tmp_path / "last.ckpt")
    loaded = mdlm.load(look(tmp_path / "last.ckpt"))
    for got in outputs(loaded, states()):
        torch.testing.assert_close(got, made.forward(average, states(), SIGMA), rtol=2e-4, atol=2e-3)
    sample = unmask.sample(loaded.denoiser, num=2, seed=1, steps=3, schedule=loaded.schedule)
    assert int(sample.tokens.max()) < VOCAB


def test_sedd_uniform_scores_ratios(tmp_path: Path) -> None:
    """Its score is out, with 0 at the token that is there; its loss is the score entropy of the process."""
    weights, tokens = made.state(VOCAB, seed=1), states()
    config = made.nested_config(scale_by_sigma=False) | {"tokens": VOCAB}
    config["graph"]["type"] = "uniform"
    found = look(made.written(tmp_path, weights, config))
    assert recognise(found) is sedd
    loaded = sedd.load(found)
    assert process_of(loaded.denoiser) == Uniform(scores=True)
    score = made.forward(weights, tokens, SIGMA).scatter(2, tokens.unsqueeze(2), 0.0)
    for got in outputs(loaded, tokens):
        torch.testing.assert_close(got, score, rtol=2e-4, atol=2e-3)
    x0 = states().flip(1)
    level = ALPHA.repeat_interleave(made.LENGTH)
    ours = score_entropies(score.double().flatten(0, 1), tokens.flatten(), x0.flatten(), level, scores=True)
    torch.testing.assert_close(ours.view(3, -1), as_printed(score.double(), SIGMA, tokens, x0))
    with pytest.raises(ValueError, match=r"no model\.scale_by_sigma"):
        config["model"]["scale_by_sigma"] = True
        sedd.load(look(made.written(tmp_path / "scaled", weights, config)))


def as_printed(score: Tensor, sigma: Tensor, x: Tensor, x0: Tensor) -> Tensor:
    """SEDD's score entropy for the uniform graph: sums over y /= x of e^s - r s + r (log r - 1), over V."""
    size = score.shape[-1]
    total = torch.zeros(x.shape, dtype=torch.float64)
    a = torch.exp(-sigma).unsqueeze(1)
    for y in range(size):
        at_y, at_x = (a * (x0 == one) + (1 - a) / size for one in (y, x))
        r, s = at_y / at_x, score[..., y]
        total += torch.where(x == y, 0.0, s.exp() - r * s + r * (r.log() - 1)) / size
    return total


def test_a_score_that_no_token_explains_counts_as_nothing() -> None:
    alpha = torch.tensor([0.5], dtype=torch.float64)
    q = noisy(torch.tensor([[0.0, 0.4, 0.6]], dtype=torch.float64), alpha)
    q[0, 0] /= 2  # less than the noise alone gives
    nu = clean((q / q.sum()).log(), alpha, scores=True)
    assert float(nu[0, 0]) == 0 and math.isclose(float(nu.sum()), 1)


def test_diffusion_gemma_is_refused_with_its_reason(tmp_path: Path) -> None:
    made.written(tmp_path, {"model.embed_tokens.weight": torch.ones(4, 4)}, {"model_type": "diffusion_gemma"})
    with pytest.raises(ValueError, match="DiffusionGemma, a uniform-state mixture of experts with 26 B parameters"):
        unmask.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "esolm", "parameterization": "subs"}, r"is Eso-LM, .*: it is not supported"),
        ({"name": "hyperbolic_duo"}, r"is Hyperbolic DUO, .*: it is not supported"),
        ({"causal_attention": True}, r"causal_attention=True, which is not supported here"),
        ({"ignore_bos": True}, r"ignore_bos=True, which is not supported here"),
    ],
)
def test_what_shares_the_tensors_and_is_another_model_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = {"config": made.nested_config() | {"data": {}} | {"algo": DUO["algo"] | change}}
    found = look(made.hub_folder(tmp_path, made.state(VOCAB), config))
    with pytest.raises(ValueError, match=message):
        recognise(found).about(found)


def test_genmol_is_refused_by_its_name(tmp_path: Path) -> None:
    weights = {"backbone.bert.embeddings.word_embeddings.weight": torch.ones(4, 4)}
    with pytest.raises(ValueError, match="is a GenMol checkpoint"):
        recognise(look(made.written(tmp_path, weights, None)))
