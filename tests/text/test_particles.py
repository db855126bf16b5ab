"""Blanks filled from left to right by particles: their distribution is the network's own, given the whole text."""

import itertools

import pytest
import torch

import unmask
from tests.helpers import chi_square, codes
from tests.small_models import small
from unmask import Model
from unmask.networks.causal import Causal
from unmask.networks.ddit import DDiT
from unmask.sampler import apply
from unmask.text.particles import MOLECULES
from unmask.tokenizers.molecules import problem
from unmask.tokenizers.vocabularies import characters

LETTERS = characters("abc")
SIZES = {"vocab_size": 4, "mask_id": 4, "length": 8, "width": 16, "layers": 1, "heads": 2}
ADAPTED = {"adaln": False, "adapters": 4, "start": LETTERS.eos_id}
TEXT = "a__b_c"
MODELS = {
    "left to right": Model(small(Causal, std=0.3, **SIZES), LETTERS),
    "blocks": Model(small(DDiT, std=0.4, **SIZES, **ADAPTED, attention="block", block=2), LETTERS),
    "adapters": Model(small(DDiT, std=0.4, **SIZES, **ADAPTED), LETTERS),
}
PROPOSAL = Model(small(DDiT, std=0.05, **SIZES), LETTERS)


def posterior(model: Model, blanks: list[int]) -> tuple[torch.Tensor, float]:
    """p(blanks | text) over all fillings, and p(the text after the first blank | before it), by enumeration."""
    mask_id, size = model.denoiser.mask_id, model.denoiser.vocab_size
    ids = torch.tensor(blanks)
    holes = (ids == mask_id).nonzero().squeeze(1)
    every = ids.repeat(size ** len(holes), 1)
    every[:, holes] = torch.tensor(list(itertools.product(range(size), repeat=len(holes))))
    log_p = torch.zeros(len(every), dtype=torch.float64)
    for at in range(int(holes[0]), len(ids)):
        seen = every.clone()
        seen[:, at:] = mask_id
        with torch.no_grad():
            answers = model.denoiser(seen)[:, at].double().log_softmax(-1)
        log_p += answers.gather(1, every[:, at : at + 1]).squeeze(1)
    return log_p.softmax(0), float(log_p.logsumexp(0).exp())


@pytest.mark.parametrize("name", MODELS)
def test_the_blanks_have_their_distribution_given_the_text(name: str) -> None:
    """The p-values have false alarms of probability 1e-6. Without weights, what follows a blank would not matter."""
    assert p_value(MODELS[name], 24) > 1e-6 > p_value(MODELS[name], 1)


def p_value(model: Model, particles: int, proposal: Model | None = None) -> float:
    """Of the blanks of 600 texts, under p(blanks | text)."""
    ids = model.rows.blanks(TEXT).ids
    holes = [at for at, token in enumerate(ids) if token == model.denoiser.mask_id]
    tokens = model.infill(TEXT, 600, particles=particles, proposal=proposal, seed=1).tokens
    assert bool((torch.tensor(ids) == tokens)[:, [at for at in range(len(ids)) if at not in holes]].all())
    counts = torch.bincount(codes(tokens[:, holes], 4), minlength=4 ** len(holes))
    return chi_square(counts, posterior(model, ids)[0])


@pytest.mark.parametrize("name", MODELS)
def test_with_a_proposal_they_have_the_same_distribution(name: str) -> None:
    """The p-values have false alarms of probability 1e-6. With one particle the distribution is the proposal's."""
    assert p_value(MODELS[name], 200, PROPOSAL) > 1e-6 > p_value(MODELS[name], 1, PROPOSAL)


def test_a_proposed_text_is_the_same_in_any_batch_and_has_the_trace_of_its_particle() -> None:
    model = MODELS["blocks"]
    whole = model.infill(TEXT, 5, seed=3, particles=4, proposal=PROPOSAL)
    assert model.infill(TEXT, 5, seed=3, particles=4, proposal=PROPOSAL, batch=3).text == whole.text
    assert model.infill(TEXT, 2, seed=3, particles=4, proposal=PROPOSAL).text == whole.text[:2]
    assert whole.text == model.rows.texts(whole.tokens.tolist(), model.rows.blanks(TEXT))
    canvas = torch.tensor(model.rows.blanks(TEXT).ids).expand(5, -1).clone()
    for step in whole.trace:
        apply(step, canvas, model.denoiser.mask_id)
    assert torch.equal(canvas, whole.tokens)
    population = model.infill("a_b", proposal=PROPOSAL).population
    assert population is not None and population.tokens.shape[:2] == (1, 16)


