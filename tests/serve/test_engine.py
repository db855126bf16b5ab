"""The engine: the same answer alone and in any company, fair places, and nothing left behind."""

import functools
import gc
import json
import queue
import random
import threading
from dataclasses import replace

import pytest
import torch

from tests.helpers import Counting
from tests.serve.served import MODELS, SERVED, Asked, library, lively, model, running, until
from tests.small_models import LENGTH, TOKENIZERS, network
from unmask import Model
from unmask.draw import Pick, inverse_cdf
from unmask.networks.cache.seats import Seated
from unmask.noise import Streams
from unmask.plan import Plan, first_hitting
from unmask.sampler import State
from unmask.serve.engine.batch import Batch
from unmask.serve.engine.engine import Engine
from unmask.serve.engine.forecast import begins
from unmask.serve.engine.job import Failed, Job, Refused, SequenceRun
from unmask.serve.engine.limits import Limits
from unmask.serve.engine.shared_state import SharedState
from unmask.serve.engine.work import Served
from unmask.serve.http.request import unmask_work
from unmask.serve.http.schemas import UnmaskRequest

WAYS = {
    "first_hitting": {"number": 2, "length": 10},
    "prompt": {"prompt": "In the ", "length": 12, "temperature": 0.7},
    "parallel": {"text": "God ____________ the earth", "steps": 3, "number": 2},
    "ancestral": {"sampler": "ancestral", "steps": 6, "top_k": 40, "length": 12},
    "extrapolate": {"predictor": "extrapolate", "steps": 5, "length": 12},
    "several": {"predictor": "extrapolate", "steps": 3, "number": 2, "length": 12},
    "correct": {"predictor": "correct", "steps": 5, "number": 2, "top_p": 0.8, "length": 12},
    "gumbel": {"draw": "gumbel-float32", "steps": 4, "length": 12},
    "left_to_right": {"decoding": "left-to-right", "steps": 4, "number": 2, "length": 12},
    "margin": {"decoding": "margin", "steps": 3, "number": 2, "length": 8},
    "blocks": {"decoding": "entropy", "block": 3, "text": "God ____________ the ____________", "number": 2},
    "confidence": {"decoding": "confidence", "steps": 4, "number": 2, "temperature": 0.7, "length": 12},
    "llada": {"decoding": "llada", "steps": 3, "length": 12},
    "dream": {"decoding": "dream", "steps": 3, "top_k": 30, "length": 12},
    "entropy_bounded": {"decoding": "entropy-bounded", "gamma": 8.0, "number": 2, "length": 12},
    "remasking": {"decoding": "remdm-cap", "eta": 0.3, "steps": 6, "number": 2, "length": 12},
    "rescaled": {"decoding": "remdm-rescale", "eta": 0.5, "steps": 4, "length": 8},
    "by_confidence": {"decoding": "remdm-confidence", "steps": 4, "length": 8},
    "published": {"sampler": "published-ancestral", "steps": 4, "number": 2, "length": 8},
    "euler": {"sampler": "published-euler", "steps": 4, "number": 2, "length": 8},
    "tweedie": {"sampler": "published-tweedie", "steps": 4, "length": 8},
    "ahead": {"ahead": 4, "number": 2, "length": 12},
    "law": {"sampler": "published-law", "steps": 50, "number": 2, "length": 12},
}
LEFT_TO_RIGHT = {
    "empty": {"number": 2, "length": 10},
    "prompt": {"prompt": "In the ", "length": 12, "number": 2, "temperature": 0.8},
    "short": {"prompt": "And", "length": 10, "top_k": 20},
    "ahead": {"ahead": 3, "prompt": "And", "length": 12, "number": 2},
}


def requests():
    found = [{**way, "model": name, "seed": 3} for name in ("tiny", "anyorder") for way in WAYS.values()]
    found += [{**way, "model": "twin", "seed": 3} for way in LEFT_TO_RIGHT.values()]
    return [*found, {"model": "bytes", "prompt": "神 é", "length": 14, "seed": 8}]


