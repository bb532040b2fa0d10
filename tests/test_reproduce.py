"""The paper's experiments: plans against the paper, tables against hand-worked numbers, resume, figures, the command."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from neuralop.layers.spectral_convolution import SpectralConv

from neuralop_mup.cli import main
from neuralop_mup.cli.reproduce import check
from neuralop_mup.errors import MupError
from neuralop_mup.experiments import experiment_study, findings, get_experiment, paper, presets, report
from neuralop_mup.experiments.training import build_model, estimate_flops
from neuralop_mup.plots import Curve, plot_panels
from neuralop_mup.plots import study as study_figure
from neuralop_mup.problems import get_problem
from neuralop_mup.tuning import run

ARGS = {"n_train": 8, "n_val": 4, "n_test": 4, "grid": 32, "viscosity": 0.1}
GRID = (0.001, 0.002, 0.004, 0.008)


def tiny(**changes):
    """K = 2 and 8 on Burgers, 4 learning rates, 2 seeds."""
    fields = {
        "name": "tiny",
        "about": "what it shows",
        "problem": get_problem("burgers", **ARGS),
        "models": ((4, 2), (4, 8)),
        "grids": {"lr": GRID},
        "rules": ("standard", "log-modes"),
        "searched": ("standard", "log-modes"),
        "seeds": (0, 1),
        "epochs": 1,
        "batch_size": 4,
    }
    return experiment_study(**{**fields, **changes})


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


def dying(config):
    """Interrupted once, in the third run."""
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


def quiet(train, study, folder="study", **arguments):
    return run(study, train, folder=folder, n_workers=1, progress=False, **arguments)


# Plans


def test_the_base_is_trained_once_for_all_rules():
    plan = Counter(p.cell for p in tiny().planned())
    assert plan == {("K = 2", "standard"): 4, ("K = 8", "standard"): 4, ("K = 8", "log-modes"): 4}


def test_settings_under_mup_alone_make_a_base_of_their_own():
    study = tiny(under_mup={"clip_spectral": 0.01}, rules=("standard", "log-modes", "operator-norm"))
    plan = study.planned()
    assert Counter(p.rule for p in plan if p.size == "K = 2") == {"standard": 4, "log-modes": 4}
    assert {p.rule: study.config(p, 0).get("clip_spectral") for p in plan} == {
        "standard": None,
        "log-modes": 0.01,
        "operator-norm": 0.01,
    }


def test_rules_that_are_not_searched_train_one_point():
    plan = tiny(searched=("standard",)).planned()
    assert Counter(p.cell for p in plan)["K = 8", "log-modes"] == 1


def test_configs_are_what_a_run_understands():
    study = tiny()
    for p in study.planned():
        assert estimate_flops(study.config(p, 0)) > 0 and study.config(p, 0)["base"]["n_modes"] == (4,)


# Numbers


def test_rows_by_hand():
    """SP: best 0.004 → 0.002, so drift -1, and 0.15 / 0.1 - 1 = 50 %. log-modes: 0.004 stays, so no drift, no regret.

    Seconds: 4 · 2 base runs of 1 s and 2 runs of 10 s, against 4 · 2 runs of 10 s: 28 / 80.
    """
    study = tiny()
    result = quiet(fake, study)
    rows = {(r["rule"], r["size"]): r for r in result.summary(report.run_cost(study))}
    sp, mup = rows["standard", "K = 8"], rows["log-modes", "K = 8"]
    assert (sp["transferred"], sp["best"], sp["drift"]) == ({"lr": 0.004}, {"lr": 0.002}, -1)
    assert (mup["transferred"], mup["best"], mup["drift"]) == ({"lr": 0.004}, {"lr": 0.004}, 0)
    assert sp["best_loss"] == pytest.approx(0.1) and sp["transferred_loss"] == pytest.approx(0.15)
    assert sp["regret"] == pytest.approx(0.5) and mup["regret"] == pytest.approx(0)
    assert sp["best_std"] == pytest.approx(0.01) and sp["best_test"] == pytest.approx(0.2)
    assert sp["cost_seconds"] == mup["cost_seconds"] == pytest.approx(28 / 80)
    points = [study.point(size, "standard", {"lr": 0.001}) for size in study.sizes]
    base, target = (estimate_flops(study.config(p, 0)) for p in points)
    assert sp["cost_flops"] == pytest.approx((8 * base + 2 * target) / (8 * target))
    assert rows["standard", "K = 2"]["cost_flops"] is None and rows["log-modes", "K = 2"]["drift"] == 0
    assert not any(r["at_edge"] or r["failed"] for r in rows.values())


def test_cost_of_a_rule_that_was_not_searched_is_against_tuning_sp():
    """Table 1: tuning SP at the full size gives 0.1 at 0.002; carried, log-modes gives 0.08 for 28 of 80 seconds."""
    result = quiet(fake, tiny(searched=("standard",)))
    row = result.row("log-modes", name="lr")
    assert (row["best"], row["drift"], row["regret"]) == (None, None, None)
    assert row["transferred_loss"] == pytest.approx(0.08) and row["transferred_test"] == pytest.approx(0.16)
    assert row["cost_seconds"] == pytest.approx(28 / 80)
    header, *lines = report.table(result)
    where = header.index("rule"), header.index("size")
    cells = {tuple(line[i] for i in where): dict(zip(header, line, strict=True)) for line in lines}
    sp, mup = cells["SP", "K = 8"], cells["log-modes", "K = 8"]
    assert (sp["its loss"], sp["its loss here"]) == ("0.1 ± 0.01", "0.15 ± 0.01")
    assert (mup["its loss here"], mup["cost, time"]) == ("0.08 ± 0.01", "0.35×")


def test_a_failed_seed_does_not_compete_and_is_told():
    result = quiet(diverging, tiny())
    row = result.row("standard", name="lr")
    assert row["regret"] == math.inf and row["failed"] == 1 and row["best"] == {"lr": 0.002}
    assert any("1 of 24 runs did not complete" in sentence for sentence in findings.verdict(result))
    text = report.write_report(result, command="again").read_text()
    assert "∞ (a run failed)" in text and "the loss is nan" in text

    def no_json(word):
        pytest.fail(f"{word} is no JSON")

    json.loads(Path("study/run.json").read_text(), parse_constant=no_json)


def test_every_learning_rate_fails_at_the_base():
    with pytest.raises(MupError, match=r"No point of K = 2 completed.*the loss is nan"):
        quiet(hopeless, tiny())


def test_other_hyperparameters_are_walked_one_at_a_time_at_the_tuned_lr():
    """Base: 4 lr, then 2 further batch sizes and 2 further β2 at lr 0.002; K = 8: 3 + 3 - 1 points a rule."""
    grids = {"lr": GRID, "batch_size": (10, 20, 40), "beta2": (0.9, 0.98, 0.999)}
    study = tiny(grids=grids, swept=("batch_size", "beta2"), seeds=(0,), batch_size=20, beta2=0.98)
    result = quiet(three, study)
    runs = trained()
    assert set(runs.values()) == {1} and len(runs) == len(study.planned()) == 4 + 4 + 2 * 5
    walked = [run for run in runs if run[3:] != (20, 0.98)]
    assert {lr for _, _, lr, *_ in walked} == {0.002} and not any(b != 20 and beta != 0.98 for *_, b, beta in walked)
    rows = {(r["walked"], r["rule"], r["size"]): r for r in result.summary()}
    row = rows["batch_size", "standard", "K = 8"]
    assert (row["transferred"]["batch_size"], row["best"]["batch_size"], row["drift"]) == (10, 20, 1)
    assert row["regret"] == pytest.approx(1.1 / 0.1 - 1)  # batch 10 is one doubling from the best, 20
    assert rows["beta2", "log-modes", "K = 8"]["drift"] == 0 and rows["batch_size", "standard", "K = 2"]["at_edge"]
    report.write_report(result, command="again")
    assert {"batch_size.png", "beta2.svg", "report.md", "run.json"} <= {p.name for p in Path("study").iterdir()}


# Folders


def test_a_killed_experiment_goes_on_and_ends_as_if_never_interrupted():
    with pytest.raises(KeyboardInterrupt):
        quiet(dying, tiny())
    assert trained().total() == 2
    result = quiet(dying, tiny())
    assert set(trained().values()) == {1} and trained().total() == 24
    rows = result.summary()
    assert [r["drift"] for r in rows] == [0, -1, 0, 0]
    again = quiet(dying, tiny())
    assert trained().total() == 24 and again.summary() == rows


def test_more_seeds_and_learning_rates_may_be_added():
    quiet(fake, tiny(seeds=(0,), grids={"lr": GRID[1:]}))
    quiet(fake, tiny())
    assert set(trained().values()) == {1} and trained().total() == 24


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"beta2": 0.9}, "fixed.beta2 was 0.999 and is now 0.9"),
        ({"epochs": 2}, "fixed.epochs was 1 and is now 2"),
        ({"models": ((4, 2), (4, 4))}, "sizes was"),
    ],
)
def test_a_folder_with_another_experiment_is_refused(change, told):
    quiet(fake, tiny(seeds=(0,)))
    with pytest.raises(MupError, match=told):
        quiet(fake, tiny(seeds=(0,), **change))


def test_a_folder_with_a_sweep_is_refused():
    from neuralop_mup import sweep

    sweep(hopeless, {"lr": [0.1]}, folder="study", n_workers=1, progress=False)
    with pytest.raises(MupError, match="already holds another study .'sweep'."):
        quiet(fake, tiny())


# Pages and figures


def test_the_report_has_everything_needed_to_judge_and_repeat_it():
    result = quiet(fake, tiny(notes=("A note to the reader.",)))
    text = report.write_report(result, command="neuralop-mup reproduce tiny").read_text()
    for part in (
        "Searched at K = 8, SP is best at lr 0.002 with loss 0.1 ± 0.01, -1 step from the carried one",
        "carrying over costs 50.0 %.",
        "A note to the reader.",
        "](lr.png)",
        "neuralop-mup reproduce tiny",
        "neuraloperator",
        "processor",
        "What it shows.",
    ):
        assert part in text, part
    run = json.loads(Path("study/run.json").read_text())
    assert [row["drift"] for row in run["summary"]] == [0, -1, 0, 0]


def test_one_panel_a_rule_one_curve_and_one_star_a_size(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(study_figure.style, "save", lambda figure, path: kept.append(figure) or path)
    small = Curve([0.1, 0.2, 0.4], [3.0, 1.0, 2.0], [2.9, 0.9, 1.9], [3.1, 1.1, 2.1], [])
    large = Curve([0.1, 0.2], [0.5, 1.0], [0.5, 1.0], [0.5, 1.0], [0.4])
    carried = Curve([0.2], [0.6], [0.6], [0.6], [])
    panels = {"standard": [("K = 2", small), ("K = 8", large)], "log-modes": [("K = 2", small), ("K = 8", carried)]}
    plot_panels(panels, "x.png", seeds=2)
    left, right = kept[0].axes
    assert [axes.get_title("left") for axes in (left, right)] == ["SP (standard)", "μP log-modes"]
    stars = [(line.get_xdata()[0], line.get_ydata()[0]) for line in left.lines if line.get_marker() == "*"]
    assert stars == [(0.2, 1.0), (0.1, 0.5)]
    assert sum(line.get_marker() == "*" for line in right.lines) == 1  # a carried point alone is no optimum
    assert [line.get_xdata()[0] for line in left.lines if line.get_marker() == "x"] == [0.4]
    named = [text.get_text().split("\n")[0] for text in left.texts]
    assert left.get_xscale() == "log" and sorted(named) == ["K = 2", "K = 8"]


def test_beta2_is_drawn_by_its_distance_from_one(monkeypatch):
    kept = []
    monkeypatch.setattr(study_figure.style, "save", lambda figure, path: kept.append(figure))
    curve = Curve([0.9, 0.99], [2.0, 1.0], [2.0, 1.0], [2.0, 1.0], [])
    plot_panels({"standard": [("K = 2", curve)]}, "x.png", name="beta2")
    axes = kept[0].axes[0]
    kept[0].canvas.draw()
    assert [t.get_text() for t in axes.get_xticklabels()] == ["0.9", "0.99"] and axes.xaxis_inverted()


def test_nothing_to_draw_is_told():
    with pytest.raises(MupError, match="no figure to draw"):
        plot_panels({"standard": [("K = 2", Curve([], [], [], [], [0.1]))]}, "x.png")


# The table of experiments


@pytest.mark.parametrize("size", presets.SIZES)
@pytest.mark.parametrize("name", paper.NAMES)
def test_every_experiment_can_be_built_and_has_three_rules(name, size):
    study = get_experiment(name, size)
    if size != "paper" or name.endswith("modes"):
        check(study)
    assert len(study.rules) == 3 and study.rules[0] == "standard" and "log-modes" in study.rules
    assert len(study.seeds) == 3 and set(study.swept) <= set(study.space)
    for grid in study.space.values():
        assert list(grid) == sorted(grid)
    base, target = study.sizes[study.base], study.sizes[study.target]
    assert (target["hidden_channels"] == 8 * base["hidden_channels"]) == name.startswith("joint")
    assert sum(target["n_modes"]) > sum(base["n_modes"])


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
    study = get_experiment(name, "paper")
    assert [size["n_modes"][0] for size in study.sizes.values()] == [2 * k for k in modes]
    assert {size["hidden_channels"] for size in study.sizes.values()} == {64}
    fixed = study.fixed
    assert (fixed["batch_size"], fixed["epochs"], fixed["schedule"]) == (batch, epochs, schedule)
    assert study.under.get("log-modes", {}) == mup and "standard" not in study.under
    assert all(size["n_layers"] == 4 for size in study.sizes.values())
    assert fixed["problem_args"]["n_train"] == (1000 if "darcy" in name else 800)
    # 19 learning rates; the base once, or twice where μP alone clips; 3 rules at every other K.
    bases = 2 if mup else 1
    assert len(study.planned()) == 19 * (bases + 3 * (len(modes) - 1))


def test_paper_sizes_kernels():
    """4 layers · 4 blocks · 64² · K³: 1.77 M at K = 3, 906 M at K = 24; neuralop keeps one more mode on the last axis."""
    study = get_experiment("navier-stokes-modes", "paper")
    problem = get_problem("navier-stokes", **study.fixed["problem_args"])
    for label, k, papers in (("K = 3", 3, 1.77e6), ("K = 24", 24, 906e6)):
        assert 4 * 4 * 64**2 * k**3 == pytest.approx(papers, rel=0.003)
        with torch.device("meta"):
            model = build_model(problem, study.sizes[label], study.sizes["K = 3"], "standard")
        kernels = sum(p.numel() for n, p in model.named_parameters() if n.endswith("weight.tensor"))
        assert kernels == 4 * 4 * 64**2 * k**2 * (k + 1)


def test_the_papers_darcy_grid_needs_a_spectral_conv_that_is_right_on_odd_grids(monkeypatch):
    for works, grid, solver in ((True, 61, 421), (False, 62, 428)):
        monkeypatch.setattr(presets, "odd_grids_work", lambda works=works: works)
        e = get_experiment("darcy-modes", "paper")
        problem = get_problem("darcy", **e.fixed["problem_args"])
        assert (problem.grid, problem.fine_grid) == (grid, solver)
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
        assert presets.odd_grids_work() == right


def test_the_check_agrees_with_a_fourier_series_of_the_installed_convolution():
    """On an odd grid, weights of one must return a band-limited field: measured on the installed layer itself."""
    torch.manual_seed(0)
    conv = SpectralConv(1, 1, (6, 6), bias=False)
    with torch.no_grad():
        conv.weight.tensor.fill_(1.0)
        i = torch.arange(11) / 11
        field = torch.sin(2 * torch.pi * (i[:, None] + 2 * i))[None, None]
        right = torch.allclose(conv(field), field, atol=1e-4)
    assert presets.odd_grids_work() == right


# The command


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("", "Name an experiment: burgers-modes, darcy-modes"),
        ("darcy-mode", "there is no 'darcy-mode'; did you mean 'darcy-modes'?"),
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
        check(tiny(models=((4, 2), (4, 17))))


def test_k_of_one_under_log_modes_is_told():
    with pytest.raises(MupError, match="operator-norm"):
        check(tiny(models=((4, 1), (4, 8))))


def test_dry_run_tells_runs_and_cost(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(paper, "get_experiment", lambda name, size: tiny(epochs=1 if size == "cpu" else 2))
    assert main(["reproduce", "burgers-modes", "--dry-run", "--workers", "1"]) == 0
    out = capsys.readouterr().out
    assert "| all " in out and "| 24 " in out and "Very roughly" in out and list(tmp_path.iterdir()) == []


def test_a_real_experiment_and_again(capsys, monkeypatch):
    monkeypatch.setattr(paper, "get_experiment", lambda name, size: tiny(epochs=1 if size == "cpu" else 2))
    line = ["reproduce", "burgers-modes", "--seeds", "1", "--workers", "1", "--output", "out"]
    assert main(line) == 0
    first = Path("out/results.jsonl").read_text()
    assert "Searched at K = 8, log-modes is best at lr" in capsys.readouterr().out
    assert {"lr.png", "lr.svg", "report.md", "run.json"} <= {p.name for p in Path("out").iterdir()}
    assert main(line) == 0 and Path("out/results.jsonl").read_text() == first
    assert "12 of them finished before" in capsys.readouterr().err
    assert main([*line, "--size", "gpu"]) == 2
    assert "with other settings" in capsys.readouterr().err
