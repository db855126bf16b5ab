"""The bundled models: the weights that were measured, in half precision, with correct cards."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path

import pytest
import torch

import unmask
from recipes import box
from unmask.files import sha256_of
from unmask.loading import BOX
from unmask.networks import pretrained

CHECKS = Path(__file__).parent / "box"
NAMES = sorted(path.stem for path in CHECKS.glob("*.json"))


@cache
def check(name: str) -> dict:
    return json.loads((CHECKS / f"{name}.json").read_text())


@cache
def model(name: str) -> unmask.Model:
    return unmask.load(name)


def test_the_bundled_models_are_those_that_were_measured() -> None:
    assert {path.name for path in BOX.iterdir() if path.is_dir()} == set(NAMES)
    assert {
        "kjv",
        "kjv-anyorder",
        "kjv-ar",
        "molecules",
        "digits",
        "stories",
        "stories-masked",
        "sudoku",
        "sudoku9",
    } <= set(NAMES)


def test_a_card_quotes_every_order_that_was_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert box.orders("molecules") == (5, 7) and box.orders("kjv") == (5,)
    monkeypatch.setitem(box.OTHERS, "kjv", (5,))
    assert box.counting("kjv", "kjv").count(box.shown(box.measured("ngram5-kjv"))) == 2


@pytest.mark.parametrize(("name", "order"), [(name, order) for name in NAMES for order in box.orders(name)])
def test_a_bundled_model_beats_counting(name: str, order: int) -> None:
    value, error = box.margin(name, order)
    assert value > 2 * error


def test_what_is_no_better_than_counting_is_not_bundled() -> None:
    value, error = box.margin("kjv-sedd", 5)
    assert value < 2 * error and "kjv-sedd" not in NAMES


def test_the_margin_of_a_model_is_paired() -> None:
    """Sequence by sequence the error is smaller than that of two means, and the value is their difference."""
    own, counted = (box.measured(stem)["bits_per_token"] for stem in ("kjv", "ngram5-kjv"))
    value, error = box.margin("kjv", 5)
    assert value == pytest.approx(counted["value"] - own["value"], abs=1e-4)
    assert error < math.hypot(own["error_over_sequences"], counted["error_over_sequences"])


def test_by_a_mixture_of_orders_kjv_beats_counting_clearly() -> None:
    """By five errors over sequences, and by three over stretches of them, whose neighbours are alike."""
    found = box.measured("kjv-mixture")
    below = found[box.BELOW]["5"]
    value, error, longer = (below[key] for key in ("value", "error_over_sequences", "error_over_16_in_a_row"))
    assert value > 5 * error and value > 3 * longer
    assert box.shown(found) in (model("kjv").denoiser.card.mixture or "")


@pytest.mark.parametrize("name", NAMES)
class TestShipped:
    def test_weights_are_the_ones_that_were_measured(self, name: str) -> None:
        weights = BOX / name / pretrained.WEIGHTS
        assert sha256_of(weights) == check(name)["sha256"]
        assert weights.stat().st_size < 20e6

    def test_they_are_stored_in_half_precision_and_computed_in_float32(self, name: str) -> None:
        header = pretrained.read_header(BOX / name)
        assert header["storage"] == "float16"
        assert all(parameter.dtype == torch.float32 for parameter in model(name).denoiser.parameters())

    def test_the_card_says_what_a_reader_must_know(self, name: str) -> None:
        card = model(name).denoiser.card
        for field in ("data", "license", "command", "tokens_seen", "bound", "bound_error", "held_out"):
            assert getattr(card, field), field
        assert card.bound == box.measured(name)["bits_per_token"]["value"]
        in_turn = model(name).process.from_left and not model(name).process.exact
        assert card.measured_by and (card.estimate_error is None) == (model(name).process.exact or in_turn)
        assert (card.random_order is not None) == in_turn
        assert f"Kneser-Ney {box.ORDER}-gram" in card.ngram and f"unmask evaluate ngram:{box.ORDER} " in card.ngram
        assert card.ngram == box.counting(name, box.measured(name)["data"])
        assert len(card.samples) == 3
        text = (BOX / name / pretrained.README).read_text()
        assert card.command in text
        assert f"recipes/{name}.toml" in card.command or f"recipes.{name} " in card.command
        assert (Path(__file__).parents[2] / f"recipes/{name}.toml").is_file()

    def test_bound_of_a_held_out_slice(self, name: str) -> None:
        """The very number that was measured (to rounding), and within 5 errors of the card's over all sequences."""
        checked, shipped = check(name), model(name)
        tokens = torch.tensor(checked["tokens"])
        bits = box.bits_per_token(shipped, tokens, checked["passes"])
        assert float(bits.mean()) == pytest.approx(checked["bits_per_token"], abs=2e-3)
        card = shipped.denoiser.card
        assert abs(float(bits.mean()) - card.bound) < 5 * math.hypot(checked["error"], card.bound_error)

    def test_the_cards_samples_are_what_the_seed_gives(self, name: str) -> None:
        assert model(name).sample(1, seed=0).text[0] == model(name).denoiser.card.samples[0]
