"""Generative perplexity where the truth is known: oracles as models and judges, and this package's own networks."""

import json
import math
from pathlib import Path

import pytest
import torch
from scipy import stats

import unmask
from tests.helpers import FALSE_ALARM, generator, joint, oracle
from tests.small_models import TEXT, folder
from unmask.evaluate.judge.causal import windows
from unmask.evaluate.judge.judge import Judgement, OracleJudge, Samples, judge, load_judge
from unmask.networks.oracles.enumerated import EnumeratedOracle, HiddenMarkovOracle, MarkovOracle

EXACT = {"draw": "inverse-cdf", "sampler": "exact"}


def chain(seed: int = 0, vocab: int = 6) -> MarkovOracle:
    tables = torch.rand(vocab + 1, vocab, generator=generator(seed), dtype=torch.float64) ** 3 + 1e-3
    tables /= tables.sum(-1, keepdim=True)
    return MarkovOracle(tables[0], tables[1:])


def hidden_chain() -> HiddenMarkovOracle:
    tables = torch.rand(3, 3, 4, generator=generator(1), dtype=torch.float64) ** 2
    initial, transition, emission = tables[0, 0, :3], tables[1, :, :3], tables[2]
    return HiddenMarkovOracle(*(part / part.sum(-1, keepdim=True) for part in (initial, transition, emission)))


def enumerated(truth: HiddenMarkovOracle, length: int) -> EnumeratedOracle:
    vocab = truth.vocab_size
    everything = torch.cartesian_prod(*[torch.arange(vocab)] * length)
    return EnumeratedOracle(truth.log_likelihood(everything).exp().view([vocab] * length))


def test_exact_samples_have_the_entropy_rate_under_the_truth() -> None:
    """The truth's perplexity of its own samples is exp(H / L): a z-test with false alarms 1e-6."""
    truth, length, num = chain(), 40, 2000
    made = judge(Samples(tokens=truth.sample(num, length, generator(2)), about=EXACT), OracleJudge(truth))
    rate = truth.entropy(length) / length
    error = float(made.nats.std()) / length / math.sqrt(num)
    assert abs(math.log(made.perplexity.value) - rate) < stats.norm.isf(FALSE_ALARM / 2) * error
    assert made.perplexity.low < made.perplexity.value < made.perplexity.high
    # exp is convex, so the mean of the sequences' perplexities is higher: the two definitions differ.
    assert made.mean_perplexity.low > made.perplexity.value


def test_the_interval_holds_the_entropy_rate_at_its_stated_rate() -> None:
    """150 sets of 40 sequences, intervals of 90%: binomial threshold, false alarms 1e-6."""
    truth, length, sets, hits = chain(), 12, 150, 0
    tokens = truth.sample(40 * sets, length, generator(3)).view(sets, 40, length)
    for i in range(sets):
        found = judge(Samples(tokens=tokens[i], about=EXACT), OracleJudge(truth), level=0.9, seed=i).perplexity
        hits += found.low <= math.exp(truth.entropy(length) / length) <= found.high
    low, high = stats.binom.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], sets, 0.9)
    assert low <= hits <= high


def test_an_oracle_as_model_and_judge() -> None:
    """First-hitting samples of the optimal network, judged by it: H / L. A z-test with false alarms 1e-6."""
    truth = oracle(3, 4)
    made = judge(Samples(tokens=unmask.sample(truth, num=1500, length=4).tokens), OracleJudge(truth))
    error = float(made.nats.std()) / 4 / math.sqrt(1500)
    assert abs(math.log(made.perplexity.value) - truth.entropy() / 4) < stats.norm.isf(FALSE_ALARM / 2) * error


def test_a_judge_that_is_not_the_truth_finds_more() -> None:
    """Samples of one chain under another: the cross-entropy, above the entropy by far more than its interval."""
    truth, other, length = chain(0), chain(5), 30
    tokens = truth.sample(500, length, generator(4))
    wrong = judge(Samples(tokens=tokens), OracleJudge(other)).perplexity
    assert wrong.low > math.exp(truth.entropy(length) / length)


