"""A study is a function from records to the runs that are still missing: worked out by hand, and for any records."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuralop_mup.errors import MupError
from neuralop_mup.lab import log2_grid, transfer_study
from neuralop_mup.lab.outcome import failed
from neuralop_mup.lab.records import Records
from support.errors import refused

LRS = [1.0, 2.0, 4.0]


class Memory(Records):
    """Records without a folder."""

    def __init__(self):
        self.kept, self.known, self._settled = {}, None, set()

    def read(self, run):
        return self.kept.get(run.id)

    def write(self, run, record):
        self.kept[run.id] = record
        self._settled.add(run.id)


def record(loss):
    """A refused run where the loss is None."""
    if loss is None:
        return {**failed("no luck"), "outcome": "refused"}
    kind = "complete" if math.isfinite(loss) else "diverged"
    return {**failed(""), "date": "", "outcome": kind, "error": None, "loss": loss if math.isfinite(loss) else None}


def transfer(**changes):
    return transfer_study(**{"proxy": {"w": 1}, "target": {"w": 2}, "space": {"lr": LRS}, "seeds": (0, 1), **changes})


def labels(runs):
    return [(r.labels["size"], r.labels["rule"], r.labels["params"]["lr"], r.labels["seed"]) for r in runs]


def train(study, records, loss, most=10**6):
    """Train one run after another until no more are wanted. Return them in order."""
    done = []
    while len(done) < most and (runs := study.missing_runs(records)):
        records.write(runs[0], record(loss(runs[0].config)))
        done.append(runs[0])
    return done


def test_the_base_comes_first_seed_by_seed_and_then_the_target_with_its_best():
    """Losses |lr − 2| + size: the best at the base is 2, which is transferred. Only the run under its rule keeps weights."""
    study, records = transfer(keep_weights=True), Memory()
    assert labels(study.missing_runs(records)) == [("proxy", "operator-norm", lr, 0) for lr in LRS]
    done = train(study, records, lambda config: abs(config["lr"] - 2) + config["model"]["w"])
    assert labels(done[:6]) == [("proxy", "operator-norm", lr, s) for s in (0, 1) for lr in LRS]
    assert labels(done[6:]) == [("target", rule, 2.0, s) for s in (0, 1) for rule in ("operator-norm", "standard")]
    assert labels([run for run in done if run.keep]) == [("target", "operator-norm", 2.0, s) for s in (0, 1)]
    assert not study.all_missing(records)


def test_the_second_seed_of_a_point_waits_for_its_first_only():
    study, records = transfer(), Memory()
    records.write(study.missing_runs(records)[1], record(1.0))
    expected = [("proxy", "operator-norm", lr, s) for lr, s in ((1.0, 0), (4.0, 0), (2.0, 1))]
    assert labels(study.missing_runs(records)) == expected


def test_configurations_of_a_transfer():
    study = transfer(space={"lr": [0.5]}, fixed={"epochs": 2}, seeds=(7,), rules=("operator-norm", "none"))
    study = replace(study, settings_by_rule={"none": {"clip": 1}})
    base = {"epochs": 2, "base": {"w": 1}, "lr": 0.5, "seed": 7}
    assert [run.config for run in train(study, Memory(), lambda config: 1.0)] == [
        {**base, "model": {"w": 1}, "rule": "operator-norm"},
        {**base, "model": {"w": 2}, "rule": "operator-norm"},
        {**base, "model": {"w": 2}, "rule": "none", "clip": 1},
        {**base, "model": {"w": 2}, "rule": "standard"},
    ]


@pytest.mark.parametrize("loss", [math.inf, None])
def test_a_point_whose_first_seed_fails_stops_and_does_not_compete(loss):
    done = labels(train(transfer(), Memory(), lambda c: loss if (c["lr"], c["seed"]) == (1.0, 0) else c["lr"]))
    assert ("proxy", "operator-norm", 1.0, 1) not in done
    assert done[-1] == ("target", "standard", 2.0, 1)


@settings(max_examples=60)
@given(st.lists(st.sampled_from([0.5, 1.0, 2.0, math.inf]), min_size=24, max_size=24), st.integers(0, 30))
def test_a_study_that_is_interrupted_anywhere_ends_like_an_undisturbed_one(losses, most):
    """Nothing is trained twice."""

    def loss(config):
        return losses[hash((config["model"]["w"], config["rule"], config["lr"], config["seed"])) % len(losses)]

    def trained(records, most=10**6):
        try:
            return labels(train(study, records, loss, most))
        except MupError:
            return []

    study, undisturbed, disturbed = transfer(), Memory(), Memory()
    trained(undisturbed)
    assert not set(trained(disturbed, most)) & set(trained(disturbed))
    assert disturbed.kept == undisturbed.kept
    assert study.rows(disturbed) == study.rows(undisturbed)


@pytest.mark.parametrize(
    ("ends", "names"), [((1e-3, 1e-1), "0.1"), ((2, 1), "2,1"), ((0, 1), "0,1"), ((1, math.inf), "inf")]
)
def test_log2_grid_needs_ends_that_differ_by_doublings(ends, names):
    with refused(names):
        log2_grid(*ends)
