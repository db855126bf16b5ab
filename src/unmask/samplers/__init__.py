"""Samplers: that of every plan, and others for ``unmask.sample(model, sampler=...)``.

planned      every plan: plan, predict, draw
decoding     orders that depend on the network: confidence, margin, entropy-bounded, blocks, LLaDA's and Dream's
ranked       the sampler of these orders
remasking    ReMDM: tokens may be masked again at random
published    the samplers of other codebases, with token and mask in one low-precision draw
law          their distribution, without their N L V random numbers
scored       not a sampler: the probabilities of a given text, token by token
"""
