"""A grid walks on where its best value lies at an edge: as far as it may, the same after a kill, and read back whole."""

from __future__ import annotations

import math

import pytest

from neuralop_mup.errors import Diverged
from neuralop_mup.tuning import Results, run, transfer_study

TRIED = []


def bowl(config):
    """A parabola whose vertex is config["at"]; the target is 1 lower. Rates above 2**-1 diverge."""
    TRIED.append((config["model"]["width"], math.log2(config["lr"]), config["seed"]))
    if config["lr"] > 0.5:
        raise Diverged("too large")
    return (math.log2(config["lr"]) - config["at"]) ** 2 + 2 - (config["model"]["width"] == 64)


def study(at, extends=2, grid=(-6, -5, -4), **more):
    return transfer_study(
        proxy={"width": 16},
        target={"width": 64},
        space={"lr": [2.0**k for k in grid]},
        fixed={"at": at},
        seeds=(0, 1),
        extends={"lr": extends},
        naive=False,
        **more,
    )


def trained(asked, folder, **more):
    TRIED.clear()
    results = run(asked, bowl, folder=folder, n_workers=1, progress=False, **more)
    return results, sorted({(width, lr) for width, lr, _ in TRIED})


@pytest.mark.parametrize(
    ("at", "proxy", "best"),
    [
        (-5, [-6, -5, -4], -5),  # inside: nothing more
        (-3, [-6, -5, -4, -3, -2], -3),  # -3 is the new edge, -2 shows that it is the best
        (-4, [-6, -5, -4, -3], -4),
        (1, [-6, -5, -4, -3, -2], -2),  # two more and no further
        (-7, [-8, -7, -6, -5, -4], -7),
    ],
)
def test_the_base_walks_on_beyond_an_edge(tmp_path, at, proxy, best):
    results, tried = trained(study(at), tmp_path)
    assert [lr for width, lr in tried if width == 16] == proxy
    assert [lr for width, lr in tried if width == 64] == [best] and math.log2(results.best["lr"]) == best
    assert len(TRIED) == len(set(TRIED)) == 2 * len(tried)  # each seed once
    assert results.row("operator-norm", "proxy")["at_edge"] == (at == 1)


def test_a_rate_that_diverges_ends_the_walk(tmp_path):
    """The best is -1, the last that trains; 0 is tried with one seed and fails."""
    results, tried = trained(study(0, extends=3, grid=(-3, -2, -1)), tmp_path)
    assert [lr for width, lr in tried if width == 16] == [-3, -2, -1, 0] and results.best["lr"] == 0.5


def test_a_resumed_study_walks_the_same_way_and_trains_nothing_again(tmp_path):
    first, _ = trained(study(-3), tmp_path)
    again, tried = trained(study(-3), tmp_path)
    assert tried == [] and again.records == first.records
    read = Results.load(tmp_path)
    assert (
        read.records == first.records and read.best == first.best and list(read.study.space["lr"]) == first.study.space["lr"]
    )


def test_what_was_walked_may_be_asked_for_afterwards(tmp_path):
    """The grid given by hand, and no walk beyond: what is there is enough."""
    trained(study(-3), tmp_path)
    _, tried = trained(study(-3, extends=0, grid=(-6, -5, -4, -3, -2)), tmp_path)
    assert tried == []


def test_a_kill_after_the_grid_grew_loses_nothing(tmp_path):
    """Stopped while 2**-3 trains: the next command trains that and what follows, no run twice."""
    TRIED.clear()

    def stops(config):
        if config["lr"] == 2.0**-3:
            raise KeyboardInterrupt
        return bowl(config)

    with pytest.raises(KeyboardInterrupt):
        run(study(-3), stops, folder=tmp_path, n_workers=1, progress=False, identity=bowl)
    before = list(TRIED)
    results, tried = trained(study(-3), tmp_path)
    assert len(before) == 6 and tried == [(16, -3), (16, -2), (64, -3)] and results.best["lr"] == 2.0**-3


def test_the_target_is_searched_on_the_longer_grid(tmp_path):
    _, tried = trained(study(-3, verify=True), tmp_path)
    assert [lr for width, lr in tried if width == 64] == [-6, -5, -4, -3, -2]


def test_the_number_of_runs_that_is_shown_grows(tmp_path, capsys):
    run(study(-3), bowl, folder=tmp_path, n_workers=1)
    shown = capsys.readouterr().err
    assert "8 runs" in shown and "[12/12]" in shown
    assert "the best lr at the proxy is at the edge of its grid: 0.125 is tried, too" in shown