def holes(count, length=8):
    """A canvas whose last tokens are masked: as many calls as masked positions."""
    return [*[1] * (length - count), *[None] * count]


def same(asked, truth):
    done = asked.answer()
    assert [one.tokens for one in done] == truth.tokens.tolist()
    assert [one.nfe for one in done] == truth.nfe.tolist() and [one.ncs for one in done] == truth.ncs.tolist()


@functools.cache
def truth(body):
    return library(json.loads(body))


@pytest.mark.parametrize(("places", "logits"), [(4, 2**27), (16, 2**27), (16, 24 * 300)])
def test_every_answer_is_the_librarys_in_any_company(places, logits):
    """With few places, with many, and with so few logits per call that a request's sequences are in several."""
    bodies = requests()
    random.Random(places).shuffle(bodies)
    with running(Limits(max_batch=places, max_logits=logits)) as engine:
        asked = [Asked(engine, SERVED, body, watched=i % 2 == 0) for i, body in enumerate(bodies)]
        for one, body in zip(asked, bodies, strict=True):
            same(one, truth(json.dumps(body)))
        assert engine.counts.sequences == sum(one.job.work.number for one in asked)


def test_a_row_ends_only_where_its_canvas_lets_it_in_any_company():
    """By a network that predicts the end everywhere: before visible text, a blank must not have it."""
    rows = model("smiles", "rows")
    eos, letter = rows.tokenizer.eos_id, rows.tokenizer.encode("C")[0]

    class Ends:
        vocab_size, mask_id, length = rows.denoiser.vocab_size, rows.denoiser.mask_id, rows.length

        def __call__(self, tokens):
            logits = torch.zeros(*tokens.shape, self.vocab_size)
            logits[..., eos] = 30.0
            return logits

    ends = Model(Ends(), rows.tokenizer, name="ends", layout="rows")
    canvases = [[None, letter, None, None], [None, None, None, letter], [None, None, eos, None], [None] * 4]
    with running(Limits(max_batch=16)) as engine:
        asked = [
            Asked(engine, {"ends": Served(ends)}, {"model": "ends", "canvas": canvas, "number": 2, "seed": 3})
            for canvas in canvases
        ]
        for one, canvas in zip(asked, canvases, strict=True):
            made = [done.tokens for done in one.answer()]
            ids = torch.tensor([[Ends.mask_id if token is None else token for token in canvas]] * 2)
            assert made == ends.sample(canvas=ids, seed=3).tokens.tolist()
            last = max((at for at, token in enumerate(canvas) if token is not None), default=0)
            assert all(eos not in tokens[:last] for tokens in made)
            assert all(tokens[last + 1 :] == [eos] * (3 - last) for tokens in made)


@pytest.mark.parametrize("model", ["tiny", "anyorder", "adapted"])
def test_requests_that_look_ahead_share_calls_until_each_has_one_token_left(model):
    """With few masked positions and with many: one is at its last token, without a chain, while others look ahead.

    Canvases differ in length, and each guess is a canvas of its own for a network that cannot look ahead by itself.
    """
    bodies = [
        {"model": model, "canvas": holes(count, length), "ahead": window, "seed": count, "sampler": "first-hitting"}
        for count, length in ((1, 12), (2, 9), (5, 12), (9, 10), (12, 12))
        for window in (3, 6, "auto")
    ]
    with running(Limits(max_batch=len(bodies))) as engine:
        asked = [Asked(engine, SERVED, body, watched=False) for body in bodies]
        for one, body in zip(asked, bodies, strict=True):
            assert [done.tokens for done in one.answer()] == library(body).tokens.tolist()


