"""A causal language model as a judge of texts: -log p of each token, given those before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from unmask.devices import widest
from unmask.evaluate.judge.samples import Samples

_ROWS_AT_ONCE = 128  # of float64 logits


@dataclass(frozen=True)
class CausalJudge:
    """A judge from a network's logits and its tokenizer.

    logits: ids [B, S] -> [B, S, V], predictions of the next id. states: ids [B, S] -> [B, S, width], for features.
    before: ids put before each text and not judged; after: ids put after it and judged. With nothing before it, a
    text's first token is given and not judged. batch: texts per network call; larger batches help on a GPU, and differ
    only in rounding.
    """

    name: str
    logits: Callable[[Tensor], Tensor]
    encode: Callable[[str], list[int]]
    window: int
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    states: Callable[[Tensor], Tensor] | None = None
    device: str = "cpu"
    batch: int = 1

    def __post_init__(self) -> None:
        if self.window < 2 or self.batch < 1:
            raise ValueError(f"window must be at least 2 and batch at least 1, got {self.window} and {self.batch}")

    @property
    def conventions(self) -> str:
        first = "the first token is judged after the start token" if self.before else "the first token is not judged"
        eos = "the eos that ends a text is judged" if self.after else "no eos is added"
        return (
            f"texts are retokenised by the judge; {first}; {eos}; beyond {self.window} tokens a text is read in "
            "windows that overlap by half, and each token is judged once"
        )

    def nats(self, samples: Samples) -> list[Tensor]:
        """-log p of each judged token given those before it, float64, one tensor per sequence."""
        sequences = [torch.tensor([*self.before, *ids.tolist(), *self.after]) for ids in self.ids(samples)]
        return causal_nats(self.logits, sequences, self.window, max(len(self.before), 1), self.batch, self.device)

    def ids(self, samples: Samples) -> list[Tensor]:
        """The tokens of each text under the judge's tokenizer."""
        if not samples.texts and len(samples):
            raise ValueError(f"{self.name} judges texts, but these samples have only tokens")
        return [torch.tensor(self.encode(text), dtype=torch.int64) for text in samples.texts]

    def features(self, samples: Samples) -> Tensor:
        """The final state at the last token of each text's last window, float32 [B, width], for MAUVE."""
        if self.states is None:
            raise ValueError(f"{self.name} gives no features")
        rows = []
        with torch.inference_mode():
            for ids in self.ids(samples):
                context = torch.tensor([*self.before, *ids.tolist()], dtype=torch.int64)[-self.window :]
                if not len(context):
                    raise ValueError(f"{self.name} has no features of an empty text: it has no start token")
                rows.append(self.states(context[None].to(self.device))[0, -1].float().cpu())
        return torch.stack(rows)


def causal_nats(
    logits: Callable[[Tensor], Tensor], sequences: list[Tensor], window: int, given: int, batch: int, device: str
) -> list[Tensor]:
    """-log p(x_j | x_<j) for j >= given of each sequence, in windows: float64 [max(0, len - given)] each."""
    pieces = [
        (i, start, fresh, stop) for i, x in enumerate(sequences) for start, fresh, stop in windows(len(x) - 1, window)
    ]
    nats: list[list[Tensor]] = [[] for _ in sequences]
    with torch.inference_mode():
        for at in range(0, len(pieces), batch):
            group = pieces[at : at + batch]
            inputs = pad_sequence([sequences[i][start:stop] for i, start, _, stop in group], batch_first=True)
            # No attention mask is needed: a causal network's output at a position does not depend on padding after it.
            answers = logits(inputs.to(device))
            for row, (i, start, fresh, stop) in zip(answers, group, strict=True):
                targets = sequences[i][fresh + 1 : stop + 1].to(device)
                nats[i].append(_cross_entropy(row[fresh - start : stop - start], targets))
    return [torch.cat([torch.zeros(0, dtype=torch.float64), *parts])[given - 1 :] for parts in nats]


def windows(inputs: int, size: int) -> Iterator[tuple[int, int, int]]:
    """(start, fresh, stop): read inputs start..stop-1, of which those from fresh on are new.

    Every window but the first sees at least half a window of earlier tokens.
    """
    fresh = 0
    while fresh < inputs:
        start = max(0, fresh - size // 2)
        stop = min(start + size, inputs)
        yield start, fresh, stop
        fresh = stop


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """In float64 where the device has it, a few rows at a time."""
    parts = zip(torch.split(logits, _ROWS_AT_ONCE), torch.split(targets, _ROWS_AT_ONCE), strict=True)
    exact = widest(logits.device)
    nats = [functional.cross_entropy(row.to(exact), x, reduction="none").cpu() for row, x in parts]
    return torch.cat(nats).double()
