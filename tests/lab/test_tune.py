"""``nm.tune``: a model and data of the user's own, in each form that data may have."""

from __future__ import annotations

import functools
import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from neuralop.data.transforms.data_processors import DataProcessor, DefaultDataProcessor
from neuralop.models import FNO
from torch.utils.data import DataLoader, Subset, TensorDataset

import neuralop_mup as nm
from neuralop_mup.lab import plan
from neuralop_mup.lab.cli import main
from neuralop_mup.lab.files import keep_weights, read_weights
from neuralop_mup.lab.plan import data_notes
from neuralop_mup.lab.problems import get_problem
from neuralop_mup.lab.problems.data import normalizer_of
from neuralop_mup.lab.problems.given import as_source
from neuralop_mup.lab.settings import optimizer_of
from support.comparing import differing

BASE, TARGET = {"hidden_channels": 4, "n_modes": (4,)}, {"hidden_channels": 8, "n_modes": (8,)}
QUICK = {"epochs": 2, "batch_size": 8, "space": {"lr": [0.005, 0.02]}, "progress": False, "n_workers": 1}


def build(**size):
    return FNO(in_channels=1, out_channels=1, n_layers=2, **size)


def fields(n=32, seed=0):
    x = torch.randn(n, 1, 32, generator=torch.Generator().manual_seed(seed)).cumsum(-1)
    return x, 3.0 * x.roll(1, -1) + 1.0


def saved(pair, path):
    """The arrays of a pair in a file."""
    np.savez(path, **{key: np.asarray(values) for key, values in zip("xy", pair, strict=True)})
    return path


def loaders():
    """Called in each worker."""
    return {k: DataLoader(TensorDataset(*fields(n, i)), 8) for i, (k, n) in enumerate((("train", 32), ("val", 8)))}


def two_to_one():
    """Two channels in, one out."""
    x, y = fields()
    return torch.cat([x, x], dim=1), y


def spoilt(pair, which, sample):
    """A pair with one entry that is no number."""
    pair[which][sample, 0, 3] = torch.nan
    return pair


def silent(pair, sample):
    """A pair with one target that is zero everywhere."""
    pair[1][sample] = 0
    return pair


def sets(pair):
    """As a data set."""
    return TensorDataset(*pair)


def mean_over_the_batch(y_pred, y, **_):
    return (y_pred - y).square().mean()


def mean_square(y_pred, y, **_):
    return (y_pred - y).square().mean(dim=(1, 2)).sum()


def test_a_model_and_tensors_give_a_trained_target_and_the_same_call_resumes(tmp_path):
    data = {"train": fields(), "val": fields(8, 1), "test": fields(8, 2)}
    asked = {"base": BASE, "target": TARGET, "folder": tmp_path / "s", "compare": ("standard",), **QUICK}
    tuned = nm.tune(build, data, **asked)
    assert tuned.lr in (0.005, 0.02) and tuned.params == {"lr": tuned.lr} and tuned.report.exists()
    assert nm.is_parametrized(tuned.model)
    assert tuned.model.fno_blocks.convs[0].weight.shape[0] == 8 and not tuned.model.training
    rows = {r["rule"]: r for r in tuned.results.summary() if r["size"] == "target"}
    assert set(rows) == {"operator-norm", "standard"} and rows["operator-norm"]["transferred_loss"] == tuned.loss
    assert rows["operator-norm"]["transferred_test"] > 0
    again = nm.tune(build, data, **asked)
    assert again.results.records == tuned.results.records
    assert differing(again.model, tuned.model) == 0


def datasets():
    """As neuralop's: a sample is a dict."""
    return [Subset([{"x": x, "y": y} for x, y in zip(*fields(n, i), strict=True)], range(n)) for i, n in enumerate((32, 8))]


@pytest.mark.parametrize(
    "data",
    [Path("heat.npz"), tuple(loaders().values()), tuple(datasets()), loaders],
    ids=["file", "loaders", "sets", "function"],
)
def test_forms_of_data(tmp_path, monkeypatch, data):
    monkeypatch.chdir(tmp_path)
    saved(fields(40), "heat.npz")
    tuned = tuned_on(tmp_path / "s", data)
    assert {r["rule"] for r in tuned.results.records} == {"operator-norm"} and np.isfinite(tuned.loss)
    assert ("heat" in tuned.report.read_text().splitlines()[0]) == (data == Path("heat.npz"))


