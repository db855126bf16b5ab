"""``python -m unmask.cli.demo``: what ``make demo`` runs."""

import sys

from unmask.cli import ready
from unmask.cli.demo.waiting import waiting

if __name__ == "__main__":
    ready()
    with waiting("starting torch"):
        from unmask.cli.demo.tour import main
    sys.exit(main())
