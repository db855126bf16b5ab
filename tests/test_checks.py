"""What people hand to the library by mistake is refused in a sentence; what they may mean is taken."""

import copy
import dataclasses
import inspect
import pickle
import pydoc

import numpy as np
import pytest
import torch

import unmask
from tests.helpers import generator, hidden_markov

MODEL = hidden_markov()
TOKENS = MODEL.sample(3, 6, generator=generator(0))


@pytest.mark.parametrize("as_given", [torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.int, torch.Tensor.short])
def test_lists_arrays_and_other_integers_are_token_ids(as_given):
    canvas = TOKENS.clone()
    canvas[:, 2:4] = MODEL.mask_id
    expected = unmask.sample(MODEL, canvas=canvas, seed=3).tokens
    assert torch.equal(unmask.sample(MODEL, canvas=as_given(canvas), seed=3).tokens, expected)
    assert torch.equal(unmask.nelbo(MODEL, as_given(TOKENS)).nats, unmask.nelbo(MODEL, TOKENS).nats)
    by_list = unmask.objective.nelbo_by_count(MODEL, as_given(TOKENS), [1, 2, 3], generator=generator(1))
    assert torch.equal(
        by_list, unmask.objective.nelbo_by_count(MODEL, TOKENS, torch.tensor([1, 2, 3]), generator=generator(1))
    )


MASKED = torch.full((1, 4), MODEL.mask_id)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (
            lambda: unmask.objective.nelbo_by_time(MODEL, TOKENS, 1.5, generator=generator(0)),
            "t must be.*0..1.*got 1.5",
        ),
        (lambda: unmask.objective.score_entropy(MODEL, TOKENS, float("nan"), generator=generator(0)), "got nan"),
        (lambda: unmask.objective.nelbo_by_time(MODEL, TOKENS, [0.1, 0.2], generator=generator(0)), "got .* .2,"),
        (lambda: unmask.objective.nelbo_by_time(MODEL, TOKENS, "now", generator=generator(0)), "got 'now'"),
        (lambda: unmask.objective.nelbo_by_count(MODEL, TOKENS, 0, generator=generator(0)), "n must be.*1..6.*got 0"),
        (lambda: unmask.objective.nelbo_by_count(MODEL, TOKENS, 7, generator=generator(0)), "got 7"),
        (lambda: unmask.objective.nelbo_by_count(MODEL, TOKENS, 1.5, generator=generator(0)), "whole numbers"),
        (lambda: unmask.objective.nelbo_by_count(MODEL, TOKENS, 1, generator=0), "must be a torch.Generator"),
        (
            lambda: unmask.objective.nelbo_by_time(MODEL, MASKED, 0.5, generator=generator(0)),
            "must not contain the mask id",
        ),
        (lambda: unmask.objective.left_to_right(MODEL, TOKENS[0]), "x0.None"),
        (lambda: unmask.nelbo(MODEL, MASKED), "tokens must not contain the mask id"),
        (lambda: unmask.nelbo(MODEL, TOKENS + 99), "tokens must be ids in 0.."),
        (lambda: unmask.nelbo(MODEL, TOKENS.float()), "tokens must be token ids"),
        (lambda: unmask.nelbo(MODEL, "text"), "got str"),
        (lambda: unmask.nelbo(MODEL, TOKENS, generator=5), "must be a torch.Generator"),
        (lambda: unmask.sample(unmask.load("digits"), num=1), "give model.denoiser, or call model.sample"),
        (lambda: unmask.sample(Answers(lambda x: (x, None)), num=1, length=4), "returned a tuple"),
        (lambda: unmask.sample(Answers(lambda x: x.numpy()), num=1, length=4), "returned a ndarray"),
        (lambda: unmask.nelbo(Answers(lambda x: (x, None)), TOKENS), "returned a tuple"),
        (lambda: unmask.sample(Deaf(), num=1, length=4), "or leave the argument rows out of the forward"),
    ],
)
def test_what_cannot_be_meant_is_refused(act, message):
    with pytest.raises(ValueError, match=message):
        act()


class Answers:
    """The truth, in another shape."""

    vocab_size, mask_id = MODEL.vocab_size, MODEL.mask_id

    def __init__(self, shape):
        self.shape = shape

    def __call__(self, tokens, time=None, rows=None):
        return self.shape(MODEL(tokens, time=time, rows=rows))