def test_masters_losses_and_workers(tmp_path):
    quick = {**QUICK, "space": {"lr": [0.01], "lr_mult.spectral": [1.0, 4.0]}, "n_workers": 2}
    losses = {"mse": mean_square, "sharp": (0.1, mean_square)}
    tuned = nm.tune(build, loaders, base=BASE, target=TARGET, folder=tmp_path / "s", loss=losses, optimizer="adamw", **quick)
    assert set(tuned.params) == {"lr", "lr_mult.spectral"} and tuned.lr == 0.01
    done = tuned.results.records[0]["metrics"]
    assert {"loss", "sharp_loss"} <= set(done) and done["sharp_loss"] == pytest.approx(done["loss"])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"base": TARGET, "target": BASE}, "tuning the base saves nothing"),
        ({"base": 3}, "must be a dict"),
        ({"base": {"width": 3}}, r"build\(\*\*{.*'width': 3}\) fails at the base"),
        ({"data": 3}, "data is a int; give the path"),
        ({"data": (loaders,)}, "data is a tuple; give"),
        ({"data": "nowhere.npz"}, "There is no file or folder nowhere.npz"),
        ({"loss": "l3"}, "loss='l3' must be 'l2', 'h1'"),
        ({"loss": 3}, "loss=3 must be"),
        ({"optimizer": "adm"}, "'adam"),
        ({"rule": "log-mods"}, "'log-modes'"),
        ({"optimizer": "MuSOUP"}, "did you mean 'MuSOAP'"),
        ({"optimizer": torch.optim.SGD}, "optimizer SGD says nothing of how it is made.*give a function"),
        ({"build": "FNO"}, "must be a function"),
        ({"target": {"hidden": 24, "n_modes": (8,)}}, "fails at the target: .*unexpected keyword argument 'hidden'"),
        (
            {"target": {"hidden_channels": 0, "n_modes": (8,)}},
            "'hidden_channels': 0, .* fails at the target: ZeroDivisionError",
        ),
        (
            {"build": FNO((4,), 1, 1, 4, n_layers=1)},
            "^build is a model, a FNO, and must be a function",
        ),
        ({"loss": mean_over_the_batch}, r"The loss is a mean over the batch: .* sum over the samples, such as \(\("),
        ({"loss": {"a": mean_square, "b": mean_over_the_batch}}, "The loss 'b' is a mean over the batch"),
        ({"data": lambda: [fields(), silent(fields(8), 3)]}, "y of val is zero everywhere in sample 3"),
        ({"data": lambda: [sets(fields()), sets(spoilt(fields(8), 1, 6))]}, "y of val has entries .* finite, in sample 6"),
        ({"data": lambda: [fields(), [f[..., ::8] for f in fields(8)]]}, r"Of the val data, on 4 points: n_modes = \(8,\)"),
        ({"data": fields(4)}, "the data given has 4 samples"),
        ({"data": fields(40)[:1] * 3}, "train a Tensor, val a Tensor, test a Tensor: give each split alike, as a pair"),
        ({"data": tuple(f.tolist() for f in fields())}, "A batch of the data is a list, .*np.asarray"),
        ({"data": [DataLoader(TensorDataset(*fields(), fields()[0]), 8)] * 2}, "A batch of the data is a list, "),
        ({"data": (fields(), loaders()["val"])}, "train a pair of arrays, val a DataLoader: give each split alike"),
        ({"data": ((fields()[0], fields(31)[1]), fields(8))}, "as many samples of each"),
        ({"data": (fields(), [f.repeat(1, 2, 1) for f in fields(8)])}, "val has x of .* must have the same channels"),
        (
            {"data": ([f.movedim(1, -1) for f in two_to_one()], fields(8))},
            r"val has x of shape \(8, 1, 32\) .* and train \(32, 32, 2\) and",
        ),
        (
            {
                "data": [tuple(f.to(torch.cfloat) for f in fields())] * 2,
                "build": functools.partial(build, complex_data=True, positional_embedding=None),
            },
            "loss='l2' with complex targets.*a function of your own",
        ),
        ({"data": (fields(), fields(0))}, r"val has x of shape \(0, 1, 32\) .*one or more"),
        ({"data": (two_to_one(), two_to_one())}, r"fails on a batch of the data, x of shape \(2, 2, 32\)"),
        ({"data": ([two_to_one()[1], two_to_one()[0]],) * 2}, r"gives fields of shape \(1, 32\).*out_channels"),
        ({"data": (spoilt(fields(), 1, 5), fields(8))}, "y of train has entries that are not finite, in sample 5"),
        ({"data": spoilt(fields(40), 0, 7)}, "x in the data given has entries that are not finite, in sample 7"),
        (
            {"data": lambda: [DataLoader(TensorDataset(*spoilt(fields(), 1, 5)), 8)] * 2},
            "y of train has entries that are not finite, in sample 5",
        ),
        ({"data": (fields(), fields(8)), "batch_size": 64}, "A batch of 64 is larger than the training data, 32 samples"),
        ({"target": {"hidden_channels": 8, "n_modes": (64,)}}, "beyond the grid"),
        ({"data": fields(40), "read": {"shufle": 1}}, "read has no argument 'shufle'; did you mean 'shuffle'"),
        ({"data": loaders(), "read": {"x": "a"}}, "read= says how files or arrays"),
        ({"data": fields(40), "read": "channels=last"}, "must be a dict of how files are read"),
        ({"data": fields(40), "read": {"shuffle": "no"}}, "shuffle is 'no'; give True or False"),
        ({"data": fields(40), "read": {"crop": "no"}}, "crop is 'no'; give True or False"),
        ({"data": fields(40), "read": {"split": "0.6,0.2,0.2"}}, r"must be three shares, for train, val and test.*\(0\.8"),
        ({"data": fields(40), "read": {"in_memory": "2"}}, "in_memory is '2'; give a finite number"),
        ({"data": {"trian": fields(), "val": fields(8)}}, "data names 'trian'.*'train'"),
        (
            {"data": [[f.movedim(1, -1) for f in fields(n)] for n in (32, 8)]},
            "fails on a batch of the data.*where channels are last",
        ),
        ({"build": lambda **_: None}, "and must return a model"),
        ({"processor": 3}, "must be one of neuralop's data processors"),
        ({"space": [0.1]}, r"The space is \[0\.1\]; give a dict .*: {'lr': \[0\.1\]}\.$"),
        ({"space": {"lr": [1e-3, 0.0]}}, "lr is 0.0; give a finite number above 0"),
        ({"space": {"lr": [1e-3], "weight_decay": [0.0, -1.0]}}, "weight_decay is -1.0"),
        ({"epochs": 1.5}, "epochs is 1.5; give a whole number"),
        ({"batch_size": 0}, "batch_size is 0; give a whole number"),
        ({"beta2": 2}, "beta2 is 2; give a number of 0 or more and below 1"),
        ({"seeds": (-1,)}, "seed is -1; give a whole number"),
        ({"compare": "standard"}, "compare='standard' must be a sequence"),
        (
            {"loss": lambda y_pred, y, **_: (y_pred - y).abs()},
            r"The loss gives a tensor of shape .*must return a tensor of one",
        ),
        (
            {"loss": lambda y_pred, y: (y_pred - y).abs().sum()},
            r"fails on a batch with x, y: TypeError.*take y and \*\*batch",
        ),
    ],
)
def test_what_cannot_work_is_told_before_anything_is_trained(tmp_path, change, told):
    arguments = {"build": build, "data": loaders, "base": BASE, "target": TARGET, **QUICK, **change}
    with pytest.raises(nm.MupError, match=told):
        nm.tune(arguments.pop("build"), arguments.pop("data"), folder=tmp_path / "s", **arguments)
    assert not (tmp_path / "s").exists()


