"""The paper's experiments: plans against the paper, tables against hand-worked numbers, resume, figures, the command."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from neuralop.layers.spectral_convolution import SpectralConv

from neuralop_mup import reproduce
from neuralop_mup.cli import main
from neuralop_mup.errors import MupError
from neuralop_mup.plots import Curve, plot_experiment
from neuralop_mup.reproduce import Experiment, get_experiment, plan_experiment, run_experiment
from neuralop_mup.reproduce import experiment as described
from neuralop_mup.training import build_model, estimate_flops

ARGS = {"n_train": 8, "n_val": 4, "n_test": 4, "grid": 32, "viscosity": 0.1}
GRID = (0.001, 0.002, 0.004, 0.008)


def tiny(**changes):
    """K = 2 and 8 on Burgers, 4 learning rates, 2 seeds."""
    fields = {
        "name": "tiny",
        "size": "cpu",
        "shows": "what it shows",
        "problem": "burgers",
        "problem_args": ARGS,
        "models": ((4, 2), (4, 8)),
        "grids": {"lr": GRID},
        "rules": ("standard", "log-modes"),
        "searched": ("standard", "log-modes"),
        "seeds": (0, 1),
        "epochs": 1,
    }
    return Experiment(**{**fields, **changes})


# Losses by lr at the base and at K = 8; seed 0 lies 0.01 above them and seed 1 as much below.
LOSSES = {
    ("base", "standard"): (0.5, 0.4, 0.2, 0.3),
    ("K8", "standard"): (0.2, 0.1, 0.15, 0.4),
    ("K8", "log-modes"): (0.3, 0.2, 0.08, 0.09),
}


def fake(config):
    """A run of 1 s at the base and 10 s at K = 8; appended to the log of the environment."""
    size = "base" if config["model"] == config["base"] else "K8"
    with open(Path("trained.jsonl"), "a") as file:
        file.write(json.dumps([size, config["rule"], config["lr"], config["seed"]]) + "\n")
    loss = LOSSES[size, config["rule"]][GRID.index(config["lr"])] + (0.01, -0.01)[config["seed"]]
    return {"loss": loss, "test_loss": 2 * loss, "seconds": 1.0 if size == "base" else 10.0}


def diverging(config):
    """As fake, but the base's best learning rate fails at K = 8 with seed 1 under SP."""
    if config["model"] != config["base"] and (config["rule"], config["lr"], config["seed"]) == ("standard", 0.004, 1):
        return math.nan
    return fake(config)


def hopeless(config):
    return math.nan


def three(config):
    """Best at batch 10 and β2 0.98, at the base and lr 0.002; at K = 8 the best batch is 20."""
    best = 10 if config["model"] == config["base"] else 20
    loss = 0.1 + abs(math.log2(config["batch_size"] / best)) + abs(config["beta2"] - 0.98) + 100 * abs(config["lr"] - 0.002)
    with open(Path("trained.jsonl"), "a") as file:
        size = config["model"]["n_modes"][0]
        file.write(json.dumps([size, config["rule"], config["lr"], config["batch_size"], config["beta2"]]) + "\n")
    return loss


def dying(config, checkpoints):
    """Interrupted once, in the third run; ``checkpoints`` must be a folder of the study."""
    assert Path(checkpoints).name == "checkpoints"
    done = Path("trained.jsonl").read_text().count("\n") if Path("trained.jsonl").exists() else 0
    if done == 2 and not Path("died").exists():
        Path("died").touch()
        raise KeyboardInterrupt
    return fake(config)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def trained():
    return Counter(tuple(json.loads(line)) for line in Path("trained.jsonl").read_text().splitlines())


def quiet(train, experiment, folder="study", **arguments):
    return run_experiment(train, experiment, folder, n_workers=1, progress=False, **arguments)


# Plans


def test_the_base_is_trained_once_for_all_rules():
    plan = Counter((p.size, p.rule) for p in plan_experiment(tiny()))
    assert plan == {("K = 2", "standard"): 8, ("K = 8", "standard"): 8, ("K = 8", "log-modes"): 8}


def test_settings_under_mup_alone_make_a_base_of_their_own():
    experiment = tiny(under_mup={"clip_spectral": 0.01}, rules=("standard", "log-modes", "operator-norm"))
    plan = plan_experiment(experiment)
    assert Counter(p.rule for p in plan if p.size == "K = 2") == {"standard": 8, "log-modes": 8}
    assert {p.rule: p.config.get("clip_spectral") for p in plan} == {
        "standard": None,
        "log-modes": 0.01,
        "operator-norm": 0.01,
    }


