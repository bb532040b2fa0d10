"""A study is a function from records to the runs that it still wants: worked out by hand, and for any records."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuralop_mup.errors import MupError
from neuralop_mup.lab import log2_grid, transfer_study
from neuralop_mup.lab.outcome import failed
from neuralop_mup.lab.records import Records

LRS = [1.0, 2.0, 4.0]


class Memory(Records):
    """Records without a folder."""

    def __init__(self):
        self.kept, self.known, self._given_up, self.notes = {}, None, set(), []

    def read(self, run):
        return self.kept.get(run.id)

    def write(self, run, record):
        self.kept[run.id] = record


def ended(loss):
    if loss is None:
        return {**failed("no luck"), "outcome": "refused"}
    kind = "complete" if math.isfinite(loss) else "diverged"
    return {**failed(""), "date": "", "outcome": kind, "error": None, "loss": loss if math.isfinite(loss) else None}


def transfer(**changes):
    asked = {"proxy": {"w": 1}, "target": {"w": 2}, "space": {"lr": LRS}, "seeds": (0, 1), **changes}
    return transfer_study(**asked)


def named(runs):
    return [(r.labels["size"], r.labels["rule"], r.labels["params"]["lr"], r.labels["seed"]) for r in runs]


def train(study, records, losses, most=10**6):
    """Train what is wanted, a run at a time, until nothing is; what was trained, in order."""
    done = []
    while len(done) < most and (runs := study.wanted(records)):
        records.write(runs[0], ended(losses(runs[0].config)))
        done += named(runs[:1])
    return done


def test_the_base_comes_first_seed_by_seed_and_then_what_follows_from_its_best():
    """Losses |lr − 2| + size: the best at the base is 2, which is what is carried."""
    study, records = transfer(), Memory()
    assert named(study.wanted(records)) == [("proxy", "operator-norm", lr, 0) for lr in LRS]
    done = train(study, records, lambda c: abs(c["lr"] - 2) + c["model"]["w"])
    assert done[:6] == [("proxy", "operator-norm", lr, s) for s in (0, 1) for lr in LRS]
    assert done[6:] == [("target", rule, 2.0, s) for s in (0, 1) for rule in ("operator-norm", "standard")]
    assert not study.left(records).total()


def test_what_runs_may_start_now():
    """A point's second seed waits for its first, not for the others'."""
    study, records = transfer(), Memory()
    first = study.wanted(records)[1]
    records.write(first, ended(1.0))
    assert named(study.wanted(records)) == [("proxy", "operator-norm", lr, s) for lr, s in ((1.0, 0), (4.0, 0), (2.0, 1))]


def test_configurations_of_a_transfer():
    study = transfer(space={"lr": [0.5]}, fixed={"epochs": 2}, seeds=(7,), rules=("operator-norm", "none"))
    study = replace(study, under={"none": {"clip": 1}})
    base = {"epochs": 2, "base": {"w": 1}, "lr": 0.5, "seed": 7}
    records, configs = Memory(), []
    while runs := study.wanted(records):
        configs += [run.config for run in runs]
        for run in runs:
            records.write(run, ended(1.0))
    assert configs == [
        {**base, "model": {"w": 1}, "rule": "operator-norm"},
        {**base, "model": {"w": 2}, "rule": "operator-norm"},
        {**base, "model": {"w": 2}, "rule": "none", "clip": 1},
        {**base, "model": {"w": 2}, "rule": "standard"},
    ]


@pytest.mark.parametrize("loss", [math.inf, None])
def test_a_point_whose_seed_did_not_complete_stops_and_does_not_compete(loss):
    study, records = transfer(), Memory()
    done = train(study, records, lambda c: loss if c["lr"] == 1.0 and c["seed"] == 0 else c["lr"])
    assert ("proxy", "operator-norm", 1.0, 1) not in done and done[-1] == ("target", "standard", 2.0, 1)


def test_a_base_of_which_nothing_completed_is_told():
    with pytest.raises(MupError, match="No point of the proxy completed .*The first failure: no luck. Such a run is not"):
        train(transfer(), Memory(), lambda c: None)


def test_asking_for_more_wants_only_what_is_new():
    """More values, seeds and rules: each run once, whichever study asked for it first."""

    def losses(config):
        return abs(config["lr"] - 2) + 1

    small = {"space": {"lr": LRS[:2]}, "seeds": (0,)}
    records, done = Memory(), []
    for more in (small, {**small, "seeds": (0, 1)}, {"rules": ("operator-norm", "none")}, small):
        done += train(transfer(**more), records, losses)
    assert len(done) == len(set(done))
    # 3 values, 2 seeds at the base, of which 2.0 is the best in any case.
    assert Counter((size, rule) for size, rule, *_ in done) == {
        ("proxy", "operator-norm"): 6,
        ("target", "operator-norm"): 2,
        ("target", "standard"): 2,
        ("target", "none"): 2,
    }


def test_weights_are_wanted_of_the_carried_runs_alone():
    study, records = transfer(keeps=True, seeds=(0,)), Memory()
    kept = set()
    while runs := study.wanted(records):
        kept |= {named([run])[0] for run in runs if run.keep}
        records.kept[runs[0].id] = ended(abs(runs[0].config["lr"] - 2))
        records.get = lambda run: records.kept.get(run.id)
    assert kept == {("target", "operator-norm", 2.0, 0)}


# For any records


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from([0.5, 1.0, 2.0, math.inf]), min_size=24, max_size=24),
    st.integers(0, 30),
)
def test_interrupted_anywhere_it_ends_where_an_undisturbed_one_does(losses, cut):
    """And nothing is trained twice, nor what is done wanted."""
    study, order = transfer(), {}

    def loss(config):
        key = (config["model"]["w"], config["rule"], config["lr"], config["seed"])
        return losses[hash(key) % len(losses)] if key not in order else order[key]

    def whole(records, most=10**6):
        try:
            return train(study, records, loss, most)
        except MupError:
            return []

    undisturbed, disturbed = Memory(), Memory()
    whole(undisturbed)
    first = whole(disturbed, cut)
    rest = whole(disturbed)
    assert not set(first) & set(rest)
    assert disturbed.kept == undisturbed.kept and study.rows(disturbed) == study.rows(undisturbed)


@pytest.mark.parametrize(
    ("ends", "says"),
    [((1e-3, 1e-1), "0.064 or 0.128"), ((2, 1), "upwards"), ((0, 1), "positive"), ((1, math.inf), "finite")],
)
def test_log2_grid_refuses(ends, says):
    with pytest.raises(MupError, match=says):
        log2_grid(*ends)
