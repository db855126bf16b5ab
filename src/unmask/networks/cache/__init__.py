"""Networks for sampling, made by ``for_sampling()``: the same logits, faster.

Constants are folded, the last block and the head are computed only for requested rows, and with causal attention, in
the order of unmasking or from left to right, every token is read once. docs/speed.md has the gain of each.
"""
