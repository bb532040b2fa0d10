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
from neuralop.data.transforms.data_processors import DefaultDataProcessor
from torch.utils.data import Subset

import neuralop_mup as nm
from neuralop_mup.lab import files
from neuralop_mup.lab.data.given import as_source
from neuralop_mup.lab.files import keep_weights, read_weights
from neuralop_mup.lab.loss import NORMALIZED
from neuralop_mup.lab.metrics import METRICS
from neuralop_mup.lab.problems import ProblemData, get_problem
from neuralop_mup.lab.training import Training
from support.comparing import differing
from support.studies import (
    BASE,
    LRS,
    TARGET,
    build,
    fields,
    loaders,
    no_figures,  # noqa: F401
    physical,
    quick_tune,
    relative_error,
    run_ids,
    save_pair,
)

STUDY = {"seeds": (0, 1), "optimizer": "MuSOAP", "compare": ("standard",)}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A model tuned with two seeds, and its data, in units far from 0 and 1."""
    data = {"train": physical(), "val": physical(16, 4), "test": physical(8, 2)}
    return quick_tune(tmp_path_factory.mktemp("tuned") / "study", data, **STUDY), data


def mean_over_the_batch(y_pred, y, **_):
    return (y_pred - y).square().mean()


def mean_square(y_pred, y, **_):
    return (y_pred - y).square().mean(dim=(1, 2)).sum()


class Scaled(DefaultDataProcessor):
    """A processor of the user's own, which divides x and multiplies the output by a factor."""

    factor = 2

    def preprocess(self, data_dict, batched=True):
        return {"x": data_dict["x"] / self.factor, "y": data_dict["y"]}

    def postprocess(self, output, data_dict):
        return self.factor * output, data_dict


def test_tune_returns_the_trained_target_and_the_same_call_resumes(study):
    tuned, data = study
    assert tuned.lr in LRS and tuned.params == {"lr": tuned.lr} and tuned.report.exists()
    assert nm.is_parametrized(tuned.model) and not tuned.model.training
    assert tuned.model.fno_blocks.convs[0].weight.shape[0] == 8
    again = quick_tune(tuned.report.parent, data, **STUDY)
    assert again.results.records == tuned.results.records and differing(again.model, tuned.model) == 0


def test_a_best_value_at_the_edge_of_the_grid_is_printed(tmp_path, capsys):
    quick_tune(tmp_path / "s", (fields(32), fields(8, 1)), space={"lr": [2e-3, 4e-3]}, progress=True)
    assert "Extend the grid upwards." in capsys.readouterr().out


def test_settings_of_the_run_can_be_searched(tmp_path):
    space = {"lr": [0.01], "optimizer": ["adam", "sgd"], "device": ["cpu"]}
    tuned = quick_tune(tmp_path / "s", (fields(32), fields(8, 1)), space=space)
    assert tuned.params["optimizer"] in space["optimizer"] and tuned.report.exists()


def datasets():
    """Training and validation samples as neuralop has them: each is a dict."""
    return [Subset([{"x": x, "y": y} for x, y in zip(*fields(n, i), strict=True)], range(n)) for i, n in enumerate((32, 8))]


@pytest.mark.parametrize("data", [Path("heat.npz"), tuple(loaders().values()), tuple(datasets()), loaders])
def test_forms_of_data(tmp_path, monkeypatch, data):
    monkeypatch.chdir(tmp_path)
    save_pair(fields(), "heat.npz")
    tuned = quick_tune(tmp_path / "s", data)
    assert {r["rule"] for r in tuned.results.records} == {"operator-norm"} and np.isfinite(tuned.loss)
    assert ("heat" in tuned.report.read_text().splitlines()[0]) == (data == Path("heat.npz"))


# What cannot work is refused before anything is trained


def two_to_one():
    """Two channels in, one out."""
    x, y = fields(32)
    return torch.cat([x, x], dim=1), y