def physical(n=40, seed=3):
    """Far from mean 0 and standard deviation 1."""
    x, y = fields(n, seed)
    return 50.0 + 9.0 * x, 1000.0 + 70.0 * y


def relative_error(prediction, y):
    return float(((prediction - y).flatten(1).norm(dim=1) / y.flatten(1).norm(dim=1)).mean())


def tuned_on(folder, data, **more):
    arguments = {"build": build, "base": BASE, "target": TARGET, **QUICK, "compare": (), **more}
    return nm.tune(arguments.pop("build"), data, folder=folder, **arguments)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """One tuned model, two seeds, on fields in units of their own; and the validation data."""
    folder = tmp_path_factory.mktemp("tuned") / "study"
    data = {"train": physical(), "val": physical(16, 4)}
    return tuned_on(folder, data, seeds=(0, 1), optimizer="MuSOAP", space={"lr": [0.02, 0.04]}), data


def test_predict_speaks_the_units_of_the_data(study):
    """Its relative error over the validation set is the loss that was measured in training."""
    tuned, data = study
    x, y = data["val"]
    prediction = tuned.predict(x, batch_size=7)
    assert relative_error(prediction, y) == pytest.approx(tuned.loss, rel=1e-4) and not prediction.requires_grad
    with torch.no_grad():
        assert relative_error(tuned.model(x), y) > 0.9  # the model by itself speaks normalised units
    # By hand: (x − mean) / std, and back. torch's std is that of a sample; eps is 1e-7.
    (mean_x, std_x), (mean_y, std_y) = ((v.mean(), v.std()) for v in data["train"])
    with torch.no_grad():
        by_hand = tuned.model((x - mean_x) / std_x) * std_y + mean_y
    assert torch.allclose(prediction, by_hand, rtol=1e-5)
    as_numpy = tuned.predict(x.double().numpy())
    assert isinstance(as_numpy, np.ndarray) and np.allclose(as_numpy, prediction.numpy(), rtol=1e-5)
    tuned.model.train()
    tuned.model.fno_blocks.eval()
    assert torch.equal(tuned.predict(x), tuned.predict(x))
    assert tuned.model.training and not tuned.model.fno_blocks.training
    tuned.model.eval()


def test_predict_takes_fields_of_one_channel_as_a_file_may_have_them(study):
    tuned, (x, _) = study[0], study[1]["val"]
    assert torch.equal(tuned.predict(x[:, 0]), tuned.predict(x)[:, 0])  # shaped as it was given