def test_steps_lead_from_the_canvas_to_the_tokens_and_are_those_of_the_library():
    with running() as engine:
        for body in ({"predictor": "correct", "steps": 4}, {"decoding": "margin", "steps": 3}, {"model": "twin"}):
            body |= {"seed": 2, "length": 9}
            asked = Asked(engine, SERVED, body, watched=True)
            (done,), truth = asked.answer(), library(body)
            ids = list(asked.job.work.canvas)
            assert len(asked.steps) == done.nfe == len(truth.trace)
            for filled, step in zip(asked.steps, truth.trace, strict=True):
                for position in filled.change.hidden or ():
                    ids[position] = asked.job.work.model.denoiser.mask_id
                for position, token in zip(filled.change.positions, filled.change.tokens, strict=True):
                    ids[position] = token
                assert filled.change.positions == [p for p in step.positions[0].tolist() if p >= 0]
                assert filled.change.tau == pytest.approx(step.tau[0][step.positions[0] >= 0].tolist())
                assert filled.change.probabilities == pytest.approx(
                    step.probabilities[0][step.positions[0] >= 0].tolist(), rel=1e-4
                )
            assert ids == done.tokens


class Gated(Counting):
    """A network that counts and may be held up; it fails where a sequence begins with token 7, and says NaN at 8."""

    def __init__(self, model):
        super().__init__(model)
        self.length, self.gate, self.called = model.length, threading.Event(), threading.Semaphore(0)
        self.gate.set()

    def hold(self):
        """Forget the calls so far, such as that of a warm-up, and let none return from now on."""
        self.gate.clear()
        self.calls.clear()
        while self.called.acquire(blocking=False):
            pass

    @property
    def batches(self):
        return [tuple(tokens.shape) for tokens, _, _ in self.calls]

    def __call__(self, tokens, time=None, rows=None):
        self.calls.append((tokens.clone(), time, rows))
        self.called.release()
        assert self.gate.wait(300)
        if bool((tokens[:, 0] == 7).any()):
            raise RuntimeError("a token that this network cannot bear")
        if bool((tokens[:, 0] == 8).any()):
            return torch.full((*rows.shape, self.vocab_size), torch.nan)
        return self.model(tokens, time, rows)


@pytest.fixture
def counting():
    network_ = Gated(lively(network(TOKENIZERS["bpe"])))
    return network_, {"c": Served(Model(network_, TOKENIZERS["bpe"], name="c"))}


def test_requests_join_and_leave_between_calls(counting):
    network_, served = counting
    network_.gate.clear()
    with running(Limits(max_batch=3)) as engine:
        first = Asked(engine, served, {"seed": 0, "canvas": holes(6)})
        network_.called.acquire()
        others = [Asked(engine, served, {"seed": i, "canvas": holes(n)}) for i, n in ((1, 2), (2, 3), (3, 2))]
        network_.gate.set()
        for one in (first, *others):
            one.answer()
    # The first alone; then two join; when the shorter of them is done there is a place for the last.
    assert [batch for batch, _ in network_.batches] == [1, 3, 3, 3, 2, 1]
    assert engine.counts.calls == 6 and engine.counts.rows == 13


def test_the_end_is_known_at_the_beginning(counting):
    """Two places, and one of them at most for each request: who comes second begins before the first has ended."""
    network_, served = counting
    engine = Engine(Limits(max_batch=2))
    engine._costs.of_round = lambda batches: 1.0  # one second a round: forecasts are then rounds
    asked = [
        Asked(engine, served, {"seed": i, "canvas": holes(n), "number": m})
        for i, n, m in ((0, 5, 2), (1, 3, 1), (2, 4, 2))
    ]
    assert [one.calls for one in asked[2].forecasts] == [4, 4]
    assert [[one.queue_seconds for one in request.forecasts] for request in asked] == [[0, 5], [0], [3, 7]]
    assert [one.seconds_left for one in asked[2].forecasts] == [7, 11]
    engine.start()
    for one in asked:
        one.answer()
    engine.stop()
    assert engine.counts.calls == len(network_.batches) == 11, "as forecast"


