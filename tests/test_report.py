"""Reports and figures from hand-made records, with every number worked out by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from neuralop_mup import plots, report
from neuralop_mup.diagnostics.coord_check import CoordCheck
from neuralop_mup.errors import MupError
from neuralop_mup.plots.transfer import _spread
from neuralop_mup.tuning import Transfer

GRID = [0.004, 0.008, 0.016, 0.032]


def record(stage, rule, lr, loss, seed=0, seconds=1.0, error="loss is nan"):
    """One trial; a loss of None is a failed one."""
    done = loss is not None
    return {
        "stage": stage,
        "size": "proxy" if stage == "proxy" else "target",
        "rule": rule,
        "params": {"lr": lr},
        "seed": seed,
        "state": "complete" if done else "failed",
        "error": None if done else error,
        "loss": loss,
        "metrics": {"test_loss": 2 * loss} if done else {},
        "seconds": seconds,
    }


def make(ours, plain, *, proxy=(0.05, 0.03, 0.02, 0.04), verify=None, space=None):
    """A transfer whose losses at the target are given per seed; ``verify`` maps a rule to losses over the grid."""
    records = [
        record("proxy", "log-modes", lr, loss, seed)
        for seed in range(len(ours))
        for lr, loss in zip(GRID, proxy, strict=True)
    ]
    best = GRID[proxy.index(min(proxy))]
    for rule, losses in (("log-modes", ours), ("standard", plain)):
        records += [record("target", rule, best, loss, seed, seconds=4.0) for seed, loss in enumerate(losses)]
    for rule, losses in (verify or {}).items():
        records += [
            record("verify", rule, lr, loss, seed, seconds=4.0)
            for seed in range(len(ours))
            for lr, loss in zip(GRID, losses, strict=True)
        ]
    return Transfer(
        records,
        {"hidden_channels": 16, "n_modes": (8,)},
        {"hidden_channels": 64, "n_modes": (32,)},
        space or {"lr": GRID},
        "log-modes",
        ("log-modes", "standard"),
        tuple(range(len(ours))),
        Path("unused"),
    )


def test_mup_wins():
    first, *rest = report.verdict(make([0.010], [0.016]))
    assert first == (
        "The proxy's best lr 0.016 carried to the target under log-modes: loss 0.01; "
        "the same values under SP: 0.016 (1.60×)."
    )
    assert not any("did not help" in sentence for sentence in rest)
    assert any("not searched" in sentence for sentence in rest)
    assert any("One seed only" in sentence for sentence in rest)


def test_sp_wins_is_said():
    first, *rest = report.verdict(make([0.020, 0.020], [0.015, 0.015]))
    assert "loss 0.02;" in first and "under SP: 0.015 (0.75×)" in first
    assert "log-modes did not help here: the same values under SP reached the lower loss." in rest


def test_a_difference_within_the_seeds_favours_neither():
    said = report.verdict(make([0.010, 0.020], [0.012, 0.022]))
    assert "That difference is within the spread over 2 seeds: it favours neither." in said
    assert not any("did not help" in sentence for sentence in said)


def test_verify_gives_drift_and_regret():
    # Under log-modes 0.008 (one step down) is 0.010 against 0.011 transferred: regret 10 %.
    # Under SP 0.004 (two steps down) is 0.012 against 0.018: regret 50 %.
    result = make(
        [0.011], [0.018], verify={"log-modes": [0.02, 0.010, 0.011, 0.03], "standard": [0.012, 0.014, 0.018, 0.05]}
    )
    said = " ".join(report.verdict(result))
    assert "log-modes is best at lr 0.008 with loss 0.01 (drift -1 step, regret 10.0 %)" in said
    assert "SP is best at lr 0.004 with loss 0.012 (drift -2 steps, regret 50.0 %)" in said
    # Proxy: 4 trials of 1 s, target 4 s; the search at the target: 4 trials of 4 s.
    assert "took 0.50× the time" in said
    assert "At the target, SP's best lr is the lowest one searched" in said
    assert "direct tuning of SP" not in said
    header, ours, plain = report.table(result)
    cells = dict(zip(header, ours, strict=True))
    assert (cells["drift (steps)"], cells["regret"], cells["loss at target"]) == ("-1", "10.0 %", "0.011")
    assert cells["test loss"] == "0.022"
    assert dict(zip(header, plain, strict=True))["regret"] == "50.0 %"


def test_directly_tuned_sp_that_is_better_is_said():
    result = make([0.012], [0.018], verify={"log-modes": [0.02, 0.02, 0.012, 0.03], "standard": [0.02, 0.010, 0.018, 1.0]})
    assert any("SP reaches 0.01: the transferred log-modes run is 1.20× that" in s for s in report.verdict(result))


@pytest.mark.parametrize(
    ("proxy", "edge", "way"),
    [((0.01, 0.02, 0.03, 0.04), "lowest", "downwards"), ((0.04, 0.03, 0.02, 0.01), "highest", "upwards")],
)
def test_an_optimum_at_the_edge_is_said(proxy, edge, way):
    said = " ".join(report.verdict(make([0.01], [0.02], proxy=proxy)))
    assert f"The proxy's best lr is the {edge} one searched" in said and f"widen --lr {way}" in said


def test_failed_target_training_comes_first(tmp_path):
    result = make([0.01, None, 0.01], [0.02, 0.02, 0.02])
    first = report.verdict(result)[0]
    assert first.startswith(
        "Target training failed under log-modes with the proxy's best lr 0.016 (1 of 3 seeds: loss is nan)"
    )
    assert "×" not in first
    assert len(report.target_failures(result, "log-modes")) == 1
    header, ours, plain = report.table(result)
    assert (ours[header.index("failed")], plain[header.index("failed")]) == ("1/3", "0/3")
    text = report.write_report(result, tmp_path, settings={}, command="again").read_text(encoding="utf-8")
    assert "## Trials that failed" in text and "loss is nan" in text


def test_failed_naive_transfer_is_a_result():
    first = report.verdict(make([0.01, 0.01], [None, None]))[0]
    assert "loss 0.01; the same values under SP failed (2 of 2 seeds: loss is nan)." in first


def test_every_training_failed_has_no_numbers():
    result = make([None], [None])
    assert report.verdict(result)[0].startswith("Target training failed under log-modes")
    header, ours, _ = report.table(result)
    assert ours[header.index("loss at target")] == "–"


def test_report_folder(tmp_path):
    verify = {"log-modes": [0.02, 0.014, 0.011, 0.03], "standard": [0.012, 0.014, 0.018, None]}
    result = make([0.011, 0.012], [0.018, 0.019], verify=verify)
    path = report.write_report(
        result, tmp_path, settings={"problem": "burgers", "epochs": 8}, command="neuralop-mup transfer", title="T"
    )
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"# T\n\n**{report.verdict(result)[0]}**")
    assert "![" in text and "(transfer.svg)" in text and "| epochs " in text
    run = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert run["seeds"] == [0, 1] and run["command"] == "neuralop-mup transfer"
    assert {"python", "torch", "neuraloperator", "mup", "optuna", "neuralop-mup"} <= set(run["versions"])
    assert run["summary"][0]["transferred_loss"] == pytest.approx(0.0115)
    assert (tmp_path / "transfer.png").read_bytes()[:4] == b"\x89PNG"
    svg = (tmp_path / "transfer.svg").read_bytes()
    assert 10_000 < len(svg) < 300_000 and b"</svg>" in svg


def test_curve_is_the_mean_over_seeds_and_leaves_out_failed_points():
    records = [record("proxy", "r", 0.1, loss, seed) for seed, loss in enumerate((1.0, 3.0))]
    records += [record("proxy", "r", 0.2, loss, seed) for seed, loss in enumerate((0.5, None))]
    curve = plots.loss_curve(records, "proxy")
    assert (curve.lr, curve.mean, curve.low, curve.high, curve.failed) == ([0.1], [2.0], [1.0], [3.0], [0.2])
    assert curve.optimum == (0.1, 2.0)


def test_curve_is_the_best_of_the_other_hyperparameters():
    low, high = record("proxy", "r", 0.1, 1.0), record("proxy", "r", 0.1, 2.0)
    low["params"]["lr_mult.spectral"], high["params"]["lr_mult.spectral"] = 2.0, 1.0
    assert plots.loss_curve([high, low], "proxy").mean == [1.0]


def test_a_diverged_run_does_not_flatten_the_figure(tmp_path):
    calm, wild = make([0.011], [0.018]), make([0.011], [1e6], proxy=(0.05, 0.03, 0.02, 1e5))
    for name, result in (("calm", calm), ("wild", wild)):
        plots.plot_transfer(result.records, tmp_path / f"{name}.svg")
    ticks = [(tmp_path / f"{name}.svg").read_text(encoding="utf-8").count("ytick_") for name in ("calm", "wild")]
    assert min(ticks) >= 3 and "<!-- 1e+05 -->" not in (tmp_path / "wild.svg").read_text(encoding="utf-8")


def test_every_proxy_trial_failed_still_draws(tmp_path):
    records = [record("proxy", "log-modes", lr, None) for lr in GRID]
    assert plots.plot_transfer(records, tmp_path / "f.png").stat().st_size > 5_000


def test_no_lr_is_an_error(tmp_path):
    with pytest.raises(MupError, match="Search over lr"):
        plots.plot_transfer([], tmp_path / "f.png")


def test_labels_are_moved_apart_and_stay_inside():
    placed = _spread([0.0, 0.01, 0.99, 1.0], 0.1, 0.0, 1.0)
    assert all(b - a >= 0.1 - 1e-12 for a, b in zip(placed, placed[1:], strict=False))
    assert min(placed) >= 0 and max(placed) <= 1


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_coord_check_figure(tmp_path, suffix):
    records = [
        {"size": size, "seed": seed, "step": step, "block": block, "kind": kind, "value": size**slope * (1 + seed / 10)}
        for size in (16, 32, 64)
        for seed in (0, 1)
        for block, slope in (("lifting", 0.0), ("fno_blocks.0", 0.5))
        for kind, step in (("init", 0), ("update", 1), ("update", 5))
    ]
    check = CoordCheck(records, "hidden_channels")
    path = plots.plot_coord_check(check, tmp_path / f"c.{suffix}", tolerance=0.25, title="burgers")
    assert path.stat().st_size > 5_000
    if suffix == "svg":
        text = path.read_text(encoding="utf-8")
        assert text.count("fno_blocks.0  slope +0.50 !") == 2 and "lifting  slope +0.00 !" not in text


def test_the_same_records_give_the_same_svg(tmp_path):
    first, again = (plots.plot_transfer(make([0.011], [0.018]).records, tmp_path / f"{i}.svg").read_bytes() for i in (0, 1))
    assert first == again


def test_drawing_leaves_pyplot_alone(tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    plots.plot_transfer(make([0.011], [0.018]).records, tmp_path / "f.png")
    assert dict(matplotlib.rcParams) == before


def test_aligned_table_lines_up():
    lines = report.aligned([["a", "long header"], ["longer cell", "b"]]).splitlines()
    assert len({len(line) for line in lines}) == 1 and len(lines) == 3


def test_relative_numbers_need_both_losses():
    assert not math.isfinite(make([None], [0.1]).summary()[0]["transferred_loss"])


def test_data_error_and_equation_residual_are_shown_apart():
    """Test errors are twice the losses: 0.02 → 0.04 and 0.05 → 0.1; residuals are given."""
    transfer = make([0.02], [0.05])
    assert "apart" not in " ".join(report.verdict(transfer)) and "test equation" not in report.table(transfer)[0]
    residual = {"log-modes": 0.25, "standard": 0.75}
    for r in transfer.records:
        r["metrics"] |= {"equation_loss": 9.0, "test_equation_loss": residual[r["rule"]]}
    header, *rows = report.table(transfer)
    assert {row[0]: row[header.index("test equation")] for row in rows} == {"log-modes": "0.25", "standard": "0.75"}
    assert any("log-modes: data 0.04, equation 0.25; SP: data 0.1, equation 0.75" in s for s in report.verdict(transfer))