def test_predict_refuses_other_shapes(study):
    tuned, (x, _) = study[0], study[1]["val"]
    for other in (x.repeat(1, 2, 1), x.movedim(1, -1), x[0, 0], x[:0]):
        with pytest.raises(nm.MupError, match=r"x has the shape \(.*\), but the target takes \(n, 1, 32\)"):
            tuned.predict(other)
    with pytest.raises(nm.MupError, match="batch_size"):
        tuned.predict(x, batch_size=0)


def test_a_tuned_model_is_loaded_from_its_folder(study, tmp_path):
    tuned, data = study
    x, _ = data["val"]
    with pytest.warns(UserWarning, match="<lambda> is not as it was when .* may predict otherwise"):
        nm.load_tuned(tuned.report.parent, lambda **size: build(non_linearity=torch.tanh, **size))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = nm.load_tuned(str(tuned.report.parent), build)
    assert torch.equal(loaded.predict(x), tuned.predict(x)) and nm.is_parametrized(loaded.model)
    for name in ("lr", "params", "loss", "report"):
        assert getattr(loaded, name) == getattr(tuned, name)
    assert repr(loaded) == repr(tuned) and loaded.results.records == tuned.results.records
    assert f"tuned = nm.load_tuned({str(tuned.report.parent)!r}, build)" in tuned.report.read_text()


def test_tuned_says_what_it_is_and_its_last_line_rebuilds_the_parametrization(study):
    tuned, _ = study
    *said, kept, call = repr(tuned).splitlines()
    assert said[0].startswith(f"The best lr {tuned.lr:g} of the proxy, carried to the target")
    losses = [r["loss"] for r in tuned.results.carried("target", "operator-norm")]
    assert f"{np.mean(losses):.3g} ± {np.std(losses):.1g}" in said[0] and tuned.loss == min(losses)
    assert f"{tuned.loss:.4g} as its validation loss" in kept and str(tuned.report.parent) in kept
    assert "hidden_channels=8, n_modes=(8,)" in call and "base={'hidden_channels': 4, 'n_modes': (4,)}" in call
    model = eval(call, {"nm": nm, "build": build})
    model.load_state_dict(tuned.model.state_dict())  # compares the plans
    assert nm.summary(model) == nm.summary(tuned.model)


@pytest.mark.parametrize(
    ("change", "other", "told"),
    [
        (None, None, "function of your own, build: give it"),
        (None, lambda **size: build(**{**size, "hidden_channels": 12}), "is not one of this FNO"),
        (None, lambda **size: FNO(in_channels=1, out_channels=1, n_layers=3, **size), "is not one of this FNO"),
        (None, lambda **size: 3 / 0, "does not give the model in .*ZeroDivisionError"),
        (lambda f: (f / "study.json").unlink(), build, "holds no study"),
        (lambda f: edit(f, "keeps", False), build, "holds no trained target: of the study that ran last there"),
        (lambda f: edit(f, "seeds", 3), build, "holds no study"),
        (lambda f: [p.unlink() for p in f.glob("workspace/*/weights.pt")], build, "are not there"),
        (lambda f: [p.write_bytes(b"x") for p in f.glob("workspace/*/weights.pt")], build, "the file is damaged"),
    ],
)
def test_what_cannot_be_loaded_is_told(study, tmp_path, change, other, told):
    tuned, _ = study
    folder = Path(shutil.copytree(tuned.report.parent, tmp_path / "copy"))
    if change is not None:
        change(folder)
    with pytest.raises(nm.MupError, match=told):
        nm.load_tuned(folder, other)


def edit(folder, key, value):
    path = folder / "study.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))


class Halved(DataProcessor):
    """A processor of the user's own: the model sees half of x, and its output is doubled."""

    def __init__(self):
        super().__init__()
        self.device, self.model = "cpu", None

    def to(self, device):
        self.device = device
        return self

    def preprocess(self, data_dict, batched=True):
        return {"x": data_dict["x"].to(self.device) / 2, "y": data_dict["y"].to(self.device)}

    def postprocess(self, output, data_dict):
        return 2 * output, data_dict

    def forward(self, **data_dict):
        raise NotImplementedError


def test_units_that_are_not_known_are_not_guessed(tmp_path):
    """Loaders bring no processor: predict is refused. One of the user's own is used, and asked for when loading."""
    x, y = fields(8, 1)
    bare = tuned_on(tmp_path / "bare", loaders)
    assert bare.processor is None
    with pytest.raises(nm.MupError, match="batches as your loaders or data sets gave them"):
        bare.predict(x)
    own = tuned_on(tmp_path / "own", loaders, processor=Halved())
    assert relative_error(own.predict(x), y) == pytest.approx(own.loss, rel=1e-4)
    with pytest.raises(nm.MupError, match=r"processor of your own \(Halved\)"):
        nm.load_tuned(tmp_path / "own", build).predict(x)
    assert torch.equal(nm.load_tuned(tmp_path / "own", build, processor=Halved()).predict(x), own.predict(x))


