"""Guides: which distributions are exact, by enumeration, and how particles correct the others."""

import itertools
import re
from dataclasses import replace
from functools import partial

import pytest
import torch

import unmask
from tests.helpers import FALSE_ALARM, chi_square, codes, frequencies, generator, hidden_markov, oracle, total_variation
from tests.small_models import small
from unmask import guides, plan
from unmask.guides.automaton import Automaton
from unmask.guides.patterns import of_text
from unmask.likelihood import along_orders
from unmask.networks.ddit import DDiT
from unmask.networks.oracles.enumerated import EnumeratedOracle
from unmask.protocol import for_sampling
from unmask.sampler import Particles, Step
from unmask.samplers.guided import lineage

V, L = 3, 4
EVERY = torch.cartesian_prod(*[torch.arange(V)] * L)
# Id 2 comes at least twice.
TWICE = Automaton(torch.tensor([[0, 0, 1], [1, 1, 2], [2, 2, 2]]), torch.tensor([False, False, True]))


def joint_of(model):
    return model.log_likelihood(EVERY).exp()


def conditional(model, automaton=TWICE):
    """p(x | accepted) and p(accepted)."""
    weights = joint_of(model) * automaton.accepted(EVERY)
    return weights / weights.sum(), float(weights.sum())


def exact_classifier(model, automaton=TWICE):
    """log p(accepted | visible), by enumeration."""
    joint, accepted = joint_of(model), automaton.accepted(EVERY).double()

    def classify(canvases):
        fits = ((canvases.unsqueeze(1) == EVERY) | (canvases.unsqueeze(1) == model.mask_id)).all(2).double()
        return ((fits @ (joint * accepted)) / (fits @ joint)).clamp(max=1).log()

    return classify


def p_value(model, num=8000, automaton=TWICE, **options):
    made = unmask.sample(model, num=num, length=L, **options)
    assert bool(automaton.accepted(made.tokens).all())
    return chi_square(frequencies(made.tokens, V), conditional(model, automaton)[0])


def independent():
    rows = torch.rand(L, V, dtype=torch.float64, generator=torch.Generator().manual_seed(4)) + 0.1
    rows /= rows.sum(1, keepdim=True)
    joint = rows[0]
    for row in rows[1:]:
        joint = joint.unsqueeze(-1) * row
    return EnumeratedOracle(joint)


@pytest.mark.parametrize("order", [plan.first_hitting, plan.left_to_right])
def test_the_exact_classifier_gives_the_conditional(order):
    model = oracle(V, L)
    assert p_value(model, plan=order, guide=guides.classifier(exact_classifier(model)), seed=1) > FALSE_ALARM


@pytest.mark.parametrize("count", [1, 2])
def test_asking_for_a_few_tokens_at_a_time_changes_none(count):
    model, asked = oracle(V, L), [0, 0]

    def counted(which, canvases):
        asked[which] += len(canvases)
        return exact_classifier(model)(canvases)

    all_of_them = guides.classifier(partial(counted, 0))
    few = guides.classifier(partial(counted, 1), at_once=count)
    whole = unmask.sample(model, num=300, length=L, guide=all_of_them, seed=5).tokens
    assert torch.equal(whole, unmask.sample(model, num=300, length=L, guide=few, seed=5).tokens)
    assert asked[1] < asked[0] == 300 * L * V


def test_an_automaton_is_exact_for_independent_tokens_and_only_for_them():
    assert p_value(independent(), guide=guides.matching(TWICE), seed=2) > FALSE_ALARM
    assert p_value(oracle(V, L), guide=guides.matching(TWICE), seed=2) < FALSE_ALARM


@pytest.mark.parametrize("order", [plan.first_hitting, plan.left_to_right])
def test_an_automaton_with_the_chain_itself_is_exact(order):
    model = hidden_markov(V, 2)
    guide = guides.matching(TWICE, chain=model)
    assert p_value(model, plan=order, guide=guide, seed=3) > FALSE_ALARM
    made = unmask.sample(model, num=5, length=L, guide=guide, particles=4, seed=3)
    evidence = conditional(model)[1]
    assert torch.allclose(made.population.log_evidence.exp(), torch.tensor(evidence).double()), "no weight varies"
    assert torch.allclose(made.population.effective, torch.tensor(4.0).double())


