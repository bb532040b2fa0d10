"""Records of experiments that tests plant, and rows of their pages."""


class Kept(dict):
    """Records by a run's identity."""

    def get(self, run):
        return super().get(run.id)

    @classmethod
    def of(cls, experiment, measured):
        """All that the experiment wants, as ``measured`` gives it of a configuration."""
        kept = cls()
        for wanted in experiment.wanted(kept):
            kept[wanted.id] = {"outcome": "complete", "metrics": {}, **measured(wanted.config)}
        assert not list(experiment.wanted(kept))
        return kept


def rows(text):
    """The first line of each name."""
    found = {}
    for line in text.splitlines():
        found.setdefault(line.split(" | ")[0].removeprefix("| "), line)
    return found


def filled(experiment, measured):
    """Records until nothing is wanted any more, what is wanted depending on what was found."""
    kept = Kept()
    while wanted := list(experiment.wanted(kept)):
        kept |= {one.id: {"outcome": "complete", **measured(one.config)} for one in wanted}
    return kept