@pytest.mark.parametrize("known", [chain(vocab=4), hidden_chain()], ids=["markov", "hidden"])
def test_an_oracles_nats_are_the_chain_rule(known: HiddenMarkovOracle) -> None:
    tokens = known.sample(20, 5, generator(6))
    found = torch.stack(OracleJudge(known).nats(Samples(tokens=tokens)))
    table = torch.stack(OracleJudge(enumerated(known, 5)).nats(Samples(tokens=tokens)))
    torch.testing.assert_close(found, table)
    torch.testing.assert_close(found.sum(1), -known.log_likelihood(tokens))
    torch.testing.assert_close(found[:, 0], -known.log_likelihood(tokens[:, :1]))


def test_padding_is_not_judged_and_what_is_impossible_costs_everything() -> None:
    truth = MarkovOracle(torch.tensor([0.5, 0.5, 0.0]), torch.eye(3, dtype=torch.float64))
    tokens = torch.tensor([[0, 0, -1], [1, 1, 1], [-1, -1, -1], [0, 1, 1]])
    nats = OracleJudge(truth).nats(Samples(tokens=tokens))
    assert [len(found) for found in nats] == [2, 3, 0, 3]
    assert nats[0].tolist() == [math.log(2), 0.0]
    made = judge(Samples(tokens=tokens), OracleJudge(truth))
    assert made.num == 4 and made.unjudged == 1
    assert made.perplexity.value == made.mean_perplexity.value == math.inf
    assert json.loads(json.dumps(made.to_dict(), allow_nan=False))["perplexity"]["value"] is None
    table = EnumeratedOracle(joint(2, 2) * torch.tensor([[1.0, 0.0], [1.0, 1.0]]) / (1 - joint(2, 2)[0, 1]))
    assert OracleJudge(table).nats(Samples(tokens=torch.tensor([[0, 1]])))[0][1] == math.inf


def test_both_definitions_by_hand() -> None:
    class Table:
        name, conventions = "table", "as given"

        def nats(self, samples: Samples) -> list[torch.Tensor]:
            return [torch.tensor([float(x) for x in text.split()], dtype=torch.float64) for text in samples.texts]

        def ids(self, samples: Samples) -> list[torch.Tensor]:
            return [torch.arange(len(text.split())) for text in samples.texts]

    made = judge(Samples(["1 2 3", "", "4"]), Table())
    assert made.perplexity.value == pytest.approx(math.exp(10 / 4))
    assert made.mean_perplexity.value == pytest.approx((math.exp(2) + math.exp(4)) / 2)
    assert made.entropy.value == pytest.approx(math.log(3) / 3), "the empty text counts, with entropy 0"
    assert (made.num, made.unjudged, made.tokens.tolist()) == (3, 1, [3, 0, 1])
    assert "1 of them without a token to judge" in str(made)
    twice = judge(Samples(["1 2", "3", "1 2", "1 2"]), Table())
    assert (twice.num, twice.unique, twice.to_dict()["unique"]) == (4, 2, 2) and "4, 2 different" in str(twice)
    nothing = judge(Samples(["", ""]), Table())
    assert math.isnan(nothing.perplexity.value) and nothing.unjudged == 2
    json.dumps(nothing.to_dict(), allow_nan=False)


def assert_complete(shown: str, made: Judgement) -> None:
    """Everything that perplexity must not be printed without."""
    for part in (
        made.perplexity,
        made.mean_perplexity,
        made.entropy,
        made.draw,
        f"{made.num:,}, {made.unique:,} different",
        "bootstrap",
        "corpus",
        "mean of the sequences",
        "rejection",
        "judged",
    ):
        assert str(part) in " ".join(shown.split()), part


