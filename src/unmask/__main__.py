"""``python -m unmask``, for launchers that take a module."""

import sys

from unmask.cli import main

sys.exit(main())
