"""A base with fewer Fourier layers: its last layer stands for those that it lacks."""

import json
from dataclasses import replace

import pytest
import torch
from neuralop.models import FNO, TFNO, UNO
from torch import nn

import neuralop_mup as nm
from neuralop_mup import MupError
from neuralop_mup.core.layers import BESIDE, fourier_depth
from neuralop_mup.core.plan import Plan
from support.cases import BY_NAME
from support.comparing import assert_same


def _fno(layers=16, width=8, **kwargs):
    return FNO((8,), 1, 1, width, n_layers=layers, **kwargs)


def test_a_shallower_base_scales_widths_alone():
    """Width 32 over 8 beside 8 layers over 2: hidden maps 1/4, vectors 1, in every layer as at equal depth."""
    models = []
    for base in ({"n_layers": 2, "hidden_channels": 8}, {"hidden_channels": 8}):
        torch.manual_seed(0)
        models.append(nm.parametrize(_fno(8, 32), base=base))
    assert_same(*models)
    deep, same = map(nm.summary, models)
    for a, b in zip(deep, same, strict=True):
        assert a.lacking == (a.name.split(".")[0] == "fno_blocks" and int(a.name.split(".")[2]) >= 2)
        assert replace(a, lacking=False) == b
    assert deep["fno_blocks.fno_skips.7.conv.weight"].lr_mult == 1 / 4
    assert "base has fewer layers" in str(deep) and "fewer layers" not in str(same)


def test_a_base_in_every_form_gives_one_plan(tmp_path):
    overrides = {"n_layers": 2, "hidden_channels": 4}
    plan = nm.summary(model := nm.parametrize(_fno(6), base=overrides))
    nm.save_base_shapes(model, tmp_path / "of_target")
    nm.save_base_shapes(_fno(2, 4), tmp_path / "of_base")
    assert (tmp_path / "of_target").read_text() == (tmp_path / "of_base").read_text()
    for base in (_fno(2, 4), lambda: _fno(2, 4), tmp_path / "of_target"):
        assert nm.summary(nm.parametrize(_fno(6), base=base)) == plan
    with pytest.raises(MupError, match="only in the base: .*has no more than the model"):
        nm.parametrize(_fno(2), base=_fno(3))


def test_plans_in_files():
    """As they were written before there was depth."""
    plan = nm.summary(nm.parametrize(_fno(2), base={"hidden_channels": 4}))
    stored = json.loads(plan.to_json())
    for row in stored["rows"]:
        del row["lacking"]
    assert Plan.from_json(json.dumps(stored)) == plan


@pytest.mark.parametrize("factorization", ["tucker", "cp", "tt"])
def test_factors(factorization):
    model = TFNO((4, 4), 1, 1, 8, n_layers=4, factorization=factorization, rank=0.5)
    plan = nm.summary(nm.parametrize(model, base={"n_layers": 1}))
    assert {row.lr_mult for row in plan.rows} == {1} and any(row.lacking for row in plan.rows)


def test_layers_that_are_not_alike_are_refused():
    def uno(*channels):
        n = len(channels)
        return UNO(
            1, 1, 8, 8, 8, n_layers=n, uno_out_channels=list(channels), uno_n_modes=[[4]] * n, uno_scalings=[[1]] * n,
            horizontal_skips_map={}, channel_mlp_skip="linear",
        )  # fmt: skip

    assert nm.summary(nm.parametrize(uno(8, 8, 8, 8), base=uno(8, 8)))["fno_blocks.3.fno_skips.0.conv.weight"]
    with pytest.raises(MupError, match="not alike"):
        nm.parametrize(uno(8, 16, 16, 8), base=uno(8, 8))


def test_layers_beside_each_other_count_once():
    """Of six parallel gates two follow each other in a cell of RNO; UQNO's models stand beside each other."""

    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.gates = nn.ModuleList(nn.Identity() for _ in range(6))

    BESIDE[Cell] = ("gates.0", "gates.1", "gates.2", "gates.3")
    model = nn.Sequential(Cell(), Cell())
    assert fourier_depth(model, [f"{i}.gates.{j}" for i in range(2) for j in range(6)]) == 4
    depths = {"uqno": 1, "rno": 4}  # one layer each; two cells
    for name in depths.keys() & BY_NAME.keys():
        model = nm.parametrize(BY_NAME[name].build())
        assert fourier_depth(model, {row.owner for row in nm.summary(model) if row.role == "spectral"}) == depths[name]