def test_rules_that_are_not_searched_train_one_point_a_seed():
    plan = plan_experiment(tiny(searched=("standard",)))
    assert Counter((p.size, p.rule) for p in plan)["K = 8", "log-modes"] == 2


def test_configs_are_what_a_run_understands():
    for p in plan_experiment(tiny()):
        assert estimate_flops(p.config) > 0 and p.config["base"]["n_modes"] == (4,)


# Numbers


def test_rows_by_hand():
    """SP: best 0.004 → 0.002, so drift -1, and 0.15 / 0.1 - 1 = 50 %. log-modes: 0.004 stays, so no drift, no regret.

    Seconds: 4 · 2 base runs of 1 s and 2 runs of 10 s, against 4 · 2 runs of 10 s: 28 / 80.
    """
    result = quiet(fake, tiny())
    rows = {(r["rule"], r["index"]): r for r in result.rows()}
    sp, mup = rows["standard", 1], rows["log-modes", 1]
    assert (sp["transferred"], sp["best"], sp["drift"]) == (0.004, 0.002, -1)
    assert (mup["transferred"], mup["best"], mup["drift"]) == (0.004, 0.004, 0)
    assert sp["best_loss"] == pytest.approx(0.1) and sp["transferred_loss"] == pytest.approx(0.15)
    assert sp["regret"] == pytest.approx(0.5) and mup["regret"] == pytest.approx(0)
    assert sp["best_std"] == pytest.approx(0.01) and sp["best_test"] == pytest.approx(0.2)
    assert sp["cost_seconds"] == mup["cost_seconds"] == pytest.approx(28 / 80)
    base, target = (estimate_flops(tiny().config(i, "standard", {"lr": 0.001}, 0)) for i in (0, 1))
    assert sp["cost_flops"] == pytest.approx((8 * base + 2 * target) / (8 * target))
    assert rows["standard", 0]["cost_flops"] is None and rows["log-modes", 0]["drift"] == 0
    assert not any(r["at_edge"] or r["failed"] for r in rows.values())


def test_cost_of_a_rule_that_was_not_searched_is_against_tuning_sp():
    result = quiet(fake, tiny(searched=("standard",)))
    row = result.rows()[-1]
    assert (row["rule"], row["best"], row["drift"], row["regret"]) == ("log-modes", None, None, None)
    assert row["transferred_loss"] == pytest.approx(0.08)
    assert row["cost_seconds"] == pytest.approx(28 / 80)
    header, full, naive, carried = reproduce.table_of_costs(result)
    assert [len(line) for line in (full, naive, carried)] == [len(header)] * 3
    assert full[1:4] == ["0.002", "0.1 ± 0.01", "0.2"] and full[-2:] == ["80 s", "1.00×"]
    assert carried[1:4] == ["0.004", "0.08 ± 0.01", "0.16"] and carried[-2:] == ["28 s", "0.35×"]
    assert naive[2] == "0.15 ± 0.01"


def test_a_failed_seed_does_not_compete_and_is_told():
    result = quiet(diverging, tiny())
    row = next(r for r in result.rows() if r["rule"] == "standard" and r["index"] == 1)
    assert row["regret"] == math.inf and row["failed"] == 1 and row["best"] == 0.002
    assert any("1 of 24 runs failed" in sentence for sentence in reproduce.verdict(result))
    text = reproduce.write_report(result, command="again").read_text()
    assert "∞ (a run failed)" in text and "the loss is nan" in text

    def no_json(word):
        pytest.fail(f"{word} is no JSON")

    json.loads(Path("study/run.json").read_text(), parse_constant=no_json)


def test_every_learning_rate_fails_at_the_base():
    with pytest.raises(MupError, match=r"No learning rate at the base \(K = 2\).*the loss is nan"):
        quiet(hopeless, tiny())


