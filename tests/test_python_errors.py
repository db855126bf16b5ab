"""Mistakes in Python calls: each is one sentence that says what to do."""

from __future__ import annotations

import pytest
import torch

import unmask
from tests.small_models import TOKENIZERS, network


class TooMany:
    """A network with a logit for the mask."""

    vocab_size, mask_id = 6, 5

    def __call__(self, tokens: torch.Tensor, time: torch.Tensor | None = None) -> torch.Tensor:
        return torch.zeros(*tokens.shape, 7)


def test_a_list_of_texts_is_no_text() -> None:
    model = unmask.Model(network(TOKENIZERS["bpe"]), TOKENIZERS["bpe"])
    with pytest.raises(unmask.OptionError, match="text must be one text with blanks, got list"):
        model.infill(["a ____"])  # type: ignore[arg-type]


def test_no_sequence_has_no_bound() -> None:
    with pytest.raises(ValueError, match="tokens has no row: give at least one sequence"):
        unmask.nelbo(network(TOKENIZERS["bpe"]), torch.zeros(0, 24, dtype=torch.int64))


def test_a_logit_of_the_mask_is_one_too_many() -> None:
    with pytest.raises(ValueError, match="one logit too many: the mask is never drawn"):
        unmask.sample(TooMany(), length=4)


@pytest.mark.parametrize("name", [3, None, ["kjv"]])
def test_a_model_is_loaded_by_its_name(name: object) -> None:
    with pytest.raises(ValueError, match="a model is loaded by its name or path, got"):
        unmask.load(name)  # type: ignore[arg-type]
