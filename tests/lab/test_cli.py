"""The command line: its options are the arguments of the Python functions. Exit codes, errors, small runs."""

import functools
import json
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

import neuralop_mup as nm
from neuralop_mup.diagnostics.coord_check import CoordCheck
from neuralop_mup.errors import Diverged
from neuralop_mup.lab import commands
from neuralop_mup.lab.cli import in_full, main
from neuralop_mup.lab.problems import OwnData, get_problem
from support.files import write
from support.processes import environment
from support.studies import relative_error

TINY = "--problem.n_train 8 --problem.n_val 4 --problem.n_test 4 --problem.grid 32 --problem.viscosity 0.1"


def call(line):
    """The exit code of a command line."""
    return main(line.split())


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty working folder for each test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def heat():
    """A file of 40 samples on 12 points, with keys that nobody guesses."""
    x = np.random.default_rng(0).normal(3, 2, size=(40, 1, 12)).cumsum(-1).astype("f4")
    write("heat.npz", a=x, b=np.roll(x, 1, -1))
    return torch.from_numpy(x)


@pytest.fixture
def tune(monkeypatch):
    """Replace nm.tune by a function that keeps its arguments and trains nothing."""
    replaced = functools.wraps(commands.tuning.tune)(mock.Mock())
    monkeypatch.setattr(commands.tuning, "tune", replaced)
    return replaced


# ------------------------------------------------------------------------------------------------------------- options


LINE = (
    "tune darcy --target.hidden_channels 12 --target.n_modes=4,6 --base.n_modes 4 --problem.grid 16 --problem.contrast 2,9 "
    "--space.lr 1e-3,0.002 --space.lr_mult.spectral 1,2 --compare standard --seeds 3 --epochs 3 --progress no --folder out "
    "--schedule constant"
)
CONFIG = """{data: darcy, target: {hidden_channels: 12, n_modes: [4, 6]}, base: {n_modes: 4},
problem: {grid: 16, contrast: [2, 9]}, space: {lr: [1e-3, 0.002], lr_mult.spectral: [1, 2]},
compare: [standard], seeds: [3], epochs: 5, progress: false, folder: out, schedule: constant}"""


def test_options_on_the_command_line_and_in_a_file(tune):
    Path("options.yaml").write_text(CONFIG)
    assert call(LINE) == call("tune --config options.yaml --epochs 3") == 0
    first, second = tune.call_args_list
    assert first == second
    data = first.args[1]
    assert (data.name, data.grid, data.contrast, data.n_train) == ("darcy", 16, (2, 9), commands.PROBLEMS["darcy"]().n_train)
    expected = {
        "target": {"hidden_channels": 12, "n_modes": (4, 6)},
        "base": {"n_modes": (4, 4)},
        "space": {"lr": [0.001, 0.002], "lr_mult.spectral": [1, 2]},
        **{"compare": ["standard"], "seeds": [3], "epochs": 3, "progress": False},
        **{"folder": Path("out"), "schedule": "constant"},
    }
    assert {name: first.kwargs[name] for name in expected} == expected


def test_a_single_value_of_a_space_needs_no_brackets(tune):
    assert call("tune --space.lr 0.1 --space.lr_mult.spectral 2") == 0
    assert tune.call_args.kwargs["space"] == {"lr": [0.1], "lr_mult.spectral": [2]}