TRAIN, VAL = fields(32), fields(8, 1)
COMPLEX = functools.partial(build, complex_data=True, positional_embedding=None)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"base": TARGET, "target": BASE}, "base"),
        ({"base": {"width": 3}}, r"'width': 3.*base"),
        ({"target": {"hidden_channels": 0, "n_modes": (8,)}}, "target: ZeroDivisionError"),
        ({"build": build(**BASE)}, "build.* FNO"),
        ({"data": 3}, "data.* int"),
        ({"data": fields(4)}, "4 samples"),
        ({"data": tuple(f.tolist() for f in fields())}, "list"),
        ({"data": (TRAIN, loaders()["val"])}, "val.*DataLoader"),
        ({"data": (TRAIN, two_to_one())}, "val contains x 0, x 1.* train contains x"),
        ({"data": (TRAIN, fields(0))}, r"val.*\(0, 1, 32\)"),
        ({"data": (two_to_one(), two_to_one())}, r"\(2, 2, 32\)"),
        ({"data": (two_to_one()[::-1],) * 2}, r"\(1, 32\).*out_channels"),
        ({"data": (TRAIN, [f[..., ::8] for f in VAL])}, r"val.* 4 points.*n_modes"),
        ({"data": (TRAIN, [f / 0 for f in VAL])}, "in val.*sample 0"),
        ({"data": ProblemData(*[[f.to(torch.cfloat) for f in TRAIN]] * 2), "build": COMPLEX}, "'l2'.*complex"),
        ({"data": [[f.to(torch.cfloat) for f in TRAIN]] * 2, "build": COMPLEX}, "complex64.*ProblemData"),
        ({"data": fields(), "read": {"shufle": 1}}, "'shufle'.*'shuffle'"),
        ({"read": {"x": "a"}, "data": loaders()}, "read="),
        ({"batch_size": 64, "data": (TRAIN, VAL)}, "64.* 32 training samples"),
        ({"loss": "l3"}, "'l3'.*'h1'"),
        ({"loss": {"a": mean_square, "b": mean_over_the_batch}}, "loss 'b'.* sum"),
        ({"loss": lambda y_pred, y, **_: (y_pred - y).abs()}, "loss.* tensor of shape"),
        ({"loss": lambda y_pred, y: (y_pred - y).abs().sum()}, r"TypeError.*\*\*batch"),
        ({"optimizer": "MuSOUP"}, "'MuSOAP'"),
        ({"optimizer": torch.optim.SGD}, "SGD.* function"),
        ({"processor": 3}, "processor"),
        ({"space": [0.1]}, r"{'lr': \[0\.1\]}"),
        ({"compare": "standard"}, "compare='standard'"),
    ],
)
def test_what_cannot_work_is_refused_before_training(tmp_path, change, names):
    arguments = {"data": loaders, **change}
    with pytest.raises(nm.MupError, match=names):
        quick_tune(tmp_path / "s", **arguments)
    assert not (tmp_path / "s").exists()


# What is returned


def test_predictions_are_in_the_units_of_the_data(study):
    """By hand: (x − mean) / std, and back. Over the validation set the relative error is the loss of the run."""
    tuned, data = study
    x, y = data["val"]
    prediction = tuned.predict(x, batch_size=7)
    assert relative_error(prediction, y) == pytest.approx(tuned.loss, rel=1e-4) and not prediction.requires_grad
    (mean_x, std_x), (mean_y, std_y) = ((v.mean(), v.std()) for v in data["train"])
    with torch.no_grad():
        by_hand = tuned.model((x - mean_x) / std_x) * std_y + mean_y
    assert torch.allclose(prediction, by_hand, rtol=1e-5)
    assert np.allclose(tuned.predict(x.double().numpy()), prediction.numpy(), rtol=1e-5)


def test_predict_refuses_other_shapes(study):
    tuned, (x, _) = study[0], study[1]["val"]
    for other in (x.repeat(1, 2, 1), x.movedim(1, -1), x[0, 0], x[:0]):
        with pytest.raises(nm.MupError, match=r"\(n, 1, 32\)"):
            tuned.predict(other)


def test_predict_refuses_complex_fields_after_training_on_real_ones(study):
    """Torch named the type of a bias."""
    tuned, (x, _) = study[0], study[1]["val"]
    with pytest.raises(nm.MupError, match="real fields"):
        tuned.predict(x + 1j)


def test_a_tuned_model_is_loaded_from_its_folder(study):
    tuned, data = study
    x, _ = data["val"]
    with pytest.warns(UserWarning, match="<lambda>"):
        nm.load_tuned(tuned.report.parent, lambda **size: build(non_linearity=torch.tanh, **size))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = nm.load_tuned(str(tuned.report.parent), build)
    assert torch.equal(loaded.predict(x), tuned.predict(x)) and nm.is_parametrized(loaded.model)
    assert (loaded.lr, loaded.params, loaded.loss, loaded.report) == (tuned.lr, tuned.params, tuned.loss, tuned.report)


def edit(folder, key, value):
    path = folder / "study.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))


@pytest.mark.parametrize(
    ("change", "other", "names"),
    [
        (None, None, "build"),
        (None, lambda **size: build(**{**size, "hidden_channels": 12}), "FNO"),
        (None, lambda **size: build(n_layers=3, **size), "FNO"),
        (None, lambda **size: 3 / 0, "ZeroDivisionError"),
        (lambda f: (f / "study.json").unlink(), build, "no readable study"),
        (lambda f: edit(f, "keeps", False), build, "no trained target"),
        (lambda f: edit(f, "seeds", 3), build, "no readable study"),
        (lambda f: [shutil.copytree(f, f / "inner"), (f / "study.json").unlink()], build, "one of its folders.*inner"),
        (lambda f: [p.unlink() for p in f.glob("workspace/*/weights.pt")], build, "weights.pt"),
        (lambda f: [p.write_bytes(b"x") for p in f.glob("workspace/*/weights.pt")], build, "weights.pt"),
    ],
)
def test_what_cannot_be_loaded_is_an_error(study, tmp_path, change, other, names):
    folder = Path(shutil.copytree(study[0].report.parent, tmp_path / "copy"))
    if change is not None:
        change(folder)
    with pytest.raises(nm.MupError, match=names):
        nm.load_tuned(folder, other)


