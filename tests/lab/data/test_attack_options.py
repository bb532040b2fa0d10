"""Options and arrays that were once read wrongly without an error."""

import warnings

import numpy as np
import pytest
import torch
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.lab.cli import main
from neuralop_mup.lab.data.given import as_source
from neuralop_mup.lab.score import Predictor
from support.errors import refused
from support.files import array, write

PAIR = (array(40, 16), array(40, 16))
RANGES = [(0, 8.5), (0.0, 8.0), ("0", "8"), (False, True), (-12, 2), (0, 8, 2)]
TARGET = {"hidden_channels": 4, "n_modes": (4,)}


def build(**size):
    return FNO(out_channels=1, n_layers=1, **size)


def trained(data, in_channels, **read):
    target = {**TARGET, "in_channels": in_channels}
    return nm.train(build, data, read=read or None, target=target, epochs=1, folder="r", progress=False)


@pytest.mark.parametrize("crop", [(0, 8), [0, 8], 1, 0, True, {"x": 8}, *({"x": ends} for ends in RANGES)])
def test_crop_has_ranges_by_axis(crop):
    with refused("crop {'x':(0,64)} --read.crop'{x:[0,64]}'"):
        as_source(PAIR, {"crop": crop})


@pytest.mark.parametrize("every", [None, 2, {"x": 2}])
def test_crop_does_not_end_behind_the_last_point(every):
    assert as_source(PAIR, {"crop": {"x": (4, 16)}, "every": every}).load().train[0].shape[-1] == (6 if every else 12)
    with refused("crop 'x' 18 (4,None)"):
        as_source(PAIR, {"crop": {"x": (4, 18)}, "every": every}).load()
    with refused("crop 'x' -18 (0,None)"):
        as_source(PAIR, {"crop": {"x": (-18, None)}, "every": every}).load()


@pytest.mark.parametrize(
    "words",
    ["--read.every.x 2", "--read.every 2 --read.every.x 4", "--read.crop.x 0,8", "--read.crop.x 0,8 --read.crop.y 0,9"],
)
def test_options_by_axis_are_written_in_one(words, capsys):
    """The parser keeps only the last of several names with a dot."""
    assert main(["data", write("u.npz", x=array(20, 16), y=array(20, 16)), *words.split()]) == 2
    option = "crop" if "crop" in words else "every"
    assert f"--read.{option} '{{x: VALUE}}'" in capsys.readouterr().err
    with refused("'every.x' 'every' --read.every '{x:…}'"):
        as_source("u.npz", {"every.x": 2})


def test_predict_with_nan():
    """With a mask, NaN is filled as in training. Without one, the message says what to do."""
    full = array(40, 16)
    field = np.where(np.arange(16) == 3, np.nan, full)
    read = {"nan": "mask", "shuffle": False}
    tuned, x = trained((field, field), 2, **read), field[:2, None]
    sample = as_source((field, field), read).load().sample()["x"][:2]
    expected = Predictor(tuned.model, tuned.processor)(torch.as_tensor(sample))
    for given in (x, x[:, 0], torch.from_numpy(x)):
        assert np.allclose(tuned.predict(given).reshape(2, 1, 16), expected, atol=1e-5)
    with pytest.warns(UserWarning, match="no NaN"):
        tuned.predict(tuned.predict(x))
    other = trained((full, field), 2, **read)
    with warnings.catch_warnings():  # with NaN in the targets alone, inputs are complete
        warnings.simplefilter("error")
        other.predict(full[:2])
    with refused("x (2,2,16) (n,1,16)"):
        tuned.predict(np.concatenate([x, np.isfinite(x)], 1))
    with refused("x sample0 {'nan':'mask'}"):
        trained((full, full), 1).predict(x)


@pytest.mark.parametrize("form", [lambda v: v.astype(">f8"), lambda v: v[..., ::-1], lambda v: np.asfortranarray(v)])
def test_byte_order_and_strides(form):
    x = form(array(40, 1, 16))
    plain = np.ascontiguousarray(x, "f4")
    source = as_source({"train": (x, x), "val": (x[:10], x[:10])})
    assert np.array_equal(source.load().train[0], plain)
    tuned = trained({"train": (x[10:], x[10:]), "val": (x[:10], x[:10])}, 1)
    assert np.array_equal(tuned.predict(x[:2]), tuned.predict(plain[:2]))
    for wrong in (None, "x", np.array([["a"] * 16]), [[1.0], [1.0, 2.0]], x[:2].astype("g")):
        with refused("x"):
            tuned.predict(wrong)
    with refused("x train object"):
        as_source({"train": (x.astype(object), x), "val": (x, x)}).load()


def test_crop_in_the_shell(capsys):
    path = write("u.npz", x=array(20, 16), y=array(20, 16))
    for words, end in ((["--read.crop", "{x: [0, 8.5]}"], 8.5), (["--read.shuffle", "false", "--read.crop", "0,8"], 8)):
        assert main(["data", path, *words]) == 2
        error = capsys.readouterr().err
        assert "--read.crop '{x: [0, 64]}'" in error and str(end) in error
    for ends, points in (("0, -1", 15), ("4, null", 12)):
        assert main(["data", path, "--read.crop", f"{{x: [{ends}]}}"]) == 0
        assert f"on {points} points" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in "xy" for value in (3, ["u"], True, ("a", "b"))),
        *(("dims", value) for value in (3, ("sample", "x", 3), {"x": 3}, {"x": ["sample", 1]}, True)),
    ],
)
def test_keys_and_words_are_texts(name, value):
    with refused(f"{name} 'u+v'" if name in "xy" else "dims 'samplexy'"):
        as_source(PAIR, {name: value})


@pytest.mark.parametrize("sample", [3, 39])
def test_a_sample_of_nan_has_no_error(sample):
    """Its loss would be NaN in training, and 0 in the mean error of validation or test data."""
    x, y = array(40, 2, 16), array(40, 2, 16)
    y[sample, 1] = np.nan
    with refused("Channel 1 y sample"):
        as_source((x, y), {"nan": "mask", "shuffle": False}).load().check()
    y[sample, 1, 0] = 1.0
    as_source((x, y), {"nan": "mask", "shuffle": False}).load().check()
    x[sample] = np.nan
    as_source((x, y), {"nan": "mask", "shuffle": False}).load().check()