def test_parallel_decoding_with_an_automaton_has_the_distribution_of_independent_tokens():
    """Tokens of one call are drawn one after the other, so that the constraint holds; exact where the plan is."""
    assert p_value(independent(), guide=guides.matching(TWICE), steps=2, seed=6) > FALSE_ALARM
    made = unmask.sample(oracle(V, L), num=50, length=L, steps=1, guide=guides.matching(TWICE), seed=6)
    assert bool(TWICE.accepted(made.tokens).all()) and made.calls == 1


def test_particles_repair_an_approximate_guide():
    """The distribution of populations of K, by all their weights: its distance to the conditional falls as 1 / K."""
    model, num = oracle(V, L), 1500
    truth, evidence = conditional(model)
    distance = {}
    for each in (1, 4, 16):
        made = unmask.sample(model, num=num, length=L, guide=guides.matching(TWICE), particles=each, seed=7)
        if each == 1:
            distance[each] = total_variation(frequencies(made.tokens, V) / num, truth)
            continue
        population = made.population
        weights = population.log_weights.softmax(1).flatten()
        law = torch.zeros(V**L, dtype=torch.float64).index_add_(0, codes(population.tokens.flatten(0, 1), V), weights)
        distance[each] = total_variation(law / num, truth)
        found = population.log_evidence.exp()
        assert abs(float(found.mean()) - evidence) < 5 * float(found.std()) / num**0.5, "unbiased"
        assert bool((population.effective >= 1).all()) and bool((population.effective <= each + 1e-9).all())
        picked = population.tokens[torch.arange(num), population.chosen]
        assert torch.equal(picked, made.tokens)
    assert distance[1] > 0.12 and distance[4] < 0.08 and distance[16] < 0.035
    assert chi_square(frequencies(made.tokens, V), truth) > FALSE_ALARM


def test_particles_repair_the_worst_guide():
    """A guide that knows nothing until the last token is importance sampling with resampling."""
    model = oracle(V, L)
    truth, evidence = conditional(model)

    def late(canvases):
        done = (canvases != model.mask_id).all(1)
        accepted = TWICE.accepted(canvases.clamp(max=V - 1))
        return torch.where(done & ~accepted, -torch.inf, 0.0)

    made = unmask.sample(model, num=1500, length=L, guide=guides.classifier(late), particles=24, seed=8)
    found = made.population.log_evidence.exp()
    assert abs(float(found.mean()) - evidence) < 5 * float(found.std()) / 1500**0.5
    assert chi_square(frequencies(made.tokens, V), truth) > FALSE_ALARM
    with pytest.raises(ValueError, match="more particles"):
        unmask.sample(model, num=200, length=L, guide=guides.classifier(late), seed=8)


def test_only_counts_what_allowed_costs():
    """allowed restricts each token as if it were alone: another distribution, which particles correct."""
    model = oracle(V, L)
    allowed = {0: torch.tensor([True, False, True]), 2: torch.tensor([False, True, True])}
    holds = allowed[0][EVERY[:, 0]] & allowed[2][EVERY[:, 2]]
    truth = joint_of(model) * holds
    truth /= truth.sum()
    short = unmask.sample(model, num=8000, length=L, allowed=allowed, plan=plan.left_to_right, seed=9).tokens
    assert chi_square(frequencies(short, V), truth) < FALSE_ALARM
    order = {"plan": plan.left_to_right, "seed": 9}
    one = unmask.sample(model, num=20, length=L, guide=guides.only(allowed), **order)
    assert torch.equal(one.tokens, short[:20])
    made = unmask.sample(model, num=1500, length=L, guide=guides.only(allowed), particles=16, **order)
    assert chi_square(frequencies(made.tokens, V), truth) > FALSE_ALARM