def test_other_hyperparameters_are_walked_one_at_a_time_at_the_tuned_lr():
    """Base: 4 lr, then 2 further batch sizes and 2 further β2 at lr 0.002; K = 8: 3 + 3 - 1 points a rule."""
    grids = {"lr": GRID, "batch_size": (10, 20, 40), "beta2": (0.9, 0.98, 0.999)}
    experiment = tiny(grids=grids, swept=("batch_size", "beta2"), seeds=(0,), batch_size=20, beta2=0.98)
    result = quiet(three, experiment)
    runs = trained()
    assert set(runs.values()) == {1} and len(runs) == len(plan_experiment(experiment)) == 4 + 4 + 2 * 5
    walked = [run for run in runs if run[3:] != (20, 0.98)]
    assert {lr for _, _, lr, *_ in walked} == {0.002} and not any(b != 20 and beta != 0.98 for *_, b, beta in walked)
    rows = {(r["hyperparameter"], r["rule"], r["index"]): r for r in result.rows()}
    row = rows["batch_size", "standard", 1]
    assert (row["transferred"], row["best"], row["drift"]) == (10, 20, 1)
    assert row["regret"] == pytest.approx(1.1 / 0.1 - 1)  # batch 10 is one doubling from the best, 20
    assert rows["beta2", "log-modes", 1]["drift"] == 0 and rows["batch_size", "standard", 0]["at_edge"]
    assert reproduce.table_of_costs(result)[1:] == []
    reproduce.write_report(result, command="again")
    assert {"batch_size.png", "beta2.svg", "report.md", "run.json"} <= {p.name for p in Path("study").iterdir()}


# Folders


def test_a_killed_experiment_goes_on_and_ends_as_if_never_interrupted():
    with pytest.raises(KeyboardInterrupt):
        quiet(dying, tiny(), checkpoints=True)
    assert trained().total() == 2
    result = quiet(dying, tiny(), checkpoints=True)
    assert set(trained().values()) == {1} and trained().total() == 24
    rows = result.rows()
    assert [r["drift"] for r in rows] == [0, -1, 0, 0]
    again = quiet(dying, tiny(), checkpoints=True)
    assert trained().total() == 24 and again.rows() == rows


def test_more_seeds_and_learning_rates_may_be_added():
    quiet(fake, tiny(seeds=(0,), grids={"lr": GRID[1:]}))
    quiet(fake, tiny())
    assert set(trained().values()) == {1} and trained().total() == 24


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"name": "other"}, 'experiment was "tiny" and is now "other"'),
        ({"epochs": 2}, "fixed was"),
        ({"models": ((4, 2), (4, 4))}, "models was"),
    ],
)
def test_a_folder_with_another_experiment_is_refused(change, told):
    quiet(fake, tiny(seeds=(0,)))
    with pytest.raises(MupError, match=told):
        quiet(fake, tiny(seeds=(0,), **change))


def test_a_folder_with_a_sweep_is_refused():
    from neuralop_mup import sweep

    sweep(hopeless, {"lr": [0.1]}, folder="study", n_workers=1, progress=False)
    with pytest.raises(MupError, match="already holds 'sweep', and a reproduce needs its folder for itself"):
        quiet(fake, tiny())


# Pages and figures


def test_the_report_has_everything_needed_to_judge_and_repeat_it():
    result = quiet(fake, tiny(notes=("A note to the reader.",)))
    text = reproduce.write_report(result, command="neuralop-mup reproduce tiny").read_text()
    for part in (
        "SP: the best learning rate goes from 0.004 to 0.002 at K = 8 (-1 step; at most 1 at any size)",
        "carrying it over costs 50.0 %.",
        "A note to the reader.",
        "](lr.svg)",
        "neuralop-mup reproduce tiny",
        "neuraloperator",
        "processor",
        "| tune the full model (K = 8, SP)",
    ):
        assert part in text, part
    run = json.loads(Path("study/run.json").read_text())
    assert [row["drift"] for row in run["rows"]] == [0, -1, 0, 0]


def test_one_panel_a_rule_one_curve_and_one_star_a_size(tmp_path, monkeypatch):
    from neuralop_mup.plots import experiments

    kept = []
    monkeypatch.setattr(experiments, "save", lambda figure, path: kept.append(figure) or path)
    small = Curve([0.1, 0.2, 0.4], [3.0, 1.0, 2.0], [2.9, 0.9, 1.9], [3.1, 1.1, 2.1], [])
    large = Curve([0.1, 0.2], [0.5, 1.0], [0.5, 1.0], [0.5, 1.0], [0.4])
    carried = Curve([0.2], [0.6], [0.6], [0.6], [])
    panels = {"standard": [("K = 2", small), ("K = 8", large)], "log-modes": [("K = 2", small), ("K = 8", carried)]}
    plot_experiment(panels, "x.png", seeds=2)
    left, right = kept[0].axes
    assert [left.get_title(), right.get_title()] == ["SP (standard)", "μP log-modes"]
    stars = [(line.get_xdata()[0], line.get_ydata()[0]) for line in left.lines if line.get_marker() == "*"]
    assert stars == [(0.2, 1.0), (0.1, 0.5)]
    assert sum(line.get_marker() == "*" for line in right.lines) == 1  # a carried point alone is no optimum
    assert [line.get_xdata()[0] for line in left.lines if line.get_marker() == "x"] == [0.4]
    assert left.get_xscale() == "log" and [t.get_text() for t in kept[0].legends[0].texts] == ["K = 2", "K = 8"]


