"""What ``for_sampling()`` turns a network into: the same logits, faster.

Constants are folded, the last block and the head are computed for asked rows alone, and where attention is causal, in
the order of unmasking or from left to right, every token is read once. docs/speed.md says what each of these gives.
"""