def test_a_processor_that_needs_y_is_told(tmp_path):
    class UsesY(Halved):
        def preprocess(self, data_dict, batched=True):
            return {"x": data_dict["x"] + 0 * data_dict["y"].mean(), "y": data_dict["y"]}

    tuned = tuned_on(tmp_path / "s", loaders, processor=UsesY())
    with pytest.raises(nm.MupError, match="a UsesY, uses y"):
        tuned.predict(fields(8, 1)[0])


def test_arrays_are_read_as_a_file_is(tmp_path):
    """(x, y) of numpy, in double precision and with the channels last: the same runs as of a file with these arrays."""
    x, y = (f.double().movedim(1, -1).numpy() for f in physical(60))
    file = saved((x, y), tmp_path / "heat.npz")
    ours, of_file = (tuned_on(tmp_path / n, d) for n, d in (("a", (x, y)), ("f", file)))
    assert [r["loss"] for r in ours.results.records] == [r["loss"] for r in of_file.results.records]
    named = tuned_on(tmp_path / "n", {"x": torch.from_numpy(x), "y": torch.from_numpy(y)})
    assert named.loss == ours.loss


def test_tensors_of_a_precision_that_numpy_lacks(tmp_path):
    x, y = (f.bfloat16().requires_grad_() for f in fields(40))
    torch.save({"x": x, "y": y}, tmp_path / "heat.pt")
    ours, of_file = (as_source(data).load().train[0] for data in ((x, y), tmp_path / "heat.pt"))
    assert ours.dtype == torch.float32 and torch.equal(ours, of_file)


def test_an_output_on_a_finer_grid_is_not_taken_for_channels(tmp_path):
    def finer(**size):
        return FNO(in_channels=1, out_channels=1, n_layers=2, resolution_scaling_factor=[1, 2], **size)

    coarse = [(x[..., ::2], y) for x, y in (fields(), fields(8, 1))]
    assert tuned_on(tmp_path / "s", coarse, build=finer).predict(coarse[1][0]).shape == (8, 1, 32)


def test_few_samples_and_odd_grids_are_told(tmp_path, monkeypatch):
    """Odd grids of two axes and more, under the one version of neuralop that is wrong there."""
    with pytest.warns(UserWarning, match="compared on 8 validation samples"):
        tuned = tuned_on(tmp_path / "s", [fields(), fields(8, 1)])
    assert "compared on 8 validation samples" in tuned.report.read_text()
    for version, points, told in (("2.0.0", (7, 8), True), ("2.0.0", (7,), False), ("2.0.1", (7, 8), False)):
        monkeypatch.setattr(plan, "versions", lambda version=version: {"neuraloperator": version})
        sample = {name: torch.randn(4, 1, *points) for name in "xy"}
        assert any("is wrong on odd numbers" in note for note in data_notes(sample, 20, None, None)) == told
    (note,) = data_notes({"x": torch.randn(4, 1, 8), "y": torch.ones(4, 1, 8)}, 20, None, None)
    assert "The targets of all samples are the same, so there is nothing to learn" in note


@pytest.mark.parametrize("given", ["soap", "MuSOAP", "musoap", "SOAP", nm.MuSOAP])
def test_names_of_an_optimizer(given):
    assert optimizer_of(given)[0] == "soap"


SMALL = "--base.hidden_channels 4 --base.n_modes 4 --target.hidden_channels 8 --target.n_modes 8 --space.lr 0.01,0.02"
SMALL += " --epochs 4 --batch_size 8 --n_workers 1 --base.n_layers 2 --target.n_layers 2 --seeds 0,1"


def test_the_command_leaves_a_target_that_can_be_loaded(tmp_path, monkeypatch, capsys):
    """Weights, normalisation and FNO's arguments: the error over the validation data is the one that was reported."""
    monkeypatch.chdir(tmp_path)
    x, y = (f[:, 0].numpy() for f in physical(60))
    saved((x, y), "heat.npz")
    line = f"tune --data heat.npz --read.split 0.8,0.1,0.1 {SMALL}".split()
    assert main(line) == 0
    Path("heat.npz").unlink()  # not needed any more
    tuned, fields = nm.load_tuned("runs/heat-tune"), torch.from_numpy(x[:, None])
    prediction, own = tuned.predict(fields), tuned.split["val"]
    assert tuned.model.n_layers == 2 and prediction.shape == (60, 1, 32)
    assert relative_error(prediction[own], torch.from_numpy(y[own, None])) == pytest.approx(tuned.loss, rel=1e-5)
    model = eval(repr(tuned).splitlines()[-1], {"nm": nm, "FNO": FNO})
    assert nm.summary(model) == nm.summary(tuned.model)


