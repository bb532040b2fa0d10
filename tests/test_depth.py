"""A base with fewer Fourier layers: Adam's learning rates in the layers go by √(L_base / L), and nothing else changes."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from neuralop.models import FNO, TFNO, UNO
from neuralop.models.gino import GINO

import neuralop_mup as nm
from neuralop_mup import MupError
from neuralop_mup.core.depth import match_layers
from neuralop_mup.core.plan import Plan
from neuralop_mup.core.rules import Size, depth_factor, multipliers
from neuralop_mup.optim.incremental_modes import present_plan


def _fno(layers=16, width=8, **kwargs):
    return FNO((8,), 1, 1, width, n_layers=layers, **kwargs)


def _in_blocks(name):
    return name.startswith("fno_blocks.")


def test_the_factor_by_hand():
    """√(4/16) = 1/2; beside it a width 4 times base's: 1/4 · 1/2 = 1/8 for Adam, SGD and init as without depth."""
    size, base = Size(64, 64, layers=16), Size(16, 16, layers=4)
    assert depth_factor(size, base) == 0.5
    deep, shallow = multipliers("hidden", size, base, "none"), multipliers("hidden", Size(64, 64), Size(16, 16), "none")
    assert deep.adam_lr == 1 / 8
    assert (deep.init, deep.sgd_lr, deep.eps) == (shallow.init, shallow.sgd_lr, shallow.eps)
    assert multipliers("hidden", size, base, "standard").adam_lr == 1


def test_every_layer_and_nothing_else():
    """Layers of 16 over 4 take half; lifting and projection, of which there is one, keep their learning rate."""
    torch.manual_seed(0)
    stock = _fno()
    torch.manual_seed(0)
    plan = nm.summary(model := nm.parametrize(_fno(), base={"n_layers": 4}))
    assert {row.name: row.lr_mult for row in plan.rows} == {
        row.name: 0.5 if _in_blocks(row.name) else 1 for row in plan.rows
    }
    assert all((row.sgd_lr_mult, row.eps_mult, row.init_mult) == (1, 1, 1) for row in plan.rows)
    assert all(torch.equal(a, b) for a, b in zip(stock.parameters(), model.parameters(), strict=True))
    assert all(("√(4/16)" in row.why) == _in_blocks(row.name) for row in plan.rows)


def test_depth_and_width_multiply():
    """Width 32 over 8: hidden maps 1/4; layers 8 over 2: 1/2."""
    plan = nm.summary(nm.parametrize(_fno(8, 32), base={"n_layers": 2, "hidden_channels": 8}, rule="none"))
    assert plan["fno_blocks.fno_skips.7.conv.weight"].lr_mult == 1 / 8
    assert plan["fno_blocks.convs.0.weight.tensor"].lr_mult == 1 / 8
    assert plan["fno_blocks.channel_mlp_skips.5.weight"].lr_mult == 1 / 2
    assert plan["lifting.fcs.1.weight"].lr_mult == 1 / 4


def test_groups_decay_and_mup_agree():
    import mup

    model = nm.parametrize(_fno(4), base={"n_layers": 1})
    groups = nm.param_groups(model, 0.01, weight_decay=0.1)
    assert {(g["lr"], g["weight_decay"]) for g in groups} == {(0.01, 0.1), (0.005, 0.2)}  # lr · decay is one number
    lrs = {id(p): g["lr"] for g in groups for p in g["params"]}
    theirs = {id(p): g["lr"] for g in mup.MuAdam(model.parameters(), lr=0.01).param_groups for p in g["params"]}
    assert lrs == theirs
    nm.check_optimizer(model, nm.MuAdam(model, lr=0.01))
    assert {g["lr"] for g in nm.MuSGD(model, lr=0.01).param_groups} == {0.01}


