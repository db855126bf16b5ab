"""LLaDA's mixtures of experts against their forward passes written out, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoints import moe_written_out as small
from unmask.checkpoints.contents import look
from unmask.checkpoints.formats import recognise
from unmask.networks.experts import Experts, Mixture

DATA = [i for i in range(small.V) if i != small.MASK]
MODELS = {"LLaDA-MoE": (small.llada_moe, small.llada_moe_logits, 0), "LLaDA2": (small.llada2, small.llada2_logits, 4)}


@pytest.mark.parametrize("name", MODELS)
def test_the_forward_pass_is_the_one_written_out(name: str, tmp_path: Path) -> None:
    write, logits, block = MODELS[name]
    weights = write(tmp_path)
    family = recognise(look(tmp_path))
    assert name == family.NAME
    loaded = family.load(look(tmp_path))
    assert loaded.about["block"] == (block or None) and loaded.about["missing"] == loaded.about["unexpected"] == []
    tokens = [1, 5, 11, 0, 12, 7, 11, 11, 3, 11]
    theirs, ours = logits(weights, tokens), loaded.denoiser(torch.tensor([tokens]))[0].double()
    assert theirs.std() > 0.5
    torch.testing.assert_close(ours[:, DATA].log_softmax(-1), theirs[:, DATA].log_softmax(-1), rtol=0, atol=1e-4)
    assert {*loaded.names.values()} == {*loaded.denoiser.state_dict()}


@pytest.mark.parametrize(
    ("name", "changes", "what"),
    [
        ("LLaDA-MoE", {"moe_router_enable_expert_bias": True}, "moe_router_enable_expert_bias=True is not known"),
        ("LLaDA-MoE", {"routed_scaling_factor": 2.0}, "routed_scaling_factor=2.0 is not known"),
        ("LLaDA2", {"score_function": "softmax"}, "score_function='softmax' is not known"),
        ("LLaDA2", {"norm_head": True}, "norm_head=True is not known"),
        ("LLaDA2", {"topk_group": 5}, "cannot be chosen from 5 of 4 groups"),
        ("LLaDA2", {"num_shared_experts": 0}, "has 6 tensors that a LLaDA2 does not have"),
    ],
)
def test_other_mixtures_are_refused_by_name(name: str, changes: dict[str, Any], what: str, tmp_path: Path) -> None:
    MODELS[name][0](tmp_path, **changes)
    with pytest.raises(ValueError, match=what):
        recognise(look(tmp_path)).load(look(tmp_path))


def test_an_expert_computes_only_the_tokens_that_are_routed_to_it() -> None:
    torch.manual_seed(0)
    mixture, counts = Mixture(8, Experts(6, 2, 4)), []
    for expert in mixture.experts:
        expert.register_forward_pre_hook(lambda _, x: counts.append(len(x[0])))
    x = torch.randn(3, 5, 8)
    chosen, weights = mixture.route(x.flatten(0, 1))
    every = torch.stack([expert(x) for expert in mixture.experts])
    counts.clear()
    mixed = mixture(x)
    assert sum(counts) == 3 * 5 * 2
    expected = sum(
        weights[:, j].view(3, 5, 1) * every[chosen[:, j].view(3, 5), torch.arange(3)[:, None], torch.arange(5)]
        for j in range(2)
    )
    torch.testing.assert_close(mixed, expected)
