"""Models of unmask in the lm-evaluation-harness: importing this registers ``unmask`` as one of its models.

    python -m unmask.evaluate.likelihood.harness --model unmask --model_args model=kjv --tasks TASK

``loglikelihood`` is minus the bound of the continuation conditioned on the prompt (``conditional.conditional_nelbo``),
so for a masked model it is a lower bound on log p where the continuation is filled first; for a model that is sampled
from left to right it is exact. A result depends on the seed and the request's text, not on the batch, the other
requests or the number of processes.
"""

from __future__ import annotations

import importlib
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unmask import names
from unmask.evaluate import processes
from unmask.evaluate.likelihood.conditional import conditional_nelbo, in_turn_nats, is_greedy, left_to_right_nats
from unmask.evaluate.likelihood.continuation import Page, encode_pair, windows, without_last_spaces
from unmask.extras import needed
from unmask.loading import load
from unmask.model import Model
from unmask.names import PLANS, PlanName, PredictorName
from unmask.network import device_of
from unmask.noise import generator, word
from unmask.protocol import for_bound
from unmask.sampling import sample

MODULES = ("api.model", "api.registry", "models")  # its own models: it looks for them before the registry is in use
model, registry, _ = (needed(f"lm_eval.{name}", "the harness needs lm-eval", "harness") for name in MODULES)
LM: Any = model.LM

ROWS = 64  # canvases per network call if the harness says "auto"
MAX_GEN_TOKS = 256  # the harness's default
LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


@dataclass(frozen=True)
class Generation:
    """The options of a ``generate_until`` request."""

    until: tuple[str, ...]
    tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None

    @classmethod
    def of(cls, asked: dict[str, Any]) -> Generation:
        """With the harness's meaning: greedy unless do_sample or a temperature is given."""
        for name in set(asked) - {"until", "do_sample", "temperature", "top_k", "top_p", *LIMITS}:
            logging.getLogger(__name__).warning("generation_kwargs: %s=%r is not used", name, asked[name])
        until = asked.get("until") or []
        temperature = float(asked.get("temperature", 1.0 if asked.get("do_sample") else 0.0))
        return cls(
            tuple(text for text in ([until] if isinstance(until, str) else until) if text),
            int(next((asked[name] for name in LIMITS if asked.get(name) is not None), MAX_GEN_TOKS)),
            0.0 if asked.get("do_sample") is False else temperature,
            asked.get("top_k") or None,
            asked.get("top_p"),
        )


