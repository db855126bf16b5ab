"""Every figure and table of the paper by one command: ``python -m reproduction [NAME | all | list]``.

item.py       the settings of an item and its result (ItemResult: tables, pictures, claims)
items/        one file per item, named by what it shows
subjects.py   the oracle that items sample from; trained.py: the bundled models and the user's checkpoint
appendix.py   the equalities of the appendices, for the item "propositions"
cells.py      a subject, a sampler and a number of steps: samples, their perplexity and their entropy
verdict.py    the rule for holds, fails or not decided; pictures.py: curves and levels that several items draw
files.py      an item as NAME.md, NAME.json and PNGs, and the summary of all claims
"""

from reproduction.item import ItemResult, Settings, Table
from reproduction.items import ITEMS, run

__all__ = ["ITEMS", "ItemResult", "Settings", "Table", "run"]
