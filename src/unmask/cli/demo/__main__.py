"""``python -m unmask.cli.demo``: what ``make demo`` runs."""

import sys

from unmask.cli import ready

if __name__ == "__main__":
    ready()
    from unmask.cli.demo.tour import main  # torch comes with it

    sys.exit(main())
