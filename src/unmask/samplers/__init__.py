"""Samplers that are not plans, for ``unmask.sample(model, sampler=...)``.

decoding     orders that look at the network: confidence, margin, entropy-bounded, blocks, LLaDA's and Dream's
remasking    ReMDM: at random, and tokens may be masked again
published    the samplers as other codebases run them, with token and mask in one low-precision draw
law          what these give, by its law, without their N L V random numbers
scored       no sampler: what a model says of a given text, token by token
names        the names under which the command line and the server know every sampler
"""
