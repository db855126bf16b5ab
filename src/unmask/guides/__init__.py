"""What sampling can be guided by: ``unmask.sample(model, guide=guides.classifier(...))``.

    classifier        p(y | canvas) of every canvas with one token more: exact, one token per call
    only              the ids that may stand at a position, as ``allowed``, but particles count what it costs
    matching          a regular expression or another finite automaton
    classifier_free   mu^(1 + s) / mu'^s with another network, or the same one without its prompt: another law

What a guide is, and what particles do, is in ``unmask.samplers.guided``; docs/guidance.md says what is exact.
"""

from unmask.guides.automaton import Automaton, matching
from unmask.guides.classifiers import classifier, classifier_free, only

__all__ = ["Automaton", "classifier", "classifier_free", "matching", "only"]
