"""One stream: the causal transformer from left to right, the chain rule along any order, and a cache that is exact."""

from __future__ import annotations

from itertools import permutations, product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.helpers import FALSE_ALARM, chi_square, frequencies, generator
from tests.networks.test_visible import widths
from tests.small_models import small
from unmask import objective, plan, predict, sample
from unmask.checkpoints.folder import load_network
from unmask.networks.any_order import OneStream
from unmask.networks.attention import usual_order
from unmask.networks.causal import Causal
from unmask.networks.config import TransformerConfig, blocks_of
from unmask.processes import Process
from unmask.protocol import LooksAhead
from unmask.samplers.published import Coupled

V, LENGTH, BATCH = 11, 9, 3
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
START = V - 1
SIZE: dict[str, Any] = {"mask_id": V, "length": LENGTH, "width": 24, "layers": 3, "heads": 3, "cond_dim": 16}
KINDS = {"plain": {}, "neighbours": {"neighbours": 2}, "start": {"neighbours": 2, "start": START}}
ORDER = torch.rand(BATCH, LENGTH, generator=generator(8))


def network(**changes: Any) -> OneStream:
    """A small network with every parameter at random, those that start at zero too."""
    model: OneStream = small(OneStream, **{"vocab_size": V, **SIZE, "attention": "order", **changes})
    with torch.no_grad():
        for name in ("offset", "near.weight"):
            if name in dict(model.named_parameters()):
                parameter = model.get_parameter(name)
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator(len(name))))
    return model


def complete(seed: int = 1, *, start: int | None = None, batch: int = BATCH) -> Tensor:
    tokens = torch.randint(V - 1, (batch, LENGTH), generator=generator(seed))
    if start is not None:
        tokens[:, 0] = start
    return tokens


def first_of(model: OneStream) -> int | None:
    return model.first_token