def test_beta2_is_drawn_by_its_distance_from_one(monkeypatch):
    from neuralop_mup.plots import experiments

    kept = []
    monkeypatch.setattr(experiments, "save", lambda figure, path: kept.append(figure))
    curve = Curve([0.9, 0.99], [2.0, 1.0], [2.0, 1.0], [2.0, 1.0], [])
    plot_experiment({"standard": [("K = 2", curve)]}, "x.png", hyperparameter="beta2")
    axes = kept[0].axes[0]
    kept[0].canvas.draw()
    assert [t.get_text() for t in axes.get_xticklabels()] == ["0.9", "0.99"] and axes.xaxis_inverted()


def test_nothing_to_draw_is_told():
    with pytest.raises(MupError, match="no figure to draw"):
        plot_experiment({"standard": [("K = 2", Curve([], [], [], [], [0.1]))]}, "x.png")


# The table of experiments


@pytest.mark.parametrize("size", reproduce.SIZES)
@pytest.mark.parametrize("name", reproduce.NAMES)
def test_every_experiment_can_be_built_and_has_three_rules(name, size):
    experiment = get_experiment(name, size)
    if size != "paper" or name.endswith("modes"):
        experiment.check()
    assert len(experiment.rules) == 3 and experiment.rules[0] == "standard" and "log-modes" in experiment.rules
    assert len(experiment.seeds) == 3 and set(experiment.swept) <= set(experiment.grids)
    for grid in experiment.grids.values():
        assert list(grid) == sorted(grid)
    base, target = experiment.models[0], experiment.models[-1]
    ratio = [sum(m) / len(m) if isinstance(m, tuple) else m for m in (base[1], target[1])]
    assert (target[0] == 8 * base[0]) == name.startswith("joint") and ratio[1] > ratio[0]


@pytest.mark.parametrize(
    ("name", "modes", "batch", "epochs", "schedule", "mup"),
    [
        ("burgers-modes", (3, 8, 32, 128, 512), 20, 750, "halve:50", {}),
        ("darcy-modes", (3, 6, 12, 24), 20, 300, "halve:100,150,200", {}),
        ("pino-darcy-modes", (3, 6, 12, 24), 20, 300, "halve:100,150,200", {}),
        ("navier-stokes-modes", (3, 6, 12, 24), 2, 125, "halve:50,100", {"clip_spectral": 0.01}),
    ],
)
def test_paper_size_is_the_papers(name, modes, batch, epochs, schedule, mup):
    e = get_experiment(name, "paper")
    assert [k for _, k in e.models] == list(modes) and {w for w, _ in e.models} == {64}
    assert (e.batch_size, e.epochs, e.schedule, dict(e.under_mup)) == (batch, epochs, schedule, mup)
    assert all(e.model(i)["n_layers"] == 4 for i in range(len(modes)))
    assert e.described_problem.n_train == (1000 if "darcy" in name else 800)
    # 19 learning rates, 3 seeds; the base once, or twice where μP alone clips; 3 rules at every other K.
    bases = 2 if mup else 1
    assert len(plan_experiment(e)) == 57 * (bases + 3 * (len(modes) - 1))


def test_paper_sizes_kernels():
    """4 layers · 4 blocks · 64² · K³: 1.77 M at K = 3, 906 M at K = 24; neuralop keeps one more mode on the last axis."""
    e = get_experiment("navier-stokes-modes", "paper")
    for index, k, papers in ((0, 3, 1.77e6), (3, 24, 906e6)):
        assert 4 * 4 * 64**2 * k**3 == pytest.approx(papers, rel=0.003)
        with torch.device("meta"):
            model = build_model(e.described_problem, e.model(index), e.model(0), "standard")
        kernels = sum(p.numel() for n, p in model.named_parameters() if n.endswith("weight.tensor"))
        assert kernels == 4 * 4 * 64**2 * k**2 * (k + 1)


