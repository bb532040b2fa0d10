"""Where a monitor's records go: a CSV file, wandb, TensorBoard, a function."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from neuralop_mup.errors import MupError
from neuralop_mup.files import replace_file

__all__ = ["CsvLogger", "make_logger"]

Record = dict[str, Any]
Logger = Callable[[int, list[Record]], None]
_COLUMNS = ("step", "kind", "name", "value")


def make_logger(to: Any) -> Logger | None:
    """A function ``log(step, records)`` for what a monitor was given as ``to``."""
    if to is None:
        return None
    if to == "wandb":
        return partial(_write_to_wandb, _needed("wandb", to))
    if to == "tensorboard":
        to = _needed("torch.utils.tensorboard", to).SummaryWriter()
    if hasattr(to, "add_scalar"):
        return partial(_write_scalars, to)
    if isinstance(to, os.PathLike) or (isinstance(to, str) and to.endswith(".csv")):
        return CsvLogger(Path(to))
    if callable(to):
        return lambda step, records: to(records)
    raise MupError(
        f"to is {to!r}; give a path ending in .csv, 'wandb', 'tensorboard', a SummaryWriter, or a function of a list of "
        "records."
    )


def _needed(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise MupError(f"to={package!r} needs {package}, which is not installed: pip install {package}.") from error


def _tag(record: Record) -> str:
    return f"mup/{record['kind']}/{record['name']}"


def _write_to_wandb(wandb: Any, step: int, records: list[Record]) -> None:
    """Into the active run, as neuralop's Trainer does it; without one nothing is logged."""
    if wandb.run is None:
        return
    wandb.run.define_metric("mup/*", step_metric="mup/step")  # again is nothing new
    # No step and no commit of its own: neuralop's Trainer numbers wandb's rows by epochs and ends them.
    wandb.log({**{_tag(r): r["value"] for r in records}, "mup/step": step}, commit=False)


def _write_scalars(writer: Any, step: int, records: list[Record]) -> None:
    for record in records:
        writer.add_scalar(_tag(record), record["value"], step)


class CsvLogger:
    """Rows ``step, kind, name, value``: all those of a step are appended by one write.

    On resume a row cut off by a crash and those of steps that are taken again are dropped first.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_dir() or not path.resolve().parent.is_dir():
            raise MupError(f"Cannot write records to {str(path)!r}: give a file in a folder that exists.")
        self._rows()

    def _rows(self) -> list[list[str]]:
        """Complete rows of an earlier run, or none."""
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise MupError(f"Cannot read {str(self.path)!r}, which is to be appended to: {error}.") from error
        head, *rows = list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1]))) or [list(_COLUMNS)]
        if (text and "\n" not in text and not _line(_COLUMNS).startswith(text)) or head != list(_COLUMNS):
            raise MupError(f"{str(self.path)!r} exists and is no file of a monitor: give another path.")
        return rows

    def resume(self, start: int) -> None:
        """Make the file ready for a run that has taken ``start`` steps already."""
        rows = self._rows()
        if rows and start == 0:
            raise MupError(
                f"{str(self.path)!r} holds an earlier run's records up to step {rows[-1][0]}, but this run starts at 0: "
                "give another path or delete it; if this run goes on from there, pass start=… (steps taken so far)."
            )
        with replace_file(self.path, "records") as part:
            part.write_text("".join(map(_line, [_COLUMNS, *(row for row in rows if int(row[0]) <= start)])))

    def __call__(self, step: int, records: list[Record]) -> None:
        lines = "".join(_line((step, r["kind"], r["name"], repr(float(r["value"])))) for r in records)
        with self.path.open("ab", buffering=0) as file:
            file.write(lines.encode())


def _line(values: Any) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(values)
    return buffer.getvalue()