def test_processors_are_kept_whole_in_a_file_that_runs_no_code(tmp_path):
    """Of the problems with an equation, too, whose output is zero on the boundary; of other classes only the name."""
    problem = get_problem("darcy-pino", n_train=4, n_val=2, n_test=2, grid=17)
    data, model = problem.load(), nm.parametrize(build(**BASE), base=BASE)
    processor = problem.processor(data)

    def kept(processor):
        keep_weights(model, processor, tmp_path / "w.pt", {})
        return read_weights(tmp_path / "w.pt")["processor"]

    sample, output = {"x": data.val[0], "y": data.val[1]}, torch.randn(2, 1, 17, 17)
    before, after = (one.preprocess(dict(sample)) for one in (processor, kept(processor)))
    assert torch.equal(before["x"], after["x"]) and (before["x"] != data.val[0]).any()
    ours, read = (one.postprocess(output, dict(before))[0] for one in (processor, kept(processor)))
    assert torch.equal(ours, read) and (read[..., 0] == 0).all()
    assert kept(None) is None and kept(Halved()) is None
    processor.mollifier = torch.ones(17, 17)
    assert kept(processor) is None


# A run is its content


@pytest.mark.parametrize(
    "other",
    [
        {"loss": "h1"},
        {"processor": Halved()},
        {"data": "b.npz"},
        {},  # the content of the same file
        {"read": {"shuffle": False}},
        {"optimizer": "adamw", "weight_decay": 0.5},
        {"epochs": 1},
    ],
    ids=["loss", "processor", "file", "content", "read", "optimizer", "epochs"],
)
def test_another_experiment_in_the_same_folder_is_another_one(tmp_path, monkeypatch, other):
    """Its numbers are those of a fresh folder, and the former call still gives the former ones."""
    monkeypatch.chdir(tmp_path)
    for name, seed in (("a.npz", 0), ("b.npz", 5)):
        saved(fields(40, seed), name)

    def losses(folder, data="a.npz", **more):
        return {r["loss"] for r in tuned_on(tmp_path / folder, data, **more).results.records}

    first = losses("s")
    if not other:
        shutil.copy("b.npz", "a.npz")
    here = losses("s", **other)
    assert here == losses("fresh", **other) and not here & first
    assert not other or losses("s") == first


DROPOUT = {"p": 0.0}


def with_dropout(**size):
    return build(channel_mlp_dropout=DROPOUT["p"], **size)


def of_tanh(**size):
    """Parameters like those of build, another function; it calls itself by the same name."""
    return FNO(in_channels=1, out_channels=1, n_layers=2, non_linearity=torch.tanh, **size)


of_tanh.__qualname__ = "build"


class Noisy(FNO):
    """Which differs from FNO in training alone, by a global number."""

    def forward(self, x, **_):
        return super().forward(x + NOISE * torch.randn_like(x) if self.training else x)


NOISE, LIMIT, WEIGHT = 0.0, 0.0, 1.0


def of_noise(**size):
    return Noisy(in_channels=1, out_channels=1, n_layers=2, **size)


class Clipped(DefaultDataProcessor):
    """Which differs from its class in eval mode alone, by an attribute."""

    floor = None

    def postprocess(self, output, data_dict):
        output, data_dict = super().postprocess(output, data_dict)
        return (output if self.training or self.floor is None else output.clamp_min(self.floor)), data_dict


def clipped(floor):
    made = Clipped(*map(normalizer_of, fields()))
    made.floor = floor
    return made


def weighted(y_pred, y, **_):
    return WEIGHT * mean_square(y_pred, y)


def above_the_limit(model, data):
    return sum(float(((model(b["x"]) - b["y"]) ** 2 > LIMIT).float().sum()) for b in data)


def stepping(model, lr, steps):
    return torch.optim.SGD(nm.param_groups(model, lr * WEIGHT / steps, optimizer="sgd"), lr=lr)


@pytest.mark.parametrize(
    ("one", "other", "names"),
    [
        ({}, {"build": of_tanh}, {}),
        ({"build": with_dropout}, {"build": with_dropout}, {"DROPOUT": {"p": 0.3}}),
        ({"build": of_noise}, {"build": of_noise}, {"NOISE": 2.0}),
        ({"loss": weighted}, {"loss": weighted}, {"WEIGHT": 100.0}),
        ({"score": above_the_limit}, {"score": above_the_limit}, {"LIMIT": 0.5}),
        ({"processor": clipped(None)}, {"processor": clipped(50.0)}, {}),
        ({"optimizer": stepping}, {"optimizer": stepping}, {"WEIGHT": 100.0}),
    ],
    ids=["name", "dropout", "training", "loss", "score", "processor", "optimizer"],
)
def test_what_a_function_uses_tells_it_from_others(tmp_path, monkeypatch, one, other, names):
    """Code and global numbers, though runs begin alike: the numbers are those of a fresh folder."""

    def losses(folder, more):
        return {r["loss"] for r in tuned_on(tmp_path / folder, loaders, **more).results.records}

    first = losses("s", one)
    assert losses("s", one) == first
    for name, value in names.items():
        monkeypatch.setitem(globals(), name, value)
    here = losses("s", other)
    assert here == losses("fresh", other) and not here & first


