"""The model card of a saved network, as the hub's README.md."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from unmask.networks.config import DDiTConfig
from unmask.processes import process_of

if TYPE_CHECKING:
    from unmask.networks.pretrained import Card
    from unmask.networks.transformer import Transformer


def card_text(model: Transformer, card: Card) -> str:
    """The model card, as the hub's README.md."""
    config = model.config
    conditioning = config.conditioning if isinstance(config, DDiTConfig) else "none"
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    unknown = "not recorded"
    bound = unknown
    if card.bound is not None:
        error = "" if card.bound_error is None else f" ± {card.bound_error:.2g}"
        if card.estimate_error is not None:
            error += f" (over the sequences, of which the estimate's own error is {card.estimate_error:.2g})"
        bound = f"{card.bound:.3f}{error} {card.bound_unit}"
        bound += f", on {card.held_out}" if card.held_out else ""
        bound += f"; `{card.measured_by}`" if card.measured_by else ""
    kind = KINDS.get(model.architecture, "Masked diffusion model")
    front = ["library_name: unmask", "tags: [unmask, masked-diffusion, discrete-diffusion]"]
    front += [f"license: {json.dumps(card.license)}"] if card.license else []
    mask = "one past the data" if config.mask_id == config.vocab_size else "inside the vocabulary, never drawn"
    return "\n".join(
        [
            "---",
            *front,
            "---",
            "",
            f"# {kind}, {millions:.1f} M parameters",
            "",
            f"- Network: {config.layers} layers, width {config.width}, {config.heads} heads; sequences of "
            f"{config.length} tokens; kind: {model.architecture}; conditioning: {conditioning}",
            f"- Vocabulary: {config.vocab_size} ids; the mask is {config.mask_id}, {mask}",
            f"- Data: {card.data or unknown}",
            f"- Tokens seen in training: {unknown if card.tokens_seen is None else f'{card.tokens_seen:,}'}",
            f"- Held-out {_likelihood(model, card)}: {bound}",
            *([f"- Held-out bound (NELBO) over random orders: {card.random_order}"] if card.random_order else []),
            *(
                [f"- Held-out bound by the mean probability over several orders: {card.mixture}"]
                if card.mixture
                else []
            ),
            *([f"- Counting alone: {card.ngram}"] if card.ngram else []),
            *([f"- The truth: {card.truth}"] if card.truth else []),
            f"- License: {card.license or unknown}",
            *([f"- Notes: {card.notes}"] if card.notes else []),
            *([f"- Command: `{card.command}`"] if card.command else []),
            "",
            *_shown(card.samples),
            "## How to sample",
            "",
            "```python",
            *_snippet(model, config.length),
            "```",
            "",
        ]
    )


def _likelihood(model: Transformer, card: Card) -> str:
    """What the card's bound is."""
    if model.architecture == "causal":
        return "negative log-likelihood"
    return "negative log-likelihood from left to right" if card.random_order else "bound (NELBO)"


def _shown(samples: Sequence[str]) -> list[str]:
    """Samples as they are, each indented so that nothing in them is taken for Markdown."""
    lines = [line for sample in samples for line in (*(f"    {line}" for line in sample.splitlines()), "")]
    return ["## Samples, not chosen", "", *lines] if lines else []


KINDS = {"any-order": "Any-order model", "causal": "Left-to-right model"}


def _snippet(model: Transformer, length: int) -> list[str]:
    """Code that samples from this folder: ids, by names that this package exports."""
    process, name = process_of(model), type(model).__name__
    lines = [
        "import unmask",
        f"from {type(model).__module__} import {name}",
        "",
        f'model = {name}.from_pretrained("this folder or repository")',
        f"# {'From left to right' if process.from_left else 'First-hitting: exact'}, one token per call.",
        f"tokens = unmask.sample(model, num=4, length={length}, seed=0).tokens",
    ]
    if not process.chooses:
        return [line for line in lines if not line.startswith("#")]
    return [
        *lines,
        "# Four times fewer calls, several tokens at a time.",
        f"coarse = unmask.sample(model, num=4, length={length}, plan=unmask.plan.parallel, steps={-(-length // 4)})",
    ]
