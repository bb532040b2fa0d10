"""The interface of experiments."""

from __future__ import annotations

from typing import Any

from experiments.records import METRICS


class Experiment:
    """A set of training runs or measurements, and the numbers that pages quote from them.

    Each has these pure functions of the records, which need only ``records.get(run)``: the record of a run, or None.

    * ``missing_runs(records)`` returns the missing runs in the order of their training.
    * ``numbers(records)`` returns numbers and tables by name.

    ``tiny()`` returns an experiment of the same kind that takes a minute. An experiment may also have
    ``draw(records, path)``, which draws its figure.

    Attributes
    ----------
    about : str
        The question in one line, without a capital letter.
    notes : str
        What the tables contain.
    metrics : tuple of str
        Metrics that a file of its records contains in addition to the loss.
    """

    about: str
    notes = ""
    metrics: tuple[str, ...] = METRICS

    def table(self, records: Any) -> str:
        """Return the report: all tables of ``numbers``."""
        tables = [f"## {name}\n{text}" for name, text in self.numbers(records).items() if "\n" in text]
        return "\n\n".join([f"# {self.about[0].upper()}{self.about[1:]}", self.notes, *tables])