def test_seconds_are_forecast_from_the_first_request_on(counting):
    """A network that was warmed up has a cost; a batch that is new costs what the model's others do."""
    network_, served = counting
    with running() as engine:
        engine.warm(served["c"])
        assert len(network_.batches) == 1 and engine.counts.calls == 0
        until(lambda: engine.live == 0)
        network_.gate.clear()  # so that what is known stays what it is
        (planned,) = Asked(engine, served, {"seed": 0, "canvas": holes(3)}).forecasts
        assert planned.queue_seconds == 0 and planned.seconds_left > 0
        assert planned.seconds_left == pytest.approx(3 * engine._costs.of((served["c"], LENGTH, 1)))  # its own length
        network_.gate.set()


@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_network_can_be_warmed_up(name):
    with running() as engine:
        engine.warm(SERVED[name])
        assert engine._costs.of((SERVED[name], 3, 1)) > 0


def test_places_are_given_in_order_of_arrival():
    """Two places with 5 and 2 calls left, one that waits for 4: it begins in round 2, so the next ones in 5 and 6."""
    assert begins([("a", 5), ("b", 2)], 2, [("c", [4])], ("d", [1, 7])) == [5, 6]
    assert begins([], 3, [], ("a", [2, 2, 2, 2])) == [0, 0, 0, 2]
    # With one place for each request: the second of the first waits for it, and the next begins before.
    assert begins([("a", 5)], 2, [("a", [5]), ("b", [3])], ("c", [4, 4]), share=1) == [3, 7]


def test_what_is_visible_stays_and_calls_are_those_that_the_network_saw(counting):
    network_, served = counting
    canvas = [3, None, 1, None, None, 2]
    for way in (
        {},
        {"steps": 2},
        {"predictor": "correct", "steps": 3},
        {"decoding": "margin"},
        {"sampler": "published-ancestral", "steps": 7},
    ):
        network_.calls.clear()
        with running() as engine:
            (done,) = Asked(engine, served, {"canvas": canvas, "seed": 4, **way}).answer()
        assert [t for t, hole in zip(done.tokens, canvas, strict=True) if hole is not None] == [3, 1, 2]
        assert network_.mask_id not in done.tokens
        assert done.calls == len(network_.batches) == engine.counts.calls


def test_different_lengths_and_widths_do_not_share_a_call_of_a_network_that_takes_no_lengths(counting):
    network_, served = counting
    network_.gate.clear()
    with running(Limits(max_batch=8)) as engine:
        held = Asked(engine, served, {"seed": 9, "length": 1})
        network_.called.acquire()
        asked = [
            Asked(engine, served, {"seed": i, **body})
            for i, body in enumerate(({"length": 6}, {"length": 6}, {"length": 9}, {"length": 6, "steps": 1}))
        ]
        network_.gate.set()
        for one in (held, *asked):
            one.answer()
    assert sorted(network_.batches[1:4]) == [(1, 6), (1, 9), (2, 6)]


def test_nothing_to_fill_needs_no_call(counting):
    network_, served = counting
    with running() as engine:
        (done,) = Asked(engine, served, {"canvas": [1, 2, 3], "seed": 0}).answer()
        assert done.tokens == [1, 2, 3] and done.nfe == 0 and not network_.batches


def test_the_queue_is_full_at_its_limit_and_nothing_accepted_is_lost(counting):
    network_, served = counting
    network_.gate.clear()
    with running(Limits(max_batch=1, max_queue=3)) as engine:
        asked = [Asked(engine, served, {"seed": 0, "steps": 2})]
        network_.called.acquire()
        asked += [Asked(engine, served, {"seed": i, "steps": 2}) for i in (1, 2, 3)]
        for _ in range(30):
            with pytest.raises(Refused, match="3 requests wait") as refused:
                Asked(engine, served, {"seed": 9, "steps": 2})
            assert refused.value.retry_after >= 1
        network_.gate.set()
        for i, one in enumerate(asked):
            truth = served["c"].model.sample(seed=i, steps=2)
            assert [done.tokens for done in one.answer()] == truth.tokens.tolist()
        assert engine.counts.refused == 30