def test_classifier_free_is_the_distribution_that_it_says():
    """One masked token behind a prompt: mu^(1 + s) / mu'^s, in closed form."""
    model, s = oracle(V, 2), 1.5
    canvas = torch.tensor([[1, model.mask_id]]).expand(6000, -1)
    made = unmask.sample(model, canvas=canvas, guide=guides.classifier_free(model, s), seed=10).tokens
    with_prompt, without = model.joint[1] / model.joint[1].sum(), model.joint.sum(0)
    law = with_prompt ** (1 + s) / without**s
    assert chi_square(torch.bincount(made[:, 1], minlength=V), law / law.sum()) > FALSE_ALARM
    plain = unmask.sample(model, canvas=canvas[:50], seed=10).tokens
    none = guides.classifier_free(model, 0)
    assert torch.equal(unmask.sample(model, canvas=canvas[:50], guide=none, seed=10).tokens, plain)


class Inconsistent:
    """Random conditionals, one for every canvas and position: they belong to no joint."""

    vocab_size, mask_id = 2, 2

    def __init__(self):
        self.table = torch.randn(27, 3, 2, dtype=torch.float64, generator=generator(16)) * 2

    def __call__(self, tokens, time=None, rows=None):
        logits = self.table[tokens @ torch.tensor([9, 3, 1])]
        return logits.gather(1, rows.unsqueeze(2).expand(-1, -1, 2))


def test_the_limit_of_particles_where_conditionals_belong_to_no_joint():
    """With a shared order E_sigma[p_sigma h / Z_sigma], with orders of their own p h / Z: by enumeration.

    8,000 sequences of 48 particles: each is within 0.02 of its limit in total variation, and the limits are 0.28 apart.
    """
    model, num = Inconsistent(), 8_000
    every = torch.cartesian_prod(*[torch.arange(2)] * 3)
    h = torch.rand(8, dtype=torch.float64, generator=generator(1016)) ** 2
    along = (-along_orders(model, every, torch.tensor(list(itertools.permutations(range(3)))))).exp() * h.unsqueeze(1)
    shared, own = (along / along.sum(0)).mean(1), along.mean(1) / along.mean(1).sum()
    assert total_variation(shared, own) > 0.25

    def late(canvases):  # it knows h when the sequence is finished
        return torch.where((canvases == 2).any(1), 0.0, h[canvases.clamp(max=1) @ torch.tensor([4, 2, 1])].log())

    for orders, limit, other in ((False, shared, own), (True, own, shared)):
        how = {"guide": guides.classifier(late), "particles": 48, "own_orders": orders}
        made = unmask.sample(model, num=num, length=3, seed=3, **how)
        law = frequencies(made.tokens, 2) / num
        assert total_variation(law, limit) < 0.02 and total_variation(law, other) > 0.25
    few = unmask.sample(model, num=200, length=3, steps=2, seed=3, **(how | {"particles": 4}))
    assert few.calls == 2 and bool((few.tokens < 2).all()) and int(few.nfe.max()) == 2


def test_what_takes_no_orders_of_its_own_is_refused():
    how = {"num": 9, "length": L, "guide": guides.matching(TWICE), "own_orders": True}
    with pytest.raises(ValueError, match="own_orders is for several particles"):
        unmask.sample(oracle(V, L), **how)
    with pytest.raises(ValueError, match="as many network calls"):
        unmask.sample(oracle(V, L), **how, particles=3, plan=plan.ancestral, steps=3)


@pytest.mark.parametrize("steps", [None, 2, 1])
def test_the_effective_number_counts_what_every_token_of_a_call_adds(steps):
    """Weights change after the first token of a call, and after the last one of the run."""
    model = oracle(V, L)

    def rare(canvases):  # a guide that knows nothing before the last token
        unknown = (canvases == model.mask_id).any(1) | (canvases == canvases[:, :1]).all(1)
        return torch.where(unknown, 0.0, -4.0).double()

    made = unmask.sample(model, num=50, length=L, steps=steps, guide=guides.classifier(rare), particles=32, seed=5)
    population = made.population
    weights = population.log_weights.softmax(1)
    last = 1 / weights.square().sum(1)
    assert bool((population.effective <= last + 1e-9).all()) and float(last.min()) < 31
    if steps == 1:  # nothing is resampled, and the weights are equal up to the last token
        assert torch.allclose(population.effective, last) and float(last.min()) < 16


