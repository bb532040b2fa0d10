"""The command: exit codes, one-line errors, what options become, and one small real run of each verb."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.cli import main, transfer
from neuralop_mup.cli.coord_check import _Seeds, _verdict
from neuralop_mup.diagnostics.coord_check import judged
from neuralop_mup.optim.musoap.optimizer import LR as SOAP_LR
from neuralop_mup.problems import PROBLEMS, Problem, get_problem
from neuralop_mup.tuning import Results, looking, pipeline
from neuralop_mup.tuning.fno import FNOs
from neuralop_mup.tuning.presets import PRESETS, SIZES, preset_of

TINY = "--problem.n_train 8 --problem.n_val 4 --problem.n_test 4 --problem.grid 32 --problem.viscosity 0.1"


def words(*texts):
    """Command-line words of texts."""
    return " ".join(texts).split()


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """An empty working folder and cache for each test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEURALOP_MUP_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def fake(monkeypatch):
    """Trains nothing: what it was asked is appended to the list, and the rule that fails at the target can be set."""
    calls = []

    def run(study, train, *, folder, **others):
        calls.append({"study": study, "train": train, "folder": folder, **others})
        values = {k: [v.high] if hasattr(v, "high") else v for k, v in study.space.items()}
        points = [dict(zip(values, combination, strict=True)) for combination in itertools.product(*values.values())]
        best = points[len(points) // 2]
        done = [(p, [{"outcome": "complete", "loss": 1.0 if p == best else 2.0}] * len(study.seeds)) for p in points]
        carried = study.carried(done)  # between grid points, where nobody gave them
        wanted = [("proxy", study.rules[0], params) for params in points] + [("target", r, carried) for r in study.rules]
        records = []
        for (size, rule, params), seed in itertools.product(wanted, study.seeds):
            lost = size == "target" and rule == getattr(run, "fails", None)
            outcome = {"outcome": "diverged", "error": "the loss is nan", "loss": None}
            if not lost:
                outcome = {"outcome": "complete", "error": None, "loss": 1.0 if params in (best, carried) else 2.0}
            done = {"size": size, "rule": rule, "params": params, "seed": seed, "metrics": {}, "seconds": 1.0}
            records.append({**done, **outcome})
        return Results(study, records, Path(folder))

    monkeypatch.setattr(pipeline, "run", run)
    monkeypatch.setattr(pipeline, "write_target", lambda *_: None)
    monkeypatch.setattr(pipeline, "data_notes", lambda *_: [])
    monkeypatch.setattr(Problem, "load", Problem.blank)
    run.calls = calls
    return run


def test_help_and_version(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(verb in out for verb in ("transfer", "summary", "coord-check", "data"))
    assert main([]) == 0
    capsys.readouterr()
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("neuralop-mup 0.")


@pytest.mark.parametrize(
    ("verb", "shown"),
    [
        (
            "transfer",
            ["--lr", "default: operator-norm", "--target.n_layers", "viscosity [0.01]", "--schedule", "darcy cpu:"],
        ),
        ("summary", ["--base", "default: text", "--base.n_layers", "hidden_channels 128"]),
        ("coord-check", ["--widths", "(1, 5, 10)", "--tolerance", "default: 800"]),
        ("data", ["--list", "--plot", "--problem.viscosity", "contrast [(3.0, 12.0)]"]),
    ],
)
def test_help_all_of_each_verb_shows_defaults(verb, shown, capsys):
    assert main([verb, "--help-all"]) == 0
    out = capsys.readouterr().out
    assert [text for text in shown if text not in out] == []


@pytest.mark.parametrize("verb", ["transfer", "summary", "coord-check", "data"])
def test_help_fits_a_screen_and_says_where_the_rest_is(verb, capsys):
    assert main([verb, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") <= 50 and max(map(len, out.splitlines())) <= 120
    assert "--help-all" in out


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("trasfer", "'transfer'"),
        ("--vers", "'--version'"),
        ("transfer burger", "'burgers'"),
        ("transfer --sedes 3", "'--seeds'"),
        ("transfer --size cpu", "--optimizer, --output, --preset"),
        ("transfer --proxy.hidden_chanels 3", "'--proxy.hidden_channels'"),
        ("transfer --target.heads 64", "expected one of --target.channel_mlp_dropout"),
        ("transfer --target.width 64", "did you mean '--target.hidden_channels'?"),
        ("transfer --width 64", "did you mean '--target.hidden_channels' or '--proxy.hidden_channels' or "),
        ("transfer --n_modes 8", "did you mean '--target.n_modes'"),
        ("transfer --proxy.layers 2", "did you mean '--proxy.n_layers'?"),
        ("coord-check --width 16,32", "did you mean '--widths'?"),
        ("transfer heat.npz", "for data of your own write --data heat.npz"),
        ("transfer navier-stokes --problem.forcing 3", "--problem.forcing_amplitude, --problem.forcing_wavenumber"),
        ("transfer --problem.viscosty 3", "'--problem.viscosity'"),
        ("transfer --modle.n_layers 2", "'--model.n_layers'"),
        ("transfer --search.lr_mult.spectrl 1,2", "'--search.lr_mult.spectral'"),
        ("transfer --rule log-mods", "'log-modes'"),
        ("transfer --rule standard", "log-modes, none, operator-norm"),
        ("transfer --rules log-modes,nome", "'none'"),
        ("transfer --optimizer adm", "'adam'"),
        ("transfer --optimizer adam --aux_lr 0.01", "aux_lr is 0.01, but the optimizer is 'adam', which has none"),
        ("transfer --search.aux_lr 0.01,0.02 --optimizer sgd", "the optimizer is 'sgd'"),
        ("transfer --device gpu", "such as cpu or cuda:0, or auto; it is 'gpu'"),
        ("transfer --preset papr", "'paper'"),
        ("transfer --schedule fast", "cosine"),
        ("transfer --schedule halve:50,20", "ascending"),
        ("transfer --lr 1e-3:7e-2", "power of two"),
        ("transfer --lr fast", "comma list"),
        ("transfer --lr", "needs a value"),
        ("transfer --lr -1,0,nan", "every value must be above 0"),
        ("transfer --lr=-1,2", "above 0"),
        ("transfer --lr 1,1", "twice"),
        ("transfer --lr log:1e-3", "KIND:LOW:HIGH"),
        ("transfer --lr log:1e-1:1e-3", "is no distribution"),
        ("transfer --lr log:1e-3:1e-1", "needs --trials N"),
        ("transfer --trials 4", "a grid runs every point"),
        ("transfer --search.lr 1e-3,2e-3 --lr 1e-3", "are the same"),
        ("transfer --search.lr log:1e-3:1e-1 --trials 3 --verify", "needs a grid"),
        ("transfer --search.lr log:1e-3:1e-1 --trials 3 --sampler tpee", "'tpe'"),
        ("transfer --batch_size 401", "larger than the training data, 400 samples"),
        ("transfer --proxy.hidden_channels 128", "and the target 1,132,097: tuning the base saves nothing"),
        ("transfer --loss l3", "no loss 'l3'"),
        ("transfer --data nowhere.npz", "There is no file nowhere.npz"),
        ("transfer --data heat.csv", "its name must end in .npz"),
        ("transfer burgers --data heat.npz", "leave the problem and its arguments out"),
        ("transfer --data.x u", "give the file"),
        ("transfer darcy-files", "There is no file darcy_train_16.pt"),
        ("transfer --engine dask", "local, ray"),
        ("transfer --seeds many", "--seeds"),
        ("transfer --seeds 0", "1 or more"),
        ("transfer --epochs 0", "1 or more"),
        ("transfer --workers 0", "1 or more"),
        ("transfer --weight_decay -1", "0 or more"),
        ("transfer --beta2 1", "below 1"),
        ("transfer --clip_spectral nan", "above 0"),
        ("transfer --proxy.n_modes", "needs a value"),
        ("transfer --proxy.n_modes --verify", "needs a value"),
        ("transfer --proxy.n_modes 8 --proxy.n_modes 4", "twice"),
        ("transfer --target.n_modes 256", "beyond the grid"),
        ("transfer --proxy.n_modes 8,8", "1 axis"),
        ("transfer --proxy.n_modes 2 --rule log-modes", "operator-norm"),
        ("transfer --proxy.hidden_channels 0", "1 or more"),
        ("transfer --target.norm group_norm", "--model.norm"),
        ("transfer --target.n_layers 2", "of which it has no more than the model"),
        ("transfer --model.n_layers four", "number"),
        ("transfer --model.separable 3", "true, false"),
        ("transfer --model.norm foo", "group_norm"),
        ("transfer --model.non_linearity gelu", "from Python only"),
        ("transfer --problem.grid 1.5", "whole number"),
        ("transfer --problem.viscosity 0", "above 0"),
        ("transfer --search.batch_size 1.5,2", "whole"),
        ("transfer darcy extra", "too many"),
        ("summary --format txt", "'text'"),
        ("summary --rule log", "log-modes"),
        ("summary --base nowhere.json", "nowhere.json"),
        ("summary --base f --base.n_modes 8", "two ways"),
        ("coord-check --widths 16", "two sizes"),
        ("coord-check --widths 16,32 --modes 4,8", "both"),
        ("coord-check --model.hidden_channels 8", "--widths"),
        ("coord-check --lr 0", "above 0"),
        ("data --plot x.foo", ".png"),
    ],
)
def test_mistakes_take_one_line_and_exit_2(line, told, capsys, elsewhere, fake):
    assert main(line.split()) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and told in captured.err and captured.err.startswith("neuralop-mup: error: ")
    assert fake.calls == [] and captured.out == ""
    assert [path for path in elsewhere.iterdir() if path.name != "cache"] == []


def test_dry_run_prints_the_plan_and_makes_nothing(capsys, elsewhere):
    line = words(
        "transfer --dry-run --lr 0.001:0.008 --seeds 2 --verify",
        "--rules log-modes,standard --search.lr_mult.spectral 1,2",
    )
    assert main(line) == 0
    out = capsys.readouterr().out
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in out.splitlines() if row.startswith("|")]
    table = {row[0]: row[1:] for row in cells}
    # 4 lr × 2 multipliers × 2 seeds; all of the space under each of three rules at the target.
    assert table["proxy"][2] == "16"
    assert table["target"] == ["width 64, modes 64", "1,132,097", "48", "48.00"]
    assert table["all"][2] == "64"
    assert float(table["all"][3]) == pytest.approx(48 + float(table["proxy"][3]), abs=0.011)
    assert list(elsewhere.iterdir()) == []


def test_options_become_arguments(fake, capsys):
    line = (
        "transfer darcy --proxy.hidden_channels 8 --proxy.n_modes=4,6 --target.hidden_channels 12 --target.n_modes 8 "
        "--model.n_layers 2 --model.norm group_norm --problem.grid 16 --problem.n_train 10 --lr 0.001:0.004 "
        "--search.init_mult.readout 0.5:2 --search.batch_size 5,10 --rule operator-norm --rules none,standard "
        "--seeds 2 --epochs 3 --optimizer adamw --weight_decay 0.01 --clip_spectral 0.1 "
        "--workers 2 --verify --output out"
    )
    assert main(line.split()) == 0
    (call,) = fake.calls
    study, shared = call["study"], {"n_layers": 2, "norm": "group_norm"}
    assert study.sizes["proxy"] == {"hidden_channels": 8, "n_modes": (4, 6), **shared}
    assert study.sizes["target"] == {"hidden_channels": 12, "n_modes": (8, 8), **shared}
    assert study.space == {
        "lr": [0.001, 0.002, 0.004],
        "init_mult.readout": [0.5, 1.0, 2.0],
        "batch_size": [5, 10],
    }
    assert study.rules == study.searched == ("operator-norm", "none", "standard")
    assert (study.seeds, call["folder"]) == ((0, 1), Path("out"))
    assert call["engine"].capacity == 2
    fixed, source = study.fixed, call["train"].source
    assert (source.name, source.grid, source.n_train) == ("darcy", 16, 10)
    assert (fixed["epochs"], fixed["optimizer"], fixed["weight_decay"], fixed["clip_spectral"]) == (
        3,
        "adamw",
        0.01,
        0.1,
    )
    assert "batch_size" not in fixed
    assert "every run: out" in capsys.readouterr().out
    assert {path.name for path in Path("out").iterdir()} == {"report.md", "report.html", "run.json", "lr.png", "lr.svg"}


@pytest.mark.parametrize("rule", ["operator-norm", "log-modes", "none"])
def test_every_rule_can_be_named(rule, fake):
    assert main(["transfer", "burgers", "--rule", rule]) == 0
    assert fake.calls[0]["study"].rules == (rule,)


def test_defaults_and_paper_preset(fake):
    assert main(["transfer"]) == 0
    assert main(["transfer", "--preset", "paper", "--problem.n_train", "100"]) == 0
    (stock, paper), calls = [call["study"] for call in fake.calls], fake.calls
    source = calls[1]["train"].source
    assert calls[0]["folder"] == Path("runs/burgers-transfer")
    # 16 epochs of 20 batches at the target; an eighth would be 40 steps, and 125 are 8 epochs of 16: 0.03 √(1000/128).
    assert stock.space["lr"] == pytest.approx([0.0839 * 2**i for i in (-2, -1, 0, 1, 2)], rel=5e-3)
    # All zeros, as the fixture has it, lie in one mode.
    assert stock.at == {"proxy": {"epochs": 8, "batches": 16, "stride": (4,)}, "target": {"training": {"steps": (128, 320)}}}
    assert stock.fixed["optimizer"] == "soap" and stock.under == {"operator-norm": {"kernel_init": "small"}}
    assert stock.rules == ("operator-norm",) and not stock.searched and len(stock.seeds) == 1
    assert paper.at == {}  # its schedule is in epochs of the target
    assert paper.sizes["target"] == {"hidden_channels": 64, "n_modes": (1024,)}
    assert (source.viscosity, source.n_train) == (0.1, 100)
    assert paper.sizes["proxy"] == {"hidden_channels": 64, "n_modes": (6,)}
    assert (paper.fixed["epochs"], paper.fixed["schedule"], paper.fixed["batch_size"]) == (750, "halve:50", 20)
    assert stock.fixed["schedule"] == "cosine"


@pytest.mark.parametrize("sampler", ["tpe", "random", "qmc", "gp"])
def test_search_storage_and_sampler(fake, sampler):
    import optuna

    line = f"transfer --search.lr log:1e-3:1e-1 --trials 7 --sampler {sampler} --storage sqlite:///o.db"
    assert main(line.split()) == 0
    (call,) = fake.calls
    assert call["study"].space["lr"] == optuna.distributions.FloatDistribution(1e-3, 1e-1, log=True)
    assert call["study"].n_trials == 7 and call["storage"] == "sqlite:///o.db"
    search = call["study"].search
    first = search.next([], [])
    assert search.next([first], [None]) != first
    assert type(search)(call["study"].space, 7, sampler).next([], []) == first  # seeded


def test_soap_has_learning_rates_of_its_own(fake):
    """Those of Adam are no sizes of updates: the usual one times √(1000/80), since proxy and target have 80 steps."""
    assert main(words("transfer darcy --optimizer soap")) == 0
    assert main(words("transfer darcy --optimizer soap --lr 0.02,0.04")) == 0
    stock, given = (list(call["study"].space["lr"]) for call in fake.calls)
    assert stock == pytest.approx([SOAP_LR * 12.5**0.5 * 2**i for i in (-2, -1, 0, 1, 2)], rel=5e-3) and given == [
        0.02,
        0.04,
    ]


def test_soap_tells_its_own_learning_rate_and_the_others_have_none(fake, capsys):
    assert main(words("transfer --optimizer soap")) == 0
    assert "aux_lr 0.004" in capsys.readouterr().out
    assert main(words("transfer --optimizer soap --aux_lr 0.008")) == 0
    assert main(words("transfer --optimizer soap --search.aux_lr 0.002,0.004")) == 0
    assert main(words("transfer --optimizer adam")) == 0
    stock, given, searched, adam = [call["study"].fixed for call in fake.calls]
    assert (stock["aux_lr"], given["aux_lr"], adam["aux_lr"]) == (0.004, 0.008, None) and "aux_lr" not in searched
    assert "| aux_lr " in Path("runs/burgers-transfer/report.md").read_text()


@pytest.mark.parametrize(
    ("devices", "line", "sees"),
    [
        (["0", "3"], "", ["0", "3"]),
        (["0", "3"], " --workers-per-device 2", ["0", "0", "3", "3"]),
        (["0", "3"], " --workers 3", ["0", "3", "0"]),
        ([], " --workers 2", [None, None]),
    ],
)
def test_each_gpu_has_a_worker_and_auto_without_one_is_the_cpu(fake, monkeypatch, devices, line, sees):
    monkeypatch.setattr(transfer, "cuda_devices", lambda device="cuda": devices if device in ("auto", "cuda") else [])
    assert main(words("transfer --device auto" + line)) == 0
    call = fake.calls[-1]
    assert call["study"].fixed["device"] == "auto"
    assert [own.get("CUDA_VISIBLE_DEVICES") for own in call["engine"]._free] == sees


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_told(capsys):
    assert main(words("transfer --device cuda --dry-run")) == 2
    assert "no CUDA device" in capsys.readouterr().err


@pytest.mark.parametrize("works", [False, True])
def test_an_odd_grid_is_told_where_the_layer_is_wrong_on_it(works, fake, capsys, monkeypatch):
    monkeypatch.setattr(looking, "odd_grids_work", lambda: works)
    assert main(words("transfer darcy-pino --preset paper")) == 0
    told = "61×61 points: the installed neuralop's SpectralConv is wrong on odd numbers of points"
    page = Path("runs/darcy-pino-transfer/report.md").read_text()
    assert (told in capsys.readouterr().out, told in page) == (not works, not works)
    assert main(words("transfer darcy-pino --problem.grid 32")) == 0
    assert "odd" not in capsys.readouterr().out


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_problem_has_sizes_that_can_be_built(name):
    """From its row, or from its grid where it has none."""
    for size in SIZES if (name, "gpu") in PRESETS else ("cpu",):
        if (name, size) not in PRESETS and size not in PROBLEMS[name].presets:
            continue
        problem = get_problem(name)
        preset = preset_of(problem, "cpu")
        for width, modes in (preset.proxy, preset.target):
            n_modes = (modes,) * problem.n_dim if isinstance(modes, int) else modes
            with torch.device("meta"):
                FNOs(problem.in_channels, problem.out_channels, problem.n_dim)(hidden_channels=width, n_modes=n_modes)
        assert preset.proxy[0] < preset.target[0]


def test_a_given_schedule_replaces_the_presets(fake):
    assert main(["transfer", "darcy", "--preset", "paper"]) == 0
    assert main(["transfer", "darcy", "--preset", "paper", "--schedule", "constant"]) == 0
    paper, given = [call["study"].fixed for call in fake.calls]
    assert (paper["epochs"], paper["schedule"], given["schedule"]) == (300, "halve:100,150,200", "constant")


def test_the_paper_clips_under_mup_only(fake, monkeypatch):
    monkeypatch.setattr(looking, "mode_energy", lambda *_: None)  # of fields of this size it takes a minute
    assert main(words("transfer navier-stokes --preset paper --optimizer adam")) == 0
    assert main(words("transfer navier-stokes --preset paper --optimizer adam --clip_spectral 0.1")) == 0
    paper, given = [call["study"] for call in fake.calls]
    assert paper.under == {"operator-norm": {"clip_spectral": 0.01}} and paper.fixed["clip_spectral"] is None
    assert given.under == {} and given.fixed["clip_spectral"] == 0.1


def test_failed_target_exits_1_and_failed_naive_transfer_does_not(fake, capsys):
    fake.fails = "operator-norm"
    assert main(["transfer"]) == 1
    assert "Training of the target failed under operator-norm" in capsys.readouterr().out
    fake.fails = "standard"
    assert main(words("transfer --rules standard")) == 0
    assert "under SP failed" in capsys.readouterr().out


def test_interrupt_exits_130_and_says_how_to_resume(fake, monkeypatch, capsys):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "run", stop)
    assert main(["transfer"]) == 130
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "the same command resumes" in err


