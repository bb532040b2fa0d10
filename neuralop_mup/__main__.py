"""``python -m neuralop_mup``: the same as the ``neuralop-mup`` command."""

from __future__ import annotations

import sys

from neuralop_mup.lab.cli import main

if __name__ == "__main__":
    sys.exit(main())