def plainly(model: OneStream, tokens: Tensor, order: list[int], target: int) -> Tensor:
    """Logits [V] at one position of one sequence, whose visible positions came in this order: from the description.

    Entries are computed one at a time, each from the keys of those before it.
    """
    config, size = model.config, model.config.width // model.config.heads
    origin, start = (-1, config.mask_id) if config.start < 0 else (0, config.start)
    line = [at for at in order if not (config.start >= 0 and at == 0)]
    embed, c = model.vocab_embed.embedding, model.constant_conditioning()

    def turned(vector: Tensor, position: int) -> Tensor:
        angle = torch.tensor([position * 10000 ** (-2 * k / size) for k in range(size // 2)])
        a, b = vector.chunk(2, -1)
        return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)

    cache: list[list[tuple[Tensor, Tensor]]] = [[] for _ in model.blocks]
    x = embed[0]
    for n, to in enumerate([*line, target]):
        at = line[n - 1] if n else origin
        x = embed[int(tokens[at]) if n else start]
        offset = to - 1 - at
        if offset:
            x = x + model.offset[offset + config.length]
        if model.near is not None:
            shown = {*line[:n]} | ({0} if config.start >= 0 else set())
            around = [d for d in range(-config.neighbours, config.neighbours + 1) if d]
            vectors = [
                embed[int(tokens[to + d]) if to + d else (start if config.start >= 0 else int(tokens[0]))]
                if to + d in shown and not (d < 0 and offset == 0)
                else torch.zeros(config.width)
                for d in around
            ]
            x = x + model.near.weight @ torch.cat(vectors)
        for block, kept in zip(model.blocks, cache, strict=True):
            vectors = block.vectors(c)
            h = block.prepared(x[None, None], vectors)[0, 0]
            q, k, v = (block.attn_qkv.weight @ h).view(3, config.heads, size).unbind()
            kept.append((turned(k, at - origin), v))
            keys, values = (torch.stack(parts, 1) for parts in zip(*kept, strict=True))
            weights = (torch.einsum("hd,hnd->hn", turned(q, to - 1 - origin), keys) / size**0.5).softmax(-1)
            mixed = block.attn_out.weight @ torch.einsum("hn,hnd->hd", weights, values).flatten()
            gate = vectors[2].flatten() if vectors else 1.0
            x = block.feed_forward((x + gate * mixed)[None, None], vectors)[0, 0]
    return model.logits(last_norm(model, x, c))


def last_norm(model: OneStream, x: Tensor, c: Tensor | None) -> Tensor:
    from unmask.networks.layers import modulation

    final = modulation(model.output_layer.adaLN_modulation, c, 2) or ()
    return model.output_layer.norm_final(x[None, None], *final)[0, 0]


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_it_is_what_its_description_says(kind: str) -> None:
    model = network(**KINDS[kind])
    x0 = complete(start=first_of(model))
    order = ORDER.argsort(1).tolist()
    for b in range(BATCH):
        shown = order[b][: 2 + 3 * b]
        canvas = torch.full((1, LENGTH), V).index_put((torch.tensor(0), torch.tensor(shown)), x0[b, shown])
        asked = [at for at in range(1, LENGTH) if at not in shown]
        logits = model(canvas, rows=torch.tensor([asked]), when=ORDER[b])[0]
        for row, target in zip(logits, asked, strict=True):
            torch.testing.assert_close(row, plainly(model, x0[b], shown, target), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("neighbours", [0, 2])
@pytest.mark.parametrize("adaln", [False, True])
@torch.no_grad()
def test_from_left_to_right_it_is_the_causal_transformer_to_the_bit(neighbours: int, adaln: bool) -> None:
    model = network(neighbours=neighbours, adaln=adaln, norm="rms", mlp="swiglu")
    shared = {name: tensor for name, tensor in model.state_dict().items() if name not in ("offset", "near.weight")}
    causal = Causal.built(blocks_of(model.config, TransformerConfig), shared).eval()
    x0, left_to_right = complete(), torch.arange(LENGTH)
    assert torch.equal(model.logits(model.chain(x0, left_to_right)), causal(x0))
    assert not torch.allclose(model.logits(model.chain(x0, ORDER)), causal(x0), **TOLERANCE)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_pass_is_the_chain_rule_along_the_order(kind: str) -> None:
    model = network(**KINDS[kind])
    x0 = complete(start=first_of(model))
    logits, rank = model.logits(model.chain(x0, ORDER)), ORDER.argsort(1).argsort(1)
    for i in range(LENGTH):
        expected = model(torch.where(rank < i, x0, V), when=ORDER)
        here = (rank == i) & (torch.arange(LENGTH) > 0 if kind == "start" else rank >= 0)
        torch.testing.assert_close(logits[here], expected[here], **TOLERANCE)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_the_chain_rule_sums_to_one_over_all_sequences_in_every_order(kind: str) -> None:
    """If a term depended on its own token or on a later one, the sum would not be 1."""
    changes = {**KINDS[kind], "vocab_size": 3, "mask_id": 3, "length": 4}
    model = network(**(changes | {"start": 2} if kind == "start" else changes))
    every = torch.tensor(list(product(range(3), repeat=4)))
    if kind == "start":
        every = every[every[:, 0] == 2]
    for order in permutations(range(4)):
        nats = objective.along_order(model, every, torch.tensor(order).expand(len(every), 4))
        assert abs(float((-nats).exp().sum()) - 1) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_bound_by_order_is_one_call_per_token(kind: str) -> None:
    model = network(**KINDS[kind])
    x0, order = complete(start=first_of(model)), ORDER.argsort(1)
    nats, canvas = torch.zeros(BATCH, dtype=torch.float64), torch.full_like(x0, V)
    for k in range(LENGTH):
        at = order[:, k : k + 1]
        log_p = model(canvas, rows=at, when=ORDER).double().log_softmax(-1).squeeze(1)
        token = x0.gather(1, at)
        nats -= log_p.gather(1, token).squeeze(1)
        canvas = canvas.scatter(1, at, token)
    torch.testing.assert_close(objective.along_order(model, x0, order), nats, rtol=1e-5, atol=1e-5)
    some = order[:, 4:]  # the positions before are given; in the usual order
    first = torch.where(ORDER.argsort(1).argsort(1) < 4, -1.0, ORDER.double())
    terms = model.logits(model.chain(x0, first)).double().log_softmax(-1).gather(2, x0.unsqueeze(2)).squeeze(2)
    terms[:, 0] = torch.where(torch.tensor(kind == "start"), 0.0, terms[:, 0])
    torch.testing.assert_close(objective.along_order(model, x0, some), -terms.gather(1, some).sum(1), **TOLERANCE)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_from_left_to_right_one_pass_is_one_call_per_token(kind: str) -> None:
    model, where = network(**KINDS[kind]), ORDER < 0.6
    x0 = complete(start=first_of(model))
    one_by_one = Process.per_position(model.process, model, x0, where)
    torch.testing.assert_close(model.process.per_position(model, x0, where), one_by_one, **TOLERANCE)


@torch.no_grad()
def test_only_earlier_tokens_count_and_those_that_began() -> None:
    model = network(**KINDS["start"])
    x0 = complete(start=START)
    states, rank = model.chain(x0, ORDER), ORDER.argsort(1).argsort(1)
    rank[:, 0] = -1
    for position in range(1, LENGTH):
        changed = x0.clone()
        changed[:, position] = (x0[:, position] + 1) % (V - 1)
        moved = (model.chain(changed, ORDER) - states).abs().amax(-1) > 1e-6
        assert torch.equal(moved, rank > rank[:, position : position + 1])
    masked = torch.full((2, LENGTH), V)
    assert torch.equal(model(masked)[:, 0].argmax(-1), torch.full((2,), START))
    assert bool((sample(model, num=4, length=LENGTH, seed=0).tokens[:, 0] == START).all())
    with pytest.raises(ValueError, match="begins with the id"):
        model.chain(x0.masked_fill(x0 == START, 0), ORDER)


@torch.no_grad()
def test_sequences_of_several_lengths_share_a_call() -> None:
    model = network(neighbours=2)
    tokens = torch.where(ORDER < 0.5, complete(), V)
    lengths = torch.tensor([9, 5, 7])
    together = model(tokens, rows=torch.tensor([[4], [4], [4]]), lengths=lengths)
    for i, end in enumerate(lengths.tolist()):
        alone = model(tokens[i : i + 1, :end], rows=torch.tensor([[4]]))
        torch.testing.assert_close(together[i : i + 1], alone, **TOLERANCE)


def test_it_is_saved_and_loaded_and_refuses_what_it_is_not(tmp_path: Path) -> None:
    model = network(**KINDS["start"])
    model.save_pretrained(tmp_path)
    again = load_network(tmp_path)
    assert isinstance(again, OneStream) and again.config == model.config
    assert torch.equal(again.chain(complete(start=START), ORDER), model.chain(complete(start=START), ORDER))
    with pytest.raises(ValueError, match="an any-order network has no convolution"):
        network(convolution=3)
    with pytest.raises(ValueError, match="neighbours must be at least 0"):
        network(neighbours=-1)


# The cache


class Uncached(nn.Module):
    """The network without its cache: the order is written down in lists, and each call is a pass over everything."""

    def __init__(self, model: OneStream) -> None:
        super().__init__()
        self.model, self.vocab_size, self.mask_id = model, model.vocab_size, model.mask_id
        self.process, self.length = model.process, model.length
        self.known: list[list[int]] = []

    def for_sampling(self) -> Uncached:
        return Uncached(self.model)

    def forward(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        usual = usual_order(tokens.shape[1]).tolist()
        self.known = self.known[: len(tokens)] or [[] for _ in tokens]
        when = torch.full(tokens.shape, 10**6)
        for b, row in enumerate(tokens.tolist()):
            kept = [at for at in self.known[b] if row[at] != self.mask_id]
            new = [at for at, token in enumerate(row) if token != self.mask_id and at not in kept]
            self.known[b] = kept + sorted(new, key=usual.__getitem__)
            for rank, at in enumerate(self.known[b]):
                when[b, at] = rank
        return self.model(tokens, rows=rows, when=when)  # type: ignore[no-any-return]


def compared(model: OneStream, cached: Any, plain: Uncached, tokens: Tensor, rows: Tensor) -> None:
    logits, expected = cached(tokens, rows=rows), plain(tokens, rows=rows)
    masked = tokens.gather(1, rows) == V
    torch.testing.assert_close(logits[masked], expected[masked], rtol=1e-4, atol=1e-4)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(list(KINDS)))
@torch.no_grad()
def test_any_edit_of_the_canvas_is_followed(seed: int, kind: str) -> None:
    """Tokens appear, change, disappear and come back, several at a time, and sequences leave the batch."""
    random, model = generator(seed), network(**KINDS[kind], layers=2)
    cached, plain, tokens = model.for_sampling(), Uncached(model), torch.full((3, LENGTH), V)
    for _ in range(6):
        edited = torch.rand(tokens.shape, generator=random) < torch.rand((), generator=random) * 0.6
        tokens = torch.where(edited, torch.randint(V + 1, tokens.shape, generator=random), tokens)
        if kind == "start":
            tokens[:, 0] = START
        tokens = tokens[: max(1, len(tokens) - int(torch.randint(4, (), generator=random) == 0))]
        plain.known = plain.known[: len(tokens)]
        asked = torch.randint(LENGTH, (len(tokens), int(torch.randint(1, 5, (), generator=random))), generator=random)
        compared(model, cached, plain, tokens, asked)


def ragged(seed: int = 1) -> Tensor:
    """From everything visible to nothing visible: prompts and masked parts of all sizes."""
    random = generator(seed)
    tokens = torch.randint(V, (LENGTH + 1, LENGTH), generator=random)
    rank = torch.rand(LENGTH + 1, LENGTH, generator=random).argsort(1)
    return torch.where(rank < torch.arange(LENGTH + 1).unsqueeze(1), V, tokens)


PREDICTORS = {"first_order": predict.first_order, "extrapolate": predict.extrapolate, "correct": predict.correct}


@pytest.mark.parametrize("kind", ["plain", "neighbours"])
@pytest.mark.parametrize("how", PREDICTORS)
@pytest.mark.parametrize("planner", [plan.first_hitting, plan.parallel, plan.ancestral])
def test_the_tokens_are_those_without_a_cache_alone_and_in_any_batch(planner: Any, how: str, kind: str) -> None:
    model, holes, seeds = network(**KINDS[kind]), ragged(), list(range(20, 21 + LENGTH))
    steps = None if planner is plan.first_hitting else 4
    options: dict[str, Any] = {"plan": planner, "predict": PREDICTORS[how], "steps": steps}
    tokens = sample(model, canvas=holes, seed=seeds, **options).tokens
    assert torch.equal(sample(Uncached(model), canvas=holes, seed=seeds, **options).tokens, tokens)
    assert torch.equal(sample(model, canvas=holes, seed=seeds, batch=3, **options).tokens, tokens)
    for i in (0, 4, LENGTH):
        alone = sample(model, canvas=holes[i : i + 1], seed=seeds[i], **options).tokens
        assert torch.equal(alone[0], tokens[i])


def test_other_samplers_use_the_cache_too() -> None:
    model, options = network(neighbours=2), {"num": 3, "length": LENGTH, "steps": 20, "seed": 2, "sampler": Coupled()}
    cached, plain = sample(model, **options), sample(Uncached(model), **options)
    assert torch.equal(cached.tokens, plain.tokens) and cached.calls == plain.calls


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_windows_of_guesses_right_and_wrong(kind: str) -> None:
    """Row k of a window is the plain network's, given the settled tokens and the guesses before it, in this order."""
    random, model = generator(4), network(**KINDS[kind])
    x0, order, first = complete(2, start=first_of(model)), ORDER.argsort(1), int(kind == "start")
    if first:  # the start is never in a plan
        order = torch.stack([row[row > 0] for row in order])
    cached, settled, guesses = model.for_sampling(), torch.zeros(BATCH, dtype=torch.int64), complete(3)
    total = order.shape[1]
    for _ in range(12):
        width = int(torch.randint(1, 6, (), generator=random))
        slots = settled.unsqueeze(1) + torch.arange(width)
        rows = torch.where(slots < total, order.gather(1, slots.clamp(max=total - 1)), -1)
        known = torch.randint(width, (BATCH,), generator=random).minimum((total - settled - 1).clamp(min=0))
        canvas = torch.full((BATCH, LENGTH), V)
        for b in range(BATCH):
            done = order[b, : settled[b]]
            canvas[b, done] = x0[b, done]
            canvas[b, rows[b, : known[b]]] = guesses[b, rows[b, : known[b]]]
        logits = cached.ahead(canvas, rows, known)
        for b in range(BATCH):
            for k in range(min(width, int(total - settled[b]))):
                shown = torch.cat((order[b, : settled[b]], rows[b, : min(k, int(known[b]))]))
                alone = torch.full((1, LENGTH), V)
                alone[0, shown] = canvas[b, shown]
                when = torch.zeros(LENGTH).index_put((order[b],), torch.arange(float(total)))
                expected = model(alone, rows=rows[b : b + 1, k : k + 1], when=when)[0, 0]
                torch.testing.assert_close(logits[b, k], expected, rtol=1e-4, atol=1e-4)
        right = torch.rand(BATCH, LENGTH, generator=random) < 0.5
        guesses = torch.where(right, x0, complete(int(settled.sum()) + 9))
        more = torch.randint(3, (BATCH,), generator=random).minimum(known + 1)  # as many as a pass can settle
        settled = (settled + more).clamp(max=total)


@pytest.mark.parametrize("kind", KINDS)
def test_looking_ahead_gives_the_tokens_of_one_per_call(kind: str) -> None:
    model, options = network(**KINDS[kind]), {"num": 60, "length": LENGTH, "seed": 2}
    with torch.no_grad():
        model.output_layer.linear.weight.mul_(3)
    expected = sample(model, **options).tokens
    assert torch.equal(sample(Uncached(model), **options).tokens, expected)
    for window in (1, 3, 16):
        made = sample(model, ahead=window, **options)
        assert torch.equal(made.tokens, expected)
        assert window == 1 or int(made.nfe.sum()) < 60 * LENGTH
    holes = ragged()
    if kind == "start":
        holes[:, 0] = START
    alone = [sample(model, canvas=holes[i : i + 1], seed=5 + i).tokens[0] for i in range(len(holes))]
    assert torch.equal(
        sample(model, canvas=holes, seed=list(range(5, 5 + len(holes))), ahead=4).tokens, torch.stack(alone)
    )


@torch.no_grad()
def test_a_call_feeds_the_rows_that_it_is_asked_for() -> None:
    model, prompt = network(neighbours=2), torch.full((2, LENGTH), V)
    prompt[:, 2:5] = 1
    run: Any = model.for_sampling()
    assert isinstance(run, LooksAhead)
    sizes = widths(run.network)

    class Watched(nn.Module):
        vocab_size, mask_id = V, V

        def forward(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
            return run(tokens, time, rows)  # type: ignore[no-any-return]

    sample(Watched(), canvas=prompt, seed=0)
    assert sizes == [3 + 1] + [1] * (LENGTH - 4)  # the prompt and a row, then one row for each token
    run = model.for_sampling()
    sizes = widths(run.network)
    sample(Watched(), canvas=prompt, seed=0, plan=plan.parallel, steps=2)
    assert sizes[0] == 3 + 3 and sizes[1] <= 3 + 3
    run = model.for_sampling()
    sizes = widths(run.network)
    order, x0 = torch.tensor([[0, 6, 3, 8], [5, 1, 7, 2]]), complete(batch=2)
    run.ahead(torch.full((2, LENGTH), V), order, torch.zeros(2, dtype=torch.int64))
    guesses = torch.full((2, LENGTH), V).scatter(1, order[:, :3], x0.gather(1, order[:, :3]))
    run.ahead(guesses, order, torch.tensor([3, 3]))
    run.ahead(guesses, torch.tensor([[8, 1, 4, 5], [2, 0, 3, 4]]), torch.zeros(2, dtype=torch.int64))  # all were right
    assert sizes == [4, 4, 4]


@torch.no_grad()
def test_seats_come_and_go() -> None:
    model = network(**KINDS["start"])
    run: Any = model.for_sampling()
    canvases = {name: torch.full((1, size), V) for name, size in (("a", 9), ("b", 6), ("c", 8))}
    random, seats = generator(3), []
    for step in range(14):
        if step in (0, 2, 5):
            name = "abc"[(0, 2, 5).index(step)]
            run.add(1, canvases[name].shape[1])
            seats.append(name)
        if step == 9:
            run.leave(0)
            seats[0] = seats[-1]
            seats.pop()
        tokens = torch.full((len(seats), run.canvas), V)
        rows = torch.zeros(len(seats), 1, dtype=torch.int64)
        for i, name in enumerate(seats):
            free = [at for at in range(1, canvases[name].shape[1]) if canvases[name][0, at] == V] or [1]
            rows[i] = free[int(torch.randint(len(free), (), generator=random))]
            tokens[i, : canvases[name].shape[1]] = canvases[name][0]
        logits = run(tokens, rows=rows, seats=slice(0, len(seats)))
        for i, name in enumerate(seats):
            canvas, at = canvases[name], int(rows[i])
            if canvas[0, at] != V:
                continue
            when = WHEN.setdefault(name, torch.full((canvas.shape[1],), 99.0))
            expected = model(canvas, rows=rows[i : i + 1], when=when)[0, 0]
            torch.testing.assert_close(logits[i, 0], expected, rtol=1e-4, atol=1e-4)
            canvas[0, at], when[at] = int(torch.randint(V - 1, (), generator=random)), step


WHEN: dict[str, Tensor] = {}


def test_the_distribution_of_a_sampler_is_the_mixture_over_orders() -> None:
    """20,000 sequences of 3 tokens from 3 against the mean over the 6 orders of their chain rules, enumerated.

    A chi-square test with a false-alarm rate of 1e-6; a network whose tokens were rotated fails it.
    """
    model = network(neighbours=2, vocab_size=3, mask_id=3)
    with torch.no_grad():
        model.output_layer.linear.weight.mul_(3)
    every, law = torch.cartesian_prod(*[torch.arange(3)] * 3), torch.zeros(27, dtype=torch.float64)
    with torch.inference_mode():
        for order in permutations(range(3)):
            law += (-objective.along_order(model, every, torch.tensor(order).expand(27, 3))).exp() / 6
    assert abs(float(law.sum()) - 1) < 1e-6
    tokens = sample(model, num=20_000, length=3, seed=1).tokens
    assert chi_square(frequencies(tokens, 3), law) > FALSE_ALARM
    assert chi_square(frequencies((tokens + 1) % 3, 3), law) < FALSE_ALARM