class Opened:
    """A loss that holds what nothing tells from others."""

    def __init__(self):
        self.file = open(__file__)  # noqa: SIM115

    def __call__(self, y_pred, y, **_):
        return mean_square(y_pred, y)


def test_what_nothing_tells_from_others_is_trained_each_time(tmp_path):
    loss, found = Opened(), []
    for _ in range(2):
        with pytest.warns(UserWarning, match="So its runs are trained anew by each call, and not used again"):
            tuned = tuned_on(tmp_path / "s", loaders, loss=loss)
        found.append([r["loss"] for r in tuned.results.records])
        assert len(list((tmp_path / "s" / "workspace").iterdir())) == 3 * len(found)
    assert found[0] == found[1]


class Curriculum:
    """A loss with a state."""

    def __init__(self):
        self.calls = 0

    def __call__(self, y_pred, y, **_):
        self.calls += 1
        return mean_square(y_pred, y) * (1 if self.calls < 10 else 20)


def test_a_state_is_that_of_one_run(tmp_path):
    """Of a loss, in this process as in others; and of the order of a loader of the user's own."""
    found, loss = [], Curriculum()
    for workers in (1, 2):
        tuned = tuned_on(tmp_path / str(workers), loaders, loss=loss, n_workers=workers)
        found.append([record["loss"] for record in tuned.results.records])
    assert found[0] == found[1] and loss.calls == 0
    order = torch.Generator().manual_seed(3)
    before = order.get_state()
    train, val = DataLoader(TensorDataset(*fields()), 8, shuffle=True, generator=order), loaders()["val"]
    tuned_on(tmp_path / "s", (train, val))
    assert torch.equal(order.get_state(), before)


def test_the_target_of_one_study_is_not_given_for_another(tmp_path):
    """One that fails in the same folder: the former target is no longer that of the study that ran last."""
    tuned_on(tmp_path / "s", loaders)
    with pytest.raises(nm.MupError, match="No run of the target completed"):
        tuned_on(tmp_path / "s", loaders, build=failing)
    with pytest.raises(nm.MupError, match="holds no trained target: of the study that ran last there it did not complete"):
        nm.load_tuned(tmp_path / "s", build)


class FailsAtTheTarget(FNO):
    def forward(self, x, **_):
        if self.hidden_channels == TARGET["hidden_channels"]:
            raise RuntimeError("no")
        return super().forward(x)


def failing(**size):
    return FailsAtTheTarget(in_channels=1, out_channels=1, n_layers=2, **size)