def test_output_that_is_a_file_or_of_an_earlier_version(fake, elsewhere, capsys):
    (elsewhere / "file").write_text("")
    (elsewhere / "old").mkdir()
    (elsewhere / "old" / "journal.log").write_text("{}")
    for output, told in (("file", "is a file"), ("old", "a study of an earlier version")):
        assert main(["transfer", "--output", output]) == 2
        assert told in capsys.readouterr().err and fake.calls == []


def test_a_real_transfer_and_again(capsys):
    line = words(
        f"transfer {TINY} --lr 0.01,0.02 --seeds 1 --epochs 1 --batch_size 4 --output out --verify --workers 1",
        "--rules standard --model.n_layers 2 --proxy.hidden_channels 4 --proxy.n_modes 4",
        "--target.hidden_channels 8 --target.n_modes 8",
    )
    assert main(line) == 0
    out = capsys.readouterr().out
    assert "The best lr" in out and "| operator-norm" in out and "| SP" in out and "regret" in out
    kept = Path("out/results.jsonl").read_text()
    assert main(line) == 0
    assert Path("out/results.jsonl").read_text() == kept
    run = json.loads(Path("out/run.json").read_text())
    assert run["settings"]["problem"]["grid"] == 32
    assert run["command"].startswith("neuralop-mup transfer --problem.n_train 8")


