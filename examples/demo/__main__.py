"""``python -m examples.demo``: what ``make demo`` runs."""

import sys

from examples.demo.waiting import waiting
from unmask.cli import ready

if __name__ == "__main__":
    ready()
    with waiting("starting torch"):
        from examples.demo.tour import main
    sys.exit(main())