OTHER_LETTERS = Model(small(DDiT, **SIZES), characters("abd"))
NOT_PROPOSED = {
    "no likelihood from left to right": (PROPOSAL, PROPOSAL, {}),
    "sees what comes before": (MODELS["blocks"], MODELS["left to right"], {}),
    "must have the tokenizer": (MODELS["blocks"], OTHER_LETTERS, {}),
    "leave out temperature": (MODELS["blocks"], PROPOSAL, {"temperature": 0.5, "contains": ["a"]}),
    "the seed is one whole number": (MODELS["blocks"], PROPOSAL, {"seed": [1, 2]}),
    "particles must be a whole number": (MODELS["blocks"], PROPOSAL, {"particles": 0}),
}


@pytest.mark.parametrize("message", NOT_PROPOSED)
def test_what_a_proposal_does_not_take_is_refused(message: str) -> None:
    model, proposal, options = NOT_PROPOSED[message]
    with pytest.raises(ValueError, match=message):
        model.infill(TEXT, proposal=proposal, **options)


@pytest.mark.parametrize("proposal", [None, PROPOSAL], ids=["in turn", "proposed"])
def test_the_evidence_is_the_probability_of_the_text_after_the_first_blank(proposal: Model | None) -> None:
    """It is unbiased with any number of particles; within five errors, false alarms have probability 6e-7."""
    model = MODELS["left to right"]
    _, exact = posterior(model, model.rows.blanks(TEXT).ids)
    made = model.infill(TEXT, 600, particles=4, proposal=proposal, seed=2)
    assert made.population is not None
    found = made.population.log_evidence.exp()
    assert abs(float(found.mean()) - exact) < 5 * float(found.std()) / 600**0.5 and float(found.std()) > 0


@pytest.mark.parametrize("name", MODELS)
def test_a_text_is_the_same_in_any_batch(name: str) -> None:
    model = MODELS[name]
    whole = model.infill(TEXT, 5, seed=3, particles=4)
    assert model.infill(TEXT, 5, seed=3, particles=4, batch=2).text == whole.text
    assert model.infill(TEXT, 2, seed=3, particles=4).text == whole.text[:2]


def test_the_number_of_particles_has_a_default() -> None:
    population = MODELS["blocks"].infill("a_b").population
    assert population is not None and population.tokens.shape[:2] == (1, 32)


def test_padding_costs_no_call() -> None:
    tokenizer = unmask.load("molecules").tokenizer
    sizes = SIZES | {"vocab_size": tokenizer.vocab_size, "mask_id": tokenizer.vocab_size, "length": 20}
    model = Model(small(Causal, **sizes), tokenizer, layout="rows")
    made = model.infill("C__O", 2, particles=4)
    assert made.calls == 4 and made.tokens.shape == (2, 5), "the blank, what follows, and the end"
    assert all(text[0] == "C" and text.endswith("O") for text in made.text)


REFUSED = {
    "temperature": (0.5, "particles sample the model itself: leave out temperature"),
    "stop": (True, "stop cannot be combined with particles"),
    "contains": (["a"], "which the text itself weighs: leave out contains"),
    "particles": (0, "particles must be a whole number of at least 1"),
}


@pytest.mark.parametrize("option", REFUSED)
@pytest.mark.parametrize("name", ["left to right", "blocks"])
def test_what_particles_do_not_take_is_refused(name: str, option: str) -> None:
    value, message = REFUSED[option]
    with pytest.raises(ValueError, match=message):
        MODELS[name].infill(TEXT, **{option: value})


def test_a_left_to_right_network_takes_no_steps() -> None:
    with pytest.raises(ValueError, match="it takes no steps"):
        MODELS["left to right"].infill(TEXT, steps=2)


def test_molecules_are_chosen_among_particles() -> None:
    """The default; one particle sees both sides of a blank, as over HTTP."""
    pytest.importorskip("rdkit")
    model = unmask.load("molecules")
    made, plain = model.infill("c1ccccc1____", 6, seed=1), model.infill("c1ccccc1____", 6, seed=1, particles=1)
    assert made.population is not None and made.population.tokens.shape[1] == MOLECULES and plain.population is None
    assert not any(map(problem, made.text)) and sum(not problem(text) for text in plain.text) < 3
    assert all(text.startswith("c1ccccc1") for text in made.text)
    inside = model.infill("CC(=O)Nc1ccc(____)cc1", 4, seed=1)  # a model that favours open branches
    assert not any(map(problem, inside.text)), inside.text


def test_a_network_that_takes_any_order_uses_particles_by_default() -> None:
    """With one it sees both sides of a blank, as over HTTP; a guide weighs particles in any order."""
    model = MODELS["adapters"]
    assert model.infill(TEXT).population is not None and model.infill(TEXT, particles=1).population is None
    assert model.infill(TEXT, temperature=0.5, steps=2).population is None
    made = model.infill(TEXT, particles=4)
    assert made.population is not None and made.calls == 6, "from the first blank to the end, one token per call"
    assert "b" in model.infill("a__", contains=["b"], particles=4, seed=1).text[0]