class TestCancelling:
    @pytest.mark.parametrize("way", [{}, {"decoding": "margin"}, {"sampler": "published-tweedie", "steps": 50}])
    def test_a_cancelled_request_is_gone_before_the_next_call(self, counting, way):
        network_, served = counting
        network_.gate.clear()
        with running(Limits(max_batch=1)) as engine:
            first = Asked(engine, served, {"seed": 0, "length": 8, **way})
            network_.called.acquire()
            second = Asked(engine, served, {"seed": 1, "canvas": holes(2)})
            engine.cancel(first.job)
            network_.gate.set()
            second.answer()
            assert len(network_.batches) == 3, "the call that was under way, and the second's two"
            assert first.told.empty()

    def test_a_hundred_of_them_leave_nothing_behind(self):
        before, held = set(threading.enumerate()), len(left_over())
        with running(Limits(max_batch=4, max_queue=200)) as engine:
            ways = [{}, {"model": "anyorder"}, {"model": "twin"}, {"decoding": "entropy"}, {"steps": 4, "number": 3}]
            asked = [Asked(engine, SERVED, {"seed": i, **ways[i % len(ways)]}) for i in range(100)]
            for one in asked:
                engine.cancel(one.job)
            before_that = sum(not one.job.unfinished for one in asked)
            last = Asked(engine, SERVED, {"seed": 1})
            same(last, library({"seed": 1}))
            until(lambda: engine.live == engine.queued == 0)
            assert not engine._batches and engine.cache_bytes == 0
            assert engine.counts.cancelled == 100 - before_that
            del asked, one, last
            until(lambda: len(left_over()) <= held)
        until(lambda: set(threading.enumerate()) <= before)  # of those that were there some may have ended

    def test_one_sequence_of_a_request(self):
        with running() as engine:
            asked = Asked(engine, SERVED, {"seed": 0, "number": 2})
            engine.cancel(asked.job, 1)
            done = asked.told.get(timeout=300)
            assert done.index == 0 and done.tokens == library({"seed": 0, "number": 2}).tokens[0].tolist()

    def test_a_request_whose_listener_raises_is_cancelled(self, counting):
        _, served = counting
        with running() as engine:
            asked = Asked(engine, served, {"seed": 0}, watched=True)

            def gone(event):
                raise RuntimeError("the loop is closed")

            asked.job.tell = gone
            Asked(engine, served, {"seed": 1}).answer()
            assert asked.job.cancelled
            until(lambda: engine.live == 0 and not engine._batches)


def left_over():
    """Whatever of requests is still in memory."""
    gc.collect()
    return [one for one in gc.get_objects() if issubclass(type(one), (Job, SequenceRun, SharedState, Batch, Seated))]


