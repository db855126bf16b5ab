"""Every figure and table of the paper by one command: ``unmask reproduce [NAME | all | list]``.

item.py       what an item is asked (Settings) and what it gives back (Result: tables, pictures, claims)
items/        one file per item, named by what it shows
subjects.py   what is sampled from: the oracle here; trained.py: the models of the box and the user's checkpoint
appendix.py   the appendices' equalities, for the item "propositions"
cells.py      a subject, a sampler and a number of steps: samples, their perplexity and their entropy
files.py      a Result as NAME.md, NAME.json and PNGs, and the sum of all claims
command.py    the command line
"""

from unmask.reproduce.item import Claim, Result, Settings, Table
from unmask.reproduce.items import ITEMS, run

__all__ = ["ITEMS", "Claim", "Result", "Settings", "Table", "run"]
