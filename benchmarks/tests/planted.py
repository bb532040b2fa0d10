"""Planted records with given numbers for each run, and rows of the tables that result from them."""

import pytest


class PlantedRecords(dict):
    """Records by the id of the run."""

    def get(self, run):
        return super().get(run.id)

    def diverged(self):
        """Return the same runs as if every training had failed."""
        return PlantedRecords({key: {"outcome": "diverged", "loss": None, "metrics": {}} for key in self})


def planted_records(experiment, measured):
    """Return records of all runs that the experiment requests."""
    records = PlantedRecords()
    for _ in range(50):
        runs = list(experiment.missing_runs(records))
        if not runs:
            return records
        records.update({run.id: {"outcome": "complete", "metrics": {}, **measured(run.config)} for run in runs})
    return pytest.fail("the experiment requests runs forever")


def rows(text):
    """Return the first table row of each name."""
    found = {}
    for line in text.splitlines():
        found.setdefault(line.split(" | ")[0].removeprefix("| "), line)
    return found
