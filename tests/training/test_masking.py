from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers import generator, oracle
from tests.small_models import small
from tests.training.runs import settings, write_tokens
from unmask import objective, timing
from unmask.data.batches import generator as of_purpose
from unmask.data.batches import share
from unmask.forward import uniforms
from unmask.masking import Masking, by_count, by_time, joined
from unmask.networks.causal import Causal, twin
from unmask.networks.config import PRESETS
from unmask.networks.ddit import DDiT, preset
from unmask.networks.self_conditioned import SelfConditioned
from unmask.processes import AnyOrder, LeftToRight, Masked
from unmask.schedule import Cosine, Linear
from unmask.training.loop import train
from unmask.training.masking import Losses, for_validation, of_step

PROCESSES = {"left-to-right": LeftToRight(), "order": AnyOrder()}  # every token is a term
KINDS = ("time", "count", "mask-predict", "maskgit", "score-entropy", *PROCESSES)


def step(kind: str, times: str = "vdm", **how: Any) -> Masking:
    """The masking of a step for an objective, by the process that is trained with it."""
    drawn = {"batch": 8, "length": 12, "schedule": Linear(), "seed": 0, "step": 3}
    return of_step(PROCESSES.get(kind, Masked()), kind, times, **drawn | how)


def network(**options: Any) -> Any:
    settings = {**PRESETS["tiny"], "vocab_size": 7, "mask_id": 7, "length": 12, "width": 16, "dropout": 0.0}
    return small(DDiT, std=0.2, **{**settings, **options}).train()


def tokens(batch: int = 8) -> Tensor:
    return torch.randint(7, (batch, 12), generator=generator(1))


def assert_losses(losses: Losses, x0: Tensor, masking: Masking, expected: Tensor) -> None:
    """Each sequence's loss is the objective's; so is the sum, which is scaled."""
    total, each = losses(x0, *masking.tensors(), scale=0.5)
    assert torch.allclose(each.float(), expected.float(), rtol=1e-5)
    assert torch.allclose(total.double(), expected.sum().double() / 2, rtol=1e-5) and not each.requires_grad


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("times", ["independent", "vdm", "stratified"])
def test_the_shares_of_a_step_are_the_step(kind: str, times: str) -> None:
    whole = step(kind, times, batch=12, length=9, seed=3, step=5)
    parts = joined([whole.map(lambda part, rank=rank: share(part, rank, 3)) for rank in range(3)])
    for name in ("masked", "time", "weight", "n", "when"):
        assert torch.equal(getattr(parts, name), getattr(whole, name)) and len(getattr(parts, name)) == 12
    again = step(kind, times, batch=12, length=9, seed=3, step=5)
    assert torch.equal(whole.masked, again.masked) and torch.equal(whole.time, again.time)
    assert torch.equal(whole.when, again.when)
    for seed, number in ((3, 6), (4, 5)):
        other = step(kind, times, batch=12, length=9, seed=seed, step=number)
        assert not torch.equal(whole.when, other.when)
        if kind not in PROCESSES:
            assert not torch.equal(whole.masked, other.masked)