def test_summary_formats(capsys):
    line = words(
        "summary --model.hidden_channels 64 --model.n_modes 32 --base.hidden_channels 16 --base.n_modes 8 --n_dim 1",
        "--rule log-modes",
    )
    assert main([*line, "--format", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    kernel = next(row for row in plan["rows"] if row["role"] == "spectral")
    # Width × 4; K from 4 to 16, so log K doubles: κ = 1/√2, and the learning rate is κ / 4.
    assert kernel["lr_mult"] == pytest.approx(0.5**0.5 / 4)
    assert main([*line, "--format", "markdown"]) == 0
    assert capsys.readouterr().out.startswith("| parameter |")
    assert main(line) == 0
    assert "μP plan, rule 'log-modes'" in capsys.readouterr().out


def test_summary_is_that_of_python(capsys):
    """With a base that names its width alone, and with none, which is the reference size."""
    for options, base in (("--base.hidden_channels 16", {"hidden_channels": 16}), ("", None)):
        assert main(words(f"summary --n_dim 1 --model.hidden_channels 64 --model.n_modes 24 {options}")) == 0
        assert capsys.readouterr().out.rstrip() == str(nm.summary(nm.parametrize(FNO((24,), 1, 1, 64), base))).rstrip()


def test_summary_of_a_model_too_big_for_memory(capsys):
    assert main(words("summary --n_dim 3 --model.n_modes 256 --model.hidden_channels 512 --rule none")) == 0
    assert "512×512×256×256×" in capsys.readouterr().out


def test_coord_check(capsys):
    line = words(f"coord-check {TINY} --widths 4,8 --steps 1,2 --seeds 2 --model.n_modes 4 --output out")
    code = main([*line, "--tolerance", "100"])
    out = capsys.readouterr().out
    record = json.loads(Path("out/coord_check.json").read_text())
    assert {row["size"] for row in record["records"]} == {4, 8} and {row["step"] for row in record["slopes"]} == {
        0,
        1,
        2,
    }
    # Two seeds of a tiny model: features at init scatter, whatever the updates are.
    assert code == 1 and record["passed"] is None and record["base"]["hidden_channels"] == 4
    assert "undecided: take more seeds (10, say); these 2 show neither" in out and "with --seeds 10 goes on" in out
    assert re.search(r"at init, slope [+-]\d\.\d\d ± \S+ \(-0\.10 to \+0\.10 passes\)", out)
    assert Path("out/coord_check.png").stat().st_size > 5_000
    assert "| block |" in Path("out/coord_check.md").read_text()


@pytest.mark.parametrize(("power", "code"), [(0.0, 0), (1.0, 1)])
def test_coord_check_says_what_the_slopes_show(power, code, capsys, monkeypatch):
    def seed(self, config):
        each = itertools.product(config["sizes"], ("body", "output"), (0, 1))
        rows = [
            {"size": s, "seed": config["seed"], "step": t, "block": b, "kind": "update" if t else "init", "value": s**power}
            for s, b, t in each
        ]
        return {"loss": power, "records": rows}

    monkeypatch.setattr(_Seeds, "__call__", seed)
    line = words(f"coord-check {TINY} --widths 4,8 --steps 1 --seeds 2 --model.n_modes 4 --output out --workers 1")
    assert main(line) == code
    out = capsys.readouterr().out
    assert json.loads(Path("out/coord_check.json").read_text())["passed"] is (code == 0)
    said = (
        "did not pass: body at init, slope +1.00 ± 0.00" if code else "passed: the steepest is the update of body at t = 1"
    )
    assert said in out and said in Path("out/coord_check.md").read_text()


def test_coord_check_names_the_furthest_beyond_its_limits_first():
    """In multiples of what passes: 0.55 of 0.5, 0.01 of 0.2."""
    found = (("body", "init", 0.11), ("body", "update", -0.8), ("output", "update", float("nan")))
    slopes = [{"block": b, "kind": k, "step": int(k == "update"), "slope": s, "reach": 0.0} for b, k, s in found]
    assert _verdict(judged(slopes), 3) == (
        "did not pass",
        "did not pass: the update of output at t = 1 is zero or not finite for some seed; the update of body at t = 1, "
        "slope -0.80 ± 0.00 (-0.25 to +0.25 passes); body at init, slope +0.11 ± 0.00 (-0.10 to +0.10 passes).",
    )


def test_coord_check_goes_on_where_it_was_and_calls_one_seed_too_few(capsys):
    line = words(f"coord-check {TINY} --widths 4,8 --steps 1 --model.n_modes 4 --output out --workers 1")
    assert main([*line, "--dry-run"]) == 0
    assert "2 sizes × 10 seeds" in capsys.readouterr().out and not Path("out").exists()
    assert main([*line, "--seeds", "1"]) == 0
    captured = capsys.readouterr()
    assert "One seed is too few to judge" in captured.out and "did not pass" not in captured.out
    assert "1 runs; results in out" in captured.err
    assert json.loads(Path("out/coord_check.json").read_text())["passed"] is None
    kept = json.loads(Path("out/coord_check.json").read_text())["records"]
    assert main([*line, "--seeds", "2"]) in (0, 1)
    assert "2 runs, 1 of them finished before" in capsys.readouterr().err
    assert json.loads(Path("out/coord_check.json").read_text())["records"][: len(kept)] == kept
    # Another learning rate is other runs in the same folder.
    assert main([*line, "--seeds", "2", "--lr", "0.5"]) in (0, 1)
    assert "2 runs; results" in capsys.readouterr().err


def test_coord_check_over_modes(capsys):
    line = words(f"coord-check {TINY} --modes 4,8 --steps 1 --seeds 1 --model.hidden_channels 4 --output out")
    assert main(line) == 0
    record = json.loads(Path("out/coord_check.json").read_text())
    assert record["varied"] == "n_modes" and record["base"]["n_modes"] == [4] and record["sizes"] == [4, 8]


def test_coord_check_tells_of_the_base_s_modes_whatever_is_left_to_do(capsys):
    """White noise: 4 of 12 modes keep a third of its energy."""
    x = np.random.default_rng(0).normal(size=(40, 1, 12)).astype("f4")
    np.savez("noise.npz", x=x, y=np.roll(x, 1, -1))
    line = words("coord-check --data noise.npz --modes 4,8 --steps 1 --seeds 1 --model.hidden_channels 4 --output out")
    for more in (["--dry-run"], [], []):  # the last has nothing to train
        assert main([*line, *more]) == 0
        assert "note    The proxy's modes keep too little of the targets' spectral energy" in capsys.readouterr().out
    assert main(words(f"coord-check {TINY} --modes 1,4 --model.hidden_channels 4 --dry-run")) == 0
    assert "The proxy's modes keep too little" in capsys.readouterr().out
    assert main(words("coord-check --data noise.npz --widths 4,8 --dry-run")) == 0
    assert "note" not in capsys.readouterr().out


def test_coord_check_on_files(capsys):
    x = np.random.default_rng(0).normal(size=(12, 1, 12)).astype("f4")
    np.savez("heat.npz", a=x, b=np.roll(x, 1, -1))
    line = words("coord-check --widths 4,8 --steps 1 --seeds 2 --data heat.npz")
    assert main(line) == 2 and "which is the input and which the output?" in capsys.readouterr().err
    line += words("--data.x a --data.y b")
    assert main([*line, "--dry-run"]) == 0  # 12 points hold 12 of the 16 modes that are the default
    out = capsys.readouterr().out
    assert "coord-check on heat, rule" in out and "read as 1 → 1 channels on 12 points" in out
    assert main([*line, "--model.n_modes", "16"]) == 2 and "beyond the grid of (12,) points" in capsys.readouterr().err
    assert main(line) in (0, 1)
    record = json.loads(Path("runs/heat-coord-check/coord_check.json").read_text())
    assert record["model"]["n_modes"] == [12]
    assert main(words("coord-check heat.npz")) == 2
    assert "heat.npz is a file and no problem: for data of your own write --data heat.npz" in capsys.readouterr().err
    assert main(words("coord-check burgers --data heat.npz")) == 2
    assert "takes the place of a problem" in capsys.readouterr().err
    assert main(words("coord-check --data.x a")) == 2
    assert "give the file" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["burgers", "darcy"])
def test_data(name, capsys, elsewhere):
    sizes = "--problem.n_train 8 --problem.n_val 4 --problem.n_test 4 --problem.grid 16"
    line = words(f"data {name} {sizes} --plot figures/samples.png")
    assert main(line) == 0
    out = capsys.readouterr().out
    shape = "8×1×16" if name == "burgers" else "8×1×16×16"
    (file,) = (elsewhere / "cache").glob("*.safetensors")
    assert f"| train x | {shape} " in out and str(file) in out
    assert Path("figures/samples.png").stat().st_size > 5_000
    assert main(["data", "--list"]) == 0
    out = capsys.readouterr().out
    assert file.name in out and "1 cached file in" in out


def test_data_of_ones_own(capsys):
    x = np.random.default_rng(0).normal(size=(30, 1, 12)).astype("f4")
    np.savez("heat.npz", a=x, b=np.roll(x, 1, -1))
    line = words("data --data heat.npz --data.x a --data.y b")
    assert main([*line, "--plot", "samples.png", "--spectrum", "energy.png"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("heat: 1 → 1 channels on 12 points; 24 train, 3 val, 3 test") and "input   a (" in out
    assert "| train x | 24×1×12 " in out and "keep 99.9 % of the targets' energy" in out
    assert min(Path(name).stat().st_size for name in ("samples.png", "energy.png")) > 5_000
    assert main(words("data burgers --data heat.npz")) == 2 and "takes the place of a problem" in capsys.readouterr().err
    assert main(words("data heat.npz --spectrum energy.png")) == 2
    assert "heat.npz is a file and no problem: for data of your own write --data heat.npz" in capsys.readouterr().err


def test_data_of_ones_own_that_is_read_batch_by_batch(capsys):
    h5py = pytest.importorskip("h5py")
    x = np.random.default_rng(0).normal(3, 2, size=(100, 1, 12)).astype("f4")
    with h5py.File("heat.h5", "w") as file:
        file["x"], file["y"] = x, np.roll(x, 1, -1)
    said = []
    for more in ([], words("--data.in_memory 1e-9")):
        assert main([*words("data --data heat.h5 --plot a.png --spectrum b.png"), *more]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]


def test_module_and_a_closed_pipe():
    """``python -m neuralop_mup`` works, and a reader that leaves early brings no traceback."""
    line = f"{sys.executable} -m neuralop_mup summary --n_dim 1 | head -n 1"
    root = str(Path(__file__).parents[1])
    done = subprocess.run(
        line, shell=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": root}, check=False
    )
    assert done.stdout.startswith("μP plan") and done.stderr == ""