def test_the_lineage_of_many_sequences_is_followed_by_index():
    """60,000 sequences of two particles: a comparison of all with all would take 7.2e9 booleans for each step."""
    num, each = 60_000, 2
    parents = torch.randint(each, (num, each), generator=generator(0)) + torch.arange(num).unsqueeze(1) * each
    pairs = torch.arange(num * each).unsqueeze(1)
    blank = torch.zeros(num * each, 1, dtype=torch.float64)
    particles = Particles(parents.flatten(), blank[:, 0], blank[:, 0])
    every = Step(pairs[:, 0], torch.zeros_like(pairs), pairs, blank, blank, blank > 0, pairs[:, 0])
    few = torch.randperm(num * each, generator=generator(1))[:90_000]
    rows = torch.arange(num) * each + 1
    first, second, last = lineage([every, replace(every, particles=particles), every.take(few)], rows)
    there = torch.isin(rows, few)
    assert torch.equal(first.tokens[:, 0], parents.flatten()[rows]) and torch.equal(second.tokens[:, 0], rows)
    assert torch.equal(first.sequences, torch.arange(num))
    assert torch.equal(last.sequences, there.nonzero().squeeze(1)) and torch.equal(last.tokens[:, 0], rows[there])


def test_a_lineage_is_what_a_comparison_of_all_with_all_gives():
    made = unmask.sample(oracle(V, L), num=6, length=L, guide=guides.matching(TWICE), particles=5, seed=4, batch=2)
    canvas, trace = torch.full((6, L), V), []
    unmask.sample(
        oracle(V, L), num=6, length=L, guide=guides.matching(TWICE), particles=5, seed=4, batch=2, callback=trace.append
    )
    rows = torch.arange(6) * 5 + made.population.chosen
    for step, found in zip(reversed(trace), reversed(made.trace), strict=True):
        sequence, local = (rows.unsqueeze(1) == step.sequences).nonzero(as_tuple=True)
        assert torch.equal(found.sequences, sequence) and torch.equal(found.tokens, step.tokens[local])
        rows[sequence] = step.sequences[step.particles.parents[local]]
    for step in made.trace:
        unmask.apply(step, canvas, V)
    assert torch.equal(canvas, made.tokens)


def test_a_batch_changes_no_token_and_the_trace_is_the_lineage():
    model = oracle(V, L)
    options = {"num": 5, "length": L, "guide": guides.matching(TWICE), "particles": 6, "seed": 11}
    whole, parts = unmask.sample(model, **options), unmask.sample(model, **options, batch=2)
    assert torch.equal(whole.tokens, parts.tokens)
    assert torch.equal(whole.population.log_weights, parts.population.log_weights)
    for made in (whole, parts):
        canvas = torch.full((5, L), model.mask_id)
        for step in made.trace:
            unmask.apply(step, canvas, model.mask_id)
        assert torch.equal(canvas, made.tokens)
    assert whole.nfe.tolist() == [L] * 5 and whole.ncs.tolist() == [6 * L] * 5


