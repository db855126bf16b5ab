"""The known-answer models against brute force: every posterior, likelihood, draw and count."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from tests.helpers import FALSE_ALARM, chi_square, frequencies, generator
from unmask import protocol
from unmask.networks.oracles import baum_welch
from unmask.networks.oracles.enumerated import EnumeratedOracle, HiddenMarkovOracle, MarkovOracle, TimeDependent


def random_table(*shape: int, seed: int, zero: int | None = None) -> Tensor:
    """Rows of positive probabilities, with nothing at the id `zero`."""
    table = torch.rand(*shape, dtype=torch.float64, generator=generator(seed)) + 0.05
    if zero is not None:
        table[..., zero] = 0
    return table / table.sum(-1, keepdim=True)


def random_joint(vocab_size: int, length: int, seed: int, zero: int | None = None) -> Tensor:
    joint = torch.rand([vocab_size] * length, dtype=torch.float64, generator=generator(seed)) ** 2
    if zero is not None:
        for axis in range(length):
            joint.select(axis, zero).zero_()
    return joint / joint.sum()


def hidden_markov(states: int, vocab_size: int, seed: int, mask_id: int | None = None) -> HiddenMarkovOracle:
    zero = mask_id if mask_id is not None and mask_id < vocab_size else None
    return HiddenMarkovOracle(
        random_table(states, seed=seed),
        random_table(states, states, seed=seed + 1),
        random_table(states, vocab_size, seed=seed + 2, zero=zero),
        mask_id=mask_id,
    )


def markov(vocab_size: int, seed: int, mask_id: int | None = None) -> MarkovOracle:
    zero = mask_id if mask_id is not None and mask_id < vocab_size else None
    return MarkovOracle(
        random_table(vocab_size, seed=seed, zero=zero),
        random_table(vocab_size, vocab_size, seed=seed + 1, zero=zero),
        mask_id=mask_id,
    )


def path_sum_joint(model: HiddenMarkovOracle, length: int) -> Tensor:
    """p(x) for every x as a sum over all S^L paths of states, term by term."""
    joint = torch.zeros([model.vocab_size] * length, dtype=torch.float64)
    for x in itertools.product(range(model.vocab_size), repeat=length):
        for z in itertools.product(range(model.states), repeat=length):
            p = float(model.initial[z[0]] * model.emission[z[0], x[0]])
            for l in range(1, length):  # noqa: E741
                p *= float(model.transition[z[l - 1], z[l]] * model.emission[z[l], x[l]])
            joint[x] += p
    return joint


def all_contexts(vocab_size: int, length: int, mask_id: int) -> Tensor:
    ids = sorted({*range(vocab_size), mask_id})
    return torch.tensor(list(itertools.product(ids, repeat=length)))


def brute_force(joint: Tensor, context: list[int], mask_id: int) -> tuple[Tensor, float]:
    """p(x^l = v | visible tokens) [L, V] and p(visible tokens), by going through every sequence."""
    posterior, total = torch.zeros(joint.dim(), joint.shape[0], dtype=torch.float64), 0.0
    for x in itertools.product(range(joint.shape[0]), repeat=joint.dim()):
        if all(c in (v, mask_id) for c, v in zip(context, x, strict=True)):
            total += float(joint[x])
            for position, v in enumerate(x):
                posterior[position, v] += joint[x]
    return posterior / total, total


ORACLES = {
    "enumerated": (lambda: EnumeratedOracle(random_joint(3, 4, seed=1)), 4),
    "enumerated, mask in the middle": (lambda: EnumeratedOracle(random_joint(4, 4, seed=2, zero=1), mask_id=1), 4),
    "hidden": (lambda: hidden_markov(3, 4, seed=3), 4),
    "hidden, long": (lambda: hidden_markov(3, 7, seed=4), 40),
    "hidden, mask in the middle": (lambda: hidden_markov(2, 4, seed=5, mask_id=2), 4),
    "markov": (lambda: markov(3, seed=6), 4),
    "markov, mask in the middle": (lambda: markov(4, seed=7, mask_id=0), 4),
}
Oracle = EnumeratedOracle | HiddenMarkovOracle


@pytest.fixture(params=ORACLES.values(), ids=ORACLES.keys())
def case(request: pytest.FixtureRequest) -> tuple[Oracle, int]:
    make, length = request.param
    return make(), length


@pytest.mark.parametrize("mask_id", [None, 0, 1])
def test_enumerated_posterior_is_brute_force(mask_id: int | None) -> None:
    joint = random_joint(3, 3, seed=0, zero=mask_id)
    joint[2, 2] = 0
    joint /= joint.sum()
    model = EnumeratedOracle(joint, mask_id=mask_id)
    contexts = all_contexts(3, 3, model.mask_id)
    for context in contexts:
        posterior, total = brute_force(joint, context.tolist(), model.mask_id)
        torch.testing.assert_close(model.log_likelihood(context[None]).exp()[0].item(), total, rtol=1e-12, atol=1e-300)
        if total > 0:
            torch.testing.assert_close(model(context[None])[0].exp(), posterior, rtol=1e-12, atol=0)
        else:
            with pytest.raises(ValueError, match="probability zero"):
                model(context[None])
    possible = contexts[model.log_likelihood(contexts) > -torch.inf]
    assert 10 < len(possible) < len(contexts)
    one_by_one = torch.cat([model(context[None]) for context in possible])
    assert torch.equal(model(possible), one_by_one)


@pytest.mark.parametrize("mask_id", [None, 1])
def test_hidden_markov_is_the_sum_over_paths(mask_id: int | None) -> None:
    model = hidden_markov(2, 3, seed=10, mask_id=mask_id)
    truth = EnumeratedOracle(path_sum_joint(model, 4), mask_id=mask_id)
    contexts = all_contexts(3, 4, model.mask_id)
    torch.testing.assert_close(model(contexts), truth(contexts), rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(model.log_likelihood(contexts), truth.log_likelihood(contexts), rtol=1e-12, atol=1e-13)


def test_markov_is_the_product_of_powers_of_the_transition() -> None:
    """A position i after token a and j before token b holds v with probability in proportion to T^i[a, v] T^j[v, b]."""
    model = markov(5, seed=11)
    tokens = torch.tensor([[3, 5, 5, 5, 1], [5, 5, 2, 5, 5]])
    T, power = model.transition, torch.linalg.matrix_power
    between = power(T, 2)[3] * power(T, 2)[:, 1]
    first = model.initial * power(T, 2)[:, 2]
    last = power(T, 2)[2]
    posterior = model(tokens).exp()
    torch.testing.assert_close(posterior[0, 2], between / between.sum(), rtol=1e-12, atol=0)
    torch.testing.assert_close(posterior[1, 0], first / first.sum(), rtol=1e-12, atol=0)
    torch.testing.assert_close(posterior[1, 4], last, rtol=1e-12, atol=0)


def test_markov_is_a_hidden_chain_with_identity_emission() -> None:
    model = markov(4, seed=12)
    hidden = HiddenMarkovOracle(model.initial, model.transition, torch.eye(4))
    contexts = all_contexts(4, 4, 4)
    assert torch.equal(model(contexts), hidden(contexts))
    assert torch.equal(model.log_likelihood(contexts), hidden.log_likelihood(contexts))


def test_is_a_denoiser_that_ignores_time(case: tuple[Oracle, int]) -> None:
    model, length = case
    protocol.check(model)
    assert isinstance(model, protocol.Denoiser)
    tokens = torch.full((2, length), model.mask_id)
    logits = model(tokens)
    assert logits.dtype == torch.float64 and logits.shape == (2, length, model.vocab_size)
    torch.testing.assert_close(logits.logsumexp(-1), torch.zeros(2, length, dtype=torch.float64), rtol=0, atol=1e-12)
    assert torch.equal(model(tokens, time=torch.tensor([0.1, 0.9])), logits)
    assert model(tokens[:0]).shape == (0, length, model.vocab_size)
    assert model(tokens, rows=torch.empty(2, 0, dtype=torch.int64)).shape == (2, 0, model.vocab_size)
    if model.mask_id < model.vocab_size:
        assert bool((logits[..., model.mask_id] == -torch.inf).all())


@pytest.mark.parametrize("seed", range(3))
def test_chain_rule_in_any_order(case: tuple[Oracle, int], seed: int) -> None:
    """The log conditionals along any order of filling add up to the log-likelihood, at every step of the way."""
    model, length = case
    x = model.sample(5, length=length, generator=generator(seed))
    order = torch.rand(5, length, generator=generator(seed + 50)).argsort(1)
    tokens = torch.full_like(x, model.mask_id)
    total = torch.zeros(5, dtype=torch.float64)
    for n in range(length):
        rows = order[:, n : n + 1]
        logits = model(tokens, rows=rows)
        total += logits.squeeze(1).gather(1, x.gather(1, rows)).squeeze(1)
        tokens.scatter_(1, rows, x.gather(1, rows))
        torch.testing.assert_close(total, model.log_likelihood(tokens), rtol=0, atol=1e-9)
    assert torch.equal(tokens, x)


def test_rows_are_the_full_answer_gathered(case: tuple[Oracle, int]) -> None:
    model, length = case
    x = model.sample(6, length=length, generator=generator(1))
    hidden = torch.rand(6, length, generator=generator(2)) < 0.6
    tokens = x.masked_fill(hidden, model.mask_id)
    full = model(tokens)
    rows = torch.randint(length, (6, 3), generator=generator(3))
    gathered = full.gather(1, rows.unsqueeze(-1).expand(-1, -1, model.vocab_size))
    torch.testing.assert_close(model(tokens, rows=rows), gathered, rtol=1e-13, atol=1e-13)
    one_hot = torch.nn.functional.one_hot(x, model.vocab_size).double().log()
    assert torch.equal(full[~hidden], one_hot[~hidden])


def test_samples_have_the_joint_distribution(case: tuple[Oracle, int]) -> None:
    """Chi-square over the first three positions, 20,000 draws; false alarms: 7 cases at 1e-6 each."""
    model, length = case
    num, leading = 20_000, 3
    x = model.sample(num, length=length, generator=generator(4))
    assert x.shape == (num, length)
    outcomes = torch.tensor(list(itertools.product(range(model.vocab_size), repeat=leading)))
    tokens = torch.full((len(outcomes), length), model.mask_id)
    tokens[:, :leading] = outcomes
    # The mask as an outcome would be read as a masked position; it has probability zero.
    possible = (outcomes != model.mask_id).all(1)
    expected = model.log_likelihood(tokens).exp() * possible
    assert chi_square(frequencies(x[:, :leading], model.vocab_size), expected) > FALSE_ALARM


def test_samples_depend_on_the_generator_alone(case: tuple[Oracle, int]) -> None:
    model, length = case
    before = torch.get_rng_state()
    a, b, c = (model.sample(50, length=length, generator=generator(seed)) for seed in (5, 5, 6))
    assert torch.equal(a, b) and not torch.equal(a, c)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.sample(0, length=length, generator=generator(0)).shape == (0, length)


@pytest.mark.parametrize(("u", "drawn"), [(0.0, 1), (1 - 2**-53, 10)])
def test_impossible_ids_are_not_drawn_at_the_ends_of_the_range(
    monkeypatch: pytest.MonkeyPatch, u: float, drawn: int
) -> None:
    """Ids of probability zero surround ten of 0.1, whose cumulative sum ends at 1 - 2^-53."""
    table = torch.tensor([0.0, *[0.1] * 10, 0.0], dtype=torch.float64)
    assert table.cumsum(0)[-1] <= 1 - 2**-53
    monkeypatch.setattr(torch, "rand", lambda n, **_: torch.full((n,), u, dtype=torch.float64))
    model = HiddenMarkovOracle(torch.ones(1), torch.ones(1, 1), table[None])
    assert model.sample(3, 2, generator(0)).tolist() == [[drawn] * 2] * 3
    assert EnumeratedOracle(table).sample(2, generator=generator(0)).tolist() == [[drawn]] * 2


def test_long_sequences_do_not_underflow() -> None:
    """The scaled recursion agrees with one in logarithms where the likelihood is about exp(-7,000)."""
    model = hidden_markov(3, 1000, seed=20)
    x = model.sample(2, 1024, generator(0))
    log_e, log_t = model.emission.log().T, model.transition.log()
    log_f = model.initial.log() + log_e[x[:, 0]]
    for position in range(1, 1024):
        log_f = torch.logsumexp(log_f.unsqueeze(-1) + log_t, 1) + log_e[x[:, position]]
    expected = log_f.logsumexp(-1)
    assert bool((expected < -5000).all())
    torch.testing.assert_close(model.log_likelihood(x), expected, rtol=1e-12, atol=0)
    x[:, 500] = 1000
    assert bool(torch.isfinite(model(x, rows=torch.full((2, 1), 500))).all())


def test_contexts_beyond_float64_are_refused_and_never_nan() -> None:
    """States 0 and 1 explain what comes before and what comes after; no state explains both to within 1e-308."""
    emission = torch.tensor([[1 - 1e-200, 1e-200], [1e-200, 1 - 1e-200]], dtype=torch.float64)
    model = HiddenMarkovOracle(torch.tensor([0.5, 0.5]), torch.eye(2), emission)
    assert bool(torch.isfinite(model(torch.tensor([[0, 2, 1]]))[0, 1]).all())
    with pytest.raises(ValueError, match="probability zero"):
        model(torch.tensor([[0, 0, 2, 1, 1]]), rows=torch.tensor([[2]]))


def test_the_papers_sizes_ask_for_no_full_tensor() -> None:
    """V = 50,257, L = 1024, B = 16: [B, L, V] in float64 would be 6.6 GB; one row of each is 6 MB."""
    model = hidden_markov(8, 50_257, seed=30)
    x = model.sample(16, 1024, generator(0))
    x[:, ::2] = model.mask_id
    logits = model(x, rows=torch.full((16, 1), 512))
    assert logits.shape == (16, 1, 50_257)
    torch.testing.assert_close(logits.logsumexp(-1), torch.zeros(16, 1, dtype=torch.float64), rtol=0, atol=1e-12)


def test_batches_are_cut_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    model = hidden_markov(3, 5, seed=40)
    x = model.sample(23, 12, generator(0))
    tokens = x.masked_fill(torch.rand(23, 12, generator=generator(1)) < 0.5, model.mask_id)
    rows = torch.randint(12, (23, 2), generator=generator(2))
    whole = model(tokens, rows=rows), model.log_likelihood(tokens)
    counts = baum_welch.expected_counts(tokens, model.initial, model.transition, model._likelihood)
    monkeypatch.setattr(baum_welch, "_ELEMENTS_AT_ONCE", 3 * 12 * 5)
    torch.testing.assert_close((model(tokens, rows=rows), model.log_likelihood(tokens)), whole, rtol=1e-13, atol=1e-13)
    again = baum_welch.expected_counts(tokens, model.initial, model.transition, model._likelihood)
    torch.testing.assert_close(again, counts, rtol=1e-12, atol=1e-12)


def test_entropies() -> None:
    chain = markov(3, seed=50)
    joint = EnumeratedOracle(path_sum_joint(chain, 4))
    x = all_contexts(3, 4, 0)
    log_p = joint.log_likelihood(x)
    assert joint.entropy() == pytest.approx(float(-(log_p.exp() * log_p).sum()), rel=1e-12)
    assert chain.entropy(4) == pytest.approx(joint.entropy(), rel=1e-12)
    assert MarkovOracle(torch.tensor([1.0, 0.0]), torch.eye(2)).entropy(7) == 0


def test_enumerated_fit_counts() -> None:
    tokens = torch.tensor([[0, 1], [0, 1], [2, 2], [1, 0]])
    fitted = EnumeratedOracle.fit(tokens, 3)
    assert fitted.joint[0, 1] == 0.5 and fitted.joint[2, 2] == 0.25 and fitted.joint[1, 1] == 0
    smoothed = EnumeratedOracle.fit(torch.tensor([[0, 2], [2, 0]]), 3, smoothing=1.0, mask_id=1)
    assert smoothed.joint[0, 2] == pytest.approx(2 / 6) and smoothed.joint[0, 0] == pytest.approx(1 / 6)
    assert smoothed.mask_id == 1 and smoothed.joint[1].sum() == smoothed.joint[:, 1].sum() == 0


def test_markov_fit_counts() -> None:
    fitted = MarkovOracle.fit(torch.tensor([[0, 1, 1], [2, 1, 0]]), 4)
    assert fitted.initial.tolist() == [0.5, 0, 0.5, 0]
    assert fitted.transition[1].tolist() == [0.5, 0.5, 0, 0]
    assert fitted.transition[3].tolist() == [0.25] * 4  # never left: uniform
    smoothed = MarkovOracle.fit(torch.tensor([0, 1, 1, 0]), 3, smoothing=1.0, mask_id=2)
    assert smoothed.initial.tolist() == pytest.approx([2 / 3, 1 / 3, 0])
    assert smoothed.transition.tolist()[0] == pytest.approx([1 / 3, 2 / 3, 0])
    assert smoothed.transition[:, 2].sum() == 0 and smoothed.mask_id == 2


@pytest.mark.parametrize("strength", [0.5, -1.5])
def test_time_dependent_reads_the_time(strength: float) -> None:
    model = TimeDependent(hidden_markov(2, 4, seed=80, mask_id=2), strength=strength)
    protocol.check(model)
    assert isinstance(model, protocol.Denoiser) and (model.vocab_size, model.mask_id) == (4, 2)
    tokens, rows = torch.tensor([[0, 2, 2], [0, 2, 2]]), torch.tensor([[1, 0], [1, 0]])
    plain = model.model(tokens, rows=rows)
    assert torch.equal(model(tokens, torch.tensor([0.5, 0.5]), rows), plain)
    logits = model(tokens, time=torch.tensor([0.0, 1.0]), rows=rows)
    scaled = torch.stack([plain[0] * (1 - strength / 2), plain[1] * (1 + strength / 2)])
    torch.testing.assert_close(logits, scaled, rtol=1e-15, atol=0)
    assert not torch.isnan(logits).any() and bool((logits[..., 2] == -torch.inf).all())


HALF = torch.full((2,), 0.5)
SQUARE = torch.full((2, 2), 0.5)
WRONG = {
    "negative joint": (lambda: EnumeratedOracle(torch.tensor([1.5, -0.5])), "joint must hold finite, non-negative"),
    "nan joint": (lambda: EnumeratedOracle(torch.tensor([1.0, math.nan])), "joint must hold finite, non-negative"),
    "joint sum": (lambda: EnumeratedOracle(torch.tensor([0.5, 0.4])), "joint must sum to 1"),
    "joint shape": (lambda: EnumeratedOracle(torch.full((2, 3), 1 / 6)), r"joint must have shape \[V\] \* L"),
    "joint scalar": (lambda: EnumeratedOracle(torch.tensor(1.0)), r"joint must have shape \[V\] \* L"),
    "joint too large": (lambda: EnumeratedOracle(torch.zeros([2] * 18)), "use HiddenMarkovOracle"),
    "used mask": (lambda: EnumeratedOracle(HALF, mask_id=1), "mask_id=1 lies below V=2"),
    "mask range": (lambda: EnumeratedOracle(HALF, mask_id=3), r"mask_id must be in 0\.\.vocab_size=2, got 3"),
    "initial shape": (lambda: HiddenMarkovOracle(SQUARE, SQUARE, SQUARE), r"initial must be \[S\]"),
    "initial sum": (lambda: HiddenMarkovOracle(HALF * 2, SQUARE, SQUARE), "initial must sum to 1"),
    "transition shape": (lambda: HiddenMarkovOracle(HALF, SQUARE[:1], SQUARE), r"transition must have shape \(2, 2\)"),
    "transition sum": (lambda: HiddenMarkovOracle(HALF, SQUARE * 2, SQUARE), "transition must sum to 1"),
    "emission shape": (lambda: HiddenMarkovOracle(HALF, SQUARE, SQUARE[:1]), r"emission must have shape \(2, 2\)"),
    "negative emission": (lambda: HiddenMarkovOracle(HALF, SQUARE, 1 - 4 * SQUARE), "emission must hold finite"),
    "hidden used mask": (lambda: HiddenMarkovOracle(HALF, SQUARE, SQUARE, mask_id=0), "mask_id=0 lies below V=2"),
    "markov used mask": (lambda: MarkovOracle(HALF, SQUARE, mask_id=0), "mask_id=0 lies below V=2"),
    "entropy": (lambda: MarkovOracle(HALF, SQUARE).entropy(0), "length must be >= 1, got 0"),
    "id too large": (lambda: markov(3, 0)(torch.tensor([[0, 4]])), r"tokens must be in 0\.\.2 or the mask 3, got 4"),
    "negative id": (lambda: markov(3, 0)(torch.tensor([[-1]])), r"tokens must be in 0\.\.2 or the mask 3, got -1"),
    "token shape": (lambda: markov(3, 0)(torch.tensor([0, 1])), r"tokens must be integer ids of shape \[B, L\]"),
    "token type": (lambda: markov(3, 0)(torch.zeros(1, 2)), "tokens must be integer ids"),
    "token length": (lambda: EnumeratedOracle(HALF)(torch.zeros(1, 2).long()), r"tokens must be \[B, 1\]"),
    "row range": (lambda: markov(3, 0)(torch.zeros(1, 2).long(), rows=torch.tensor([[2]])), r"rows must be in 0\.\.1"),
    "negative row": (
        lambda: EnumeratedOracle(HALF)(torch.zeros(1, 1).long(), rows=torch.tensor([[-1]])),
        r"rows must be in 0\.\.0",
    ),
    "row shape": (
        lambda: markov(3, 0)(torch.zeros(2, 2).long(), rows=torch.tensor([[1]])),
        r"rows must be integers of shape \[2, R\]",
    ),
    "sample length": (lambda: EnumeratedOracle(HALF).sample(1, length=2, generator=generator(0)), "length 1 or None"),
    "sample num": (lambda: markov(3, 0).sample(-1, 2, generator(0)), "num must be >= 0"),
    "fit mask": (lambda: EnumeratedOracle.fit(torch.tensor([[0, 2]]), 2), "without the mask 2"),
    "fit empty": (lambda: MarkovOracle.fit(torch.zeros(0, 3).long(), 2), "at least one sequence"),
    "fit too large": (lambda: EnumeratedOracle.fit(torch.zeros(1, 40).long(), 2), "too large to enumerate"),
    "fit smoothing": (lambda: EnumeratedOracle.fit(torch.zeros(1, 2).long(), 2, smoothing=-1), "smoothing must be"),
    "markov smoothing": (lambda: MarkovOracle.fit(torch.zeros(1, 2).long(), 2, smoothing=-1), "smoothing must be"),
    "fit vocabulary": (lambda: MarkovOracle.fit(torch.zeros(1, 2).long(), 0), "vocab_size must be at least 1"),
    "fit states": (lambda: HiddenMarkovOracle.fit(torch.zeros(1, 2).long(), 2, 0), "states and iterations"),
    "fit id": (lambda: HiddenMarkovOracle.fit(torch.tensor([[5]]), 2, 1), r"tokens must be in 0\.\.1"),
    "fit stream": (lambda: HiddenMarkovOracle.fit(torch.tensor([]).long(), 2, 1), "tokens must be integer ids"),
    "fit all masked": (lambda: HiddenMarkovOracle.fit(torch.tensor([[2]]), 2, 1), "at least one visible token"),
    "fit start": (
        lambda: HiddenMarkovOracle.fit(torch.zeros(1, 2).long(), 2, 2, start=markov(3, 0)),
        "start has 3 states and V=3",
    ),
    "fit impossible": (
        lambda: HiddenMarkovOracle.fit(
            torch.tensor([[0, 1]]), 2, 2, start=HiddenMarkovOracle(HALF, SQUARE, torch.eye(2)[:1].expand(2, 2))
        ),
        r"tokens\[0\] is impossible",
    ),
    "no time": (lambda: TimeDependent(markov(3, 0))(torch.zeros(1, 2).long()), "time is needed"),
    "time shape": (
        lambda: TimeDependent(markov(3, 0))(torch.zeros(1, 2).long(), torch.zeros(2)),
        r"time must be \[1\] within",
    ),
    "strength": (lambda: TimeDependent(markov(3, 0), strength=2.0), "strength must be in"),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG.keys())
def test_wrong_input_is_named(case) -> None:  # type: ignore[no-untyped-def]
    call, message = case
    with pytest.raises(ValueError, match=message):
        call()
