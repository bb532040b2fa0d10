"""Planted records, as if each run had measured given numbers, and the rows of pages made from them."""

import pytest


class PlantedRecords(dict):
    """Records by the id of their run."""

    def get(self, run):
        return super().get(run.id)

    def diverged(self):
        """Return the same runs, none of which trained."""
        return PlantedRecords({key: {"outcome": "diverged", "loss": None, "metrics": {}} for key in self})


def planted_records(experiment, measured):
    """Return a record of every run that the experiment wants, until it wants no more."""
    records = PlantedRecords()
    for _ in range(50):
        runs = list(experiment.missing_runs(records))
        if not runs:
            return records
        records.update({run.id: {"outcome": "complete", "metrics": {}, **measured(run.config)} for run in runs})
    return pytest.fail("the experiment never has enough runs")


def rows(text):
    """Return the first table row of each name."""
    found = {}
    for line in text.splitlines():
        found.setdefault(line.split(" | ")[0].removeprefix("| "), line)
    return found
