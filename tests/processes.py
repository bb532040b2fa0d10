"""How tests start processes of their own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent


def environment() -> dict[str, str]:
    """Variables to start a process with that imports what this one can."""
    path = [*filter(None, sys.path), str(HERE)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
