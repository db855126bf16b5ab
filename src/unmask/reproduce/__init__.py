"""Every figure and table of the paper by one command: ``unmask reproduce [NAME | all | list]``.

item.py       what an item is asked (Settings) and what it gives back (ItemResult: tables, pictures, claims)
items/        one file per item, named by what it shows
subjects.py   what is sampled from: the oracle here; trained.py: the models of the box and the user's checkpoint
appendix.py   the appendices' equalities, for the item "propositions"
cells.py      a subject, a sampler and a number of steps: samples, their perplexity and their entropy
verdict.py    holds, fails or not decided: the one rule; pictures.py: curves and levels that several items draw
files.py      an item as NAME.md, NAME.json and PNGs, and the sum of all claims
"""

from unmask.reproduce.item import ItemResult, Settings, Table
from unmask.reproduce.items import ITEMS, run

__all__ = ["ITEMS", "ItemResult", "Settings", "Table", "run"]