def test_flipped_bits_of_the_weights_are_an_error(study, tmp_path):
    tuned, _ = study
    folder = Path(shutil.copytree(tuned.report.parent, tmp_path / "copy"))
    path = folder / "workspace" / tuned._provenance["id"] / "weights.pt"
    whole = path.read_bytes()
    for at in range(1000, len(whole) - 4000, len(whole) // 40):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
        try:
            loaded = nm.load_tuned(folder, build)
        except nm.MupError as error:
            assert "damaged" in str(error)
        else:  # between the arrays
            assert differing(loaded.model, tuned.model) == 0


def test_unknown_units_are_not_guessed(tmp_path):
    """Loaders have no processor, so predict fails. A processor of the user's own is used, and needed again to load."""
    x, y = fields(8, 1)
    bare = quick_tune(tmp_path / "bare", loaders)
    assert bare.processor is None and bare.split == {}
    with pytest.raises(nm.MupError, match="processor"):
        bare.predict(x)
    own = quick_tune(tmp_path / "own", loaders, processor=Scaled())
    assert relative_error(own.predict(x), y) == pytest.approx(own.loss, rel=1e-4)
    with pytest.raises(nm.MupError, match="Scaled"):
        nm.load_tuned(tmp_path / "own", build).predict(x)
    assert torch.equal(nm.load_tuned(tmp_path / "own", build, processor=Scaled()).predict(x), own.predict(x))


def test_an_output_on_a_finer_grid_is_not_taken_for_channels(tmp_path):
    finer = functools.partial(build, resolution_scaling_factor=[1, 2])
    coarse = [(x[..., ::2], y) for x, y in (TRAIN, VAL)]
    with pytest.raises(nm.MupError, match="ProblemData"):
        quick_tune(tmp_path / "s", coarse, build=finer)
    assert quick_tune(tmp_path / "s", ProblemData(*coarse), build=finer).predict(coarse[1][0]).shape == (8, 1, 32)


def test_processors_are_saved_without_code(tmp_path):
    """Also that of a problem whose output is zero on the boundary. For other classes the file has only the name."""
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
    assert kept(None) is None and kept(Scaled()) is None
    processor.mollifier = torch.ones(17, 17)
    assert kept(processor) is None


# How data is read


def test_arrays_are_read_as_a_file_is(tmp_path):
    """Double precision with the channels last: the keys, and so the runs, are those of a file with these arrays."""
    x, y = (f.double().movedim(1, -1).numpy() for f in physical())
    file = save_pair((x, y), tmp_path / "heat.npz")
    assert run_ids((x, y)) == run_ids(file) == run_ids({"x": torch.from_numpy(x), "y": torch.from_numpy(y)})


def test_the_samples_of_each_split_are_returned(study, tmp_path):
    x, y = physical(60)
    tuned = quick_tune(tmp_path / "s", save_pair((x[:, 0], y[:, 0]), tmp_path / "heat.npz"))
    numbers = {name: list(found) for name, found in tuned.split.items()}
    assert sorted(numbers["train"] + numbers["val"] + numbers["test"]) == list(range(60)) and len(numbers["train"]) == 48
    error = relative_error(tuned.predict(x[numbers["val"]]), y[numbers["val"]])
    assert error == pytest.approx(tuned.loss, rel=1e-4)
    assert [list(found) for found in study[0].split.values()] == [list(range(n)) for n in (40, 16, 8)]


# A run is its content


NUMBER = 0.0


def with_dropout(**size):
    return build(channel_mlp_dropout=NUMBER, **size)


def shifted_loss(y_pred, y, **_):
    return mean_square(y_pred, y) + NUMBER


def constant_score(model, data):
    return NUMBER


def own_sgd(model, lr, steps):
    return torch.optim.SGD(nm.param_groups(model, lr / (steps + NUMBER), optimizer="sgd"), lr=lr)


FUNCTIONS = [{"build": with_dropout}, {"loss": shifted_loss}, {"score": constant_score}, {"optimizer": own_sgd}]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_keys_change_with_a_number_that_a_function_uses(monkeypatch, function):
    before = run_ids(loaders, **function)
    assert run_ids(loaders, **function) == before
    monkeypatch.setitem(globals(), "NUMBER", 0.3)
    assert not run_ids(loaders, **function) & before


def test_other_experiments_have_other_keys(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, seed in (("a.npz", 0), ("b.npz", 5)):
        save_pair(fields(40, seed), name)
    experiments = [
        *({}, {"data": "b.npz"}, {"read": {"shuffle": False}}, {"loss": "h1"}, {"processor": Scaled()}, {"epochs": 2}),
        *({"build": lambda **size: build(non_linearity=torch.tanh, **size)}, {"batch_size": 4}, {"seeds": (1,)}),
        *({"weight_decay": 0.5}, {"optimizer": "adamw"}, {"schedule": "constant"}, {"init_mult": {"kernel": 0.5}}),
        *({"beta2": 0.9}, {"clip_spectral": 1.0}, {"soap": {"period": 3}}, {"rules": ("none",)}, *FUNCTIONS),
        *({"loss": name} for name in NORMALIZED),
        *({"score": name} for name in METRICS),
    ]
    keys = [run_ids(**{"data": "a.npz", **experiment}) for experiment in experiments]
    assert [len(found) for found in keys] == [3] * len(experiments)
    assert len(set.union(*keys)) == 3 * len(experiments)


def test_equal_settings_are_one_run():
    """The command line reads 1 as 1.0. ``period`` is the former name of ``mode_stride``."""
    number, text = ({"lr": [1, 0.5]}, {"weight_decay": 0}), ({"lr": [1.0, 0.5]}, {"weight_decay": 0.0})
    ids = [run_ids(loaders, space=space, **more) for space, more in (number, text)]
    assert ids[0] == ids[1] == run_ids(loaders, space={"lr": [1.0, 0.5]}, weight_decay=0.0, loss="l2")
    assert run_ids(loaders, soap={"period": 3}) == run_ids(loaders, soap={"mode_stride": 3}) != run_ids(loaders)


def test_keys_follow_the_content_of_a_file(tmp_path):
    first, other, again = (run_ids(save_pair(fields(40, seed), tmp_path / "a.npz")) for seed in (0, 5, 0))
    assert first == again
    assert not first & other


def curriculum(y_pred, y, calls, **_):
    """A loss with a state."""
    calls.append(1)
    return mean_square(y_pred, y) * (1 if len(calls) < 3 else 20)


def test_runs_share_no_state(tmp_path):
    """A loss with a state gives the same errors in this process and in others."""
    found, loss = [], functools.partial(curriculum, calls=[])
    for workers in (1, 2):
        tuned = quick_tune(tmp_path / str(workers), loaders, loss=loss, n_workers=workers)
        found.append([record["loss"] for record in tuned.results.records])
    assert found[0] == found[1] and loss.keywords == {"calls": []}


def test_a_full_disk_costs_only_the_target(tmp_path, monkeypatch):
    """The disk is full while the weights are written. The next call trains only the target again."""

    def full(*_):
        raise OSError(28, "No space left on device")

    quick_tune(tmp_path / "s", loaders, epochs=2)
    with monkeypatch.context() as patch:
        patch.setattr(files, "save_torch", full)
        with pytest.raises(nm.MupError, match="No space left on device"):
            quick_tune(tmp_path / "s", loaders)
    with pytest.raises(nm.MupError, match="no trained target"):  # not that of the study before
        nm.load_tuned(tmp_path / "s", build)
    trained, call = [], Training.__call__
    monkeypatch.setattr(Training, "__call__", lambda self, c, *a, **k: trained.append(c["model"]) or call(self, c, *a, **k))
    found = quick_tune(tmp_path / "s", loaders)
    assert trained == [TARGET] and found.loss == quick_tune(tmp_path / "fresh", loaders).loss


# Optimizers and random numbers


def own_adam(model, lr, steps):
    return nm.MuAdam(model, lr=lr * 8 / steps)


@pytest.mark.parametrize(("optimizer", "workers"), [(own_adam, 2), (f"{__name__}.own_adam", 1)])
def test_an_optimizer_from_outside(tmp_path, optimizer, workers):
    """For four steps it doubles the learning rate."""
    own = quick_tune(tmp_path / "a", loaders, optimizer=optimizer, space={"lr": [0.005]}, n_workers=workers)
    ours = quick_tune(tmp_path / "b", loaders, optimizer="adam", space={"lr": [0.01]})
    assert own.loss == ours.loss


def random_loss(y_pred, y, **_):
    return mean_square(y_pred, y) * np.random.default_rng().uniform()


def test_random_numbers_other_than_torchs_are_refused():
    with pytest.raises(nm.MupError, match="loss.* random"):
        run_ids(loaders, loss=random_loss)
    different = iter([(TRAIN, VAL), (VAL, VAL)])
    source = as_source(lambda: next(different))
    source.load()
    with pytest.raises(nm.MupError, match="<lambda>"):
        source.load()