def test_weights_of_which_a_byte_is_another_one_are_damaged(study, tmp_path):
    tuned, _ = study
    folder = Path(shutil.copytree(tuned.report.parent, tmp_path / "copy"))
    path = folder / "workspace" / tuned._made["id"] / "weights.pt"
    whole = path.read_bytes()
    for at in range(1000, len(whole) - 4000, len(whole) // 40):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
        try:
            loaded = nm.load_tuned(folder, build)
        except nm.MupError as error:
            assert "the file is damaged" in str(error)
        else:  # between the arrays
            assert differing(loaded.model, tuned.model) == 0


def test_how_often_the_target_is_built(tmp_path):
    """Once for its training, and once for what is returned; else without memory."""
    built = []

    def counted(**size):
        built.append((size["hidden_channels"], torch.empty(0).is_meta))
        return build(**size)

    tuned_on(tmp_path / "s", loaders, build=counted)
    assert built.count((TARGET["hidden_channels"], False)) == 2


def own_adam(model, lr, steps):
    return nm.MuAdam(model, lr=lr * 16 / steps)


class Own:
    from_plan = staticmethod(own_adam)


@pytest.mark.parametrize("optimizer", [own_adam, Own, f"{__name__}.own_adam"], ids=["function", "class", "name"])
def test_an_optimizer_from_outside(tmp_path, optimizer):
    """Two epochs of four batches: its rate is twice the one that is named."""
    own = tuned_on(tmp_path / "a", loaders, optimizer=optimizer, space={"lr": [0.005]}, n_workers=2)
    ours = tuned_on(tmp_path / "b", loaders, optimizer="adam", space={"lr": [0.01]})
    assert own.loss == ours.loss
    with pytest.raises(nm.MupError, match="own_adam is your own: give them where it is made"):
        tuned_on(tmp_path / "s", loaders, optimizer=own_adam, weight_decay=0.1)


CALLS = []


def restless():
    CALLS.append(1)
    return {"train": fields(32, len(CALLS)), "val": fields(8)}


def random_loss(y_pred, y, **_):
    return (y_pred - y).square().mean(dim=(1, 2)).sum() * np.random.default_rng().uniform()


def torch_random_loss(y_pred, y, **_):
    return (y_pred - y)[..., torch.randint(32, (16,))].square().mean(dim=(1, 2)).sum()


def test_what_is_not_the_same_each_time_is_refused_and_what_torch_draws_is_not(tmp_path):
    with pytest.raises(nm.MupError, match="The loss gives .* draws random numbers that are not torch's"):
        tuned_on(tmp_path / "s", loaders, loss=random_loss)
    assert not (tmp_path / "s" / "workspace").exists() or not list((tmp_path / "s" / "workspace").iterdir())
    with pytest.raises(nm.MupError, match=r"restless\(\) gives other data than when the study began"):
        source = as_source(restless)
        source.load()
        source.load()
    assert np.isfinite(tuned_on(tmp_path / "s", loaders, loss=torch_random_loss).loss)


def test_a_file_that_changes_while_it_is_read_is_told(tmp_path):
    source = as_source(saved(fields(40), tmp_path / "a.npz"))
    saved(fields(41), tmp_path / "a.npz")
    with pytest.raises(nm.MupError, match="a.npz changed while it was read"):
        source.load()


def test_a_target_is_never_lost(tmp_path, monkeypatch, capfd):
    """The disk is full while its weights are written: the next call goes on, and nothing that was kept runs again."""
    from neuralop_mup.lab import files

    def full(*_):
        raise OSError(28, "No space left on device")

    arguments = {"data": fields(40), "progress": True, "seeds": (0, 1)}
    with monkeypatch.context() as patch:
        patch.setattr(files, "save_torch", full)
        with pytest.raises(nm.MupError, match="No run of the target completed with lr .*No space left on device"):
            tuned_on(tmp_path / "s", **arguments)
    capfd.readouterr()
    found = tuned_on(tmp_path / "s", **arguments)
    shown = capfd.readouterr().err
    assert "s: 2 runs; results in" in shown
    assert found.loss == tuned_on(tmp_path / "fresh", fields(40), seeds=(0, 1)).loss


def test_which_samples_were_trained_chosen_and_tested_on_is_told(tmp_path):
    x, y = fields(60)
    tuned = tuned_on(tmp_path / "s", saved((x[:, 0], y[:, 0]), tmp_path / "heat.npz"))
    numbers = np.concatenate([tuned.split[k] for k in ("train", "val", "test")])
    assert sorted(numbers) == list(range(60)) and [len(tuned.split[k]) for k in ("train", "val", "test")] == [48, 6, 6]
    held = list(tuned.split["val"])
    assert relative_error(tuned.predict(x[held]), y[held]) == pytest.approx(tuned.loss, rel=1e-4)
    again = nm.load_tuned(tmp_path / "s", build).split
    assert {k: list(v) for k, v in again.items()} == {k: list(v) for k, v in tuned.split.items()}
    given = tuned_on(tmp_path / "t", (fields(40), fields(8)))
    assert {k: list(v) for k, v in given.split.items()} == {"train": list(range(40)), "val": list(range(8))}
    assert tuned_on(tmp_path / "l", loaders).split == {}


@pytest.mark.parametrize(
    ("data", "pair"),
    [
        (("one.npz", "two.npz"), True),
        ({"train": "one.npz", "val": "two.npz"}, True),
        (["one.npz", "two.npz"], False),
        (".", False),
        ("*.npz", False),
    ],
    ids=["tuple", "dict", "list", "folder", "pattern"],
)
def test_files_are_what_they_are_given_as(tmp_path, monkeypatch, data, pair):
    """A pair is train and val, and is never pooled; a list, a folder and a pattern are."""
    monkeypatch.chdir(tmp_path)
    for i, (name, n) in enumerate((("one.npz", 40), ("two.npz", 12))):
        saved(fields(n, i), name)
    source = as_source(data)
    assert source.load().counts() == ({"train": 40, "val": 12} if pair else {"train": 42, "val": 5, "test": 5})
    if pair:
        assert torch.equal(source.load().val[0], fields(12, 1)[0])
        assert source.readings["splits"].startswith("train from one.npz")
        assert "val from two.npz" in tuned_on(tmp_path / "s", data).report.read_text()


def test_how_a_file_is_read_can_be_said_and_is_told(tmp_path, capsys):
    x, y = fields(40)
    np.savez(tmp_path / "shot.npz", a=x.numpy(), b=y.numpy(), c=y.numpy())
    with pytest.raises(nm.MupError, match=r"which is the input .*such as read={'x': 'a', 'y': 'c', 'dims'"):
        tuned_on(tmp_path / "s", tmp_path / "shot.npz")
    read = {"x": "a", "y": "c", "dims": "sample channel x", "shuffle": False}
    tuned = tuned_on(tmp_path / "s", tmp_path / "shot.npz", read=read, progress=True)
    told = ("input    a (sample channel x)", "output   c (sample channel x)", "splits   train, val, test from all in")
    out = capsys.readouterr().out
    assert [text for text in told if text not in out] == []
    page = tuned.report.read_text()
    assert "a (sample channel x)" in page and "in file order" in page