def test_defaults_follow_from_the_data(tune, heat):
    assert main(["tune"]) == call("tune heat.npz --read.x a --read.y b") == 0
    problem, own = tune.call_args_list
    assert (problem.args[1], own.args[1].x) == (get_problem("burgers"), "a")
    for tuned, folder, modes in ((problem, "runs/burgers-tune", (32,)), (own, "runs/heat-tune", (6,))):
        expected = {"folder": Path(folder), "base": None, "space": None}
        assert {name: tuned.kwargs[name] for name in expected} == expected
        assert tuned.kwargs["target"] == {"hidden_channels": 64, "n_modes": modes}


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("trasfer", "trasfer"),
        ("tunee heat.npz", "did you mean 'tune'?"),
        ("--vers", "--vers"),
        ("--verison", "did you mean '--version'?"),
        ("train heat.npz --lr fast", "--lr must be a number, but got 'fast'."),
        ("train heat.npz --target 8", "--target must be names and values, such as --target.NAME VALUE, but got '8'."),
        ("tune heat.npz --epochs 3h", "--epochs must be an integer, but got '3h'."),
        ("tune heat.npz --n_workers two", "--n_workers must be an integer, but got 'two'."),
        ("tune heat.npz --progress maybe", "--progress must be yes or no, but got 'maybe'."),
        ("summary --format pdf", "--format must be one of 'text', 'markdown', 'json', but got 'pdf'."),
        ("train heat.npz --config heat.npz", "--config"),
        ("train heat.npz -dash.npz", "./-name"),
        ("train heat.npz --read.x a --read.y b --target.hiden_channels 8", "did you mean 'hidden_channels'?"),
        ("train heat.npz --n_modes 8", "--target.n_modes,"),
        ("tune --sedes 3", "--seeds"),
        ("tune --config nowhere.yaml", "nowhere.yaml"),
        ("tune burger", "'burgers'"),
        ("tune heatt", "heat.npz"),
        ("tune --problem.viscosty 3", "'viscosity'"),
        ("tune --read.x u", "'x'"),
        ("tune --data nowhere.npz", "nowhere.npz"),
        ("tune --data heat.npz", "--read.x"),
        ("tune heat.npz --read.x a --read.y b --problem.viscosity 1", "'viscosity'"),
        ("tune --optimizer adm", "'adam'"),
        ("tune --device gpu", "'gpu'"),
        ("tune --device cuda", "CUDA"),
        ("tune --sedule.x constant", "'--schedule'"),
        ("tune --target.heads 4", "heads"),
        ("tune --target.n_modes 8,8", "n_modes"),
        ("compare --epochs 0", "epochs"),
        ("summary --base nowhere.json", "nowhere.json"),
        ("coord-check --model.n_modes 300", "n_modes"),
    ],
)
def test_mistakes_take_one_line_and_exit_with_2(line, name, capsys, folder, heat, monkeypatch):
    small = {"n_train": 20, "n_val": 10, "n_test": 4, "grid": 32, "viscosity": 0.1}
    sizes = {"data": {}, "burgers": small}
    monkeypatch.setattr(commands, "get_problem", lambda name, **given: get_problem(name, **sizes.get(name, {}) | given))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert call(line) == 2
    captured = capsys.readouterr()
    *notes, error = captured.err.splitlines()
    assert error.startswith("neuralop-mup: error: ")
    assert name in error
    assert [captured.out, *(note for note in notes if "Error" in note)] == [""]
    assert [path.name for path in folder.iterdir()] == ["heat.npz"]


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (Diverged("No run completed"), 1, "No run completed"),
        (nm.MupError("Two\nlines"), 2, "Two lines"),
        (KeyboardInterrupt(), 130, "resume"),
    ],
)
def test_exit_codes(error, code, text, tune, capsys):
    tune.side_effect = error
    assert main(["tune"]) == code
    assert [text in line for line in capsys.readouterr().err.splitlines()] == [True]


def test_the_module_and_a_closed_pipe():
    """A reader that leaves early brings no traceback."""
    line = f"{sys.executable} -m neuralop_mup summary --n_dim 1 | head -n 1"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, env=environment())
    assert (done.stdout[:7], done.stderr) == ("μP plan", "")


# ------------------------------------------------------------------------------------------------------------ commands


