"""Files of a study: text, training states, and what a kill left of them."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import Any

from neuralop_mup.files import replace_file


def write_atomically(path: Path, text: str) -> None:
    """Replace a file of text as a whole, so that a reader never sees half of it.

    Raises
    ------
    MupError
        If the file cannot be written.
    """
    with replace_file(path, path.name) as part:
        part.write_text(text, encoding="utf-8")


def save_torch(content: Any, path: Path) -> None:
    """``torch.save``, whose own writer tells of a full disk by a RuntimeError, with the OSError that others raise."""
    import torch

    try:
        torch.save(content, path)
    except RuntimeError as error:
        raise OSError(None, str(error)) from error


def remove_file(path: Path) -> None:
    """Remove a file of one writer, and what a kill left of writing it."""
    for left in (path, *path.parent.glob(f".{glob.escape(path.name)}.*.part")):
        left.unlink(missing_ok=True)