class TestFailing:
    @pytest.mark.parametrize("bad", [7, 8])
    def test_one_that_cannot_be_served_fails_alone(self, counting, bad):
        network_, served = counting
        network_.gate.clear()
        with running() as engine:
            held = Asked(engine, served, {"seed": 0})
            network_.called.acquire()
            poisoned = Asked(engine, served, {"canvas": [bad, *[None] * (LENGTH - 1)], "seed": 1})
            other = Asked(engine, served, {"seed": 2})
            network_.gate.set()
            with pytest.raises((RuntimeError, ValueError), match=r"cannot bear|no distribution"):
                poisoned.answer()
            for seed, one in ((0, held), (2, other)):
                truth = Model(network_.model, TOKENIZERS["bpe"]).sample(seed=seed)
                assert [done.tokens for done in one.answer()] == truth.tokens.tolist()
            Asked(engine, served, {"seed": 5}).answer()
            assert engine.counts.failed == 1

    @pytest.mark.parametrize("predictor", ["first-order", "extrapolate", "correct"])
    def test_a_draw_that_raises_does_so_for_one_sequence_alone(self, predictor):
        """The plans of both have one state, which has changed a little when the draw raises."""

        class Loud(Gated):
            def __call__(self, tokens, time=None, rows=None):
                logits = super().__call__(tokens, time, rows).clone()
                late = (tokens == self.mask_id).sum(1) < 12
                logits[..., 0] += torch.where((tokens[:, 0] == 9) & late, 200.0, 0.0).unsqueeze(1)
                return logits

        def deafened(logits, noise):
            if bool((logits.amin(1) < -100).any()):
                raise ValueError("too loud")
            return inverse_cdf(logits, noise)

        loud = Served(Model(Loud(lively(network(TOKENIZERS["bpe"]))), TOKENIZERS["bpe"], name="c"))
        with running() as engine:
            asked = []
            loud.model.denoiser.gate.clear()
            for i, first in enumerate((1, 9, 1)):
                canvas = [first, *[None] * (LENGTH - 1)]
                body = UnmaskRequest(canvas=canvas, seed=i, steps=5, predictor=predictor)
                work = replace(unmask_work({"c": loud}, body, engine.limits), pick=Pick(deafened))
                told = queue.Queue()
                engine.submit(Job(work, told.put))
                ids = torch.tensor([[loud.model.denoiser.mask_id if t is None else t for t in canvas]])
                asked.append((told, ids, body.named.arguments()))
            loud.model.denoiser.gate.set()
            for i, (told, ids, how) in enumerate(asked):
                event = told.get(timeout=300)
                if i == 1:
                    assert isinstance(event, Failed) and "too loud" in str(event.error)
                else:
                    truth = loud.model.sample(canvas=ids, draw=deafened, seed=i, **how)
                    assert event.tokens == truth.tokens[0].tolist()

    @pytest.mark.parametrize("predictor", ["first-order", "extrapolate", "correct"])
    def test_a_step_that_fails_after_its_fill_is_undone(self, predictor, monkeypatch):
        """What the fill has changed in place, and the tokens already written, are taken back before it is repeated."""
        served = {"a": Served(Model(Gated(lively(network(TOKENIZERS["bpe"]))), TOKENIZERS["bpe"], name="a"))}
        failures, usual = [], State.advance

        def failing(state, step):
            usual(state, step)
            if len(state.x) > 1:
                failures.append(len(state.x))
                raise RuntimeError("after the fill")

        body = {"steps": 5, "predictor": predictor}
        truth = [served["a"].model.sample(seed=seed, **UnmaskRequest(**body).named.arguments()) for seed in (0, 1)]
        with running() as engine:
            served["a"].model.denoiser.hold()
            asked = [Asked(engine, served, {"seed": seed, **body}) for seed in (5, 0, 1)]
            until(lambda: len(served["a"].model.denoiser.calls) == 1)  # the others join after the first one's pass
            monkeypatch.setattr(State, "advance", failing)
            served["a"].model.denoiser.gate.set()
            _, *others = [one.answer()[0].tokens for one in asked]
        assert len(failures) > 2 and others == [one.tokens[0].tolist() for one in truth]

    def test_with_a_cache_the_others_go_on_as_if_nothing_had_been(self):
        """A pass of the any-order network that fails half way has written into its caches: they are read again."""
        inner = lively(network(TOKENIZERS["bpe"], attention="order"), 2)
        served = {"a": Served(Model(inner, TOKENIZERS["bpe"], name="a"))}
        truth = [served["a"].model.sample(seed=seed, steps=8).tokens.tolist() for seed in (0, 1)]
        last = served["a"].network.network.blocks[-1]
        calls, feed_forward, both = [], last.feed_forward, threading.Event()

        def failing(x, *others):
            assert both.wait(300)  # with one sequence alone nobody is left to go on
            calls.append(len(x))
            if len(calls) in (4, 9):
                raise RuntimeError("half way")
            return feed_forward(x, *others)

        last.feed_forward = failing
        with running() as engine:
            asked = [Asked(engine, served, {"seed": seed, "steps": 8}) for seed in (0, 1)]
            both.set()
            told = []
            for one in asked:
                try:
                    told.append([done.tokens for done in one.answer()])
                except RuntimeError:
                    told.append(None)
        assert len(calls) > 9 and any(told) and all(one in (None, true) for one, true in zip(told, truth, strict=True))

    def test_a_sampler_that_cannot_take_its_options_says_so_before_it_is_admitted(self):
        with running() as engine:
            with pytest.raises(ValueError, match="blocks"):
                Asked(engine, SERVED, {"decoding": "margin", "block": 2, "steps": 3, "seed": 0})
            assert engine.queued == engine.live == 0