@pytest.mark.parametrize(("kind", "maker"), [("time", "by_time"), ("count", "by_count"), ("score-entropy", "by_time")])
def test_training_draws_its_masks_by_the_public_objectives(
    kind: str, maker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call for the step's global batch, and for the validations: Eq. 7's."""
    made: list[tuple[str, int]] = []

    def counting(make: Any, *args: Tensor, **options: Any) -> Masking:
        masking: Masking = make(*args, **options)
        made.append((make.__name__, len(masking.weight)))
        return masking

    for make in (by_time, by_count):
        monkeypatch.setattr(f"unmask.processes.process.{make.__name__}", partial(counting, make))
    train(settings(write_tokens(tmp_path / "data"), tmp_path / "run", objective=kind, steps=2, batch=6))
    assert made[:2] == [(maker, 6)] * 2 and {name for name, _ in made[2:]} == {"by_count"}


def test_stratified_counts_cover_every_stratum_of_the_global_batch() -> None:
    n = step("count", "stratified", batch=16, length=16, step=0).n
    assert n.tolist() == list(range(1, 17))


@pytest.mark.parametrize("conditioning", ["none", "time", "ratio"])
def test_by_time_is_equation_6(conditioning: str) -> None:
    model, x0, t = network(conditioning=conditioning), tokens(), timing.stratified(8, generator(2))
    expected = objective.nelbo_by_time(model, x0, t, generator=generator(3), schedule=Cosine())
    masking = by_time(t, uniforms(x0, generator(3)), schedule=Cosine())
    assert_losses(Losses(model, "time"), x0, masking, expected)


@pytest.mark.parametrize("conditioning", ["none", "time"])
def test_by_count_is_equation_7(conditioning: str) -> None:
    model, x0, n = network(conditioning=conditioning), tokens(), torch.arange(1, 9)
    expected = objective.nelbo_by_count(model, x0, n, generator=generator(3), schedule=Cosine())
    random = generator(3)
    masking = by_count(n, uniforms(x0, random), uniforms(x0, random), schedule=Cosine())
    assert_losses(Losses(model, "count"), x0, masking, expected)


def test_the_score_terms_are_sedds() -> None:
    model, x0, t = network(conditioning="time"), tokens(), timing.stratified(8, generator(2))
    expected = objective.score_entropy(model, x0, t, generator=generator(3))
    masking = by_time(t, uniforms(x0, generator(3)))
    losses = Losses(model, "score-entropy").train()
    assert_losses(losses, x0, masking, expected)
    as_mean = objective.cross_entropy(model, x0, masking)
    assert_losses(losses.eval(), x0, masking, masking.weight * as_mean)


def test_left_to_right_is_the_likelihood() -> None:
    torch.manual_seed(0)
    model, x0 = Causal(twin(preset("tiny", 7, 12, width=16, dropout=0.0))), tokens()
    masking = step("left-to-right", step=0)
    assert_losses(Losses(model, "left-to-right"), x0, masking, objective.left_to_right(model, x0))


def test_a_self_conditioned_network_is_validated_with_its_own_prediction() -> None:
    model, x0 = network(self_conditioning=True).eval(), tokens()
    masking = for_validation(Masked(), "time", batch=8, length=12)
    expected = objective.cross_entropy(SelfConditioned(model, remember=False), x0, masking)
    assert_losses(Losses(model, "time").eval(), x0, masking, masking.weight * expected)
    assert not torch.allclose(expected, objective.cross_entropy(model, x0, masking), rtol=1e-3)


def test_adaptive_counts_are_weighted_back() -> None:
    adaptive = timing.AdaptiveCount(12, memory=1)
    adaptive.update(torch.arange(1, 13), torch.arange(1.0, 13.0))
    masking = step("count", "adaptive", step=0, adaptive=adaptive)
    n, weight = adaptive.draw(8, of_purpose(0, 0, "time"))
    assert torch.equal(masking.n, n) and torch.allclose(masking.weight, weight * 12 / n)


def test_the_validations_bound_of_an_oracle_is_its_likelihood() -> None:
    """At 4,000 sequences of one x0 the estimate is within 5 standard errors of -log p(x0): false alarm rate 6e-7."""
    model = oracle(3, 4)
    x0 = torch.tensor([[0, 2, 1, 1]]).expand(4000, -1)
    masking = for_validation(Masked(), "time", batch=4000, length=4)
    values = masking.weight * objective.cross_entropy(model, x0, masking)
    exact = objective.along_order(model, x0[:1], torch.tensor([[2, 0, 3, 1]]))
    assert abs(float(values.mean() - exact)) < 5 * float(values.std()) / 4000**0.5


@pytest.mark.parametrize("kind", ["time", "count", "left-to-right", "order"])
def test_of_given_prompts_nothing_is_masked(kind):
    """Responses are a process of their own: with H of them a count is uniform on 1..H, and weighs H/n."""
    where = torch.arange(12) >= torch.tensor([0, 3, 11, 6]).unsqueeze(1)
    masking = step(kind, batch=4, where=where)
    assert not bool((masking.masked & ~where).any())
    if kind == "count":
        assert torch.allclose(masking.weight, where.sum(1) / masking.n.double())
    if kind in PROCESSES:
        assert torch.equal(masking.masked, where)
        assert bool((masking.when[~where] < masking.when[where].min()).all())
    with pytest.raises(ValueError, match="prompts that are given need objective time or count"):
        step("maskgit", batch=4, where=where)
