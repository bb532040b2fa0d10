"""A base with fewer Fourier layers: its last layer stands for those that it lacks."""

from dataclasses import replace

import torch
from neuralop.models import FNO, UNO

import neuralop_mup as nm
from support.comparing import assert_same
from support.errors import refused


def _fno(layers=6, width=8, **kwargs):
    return FNO((8,), 1, 1, width, n_layers=layers, **kwargs)


def test_a_shallower_base_only_scales_widths():
    """Width 32 over 8, and 4 layers over 2: hidden maps 1/4, vectors 1, in every layer as at equal depth."""
    models = []
    for base in ({"n_layers": 2, "hidden_channels": 8}, {"hidden_channels": 8}):
        torch.manual_seed(0)
        models.append(nm.parametrize(_fno(4, 32), base=base))
    assert_same(*models)
    deep, same = map(nm.summary, models)
    for a, b in zip(deep, same, strict=True):
        assert a.lacking == (a.name.split(".")[0] == "fno_blocks" and int(a.name.split(".")[2]) >= 2)
        assert replace(a, lacking=False) == b
    assert deep["fno_blocks.fno_skips.3.conv.weight"].lr_mult == 1 / 4


def test_a_base_in_every_form_gives_one_plan(tmp_path):
    plan = nm.summary(model := nm.parametrize(_fno(), base={"n_layers": 2, "hidden_channels": 4}))
    nm.save_base_shapes(model, tmp_path / "of_target")
    nm.save_base_shapes(_fno(2, 4), tmp_path / "of_base")
    assert (tmp_path / "of_target").read_text() == (tmp_path / "of_base").read_text()
    for base in (_fno(2, 4), lambda: _fno(2, 4), tmp_path / "of_target"):
        assert nm.summary(nm.parametrize(_fno(), base=base)) == plan
    with refused("base"):
        nm.parametrize(_fno(2), base=_fno(3))


def test_layers_that_are_not_equal_are_refused():
    def uno(*channels):
        n = len(channels)
        layers = {"uno_out_channels": list(channels), "uno_n_modes": [[4]] * n, "uno_scalings": [[1]] * n}
        return UNO(1, 1, 8, 8, 8, n_layers=n, horizontal_skips_map={}, channel_mlp_skip="linear", **layers)

    assert nm.summary(nm.parametrize(uno(8, 8, 8, 8), base=uno(8, 8)))["fno_blocks.3.fno_skips.0.conv.weight"]
    with refused("fno_blocks.2"):
        nm.parametrize(uno(8, 16, 16, 8), base=uno(8, 8))