def test_a_network_that_is_fed_its_prediction_remembers_it_for_each_sequence():
    made = model(name="self", self_conditioning=True)
    ways = [{"steps": 5, "number": 2}, {}, {"steps": 3, "predictor": "correct"}, {"steps": 4, "decoding": "margin"}]
    with running(Limits(max_batch=3)) as engine:
        asked = [Asked(engine, {"self": Served(made)}, {"seed": i, "length": 8, **way}) for i, way in enumerate(ways)]
        for i, (one, way) in enumerate(zip(asked, ways, strict=True)):
            how = UnmaskRequest(**way).named.arguments()
            same(one, made.sample(way.get("number", 1), length=8, seed=i, **how))


class TestStopping:
    def test_what_was_accepted_is_finished_and_nothing_more_is_taken(self, counting):
        network_, served = counting
        network_.gate.clear()
        with running() as engine:
            asked = Asked(engine, served, {"seed": 0})
            engine.close()
            with pytest.raises(Refused, match="shutting down"):
                Asked(engine, served, {"seed": 1})
            network_.gate.set()
            asked.answer()
            assert engine.stop(300.0)

    def test_after_the_grace_it_ends_all_the_same(self, counting):
        network_, served = counting
        network_.gate.clear()
        with running() as engine:
            for way in ({}, {"decoding": "margin"}):
                Asked(engine, served, {"seed": 0, **way})
            network_.called.acquire()
            ended = []
            thread = threading.Thread(target=lambda: ended.append(engine.stop(0.0)))
            thread.start()
            network_.gate.set()
            thread.join(300)
            assert ended == [False] and not thread.is_alive()


@pytest.mark.parametrize("name", ["anyorder", "twin"])
def test_prompts_of_one_length_are_read_together_and_who_has_none_joins_at_once(name, monkeypatch):
    calls, answers = [], Batch._answers

    def counted(batch, part, *rest):
        calls.append(len(part))
        return answers(batch, part, *rest)

    monkeypatch.setattr(Batch, "_answers", counted)
    engine = Engine(Limits(max_batch=4))
    bodies = ({"canvas": [1, 2, 3, None, None], "number": 2}, {"canvas": [1, 2, 4, None, None]}, {"length": 5})
    asked = [Asked(engine, SERVED, {**body, "model": name, "seed": 0}) for body in bodies]
    engine.start()
    for one in asked:
        one.answer()
    engine.stop()
    assert calls == [3, 1, 4, 1, 1, 1], "three prompts and an empty canvas, all four, and the rest of the last"


def test_plans_together_are_the_plans_alone():
    canvases = [torch.full((1, 6), 9), torch.tensor([[9, 1, 9, 1, 9, 9]])]
    plans = [first_hitting(x, mask_id=9, streams=Streams.of(i, 1)) for i, x in enumerate(canvases)]
    both = Plan.join(plans)
    for now in ([0, 0], [5, 2], [3, 1]):
        group = both.group(torch.tensor(now))
        for i, (plan, step) in enumerate(zip(plans, now, strict=True)):
            assert group.positions[i].tolist() == plan.group(torch.tensor([step])).positions[0].tolist()


@pytest.mark.parametrize("name", ["max_queue", "max_batch", "max_length", "max_number", "max_body_bytes"])
def test_limits_are_at_least_one(name):
    with pytest.raises(ValueError, match=name):
        Limits(**{name: 0})


def test_kinds():
    assert {name: SERVED[name].kind for name in MODELS} == {
        "tiny": "masked",
        "bytes": "masked",
        "anyorder": "any-order",
        "twin": "left-to-right",
        "adapted": "masked",
    }