def test_perplexity_is_never_shown_alone() -> None:
    truth = chain()
    tokens = truth.sample(30, 10, generator(7))
    made = judge(Samples(tokens=tokens), OracleJudge(truth))
    assert made.draw == "draw not recorded"
    assert_complete(str(made), made)
    about = {"draw": "gumbel-float32", "rejection": "entropy below 1 nat was drawn again", "steps": 64}
    told = judge(Samples(tokens=tokens, about=about), OracleJudge(truth))
    assert told.draw == "gumbel-float32, in float32"
    assert_complete(str(told), told)
    assert "entropy below 1 nat was drawn again" in str(told) and "steps 64" in str(told)
    written = told.to_dict()
    for key in ("perplexity", "mean_perplexity", "entropy", "draw", "samples", "intervals", "conventions", "rejection"):
        assert written[key]
    assert Samples(["a"], about={"draw": "mine"}).draw == "mine, dtype not recorded"
    assert Samples(["a"], about={"draw": "mine", "dtype": "bfloat16"}).draw == "mine, in bfloat16"


def test_windows_judge_every_token_once_with_half_a_window_before_it() -> None:
    for inputs in (0, 1, 7, 8, 9, 30):
        judged = []
        for start, fresh, stop in windows(inputs, 8):
            assert stop - start <= 8 and (fresh == 0 or fresh - start >= 4)
            judged += range(fresh, stop)
        assert judged == list(range(inputs))


@pytest.mark.parametrize("layout", ["wrapped", "rows"])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_left_to_right_model_of_this_package(layout: str, batch: int, tmp_path: Path) -> None:
    """Against the network's own logits on the whole sequence, as it was trained: eos first, or eos last."""
    path = folder(tmp_path / "ar", causal=True, extra={"layout": layout})
    model = unmask.load(path)
    known = load_judge(path, batch=batch)
    texts = [TEXT[:30], TEXT[20:31], ""]
    eos = [model.tokenizer.eos_id]
    for text, found in zip(texts, known.nats(Samples(texts)), strict=True):
        ids = model.tokenizer.encode(text)
        x = torch.tensor([eos + ids if layout == "wrapped" else ids + eos])
        with torch.inference_mode():
            logp = model.denoiser(x)[0].double().log_softmax(-1).gather(1, x.T).squeeze(1)
        expected = -logp[1:] if layout == "wrapped" else -logp
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert ("no eos" in known.conventions) == (layout == "wrapped")
    assert known.features(Samples(texts)).shape == (3, 16)


def test_a_text_beyond_the_window(tmp_path: Path) -> None:
    """By the definition: each token from the stretch that its window shows, asked one by one."""
    path = folder(tmp_path / "ar", causal=True)
    known, model = load_judge(path, window=8), unmask.load(path)
    (found,) = known.nats(Samples([TEXT[:60]]))
    x = [model.denoiser.mask_id, model.tokenizer.eos_id, *model.tokenizer.encode(TEXT[:60])]
    expected = []
    for start, fresh, stop in windows(len(x) - 1, 8):
        for j in range(fresh, stop):
            with torch.inference_mode():
                logits = model.denoiser.next_logits(torch.tensor([x[start : j + 1]]))[0, -1].double()
            expected.append(-logits.log_softmax(-1)[x[j + 1]])
    torch.testing.assert_close(found, torch.stack(expected)[1:], rtol=1e-5, atol=1e-5)


def test_what_is_no_judge_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a masked model"):
        load_judge(folder(tmp_path / "masked"))
    with pytest.raises(ValueError, match=r"no config\.json"):
        (tmp_path / "empty").mkdir()
        load_judge(tmp_path / "empty")
    (tmp_path / "weights.pt").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"a file is a \.gguf or"):
        load_judge(tmp_path / "weights.pt")
    with pytest.raises(ValueError, match="judges the first token, after its start"):
        load_judge(folder(tmp_path / "ar", causal=True), first="given")
    with pytest.raises(ValueError, match="judges tokens"):
        OracleJudge(chain()).nats(Samples(["text"]))
    with pytest.raises(ValueError, match="have only tokens"):
        load_judge(tmp_path / "ar").nats(Samples(tokens=torch.tensor([[1]])))
    with pytest.raises(ValueError, match="at least one sequence"):
        judge(Samples(), OracleJudge(chain()))
    with pytest.raises(ValueError, match="below the oracle's V=6"):
        judge(Samples(tokens=torch.tensor([[6]])), OracleJudge(chain()))