def test_a_base_in_every_form_gives_one_plan(tmp_path):
    overrides = {"n_layers": 2, "hidden_channels": 4}
    plan = nm.summary(model := nm.parametrize(_fno(6), base=overrides))
    nm.save_base_shapes(model, tmp_path / "of_target")
    nm.save_base_shapes(_fno(2, 4), tmp_path / "of_base")
    assert (tmp_path / "of_target").read_text() == (tmp_path / "of_base").read_text()
    for base in (_fno(2, 4), lambda: _fno(2, 4), tmp_path / "of_target"):
        assert nm.summary(nm.parametrize(_fno(6), base=base)) == plan


def test_plans_in_files(tmp_path):
    """Written and read; attached to weights from a file; and as they were written before there was depth."""
    model = nm.parametrize(_fno(6), base={"n_layers": 2})
    assert Plan.from_json(nm.summary(model).to_json()) == nm.summary(model)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    again = nm.load_plan(_fno(6), tmp_path / "weights.pt")
    assert nm.summary(again) == nm.summary(model)

    plan = nm.summary(nm.parametrize(_fno(2), base={"hidden_channels": 4}))
    stored = json.loads(plan.to_json())
    for row in stored["rows"]:
        del row["lacking"], row["size"]["layers"], row["base_size"]["layers"]
    assert Plan.from_json(json.dumps(stored)) == plan


def test_modes_that_grow_keep_the_depth():
    model = FNO((4,), 1, 1, 4, n_layers=4, max_n_modes=(16,))
    nm.parametrize(model, base={"n_layers": 1}, rule="log-modes")
    model.fno_blocks.convs[0].n_modes = (8,)  # K = 2 → 4: κ = √(log 2 / log 4) = √½, beside √(1/4)
    assert present_plan(model)["fno_blocks.convs.0.weight.tensor"].lr_mult == pytest.approx(0.5**0.5 / 2)


@pytest.mark.parametrize("factorization", ["tucker", "cp", "tt"])
def test_factors(factorization):
    """All factors of a kernel, which each take the whole of the rule's factor."""
    model = TFNO((4, 4), 1, 1, 8, n_layers=4, factorization=factorization, rank=0.5)
    plan = nm.summary(nm.parametrize(model, base={"n_layers": 1}))
    assert {row.lr_mult for row in plan.rows if _in_blocks(row.name)} == {0.5}


def test_a_deeper_base_is_refused():
    with pytest.raises(MupError, match="no deeper than its target"):
        nm.parametrize(_fno(2), base={"n_layers": 4})
    with pytest.raises(MupError, match="no deeper than its target"):
        nm.parametrize(_fno(2), base=_fno(3))


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


def test_other_lists_of_layers_are_no_depth():
    """A graph kernel's map with a further hidden layer is another architecture: it has no Fourier layers."""

    def gino(*hidden):
        return GINO(1, 1, gno_coord_dim=2, fno_n_modes=(4, 4), fno_n_layers=1, fno_hidden_channels=8,
                    in_gno_channel_mlp_hidden_layers=list(hidden), out_gno_channel_mlp_hidden_layers=[6])  # fmt: skip

    with pytest.raises(MupError, match="different parameters"):
        nm.parametrize(gino(6, 6, 6, 6), base=gino(6, 6))


@given(here=st.integers(1, 12), base=st.integers(1, 12), lists=st.integers(1, 3))
def test_matching_counts(here, base, lists):
    """Stacks have the model's layers and base's; at equal depth, and outside of stacks, there is nothing to say."""

    def names(n):
        return {"lift.weight"} | {f"blocks.{part}.{i}.fcs.{j}.w" for part in "ab" for i in range(n) for j in range(lists)}

    ours, theirs = names(here), names(base)
    kernels = {name for name in ours if ".a." in name}
    if base > here:
        with pytest.raises(MupError, match="no deeper"):
            match_layers(ours, theirs, kernels)
        return
    found = match_layers(ours, theirs, kernels)
    assert found.keys() == ours
    for name, layers in found.items():
        same = here == base or name == "lift.weight"
        assert (layers.here, layers.base) == ((1, 1) if same else (here, base))
        assert layers.at_base(name) in theirs and layers.lacking == (name not in theirs)
        assert layers.at_base(name).split(".")[4:] == name.split(".")[4:]
