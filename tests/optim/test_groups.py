"""Param groups: learning rates, decays and names worked out by hand."""

import pytest
import torch
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.optim.groups import number_equal_names

KEYS = ("lr", "lr_mult", "rule_mult", "weight_decay")


def build(**kwargs):
    return nm.parametrize(FNO((4,), 1, 1, 8, n_layers=1, **kwargs), base={"hidden_channels": 4}, rule="log-modes")


@pytest.mark.parametrize(
    ("family", "names", "numbers"),
    [
        # Width 8 over 4. 1 / r_in is 1/2 for all that reads the width, and lr · weight_decay is that at base.
        (
            "adam",
            ["input+vector", "hidden+spectral", "readout"],
            [(0.01, 1, 1, 0.1), (0.005, 0.5, 0.5, 0.2), (0.015, 1.5, 0.5, 0.2)],
        ),
        # r_out is 2 for input and vectors, r_out / r_in is 1 for hidden layers and kernels, as for the bias of the output.
        (
            "sgd",
            ["input+vector", "hidden+vector+spectral", "readout"],
            [(0.02, 2, 2, 0.05), (0.01, 1, 1, 0.1), (0.015, 1.5, 0.5, 0.2)],
        ),
    ],
)
def test_groups_by_hand(family, names, numbers):
    groups = nm.param_groups(build(), 0.01, family, weight_decay=0.1, lr_mult={"readout": 3.0})
    assert [group["name"] for group in groups] == names
    for group, own in zip(groups, numbers, strict=True):
        assert [group[key] for key in KEYS] == pytest.approx(own)


def test_kernels_that_may_grow_have_groups_of_their_own():
    groups = {group["name"]: group for group in nm.param_groups(build(max_n_modes=(8,)), 0.01)}
    assert [*groups] == ["input+vector", "spectral fno_blocks.convs.0", "hidden+readout"]
    assert [group.get("mode_mult") for group in groups.values()] == [None, 1.0, None]
    assert not any("weight_decay" in group for group in groups.values())


def test_defaults():
    defaults = [optimizer(build()).defaults for optimizer in (nm.MuAdam, nm.MuAdamW, nm.MuSGD)]
    assert [(own["lr"], own["weight_decay"]) for own in defaults] == [(1e-3, 0), (1e-3, 0.01), (1e-3, 0)]


def test_learning_rates_may_be_tensors():
    groups = nm.param_groups(build(), torch.tensor(0.01), weight_decay=torch.tensor(0.1))
    for group in groups:
        assert group["lr"] * group["weight_decay"] == pytest.approx(0.001)


def test_equal_names_are_numbered():
    groups = number_equal_names([{"name": name} for name in "abacb"])
    assert [group["name"] for group in groups] == ["a 1", "b 1", "a 2", "c", "b 2"]
