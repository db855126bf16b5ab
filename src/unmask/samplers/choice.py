"""Which sampler the arguments of ``unmask.sample`` ask for, and which of them do not go together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from unmask import plan as plans
from unmask.forward import check_continues
from unmask.plan import Blocks, Planner
from unmask.predict import Predictor, correct, first_order
from unmask.protocol import block_of, is_left_to_right
from unmask.sampler import InBlocks, Planned, Sampler
from unmask.samplers.ahead import Ahead

if TYPE_CHECKING:
    from unmask.samplers.guided import Guide

Window = int | bool | Literal["auto"] | None
"""How many tokens to look ahead."""


def chosen(
    model: Any,
    canvas: Tensor,
    *,
    plan: Planner | None = None,
    steps: int | None = None,
    predict: Predictor = first_order,
    sampler: Sampler | None = None,
    ahead: Window = None,
    guide: Guide | None = None,
    particles: int = 1,
) -> Sampler:
    """The sampler that the arguments of ``sample`` ask for."""
    masked, in_turn, block = canvas == model.mask_id, is_left_to_right(model), block_of(model)
    second_order, looks = predict is not first_order, not (ahead is None or ahead is False)
    _check_together(plan, predict, sampler, looks, guide, particles)
    if guide is not None and guide.everywhere and (in_turn or block is not None):
        raise ValueError("this guide looks at all masked positions, and the network answers for the next ones alone")
    if in_turn:
        plan = _left_to_right(masked, plan, steps, predict, sampler)
    if block is not None:
        check_continues(masked, block)
        if looks or second_order:
            raise ValueError("attention by blocks answers for one block at a time: it takes no ahead and no predict")
    if sampler is not None:
        return sampler if block is None else _by_blocks(sampler, block)
    plan = _planner(plan, steps, predict, block)
    if guide is not None:
        from unmask.samplers.guided import Guided

        return Guided(plan, guide, particles)
    if not looks:
        return Planned(plan, predict)
    if second_order:
        raise ValueError("ahead is for predict.first_order: with one token per step the second order adds nothing")
    return Ahead(plan, "auto" if ahead is True or ahead is None else ahead)


def _check_together(
    plan: Any, predict: Any, sampler: Sampler | None, looks: bool, guide: Guide | None, particles: int
) -> None:
    """Refuse what cannot be meant by any network."""
    if not isinstance(predict, Predictor):
        raise ValueError(f"predict must be first_order, extrapolate or correct of unmask.predict, got {predict!r}")
    if plan is not None and not callable(plan):
        raise ValueError(f"plan must be a planner such as unmask.plan.parallel, got {plan!r}")
    other = predict is not first_order or looks
    if sampler is not None and (plan is not None or other):
        raise ValueError("give a sampler, or a plan, predict and ahead, not both")
    if guide is not None and (sampler is not None or other):
        raise ValueError("a guide weighs the tokens of a plan by predict.first_order: it takes no sampler and no ahead")
    if guide is None and particles != 1:
        raise ValueError("particles are weighed by a guide: give one of unmask.guides")


def _left_to_right(
    masked: Tensor, plan: Planner | None, steps: int | None, predict: Predictor, sampler: Sampler | None
) -> Planner:
    """The one plan of a left-to-right network."""
    given = {
        "sampler": sampler is not None,
        "plan": plan not in (None, plans.left_to_right),
        "steps": steps is not None,
        "predict": predict is not first_order,
    }
    for name in (name for name, is_given in given.items() if is_given):
        raise ValueError(f"a left-to-right model draws one token per call from the beginning: it takes no {name}")
    if bool((masked[:, :-1] & ~masked[:, 1:]).any()):
        raise ValueError("a left-to-right model continues a text: the holes of its canvas must come last")
    return plans.left_to_right


def _planner(plan: Planner | None, steps: int | None, predict: Predictor, block: int | None) -> Planner:
    """The plan, or the usual one; from block to block where the network has blocks."""
    plan = plan or (plans.first_hitting if steps is None else plans.parallel)
    if block is not None and not isinstance(plan, Blocks):
        plan = Blocks(block, plan)
    if isinstance(plan, Blocks) and block not in (None, plan.size):
        raise ValueError(f"plan.Blocks({plan.size}) does not fit the network: its blocks have {block} positions")
    if isinstance(plan, Blocks) and predict is correct:
        raise ValueError("predict.correct chooses again among all masked positions: it takes no plan by blocks")
    return plan


def _by_blocks(sampler: Sampler, block: int) -> Sampler:
    """The sampler as a network with attention by blocks needs it."""
    if not isinstance(sampler, InBlocks):
        raise ValueError(
            f"{type(sampler).__name__} fills positions all over the canvas; attention by blocks takes plans and "
            "decoding orders that can go from block to block"
        )
    return sampler.in_blocks(block)
