"""The interface of experiments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from experiments.records import METRICS
from neuralop_mup.lab.records import Run


class Experiment:
    """A set of training runs or measurements, and the numbers that pages quote from them.

    The methods are pure functions of the records, and need only ``records.get(run)``: the record of a run, or None. An
    experiment may also have ``draw(records, path)``, which draws its figure.

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

    def tiny(self) -> Any:
        """Return an experiment of the same kind that takes a minute."""
        raise NotImplementedError

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """Return the missing runs in the order of their training."""
        raise NotImplementedError

    def numbers(self, records: Any) -> dict[str, str]:
        """Return numbers and tables by name."""
        raise NotImplementedError

    def table(self, records: Any) -> str:
        """Return the report: all tables of :meth:`numbers`."""
        tables = [f"## {name}\n{text}" for name, text in self.numbers(records).items() if "\n" in text]
        return "\n\n".join([f"# {self.about[0].upper()}{self.about[1:]}", self.notes, *tables])
