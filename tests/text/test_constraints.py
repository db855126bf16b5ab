"""Constraints on texts: through a model's own tokenizer, its layout and its end."""

import re

import pytest

import unmask
from tests.small_models import folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return unmask.load(folder(tmp_path_factory.mktemp("model") / "run", "characters"))


def test_a_text_has_its_words_and_matches_its_pattern(model):
    made = model.sample(4, seed=1, contains=["God", "void"])
    assert all("God" in text and "void" in text for text in made.text)
    made = model.sample(3, seed=1, pattern="[a-z ]*", particles=3)
    assert all(re.fullmatch("[a-z ]*", model.tokenizer.decode(row)) for row in made.tokens.tolist())
    assert made.population.log_weights.shape == (3, 3)


def test_a_blank_matches_too(model):
    made = model.infill("In the ____ God", 3, seed=2, contains=["sea"], steps=2)
    assert all(text.startswith("In the ") and text.endswith(" God") and "sea" in text for text in made.text)


def test_a_text_has_at_most_so_many_tokens_and_stops(model):
    made = model.sample(2, prompt="In", max_tokens=5, seed=3)
    assert all(text.startswith("In") for text in made.text) and made.calls == 5
    stopped = model.sample(2, prompt="In", max_tokens=5, seed=3, stop=True)
    assert stopped.calls <= 5
    with pytest.raises(ValueError, match="cannot be combined with length"):
        model.sample(1, length=9, max_tokens=3)


@pytest.mark.parametrize("name", ["kjv", "kjv-ar", "stories"])
def test_the_eos_that_begins_a_wrapped_sequence_ends_no_text(name):
    model = unmask.load(name)
    made = model.sample(3, length=16, seed=0, stop=True)
    assert (made.tokens[:, 0] == model.tokenizer.eos_id).all()
    assert all(len(text) > 4 for text in made.text)
    few = model.sample(2, max_tokens=6, seed=0, stop=True)
    assert int((few.tokens != model.tokenizer.eos_id).sum(1).max()) <= 6 and all(few.text)


def test_a_block_model_continues_a_prompt():
    made = unmask.load("stories").sample(1, prompt="Once upon a time", length=24, seed=1)
    assert made.text[0].startswith("Once upon a time") and len(made.text[0]) > 30


@pytest.mark.parametrize("name", ["kjv-ar", "stories"])
def test_a_network_that_answers_for_the_next_positions_looks_ahead_by_frequencies(name):
    made = unmask.load(name).sample(2, length=24, seed=1, contains=["water"], particles=2)
    assert all("water" in text for text in made.text)


def test_what_is_no_word_is_refused(model):
    with pytest.raises(ValueError, match="a list of words"):
        model.sample(1, contains="God")
    with pytest.raises(ValueError, match="give either guide"):
        model.sample(1, contains=["God"], guide=unmask.guides.only({}))
