"""Guides for sampling: ``unmask.sample(model, guide=guides.classifier(...))``.

    classifier        p(y | canvas), evaluated for every candidate token: exact with one token per call
    only              the ids allowed at a position, like ``allowed``, but particles correct the distribution
    matching          a regular expression or another finite automaton
    classifier_free   mu^(1 + s) / mu'^s with another network, or the same one without its prompt: not exact

``unmask.samplers.guided`` defines guides and particles; docs/infilling.md says what is exact.
"""

from unmask.guides.automaton import Automaton
from unmask.guides.classifiers import classifier, classifier_free, only
from unmask.guides.patterns import matching

__all__ = ["Automaton", "classifier", "classifier_free", "matching", "only"]
