"""The one table from names to samplers."""

from typing import get_args

import pytest

import unmask
from tests.helpers import oracle
from unmask import names
from unmask.names import SamplerOptions
from unmask.processes import LeftToRight, Masked

NO_STEPS = ("entropy-bounded", "threshold", "threshold-dream")


def test_every_name_stands_for_something():
    assert set(get_args(names.SamplerName)) == {*names.PLANS, *names.PUBLISHED, *names.UNIFORM}
    assert set(get_args(names.PredictorName)) == {*names.PREDICTORS, "auto"}
    assert set(get_args(names.DecodingName)) == set(names.DECODING) >= {names.LEFT_TO_RIGHT}
    assert set(get_args(names.DrawName)) == set(names.DRAWS) == set(names.PRECISIONS)


@pytest.mark.parametrize(
    "chosen",
    [
        *(
            SamplerOptions(sampler=name, steps=None if name == "first-hitting" else 3)
            for name in (*names.PLANS, *names.PUBLISHED)
        ),
        *(SamplerOptions(predictor=name, steps=3) for name in (*names.PREDICTORS, "auto")),
        *(SamplerOptions(decoding=name, steps=3) for name in names.DECODING if name not in NO_STEPS),
        *(SamplerOptions(draw=name, steps=3) for name in names.DRAWS),
        SamplerOptions(decoding="entropy-bounded", gamma=0.5),
        SamplerOptions(decoding="threshold", threshold=0.5),
        SamplerOptions(temperature=0.5, top_k=2, top_p=0.9),
    ],
    ids=lambda chosen: " ".join(f"{name} {value}" for name, value in vars(chosen).items() if value is not None),
)
def test_every_choice_samples_and_is_recorded(chosen):
    model = oracle(3, 4)
    made = unmask.sample(model, length=4, **chosen.arguments())
    assert not bool((made.tokens == model.mask_id).any())
    record = chosen.record(Masked())
    assert record["dtype"] in (*names.PRECISIONS.values(), "float32")
    for name in ("sampler", "decoding"):
        if getattr(chosen, name) is not None:
            assert record[name] == getattr(chosen, name)


def test_what_is_as_by_default_is_left_to_the_sampler():
    assert SamplerOptions().arguments() == {}
    assert SamplerOptions().record(Masked()) == {
        "sampler": "first-hitting",
        "predictor": "first-order",
        "draw": "exponential-race",
        "temperature": 1.0,
        "dtype": "float64",
    }
    assert SamplerOptions(steps=4).record(Masked())["sampler"] == "parallel"
    assert SamplerOptions(temperature=0.5).record(LeftToRight()) == {
        "sampler": "left-to-right",
        "draw": "exponential-race",
        "temperature": 0.5,
        "dtype": "float64",
    }


def test_the_default_draw_is_the_samplers_own():
    assert names.DRAWS[SamplerOptions().draw] is unmask.draw.Pick().draw


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": "parallell"}, "sampler must be one of first-hitting, parallel, ancestral, published-ancestral"),
        ({"predictor": "third-order"}, "predictor must be one of first-order, extrapolate, correct, auto"),
        ({"decoding": "magrin"}, "decoding must be one of confidence, llada"),
        ({"draw": "dice"}, "draw must be one of exponential-race"),
        ({"sampler": "published-law"}, "sampler published-law needs steps"),
        ({"sampler": "published-law", "steps": 3, "decoding": "margin"}, "it takes no decoding"),
        ({"eta": 0.5}, "eta is for a decoding order"),
    ],
)
def test_a_name_or_number_that_has_no_meaning_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SamplerOptions(**options).arguments()


def test_ahead_is_for_orders_that_are_known_in_advance():
    assert SamplerOptions(ahead="auto").arguments() == {"ahead": "auto"}
    assert SamplerOptions(ahead=8).record(Masked())["ahead"] == 8
    assert SamplerOptions(ahead=8, decoding="left-to-right").arguments()["ahead"] == 8
    with pytest.raises(ValueError, match="takes no ahead"):
        SamplerOptions(ahead=8, decoding="margin").arguments()
    with pytest.raises(ValueError, match="takes no ahead"):
        SamplerOptions(ahead=8, sampler="published-ancestral", steps=4).arguments()


@pytest.mark.parametrize("name", names.UNIFORM)
def test_the_samplers_of_uniform_state(name):
    from tests.uniform_models import L
    from tests.uniform_models import oracle as uniform_oracle

    chosen = SamplerOptions(
        sampler=name, steps=None if name == "uniformised" else 3, eta=0.3 if name == "psi" else None
    )
    made = unmask.sample(uniform_oracle(), num=2, length=L, **chosen.arguments())
    assert made.tokens.shape == (2, L) and chosen.record(uniform_oracle().process)["sampler"] == name
    if name != "psi":
        with pytest.raises(unmask.OptionError, match="eta is for a decoding order"):
            SamplerOptions(sampler=name, steps=3, eta=0.3).arguments()