def test_particles_of_a_network_with_a_cache():
    """What a cache remembers of a particle that was replaced is read again: the tokens are those without a cache."""
    config = {"vocab_size": 5, "mask_id": 5, "length": 8, "width": 16, "layers": 2, "heads": 2}
    model = small(DDiT, attention="order", **config)

    class Forgetful:
        """The same network, which reads everything again in every call, from left to right as the plan has it."""

        vocab_size, mask_id = model.vocab_size, model.mask_id

        def __call__(self, tokens, time=None, rows=None):
            cached, shown = for_sampling(model), torch.full_like(tokens, model.mask_id)
            cached.add(*tokens.shape)
            for column in range(int(rows.min()) + 1):
                logits = cached(shown, time, torch.full_like(rows, column))
                shown[:, column] = tokens[:, column]
            return logits

    def odd(canvases):  # what three tokens together are worth is known with the fourth: populations are resampled there
        return -4.0 * ((canvases[:, 3] != model.mask_id) & (canvases[:, :3].sum(1) % 2 == 1)).double()

    options = {
        "num": 3,
        "length": 8,
        "guide": guides.classifier(odd),
        "particles": 5,
        "plan": plan.left_to_right,
        "seed": 12,
    }
    copied = []
    made = unmask.sample(model, **options, callback=lambda step: copied.append(step.particles.parents))
    assert any(len(parents.unique()) < len(parents) for parents in copied)
    other = unmask.sample(Forgetful(), **options)
    assert torch.equal(made.tokens, other.tokens)
    assert torch.allclose(made.population.log_weights, other.population.log_weights, atol=1e-4)


@pytest.mark.parametrize(
    "options, says",
    [
        ({"ahead": 2}, "leave out ahead"),
        ({"steps": 2, "predict": unmask.predict.correct}, "first_order"),
        ({"particles": 0}, "at least 1"),
        ({"particles": 2, "temperature": 0.5}, "leave out temperature"),
        ({"particles": 2, "stop": 1}, "stop cannot be combined with particles"),
    ],
)
def test_options_that_would_change_the_distribution_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        unmask.sample(oracle(V, L), num=1, length=L, guide=guides.matching(TWICE), **options)


def test_more_refusals():
    model = oracle(V, L)
    with pytest.raises(ValueError, match="weighed by a guide"):
        unmask.sample(model, num=1, length=L, particles=3)
    with pytest.raises(ValueError, match="not defined by a weight"):
        unmask.sample(model, num=1, length=L, particles=3, guide=guides.classifier_free(model, 1.0))
    with pytest.raises(ValueError, match="weigh all tokens"):
        unmask.sample(model, num=1, length=L, particles=3, guide=guides.classifier(lambda x: x[:, 0] * 0.0, at_once=1))
    with pytest.raises(ValueError, match="impossible on this canvas"):
        unmask.sample(model, canvas=[[0, 1, 0, model.mask_id]], guide=guides.matching(TWICE))
    with pytest.raises(ValueError, match="log p"):
        unmask.sample(model, num=1, length=L, guide=guides.classifier(lambda x: x[:, 0] * torch.nan))


PIECES = [b"a", b"b", b"ab", b"\xc3", "é".encode(), b""]


@pytest.mark.parametrize("pattern", ["(a|b)*ab", "a{2}.*", "[^a]*", "(ab)+|b", "é.?", "c*"])
def test_a_regular_expression_reads_what_the_ids_write(pattern):
    automaton = of_text(pattern, PIECES)
    every = torch.cartesian_prod(*[torch.arange(len(PIECES))] * 3)
    for ids, accepted in zip(every.tolist(), automaton.accepted(every).tolist(), strict=True):
        whole = 3 not in ids
        assert accepted == (whole and re.fullmatch(pattern, b"".join(PIECES[i] for i in ids).decode()) is not None)


def test_behind_the_end_nothing_counts():
    automaton = of_text("a+", PIECES, end=5)
    rows = torch.tensor([[0, 5, 1], [0, 0, 0], [5, 0, 0], [1, 5, 0]])
    assert automaton.accepted(rows).tolist() == [True, True, False, False]


def test_both_of_two_automata():
    both = of_text("(a|b)*ab(a|b)*", PIECES) & of_text("(a|b)*bb(a|b)*", PIECES)
    every = torch.cartesian_prod(*[torch.arange(3)] * 4)
    text = ["".join(PIECES[i].decode() for i in row) for row in every.tolist()]
    assert both.accepted(every).tolist() == ["ab" in one and "bb" in one for one in text]


def test_a_pattern_that_is_none_is_refused():
    with pytest.raises(ValueError, match="not understood"):
        of_text("(a", PIECES)
    with pytest.raises(ValueError, match="needs pieces"):
        guides.matching("a")
