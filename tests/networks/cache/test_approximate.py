"""Fast-dLLM's caches for LLaDA and Dream, against its generation loops written out."""

import pytest
import torch

from tests.checkpoints import llama_checkpoints as small
from unmask import load, plan, sample
from unmask.checkpoints.contents import look
from unmask.checkpoints.formats import recognise
from unmask.cli import main
from unmask.networks.cache.approximate import ApproximateCache
from unmask.samplers import decoding

VOCAB, MASK, PROMPT, LENGTH, BLOCK = 13, 11, 5, 17, 4
FAMILIES = {"llada": (small.llada, small.llada_logits), "dream": (small.dream, small.dream_logits)}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    write, logits = FAMILIES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    weights = write(folder, VOCAB, MASK)
    scan = look(folder)

    def written_out(*arguments):
        return logits(weights, *arguments).index_fill(-1, torch.tensor([MASK]), -torch.inf)

    return request.param, recognise(scan).load(scan).denoiser, written_out


def canvases():
    return small.canvases(3, PROMPT, LENGTH - PROMPT, VOCAB, MASK)


def published(logits, tokens, *, reused, threshold=None, steps=None, dream=False):
    """Fast-dLLM's generation at temperature 0, of one sequence after another, and its number of calls.

    A block begins with a call for everything, whose keys and values are kept: those before the block (prefix), or all
    but the block's own (dual). Each call keeps the tokens that reach the threshold, and the likeliest in any case; or a
    share of the block. For Dream the first call fills the block's first position and nothing else.
    """
    x, position, longest = tokens.clone(), torch.arange(LENGTH), 0
    for row in x:
        calls = 0
        for start in range(PROMPT, LENGTH, BLOCK):
            kept, here, call = [], (position >= start) & (position < start + BLOCK), 0
            live = here if reused == "dual" else position >= start
            while bool((row[here] == MASK).any()):
                p = logits(row.tolist(), kept, live if call else None).softmax(-1)
                best, x0 = p.masked_fill(~(here & (row == MASK))[:, None], -1).max(-1)
                if dream and call == 0:
                    chosen = position == start
                elif threshold is not None:
                    chosen = (best >= threshold) | (position == best.argmax())
                else:
                    share = BLOCK // steps + (call < BLOCK % steps)
                    chosen = torch.isin(position, best.topk(share).indices)
                row[chosen] = x0[chosen]
                call += 1
            calls += call
        longest = max(longest, calls)
    return x, longest


@pytest.mark.parametrize("reused", ["prefix", "dual"])
@pytest.mark.parametrize("threshold", [0.3, 0.6, 0.95])
def test_the_tokens_are_fast_dllms(family, reused, threshold):
    name, network, logits = family
    order = decoding.blocks(BLOCK, decoding.threshold(threshold, opening=name == "dream"))
    expected, calls = published(logits, canvases(), reused=reused, threshold=threshold, dream=name == "dream")
    drawn = sample(ApproximateCache(network, reused), sampler=order, canvas=canvases(), temperature=0.0)
    assert torch.equal(drawn.tokens, expected)
    assert drawn.calls == calls


@pytest.mark.parametrize("reused", ["prefix", "dual"])
@pytest.mark.parametrize("steps", [1, 2, 3, 4])
@pytest.mark.parametrize("family", ["llada"], indirect=True)
def test_equal_shares_are_fast_dllms_without_a_threshold(family, reused, steps):
    _, network, logits = family
    expected, _ = published(logits, canvases(), reused=reused, steps=steps)
    count = (LENGTH - PROMPT) // BLOCK
    drawn = sample(
        ApproximateCache(network, reused),
        sampler=decoding.llada(BLOCK),
        canvas=canvases(),
        steps=steps * count,
        temperature=0.0,
    )
    assert torch.equal(drawn.tokens, expected)


def test_without_blocks_the_cache_is_exact(family):
    _, network, _ = family
    how = {"plan": plan.first_hitting, "canvas": canvases(), "seed": 4}
    assert torch.equal(sample(ApproximateCache(network, "dual"), **how).tokens, sample(network, **how).tokens)


def test_a_later_call_reads_the_block_alone(family, monkeypatch):
    _, network, _ = family
    widths = []
    cache = ApproximateCache(network, "dual")
    plain = cache.read
    monkeypatch.setattr(cache, "read", lambda tokens, *more: (widths.append(tokens.shape[1]), plain(tokens, *more))[1])
    tokens = canvases()
    rows = torch.arange(PROMPT, PROMPT + BLOCK).expand(3, -1)
    full = cache(tokens, rows=rows)
    torch.testing.assert_close(full, network(tokens, rows=rows), rtol=0, atol=1e-5)
    tokens[:, PROMPT] = 1
    approximate = cache(tokens, rows=rows[:, 1:])
    assert widths == [LENGTH, BLOCK]
    assert (approximate - network(tokens, rows=rows[:, 1:])).nan_to_num().abs().max() > 1e-3


def test_it_is_an_option_of_the_command(tmp_path, capsys):
    small.llada(tmp_path, VOCAB, MASK)
    sampled = ["sample", str(tmp_path), "--ids", "--length", "12", "--seed", "0", "--cache", "dual"]
    assert main([*sampled, "--decoding", "threshold", "--block", "4"]) == 0
    assert len(capsys.readouterr().out.split()) == 12
    assert main(sampled) != 0 and "needs --decoding with --block" in capsys.readouterr().err
    with pytest.raises(ValueError, match="Causal has no approximate cache"):
        ApproximateCache(load("kjv-ar").denoiser, "dual")