class UnmaskLM(LM):  # type: ignore[misc]
    """A model of unmask as the harness's LM.

    model: anything that ``unmask.load`` takes, or a Model. passes: the number of subsets of a continuation that its
    bound is estimated with; a continuation of m tokens with 2^m - 1 <= passes has no error. length: tokens of a canvas,
    by default that of the training sequences. sampler, steps, predictor: as in ``unmask sample``, for generate_until.
    batch_size: canvases per call.
    """

    def __init__(
        self,
        model: str | Model,
        *,
        passes: int = 32,
        seed: int = 0,
        length: int | None = None,
        sampler: PlanName | None = None,
        steps: int | None = None,
        predictor: PredictorName = "first-order",
        batch_size: int | str = "auto",
        max_batch_size: int | None = None,
        device: str | None = None,
    ) -> None:
        super().__init__()
        # The harness's command line passes cuda:0 if no device was given, with or without a GPU.
        device = processes.device("auto" if device in (None, "cuda", "cuda:0") else str(device))
        self.model = load(model, device=device) if isinstance(model, str) else model
        self._rank, self._world_size = processes.rank(), processes.world()
        self.passes, self.seed = int(passes), int(seed)
        self.rows = int(max_batch_size or ROWS) if str(batch_size).startswith("auto") else int(batch_size)
        given = {"sampler": sampler, "steps": steps, "predictor": predictor != "first-order"}
        process = self.model.process
        process.require("score_continuations", *(name for name, value in given.items() if value))
        self.options = _sampler_options(sampler, steps, predictor) if process.chooses else {}
        length = length or self.model.length
        if length is None:
            raise ValueError(f"{self.model.name} does not say how long its sequences are: give length")
        self.page = Page(self.model, int(length))
        self.errors: list[Tensor] = []  # standard errors of all bounds so far, in nats

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Minus the bound of each continuation given its context, and whether greedy decoding would give it.

        Greedy decoding is from left to right, one token per call. A context that does not fit is cut at its beginning;
        a continuation that does not fit is scored in parts, each given as many of the preceding tokens as fit. Choices
        of one context with the same number of tokens get the same masks.
        """
        return self._answered("loglikelihood", requests, self._scores, disable_tqdm)

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Minus the bound of each text, in parts if it does not fit, as in ``loglikelihood`` with no context."""
        return self._answered("loglikelihood_rolling", requests, self._rolling, disable_tqdm)

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Continue each context, up to the first eos or ``until`` string, or max_gen_toks tokens.

        A masked model fills the canvas to its end, and text after the end is dropped. The context is cut at its
        beginning to make room, but to no less than half of the canvas; fewer tokens are generated then.
        """
        seen: Counter[str] = Counter()
        by_options: dict[Generation, list[tuple[int, str, int]]] = defaultdict(list)
        for i, request in enumerate(requests):
            context, asked = request.args
            # Repeated requests get different answers.
            seed = word(self.seed, "generate_until", context, seen[repr(request.args)])
            by_options[Generation.of(asked)].append((i, context, seed))
            seen[repr(request.args)] += 1
        answers: dict[int, str] = {}
        with _bar(len(requests), "generate_until", disable_tqdm) as bar:
            for generation, items in by_options.items():
                for start in range(0, len(items), self.rows):
                    part = items[start : start + self.rows]
                    texts = self._continued([text for _, text, _ in part], [seed for *_, seed in part], generation)
                    for (i, *_), text in zip(part, texts, strict=True):
                        answers[i] = text
                        self.cache_hook.add_partial("generate_until", requests[i].args, text)
                    bar.update(len(part))
        return [answers[i] for i in range(len(requests))]

    def _answered(
        self, kind: str, requests: Sequence[Any], answer: Callable[[list[Any]], list[Any]], disable_tqdm: bool
    ) -> list[Any]:
        """The answers to all requests, batch by batch; the harness's cache gets each batch."""
        answers: list[Any] = []
        with _bar(len(requests), kind, disable_tqdm) as bar:
            for start in range(0, len(requests), self.rows):
                part = [request.args for request in requests[start : start + self.rows]]
                for arguments, reply in zip(part, answer(part), strict=True):
                    answers.append(reply)
                    self.cache_hook.add_partial(kind, arguments, reply)
                bar.update(len(part))
        return answers

    def _rolling(self, arguments: list[tuple[str]]) -> list[float]:
        return [value for value, _ in self._scores([("", text) for (text,) in arguments], greedy=False)]

    def _scores(self, pairs: Sequence[tuple[str, str]], greedy: bool = True) -> list[tuple[float, bool]]:
        parts = []
        for i, (context, continuation) in enumerate(pairs):
            ids = windows(*encode_pair(self.model, context, continuation), self.page.room)
            parts += [(i, generator(k, self.seed, "loglikelihood", context), *one) for k, one in enumerate(ids)]
        canvas, asked = self.page.canvases([(before, scored) for _, _, before, scored in parts])
        nats, likeliest = self._scored(canvas, asked, [random for _, random, *_ in parts], greedy)
        owner = torch.tensor([i for i, *_ in parts], dtype=torch.int64)
        total = torch.zeros(len(pairs), dtype=torch.float64).index_add_(0, owner, nats)
        misses = torch.zeros(len(pairs), dtype=torch.int64).index_add_(0, owner, (~likeliest).long())
        return [(-value, missed == 0) for value, missed in zip(total.tolist(), misses.tolist(), strict=True)]

    def _scored(
        self, canvas: Tensor, asked: Tensor, random: Sequence[torch.Generator], greedy: bool
    ) -> tuple[Tensor, Tensor]:
        network, schedule = for_bound(self.model.denoiser), self.model.schedule
        if self.model.process.exact:
            return left_to_right_nats(network, canvas, asked, batch=self.rows)
        if self.model.process.from_left:  # sampled so: the same sum, with a call for each position
            nats = in_turn_nats(network, canvas, asked, batch=self.rows)
            likeliest = is_greedy(network, canvas, asked, schedule=schedule, batch=self.rows) if greedy else nats >= 0
            return nats, likeliest
        bound = conditional_nelbo(
            network, canvas, asked, generators=random, passes=self.passes, schedule=schedule, batch=self.rows
        )
        self.errors.append(bound.errors)
        if not greedy:
            return bound.nats, torch.ones(len(canvas), dtype=torch.bool)
        return bound.nats, is_greedy(network, canvas, asked, schedule=schedule, batch=self.rows)

    def _continued(self, contexts: Sequence[str], seeds: Sequence[int], asked: Generation) -> list[str]:
        room, begun = self.page.room, []
        for context in contexts:
            ids = self.model.tokenizer.encode(without_last_spaces(self.model, context)[0])
            new = min(asked.tokens, room - min(len(ids), room // 2))
            begun.append((ids[max(len(ids) - (room - new), 0) :], new))
        filled = self._filled([ids for ids, _ in begun], max(new for _, new in begun), seeds, asked)
        texts = []
        for context, (ids, new), row in zip(contexts, begun, filled, strict=True):
            start = len(self.page.before) + len(ids)
            texts.append(self._text(row[start : start + new].tolist(), context, asked.until))
        return texts

    def _filled(self, begun: Sequence[list[int]], new: int, seeds: Sequence[int], asked: Generation) -> Tensor:
        canvas, _ = self.page.canvases([(ids, []) for ids in begun])
        if self.model.process.exact:  # one call per token, up to the longest text
            canvas = canvas[:, : len(self.page.before) + max(map(len, begun)) + new]
        finished = sample(
            self.model.denoiser,
            canvas=canvas,
            schedule=self.model.schedule,
            temperature=asked.temperature,
            top_k=asked.top_k,
            top_p=asked.top_p,
            seed=list(seeds),
            **self.options,
        )
        return finished.tokens.cpu()

    def _text(self, ids: list[int], context: str, until: Sequence[str]) -> str:
        """The text up to the first eos and the first ``until``; the spaces at the context's end are not repeated."""
        eos, tokenizer = self.model.tokenizer.eos_id, self.model.tokenizer
        text = tokenizer.decode(ids[: ids.index(eos)] if eos in ids else ids)
        text = text.removeprefix(without_last_spaces(self.model, context)[1])
        return text[: min((at for at in map(text.find, until) if at >= 0), default=len(text))]

    def all_gather(self, tensor: Tensor) -> Tensor:
        """One number of each process. In the harness every process answers its own share of the documents."""
        return torch.tensor(processes.gather([tensor.item()]))

    def gather_object(self, obj: Any, dst: int = 0) -> list[Any] | None:
        objects = processes.gather([obj])
        return objects if processes.rank() == dst else None

    def barrier(self) -> None:
        processes.broadcast(None)

    @property
    def tokenizer_name(self) -> str:
        return self.model.name

    @property
    def loglikelihood_error(self) -> float:
        """The standard error of a log-likelihood estimate, root mean square over all so far: nats."""
        every = torch.cat(self.errors) if self.errors else torch.zeros(1)
        return float(every.double().square().mean().sqrt())

    def get_model_info(self) -> dict[str, Any]:
        """The information that the harness writes with its results."""
        kind = "exact" if self.model.process.from_left else f"minus the bound by count, at most {self.passes} passes"
        return {
            "model": self.model.name,
            "loglikelihood": kind,
            "loglikelihood_error": self.loglikelihood_error,
            "seed": self.seed,
            "length": self.page.length,
            "model_device": str(device_of(self.model.denoiser)),
        }


def _sampler_options(sampler: str | None, steps: int | None, predictor: str) -> dict[str, Any]:
    """Options of ``unmask.sample`` from the names that ``unmask sample`` uses."""
    if sampler not in (None, *PLANS):
        raise ValueError(f"sampler must be one of {', '.join(PLANS)}, got {sampler!r}")
    return {
        "plan": None if sampler is None else PLANS[sampler],
        "steps": steps,
        "predict": names.predictor(predictor, steps),
    }


def _bar(total: int, what: str, disable: bool) -> Any:
    return importlib.import_module("tqdm").tqdm(total=total, desc=what, disable=disable)


def main() -> None:
    """The harness's command line, with ``unmask`` among its models."""
    with processes.joined():
        importlib.import_module("lm_eval.__main__").cli_evaluate()


registry.register_model("unmask")(UnmaskLM)

if __name__ == "__main__":
    main()
