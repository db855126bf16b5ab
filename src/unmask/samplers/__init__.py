"""Orders that look at the network: which position is unmasked next depends on what the network says.

    Order                 unmasks first
    confidence            the likeliest of the tokens drawn everywhere, with annealed Gumbel noise (MaskGIT)
    low_confidence, llada the same without noise, in blocks (LLaDA's low-confidence remasking)
    margin, entropy       where the likeliest token leads by most; where the entropy is lowest
    dream                 one of the three, with Dream's pace and its temperature of the choice
    entropy_bounded       as many of the lowest entropies as keep their joint entropy bound below gamma
    left_to_right         the leftmost
    blocks(K, inner)      blocks of K holes from left to right, each in an inner order
    remdm_*               at random, and may mask tokens again (ReMDM's cap, rescale, confidence)

Each is a sampler like ``unmask.sample``, with its arguments (but plan and predict) and its Sample:
``order.margin()(model, num=4, length=64, steps=16)``, ``model.sample(sampler=order.margin(), steps=16)``. Without
``steps`` one token is unmasked per call. A network that reads the time is told alpha^-1(1 - masked/L).

What this does to the law: with one token per call, choosing the position by what the network says of the visible
tokens (margin, entropy, left_to_right, entropy_bounded with gamma = 0) leaves the chain rule intact, and is exact for a
network whose conditionals are those of one joint. Choosing it by the token drawn there (confidence, llada) prefers
likely tokens, at any number of calls. Tokens unmasked together are drawn as if independent. docs/orders.md has the
numbers; ``plan.first_hitting`` is the model's own law.
"""

from unmask.samplers.decoding import (
    Ranked,
    blocks,
    confidence,
    cosine,
    dream,
    entropy,
    entropy_bounded,
    even,
    falling,
    left_to_right,
    llada,
    low_confidence,
    margin,
)
from unmask.samplers.remasking import Remasking, remdm_cap, remdm_confidence, remdm_rescale
from unmask.samplers.run import Order

__all__ = [
    "Order",
    "Ranked",
    "Remasking",
    "blocks",
    "confidence",
    "cosine",
    "dream",
    "entropy",
    "entropy_bounded",
    "even",
    "falling",
    "left_to_right",
    "llada",
    "low_confidence",
    "margin",
    "remdm_cap",
    "remdm_confidence",
    "remdm_rescale",
]
