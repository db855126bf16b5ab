"""What storing weights in fewer bits costs: one call of LLaDA's shape with random weights, each storage beside float32.

``python -m benchmarks.storage`` builds blocks of LLaDA-8B's shape (width 4,096, MLP 12,288; --blocks of its 32, as many
as fit twice into memory in float32) and measures calls in CPU seconds on one thread: every storage in turn, --rounds
times, and the ratios are those of the smallest. The whole model's memory is counted from its shapes. --products chooses
the type of the products; auto is what this machine's CPU is fastest at.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch
from torch import Tensor, nn

from unmask.checkpoints.storage import store
from unmask.networks import stored
from unmask.networks.llama import Llama, LlamaConfig

SHAPE = {"width": 4096, "heads": 32, "key_heads": 32, "hidden": 12288, "theta": 5e5, "eps": 1e-5}
BLOCKS, VOCABULARY = 32, 126_464  # of LLaDA-8B
STORAGES = ("float32", "plain bfloat16", "bfloat16", "int8", "int4")


def network(blocks: int, vocabulary: int, seed: int = 0) -> Llama:
    """Random weights of LLaDA's scale, in float32."""
    sizes: dict[str, Any] = SHAPE
    with torch.device("meta"):
        made = Llama(LlamaConfig(vocab_size=vocabulary, mask_id=vocabulary - 1, length=4096, layers=blocks, **sizes))
    generator = torch.Generator().manual_seed(seed)
    state = {
        name: torch.ones(value.shape) if value.ndim == 1 else torch.randn(value.shape, generator=generator).mul_(0.02)
        for name, value in made.state_dict().items()
    }
    made.load_state_dict(state, assign=True)
    made.suppressed = torch.tensor([vocabulary - 1])
    return made.eval().requires_grad_(False)


def as_stored(storage: str, blocks: int, vocabulary: int) -> nn.Module:
    made = network(blocks, vocabulary)
    # As the published code runs it: activations and products in bfloat16.
    return made.bfloat16() if storage == "plain bfloat16" else store(made, storage)  # type: ignore[no-any-return, arg-type]


def size(one: nn.Module) -> int:
    """Bytes of all weights."""
    return sum(tensor.numel() * tensor.element_size() for tensor in (*one.parameters(), *one.buffers()))


def whole(storage: str) -> float:
    """Gigabytes of LLaDA-8B so: from a block's size and the two tables of the vocabulary."""
    small = {blocks: size(as_stored(storage, blocks, 1024)) for blocks in (1, 2)}
    tables = (small[1] - (small[2] - small[1])) / 1024 * VOCABULARY
    return (BLOCKS * (small[2] - small[1]) + tables) / 1e9


def seconds(model: nn.Module, tokens: Tensor) -> float:
    begin = time.process_time()
    with torch.inference_mode():
        model(tokens)
    return time.process_time() - begin


def measured(blocks: int, vocabulary: int, lengths: list[int], rounds: int) -> dict[str, dict[str, float]]:
    """The smallest CPU seconds of each storage and length; no two models but float32 and one other are in memory."""
    found: dict[str, dict[str, float]] = {name: {} for name in STORAGES}
    plain = as_stored("float32", blocks, vocabulary)
    for name in STORAGES:
        other = plain if name == "float32" else as_stored(name, blocks, vocabulary)
        for length in lengths:
            tokens = torch.randint(0, vocabulary - 1, (1, length), generator=torch.Generator().manual_seed(length))
            seconds(other, tokens)
            pairs = [(seconds(plain, tokens), seconds(other, tokens)) for _ in range(rounds)]
            base, own = (min(times) for times in zip(*pairs, strict=True))
            found[name] |= {f"seconds_{length}": own, f"ratio_{length}": own / base}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=16_384)
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 128, 512])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--products", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--output")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.products != "auto":
        stored.has_bfloat16 = lambda kind: chosen.products == "bfloat16"  # type: ignore[assignment]
    units = stored.has_bfloat16("cpu")
    print(f"{chosen.blocks} blocks, products in {'bfloat16' if units else 'float32'}, CPU seconds, one thread")
    found = measured(chosen.blocks, chosen.vocabulary, chosen.lengths, chosen.rounds)
    head = ["weights", "LLaDA-8B, GB", *(f"L = {length}: s" + ", ratio" for length in chosen.lengths)]
    print("\n".join(("| " + " | ".join(head) + " |", "|" + " --- |" * len(head))))
    for name, times in found.items():
        times["gigabytes_of_8b"] = whole(name)
        cells = [f"{times[f'seconds_{length}']:.2f}, {times[f'ratio_{length}']:.2f}" for length in chosen.lengths]
        print("| " + " | ".join([name, f"{times['gigabytes_of_8b']:.1f}", *cells]) + " |", flush=True)
    if chosen.output is not None:
        with open(chosen.output, "w", encoding="utf-8") as file:
            json.dump({"blocks": chosen.blocks, "bfloat16": units, "storages": found}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