def test_tune_trains_resumes_and_predicts(heat, capsys):
    line = "tune heat.npz --read.x a --read.y b --target.hidden_channels 8 --target.n_modes 4 --base.hidden_channels 4 "
    line += "--base.n_modes 2 --space.lr 0.01,0.02 --seeds 0 --epochs 1 --batch_size 8 --n_workers 1"
    with mock.patch.object(OwnData, "load", autospec=True, side_effect=OwnData.load) as load:
        assert call(line) == 0
    assert load.call_count == 1  # the data may be large
    python = capsys.readouterr().out.splitlines()[-1]
    file = Path("runs/heat-tune/results.jsonl")
    results = file.read_text()
    assert (call(line), file.read_text()) == (0, results)
    Path("heat.npz").unlink()  # predict does not need it
    exec(python.removeprefix("In Python: "), names := {"nm": nm, "x": heat})
    tuned = names["tuned"]
    x = heat[tuned.split["val"]]
    assert relative_error(tuned.predict(x), x.roll(1, -1)) == pytest.approx(tuned.loss, rel=1e-4)  # in the units of the file


def test_several_files(heat, capsys):
    write("wide.npz", a=heat, b=heat)
    assert call("data heat.npz,wide.npz --read.x a --read.y b") == 0
    assert "64 train, 8 val, 8 test" in capsys.readouterr().out


def test_summary_as_json(capsys):
    line = "summary --model.hidden_channels 64 --model.n_modes 32 --base.hidden_channels 16 --base.n_modes 8 --n_dim 1"
    assert call(f"{line} --rule log-modes --format json") == 0
    kernel = next(row for row in json.loads(capsys.readouterr().out)["rows"] if row["role"] == "spectral")
    # Width × 4; K from 4 to 16, so log K doubles: κ = 1/√2, and the learning rate is κ / 4.
    assert kernel["lr_mult"] == pytest.approx(0.5**0.5 / 4)


def test_coord_check_on_a_file(capsys, heat):
    line = "coord-check heat.npz --read.x a --read.y b --size_name n_modes --sizes 4,8 --model.hidden_channels 4"
    assert call(f"{line} --steps 1,2 --seeds 1 --optimizer soap --folder out") == 1
    assert ": undecided" in capsys.readouterr().out
    assert "update 2, fno_blocks.0: " in Path("out/coord_check.md").read_text()
    assert call(f"{line} --steps 1,2 --seeds 1 --optimizer soap --folder out") == 1
    assert "replaced" not in capsys.readouterr().out
    assert call(f"{line} --steps 1 --seeds 1 --optimizer soap --folder out") == 1
    assert "coord_check.md were replaced. To keep both, pass another folder, such as --folder" in capsys.readouterr().out
    assert Path("out/coord_check.png").stat().st_size > 5_000


@pytest.mark.parametrize(
    ("power", "spread", "code", "outcome"),
    [(0.0, 0, 0, "passed"), (1.0, 0, 1, "did not pass"), (0.15, 0.5, 1, "undecided")],
)
def test_the_outcome_of_coord_check_follows_the_slopes(power, spread, code, outcome, capsys, monkeypatch):
    def check(build, sizes, batches, **_):
        rows = [
            {"size": size, "seed": seed, "step": t, "block": block, "kind": kind, "value": size ** (power + seed * spread)}
            for size in sizes for seed in (-1, 1) for block in ("body", "output") for t, kind in ((0, "init"), (1, "update"))
        ]  # fmt: skip
        return CoordCheck(rows, "hidden_channels")

    monkeypatch.setattr(commands.diagnostics, "coord_check", check)
    monkeypatch.setattr(CoordCheck, "plot", lambda *_, **__: None)
    assert call(f"coord-check {TINY} --sizes 4,8 --model.n_modes 4 --folder out") == code
    for text in (capsys.readouterr().out, Path("out/coord_check.md").read_text()):
        assert f": {outcome}" in text


def test_tuples_and_dicts_are_written_as_in_python():
    """Messages suggest such options, but brackets in other texts, such as names of files, are kept."""
    line = [
        "train",
        "--data",
        "(1).npz",
        "--target.n_modes",
        "(8, 8)",
        "--read.crop",
        "{'x': (0, -1)}",
        "--read.split=(8,1,1)",
    ]
    expected = ["train", "--data", "(1).npz", "--target.n_modes", "[8, 8]", "--read.crop", "{'x': [0, -1]}"]
    assert in_full(line) == [*expected, "--read.split=[8,1,1]"]