def test_the_papers_darcy_grid_needs_a_spectral_conv_that_is_right_on_odd_grids(monkeypatch):
    for works, grid, solver in ((True, 61, 421), (False, 62, 428)):
        monkeypatch.setattr(reproduce.experiments, "odd_grids_work", lambda works=works: works)
        e = get_experiment("darcy-modes", "paper")
        assert (e.described_problem.grid, e.described_problem.fine_grid) == (grid, solver)
        assert any("62 points an axis" in note for note in e.notes) == (not works)


def test_the_check_of_odd_grids_tells_right_from_wrong(monkeypatch):
    """A convolution that pads to an even grid is right; one that drops the shift of the spectrum is not."""

    class Right(SpectralConv):
        def forward(self, x):
            full = torch.fft.fft2(x)
            keep = torch.fft.fftfreq(x.shape[-1], 1 / x.shape[-1]).abs() < 2
            return torch.fft.ifft2(full * keep[:, None] * keep).real

    class Wrong(Right):
        def forward(self, x):
            return super().forward(x).roll(1, -2)

    for cls, right in ((Right, True), (Wrong, False)):
        monkeypatch.setattr("neuralop.layers.spectral_convolution.SpectralConv", cls)
        assert described.odd_grids_work() == right


def test_the_check_agrees_with_a_fourier_series_of_the_installed_convolution():
    """On an odd grid, weights of one must return a band-limited field: measured on the installed layer itself."""
    torch.manual_seed(0)
    conv = SpectralConv(1, 1, (6, 6), bias=False)
    with torch.no_grad():
        conv.weight.tensor.fill_(1.0)
        i = torch.arange(11) / 11
        field = torch.sin(2 * torch.pi * (i[:, None] + 2 * i))[None, None]
        right = torch.allclose(conv(field), field, atol=1e-4)
    assert described.odd_grids_work() == right


# The command


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("", "Name an experiment: burgers-modes, darcy-modes"),
        ("darcy-mode", "there is no 'darcy-mode': did you mean 'darcy-modes'?"),
        ("darcy-modes --size huge", "--size: there is no 'huge'"),
        ("darcy-modes --device tpu", "--device: must be cpu, cuda, cuda:N or auto"),
        ("darcy-modes --seeds 0", "--seeds: must be a whole number"),
    ],
)
def test_mistakes_take_one_line(line, told, capsys):
    assert main(["reproduce", *line.split()]) == 2
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1


def test_a_grid_too_coarse_for_the_modes_is_told():
    with pytest.raises(MupError, match="beyond the grid of"):
        tiny(models=((4, 2), (4, 17))).check()


def test_k_of_one_under_log_modes_is_told():
    with pytest.raises(MupError, match="operator-norm"):
        tiny(models=((4, 1), (4, 8))).check()


def test_dry_run_tells_runs_and_cost(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(reproduce.experiments._TABLE, ("burgers-modes", "cpu"), table_entry())
    assert main(["reproduce", "burgers-modes", "--dry-run", "--workers", "1"]) == 0
    out = capsys.readouterr().out
    assert "| all " in out and "| 24 " in out and "Very roughly" in out and list(tmp_path.iterdir()) == []


def test_a_real_experiment_and_again(capsys, monkeypatch):
    monkeypatch.setitem(reproduce.experiments._TABLE, ("burgers-modes", "cpu"), table_entry())
    line = ["reproduce", "burgers-modes", "--seeds", "1", "--workers", "1", "--output", "out"]
    assert main(line) == 0
    first = Path("out/results.jsonl").read_text()
    assert "μP log-modes: the best learning rate goes from" in capsys.readouterr().out
    assert {"lr.png", "lr.svg", "report.md", "run.json"} <= {p.name for p in Path("out").iterdir()}
    assert main(line) == 0 and Path("out/results.jsonl").read_text() == first
    assert "12 of them finished before" in capsys.readouterr().err
    assert main([*line, "--size", "gpu"]) == 2
    assert "with other settings" in capsys.readouterr().err


def table_entry():
    e = tiny()
    names = ("problem_args", "models", "grids", "rules", "searched", "seeds", "epochs")
    return {name: getattr(e, name) for name in names}
