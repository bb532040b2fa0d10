"""The command: its options are the arguments of the Python functions; exit codes, one-line errors, a small run of each."""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.diagnostics.coord_check import CoordCheck
from neuralop_mup.errors import Diverged
from neuralop_mup.lab import cli
from neuralop_mup.lab.cli import COMMANDS, main, parser
from neuralop_mup.lab.problems import OwnData, get_problem

TINY = "--problem.n_train 8 --problem.n_val 4 --problem.n_test 4 --problem.grid 32 --problem.viscosity 0.1"
ROOT = Path(__file__).parents[2]


def call(line):
    """The exit code of a command line."""
    return main(line.split())


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """An empty working folder and cache for each test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEURALOP_MUP_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def heat():
    """A file of 40 samples on 12 points, with keys that nobody guesses."""
    x = np.random.default_rng(0).normal(3, 2, size=(40, 1, 12)).cumsum(-1).astype("f4")
    np.savez("heat.npz", a=x, b=np.roll(x, 1, -1))
    return torch.from_numpy(x)


@pytest.fixture
def tune(monkeypatch):
    """Trains nothing: with what it is called is appended to the list, and what it shall raise can be set."""

    @functools.wraps(cli.tuning.tune)
    def asked(build, data, **given):
        asked.calls.append({"build": build, "data": data, **given})
        if asked.fails:
            raise asked.fails

    asked.calls, asked.fails = [], None
    monkeypatch.setattr(cli.tuning, "tune", asked)
    return asked


# ------------------------------------------------------------------------------------------------------------- options


def test_help_and_version(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert [command for command in COMMANDS if f"\n    {command} " not in out] == []
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"neuralop-mup {nm.__version__}\n"


@pytest.mark.parametrize(
    ("command", "function"),
    [
        ("train", cli.tuning.train),
        ("tune", cli.tuning.tune),
        ("compare", cli.compare_ways),
        ("coord-check", nm.coord_check),
    ],
)
def test_options_are_the_arguments_of_python(command, function):
    """All that a shell can give, under the same names and with the same defaults."""
    options = {action.dest: action.default for action in parser(command)._actions}
    python = {n: p.default for n, p in inspect.signature(function).parameters.items() if p.kind is not p.VAR_KEYWORD}
    assert {*python} - {*options} <= {"build", "batches", "loss", "processor"}
    own = {
        "help",
        "version",
        "config",
        "print_config",
        *re.findall(r"^    (\w+): ", inspect.getsource(COMMANDS[command]), re.M),
    }
    assert {*options} <= {*python, *own}
    both = {n: v for n, v in python.items() if n in options and v is not inspect.Parameter.empty and not callable(v)}
    assert {n: options[n] for n in both} == both


@pytest.mark.parametrize("command", COMMANDS)
def test_help_explains_every_option(command, capsys):
    assert main([command, "--help"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("usage: neuralop-mup") and ":`" not in told
    assert [a.dest for a in parser(command)._actions if not a.help] == []


LINE = (
    "tune darcy --target.hidden_channels 12 --target.n_modes=4,6 --base.n_modes 4 --problem.grid 16 --problem.contrast 2,9 "
    "--space.lr 1e-3,0.002 --space.lr_mult.spectral 1,2 --compare standard --seeds 3 --epochs 3 --progress no --folder out "
    "--schedule constant"
)


def test_words_become_arguments(tune):
    assert call(LINE) == 0
    (asked,) = tune.calls
    build, data = asked.pop("build"), asked.pop("data")
    assert (data.name, data.grid, data.contrast, data.n_train) == ("darcy", 16, (2, 9), cli.PROBLEMS["darcy"]().n_train)
    assert (build.in_channels, build.n_dim) == (1, 2)
    assert asked["target"] == {"hidden_channels": 12, "n_modes": (4, 6)} and asked["base"] == {"n_modes": (4, 4)}
    assert asked["space"] == {"lr": [0.001, 0.002], "lr_mult.spectral": [1, 2]}
    assert (asked["compare"], asked["seeds"], asked["epochs"], asked["progress"]) == (["standard"], [3], 3, False)
    assert (asked["folder"], asked["schedule"]) == (Path("out"), "constant")


def test_a_file_of_options_says_the_same(tune):
    assert call(LINE) == 0
    Path("options.yaml").write_text(
        "data: darcy\ntarget: {hidden_channels: 12, n_modes: [4, 6]}\nbase: {n_modes: 4}\nspace: {lr: [1e-3, 0.002], "
        "lr_mult.spectral: [1, 2]}\nproblem: {grid: 16, contrast: [2, 9]}\ncompare: [standard]\nseeds: [3]\nepochs: 5\n"
        "progress: false\nfolder: out\nschedule: constant\n"
    )
    assert call("tune --config options.yaml --epochs 3") == 0
    first, second = tune.calls
    assert first == second


def test_without_a_word_target_and_folder_follow_from_the_data(tune, heat):
    assert main(["tune"]) == call("tune heat.npz --read.x a --read.y b") == 0
    problem, own = tune.calls
    assert problem["data"] == get_problem("burgers") and problem["folder"] == Path("runs/burgers-tune")
    assert problem["target"] == {"hidden_channels": 64, "n_modes": (32,)}
    assert (own["data"].title, own["data"].x, own["folder"]) == ("heat", "a", Path("runs/heat-tune"))
    assert own["target"] == {"hidden_channels": 64, "n_modes": (6,)} and own["base"] is own["space"] is None


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("trasfer", "'trasfer' (choose from"),
        ("--vers", "--vers"),
        ("tune --sedes 3", "'tune' has no option '--sedes'; did you mean '--seeds'?"),
        ("tune --epochs x", 'Parser key "epochs"'),
        ("tune --epochs", "expected one argument"),
        ("tune --seeds many", 'Parser key "seeds"'),
        ("tune --config nowhere.yaml", "nowhere.yaml"),
        ("tune burger", "did you mean 'burgers'?"),
        ("tune heatt", "no problem 'heatt', and no file or folder; expected one of burgers, darcy, darcy-pino, heat.npz"),
        ("tune --problem.viscosty 3", "did you mean 'viscosity'?"),
        ("tune --problem.viscosity 0", "above 0"),
        ("tune --read.x u", "The problem 'burgers' has no argument 'x'"),
        ("tune --data nowhere.npz", "There is no file or folder nowhere.npz"),
        ("tune --data heat.csv", "heat.csv"),
        ("tune --data heat.npz", "which is the input and which the output?"),
        ("tune heat.npz --read.x a --read.y b --problem.viscosity 1", "has no argument 'viscosity'"),
        ("tune --space.lr 0.1", "lr"),
        ("tune --space.lr 1,1", "twice"),
        ("tune --rule log-mods", "'log-modes'"),
        ("tune --compare log-modes,nome", "'none'"),
        ("tune --optimizer adm", "'adam'"),
        ("tune --device gpu", "such as cpu or cuda:0, or auto; it is 'gpu'"),
        ("tune --sedule.x constant", "'--schedule'"),
        ("tune --target.heads 4", "heads"),
        ("tune --target.n_modes 8,8", "has 1 axes"),
        ("tune --target.n_modes 512", "beyond the grid"),
        ("tune --seeds -1", "-1"),
        ("compare --epochs 0", "1 or more"),
        ("compare burger", "did you mean 'burgers'?"),
        ("compare burgers --target.n_modes 500", "beyond the grid"),
        ("summary --format txt", "format"),
        ("summary --rule log", "log-modes"),
        ("summary --base nowhere.json", "nowhere.json"),
        ("coord-check --model.n_modes 300", "beyond the grid"),
        ("coord-check --size_name width", "size_name"),
    ],
)
def test_mistakes_take_one_line_and_exit_2(line, told, capsys, elsewhere, heat, monkeypatch):
    small = {"n_train": 20, "n_val": 10, "n_test": 4, "grid": 32, "viscosity": 0.1}
    made = {"data": {}, "burgers": small}
    monkeypatch.setattr(cli, "get_problem", lambda name, **given: get_problem(name, **made.get(name, {}) | given))
    assert call(line) == 2
    captured = capsys.readouterr()
    *generated, error = captured.err.splitlines()
    assert told in error and error.startswith("neuralop-mup: error: ") and not any("Error" in word for word in generated)
    assert captured.out == "" and {path.name for path in elsewhere.iterdir()} <= {"heat.npz", "cache"}


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (Diverged("No run completed"), 1, "No run completed"),
        (nm.MupError("Two\nlines"), 2, "Two lines"),
        (KeyboardInterrupt(), 130, "the same command resumes"),
    ],
)
def test_exit_codes(error, code, told, tune, capsys):
    tune.fails = error
    assert main(["tune"]) == code
    err = capsys.readouterr().err
    assert told in err and err.count("\n") == 1


def test_module_and_a_closed_pipe():
    """``python -m neuralop_mup`` works, and a reader that leaves early brings no traceback."""
    line = f"{sys.executable} -m neuralop_mup summary --n_dim 1 | head -n 1"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, shell=True, capture_output=True, text=True, env=env)
    assert done.stdout.startswith("μP plan") and done.stderr == ""


# ------------------------------------------------------------------------------------------------------------ commands


def test_a_real_tune_and_again(heat, capsys):
    line = "tune heat.npz --read.x a --read.y b --target.hidden_channels 8 --target.n_modes 4 --base.hidden_channels 4 "
    line += "--base.n_modes 2 --space.lr 0.01,0.02 --seeds 0 --epochs 1 --batch_size 8 --n_workers 1"
    with mock.patch.object(OwnData, "load", autospec=True, side_effect=OwnData.load) as load:
        assert call(line) == 0
    assert load.call_count == 1  # of what may be large
    out = capsys.readouterr().out
    assert "read as" in out and "The best lr 0.0" in out and "Report, figures and every run: runs/heat-tune" in out
    kept = Path("runs/heat-tune/results.jsonl").read_text()
    assert call(line) == 0 and Path("runs/heat-tune/results.jsonl").read_text() == kept
    Path("heat.npz").unlink()  # not needed any more
    exec(out.splitlines()[-1].removeprefix("In Python: "), names := {"nm": nm, "x": heat})
    tuned = names["tuned"]
    own = heat[tuned.split["val"]]
    error = (tuned.predict(own) - own.roll(1, -1)).flatten(1).norm(dim=1) / own.flatten(1).norm(dim=1)
    assert float(error.mean()) == pytest.approx(tuned.loss, rel=1e-4)  # in the units of the file


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_told(capsys):
    assert main(["tune", *TINY.split(), "--device", "cuda"]) == 2
    assert "no CUDA device" in capsys.readouterr().err


def test_a_name_with_a_comma_is_one_file_where_it_is_there(heat, capsys):
    Path("heat.npz").rename("heat,wide.npz")
    assert call("data heat,wide.npz --read.x a --read.y b") == 0
    assert "32 train, 4 val, 4 test" in capsys.readouterr().out
    for name in ("heat", "wide.npz"):
        np.savez(name, a=heat, b=heat)
    assert call("data heat.npz,wide.npz --read.x a --read.y b") == 0
    assert "64 train, 8 val, 8 test" in capsys.readouterr().out


def test_summary_formats(capsys):
    line = "summary --model.hidden_channels 64 --model.n_modes 32 --base.hidden_channels 16 --base.n_modes 8 --n_dim 1"
    line += " --rule log-modes"
    assert call(f"{line} --format json") == 0
    plan = json.loads(capsys.readouterr().out)
    kernel = next(row for row in plan["rows"] if row["role"] == "spectral")
    # Width × 4; K from 4 to 16, so log K doubles: κ = 1/√2, and the learning rate is κ / 4.
    assert kernel["lr_mult"] == pytest.approx(0.5**0.5 / 4)
    assert call(f"{line} --format markdown") == 0 and capsys.readouterr().out.startswith("| parameter |")


@pytest.mark.parametrize(("options", "base"), [("--base.hidden_channels 16", {"hidden_channels": 16}), ("", None)])
def test_summary_is_that_of_python(options, base, capsys):
    """With a base that names its width alone, and with none, which is the reference size."""
    assert call(f"summary --n_dim 1 --model.hidden_channels 64 --model.n_modes 24 {options}") == 0
    assert capsys.readouterr().out.rstrip() == str(nm.summary(nm.parametrize(FNO((24,), 1, 1, 64), base))).rstrip()


def test_summary_of_a_model_too_big_for_memory(capsys):
    assert call("summary --n_dim 3 --model.n_modes 256 --model.hidden_channels 512 --rule none") == 0
    assert "512×512×256×256×" in capsys.readouterr().out


@pytest.mark.parametrize(
    "line",
    [
        f"{TINY} --sizes 4,8 --model.n_modes 4",
        "heat.npz --read.x a --read.y b --size_name n_modes --sizes 4,8 --model.hidden_channels 4",
    ],
)
def test_coord_check(line, capsys, heat):
    assert call(f"coord-check {line} --steps 1,2 --seeds 1 --optimizer soap --folder out") == 0
    assert "one seed is too few to judge" in capsys.readouterr().out
    assert "update 2, fno_blocks.0: " in Path("out/coord_check.md").read_text()
    assert Path("out/coord_check.png").stat().st_size > 5_000


@pytest.mark.parametrize(
    ("power", "spread", "code", "said"),
    [(0.0, 0, 0, "passed"), (1.0, 0, 1, "did not pass"), (0.15, 0.5, 1, "undecided")],
)
def test_coord_check_says_what_the_slopes_show(power, spread, code, said, capsys, monkeypatch):
    def check(build, sizes, batches, **_):
        each = [(s, seed, b, t) for s in sizes for seed in (-1, 1) for b in ("body", "output") for t in (0, 1)]
        kinds = ("init", "update")
        rows = [
            {"size": s, "seed": seed, "step": t, "block": b, "kind": kinds[t], "value": s ** (power + seed * spread)}
            for s, seed, b, t in each
        ]
        return CoordCheck(rows, "hidden_channels")

    monkeypatch.setattr(cli.diagnostics, "coord_check", check)
    assert call(f"coord-check {TINY} --sizes 4,8 --model.n_modes 4 --folder out") == code
    assert f": {said}.\n" in capsys.readouterr().out and f": {said}\n" in Path("out/coord_check.md").read_text()


@pytest.mark.parametrize("name", ["burgers", "darcy"])
def test_data_of_a_problem(name, capsys, elsewhere):
    sizes = "--problem.n_train 8 --problem.n_val 4 --problem.n_test 4 --problem.grid 16"
    assert call(f"data {name} {sizes}") == 0
    out = capsys.readouterr().out
    shape = "(8, 1, 16)" if name == "burgers" else "(8, 1, 16, 16)"
    (file,) = (elsewhere / "cache").glob("*.safetensors")
    assert f"train       x {shape}, y {shape}\n" in out and str(file) in out


def test_data_of_ones_own(heat, capsys):
    h5py = pytest.importorskip("h5py")
    with h5py.File("heat.h5", "w") as file:
        file["a"], file["b"] = heat, heat.roll(1, -1)
    said = []
    for more in ("heat.npz", "heat.h5 --read.in_memory 1e-9"):  # as a whole, and batch by batch
        assert call(f"data {more} --read.x a --read.y b") == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] and "x (32, 1, 12)" in said[0] and "keep 99.9 % of the targets' energy" in said[0]