class Deaf:
    """It takes rows, and gives all."""

    vocab_size, mask_id = MODEL.vocab_size, MODEL.mask_id

    def __call__(self, tokens, time=None, rows=None):
        return MODEL(tokens)


def test_sample_and_bound_are_shown_in_a_few_lines():
    made = unmask.sample(MODEL, num=2, length=20, steps=4)
    assert repr(made).splitlines()[0] == "Sample(2 sequences of 20 tokens)"
    assert "4 network calls" in repr(made) and len(repr(made).splitlines()) == 3
    bound = unmask.nelbo(MODEL, TOKENS)
    assert len(repr(bound).splitlines()) == 4 and f"perplexity {bound.perplexity:.5g}" in repr(bound)
    text = unmask.load("kjv").sample(1, steps=1, length=8)
    assert repr(text).startswith("TextSample(1 sequence of") and f"text: {text.text[0]!r}" in repr(text)
    assert repr(unmask.sample(MODEL, num=0, length=3)).count("\n") == 2


def test_help_explains_every_argument_and_the_result():
    said = inspect.getdoc(unmask.sample)
    for name in inspect.signature(unmask.sample).parameters:
        assert len(said.partition(f"\n    {name}: ")[2].partition("\n")[0]) > 15, name
    assert "Returns:\n    A Sample" in said
    assert "alpha(t)" in inspect.getdoc(unmask.Denoiser.__call__)


def test_help_shows_defaults_by_name():
    """A function's own repr is an address, which says nothing and differs from run to run."""
    for function in (unmask.sample, unmask.stream, unmask.Model.sample, unmask.Model.infill):
        told = pydoc.plain(pydoc.render_doc(function))
        assert " at 0x" not in told
        assert "= unmask.draw.exponential_race," in told and "= unmask.predict.first_order," in told
    for one in (unmask.draw.exponential_race, unmask.draw.inverse_cdf, unmask.predict.correct):
        assert eval(repr(one)) is one
    for one in (unmask.draw.exponential_race, unmask.draw.inverse_cdf):
        assert pickle.loads(pickle.dumps(one)) is copy.deepcopy(one) is one
        assert inspect.getdoc(one) and [*inspect.signature(one).parameters] == ["logits", "noise"]


def test_options_are_declared_once_and_shown_everywhere():
    """Python's functions, the command line and the HTTP API show the fields of the dataclasses, and no others."""
    from unmask import sampling
    from unmask.cli.sample import SampleOptions as OnCommandLine
    from unmask.model import Model
    from unmask.names import SamplerOptions
    from unmask.options import Numbers, Options
    from unmask.serve.http.schemas import SamplingRequest

    declared = {one.name: one for one in dataclasses.fields(Options)}
    for function in (unmask.sample, unmask.stream, sampling.divided, Model.sample, Model.infill):
        shown = inspect.signature(function).parameters
        assert not any(parameter.kind is parameter.VAR_KEYWORD for parameter in shown.values())
        for name, one in declared.items():
            assert shown[name].default is one.default and shown[name].annotation == one.type
        assert not hasattr(function, "__signature__") and not hasattr(function, "__wrapped__")
        assert len(shown) == function.__code__.co_argcount + function.__code__.co_kwonlyargcount
    named = {one.name for one in dataclasses.fields(SamplerOptions)}
    assert {one.name for one in dataclasses.fields(Numbers)} < named & {*declared}
    assert named == {*SamplingRequest.model_fields} and named < {one.name for one in dataclasses.fields(OnCommandLine)}
    for cls in (Options, SamplerOptions):  # a field is declared in one class alone
        places = [name for base in cls.__mro__ for name in vars(base).get("__annotations__", {})]
        assert len(places) == len(set(places))


def test_a_misspelt_or_invalid_option_is_named():
    oracle = unmask.EnumeratedOracle(torch.ones(2, 2) / 4)
    with pytest.raises(TypeError, match=r"sample\(\) got an unexpected keyword argument 'temprature'"):
        unmask.sample(oracle, length=2, temprature=1)
    with pytest.raises(unmask.OptionError, match="temperature must be a number of at least 0, got 'a'") as refused:
        unmask.sample(oracle, length=2, temperature="a")
    assert refused.value.option == "temperature"
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


def test_dir_shows_public_names_alone():
    import unmask.sampling

    assert set(dir(unmask)) == {*unmask.__all__, "__version__"}
    assert not [name for name in dir(unmask) if name.startswith("_") and name != "__version__"]
    assert np.all([hasattr(unmask, name) for name in dir(unmask)])
