"""Files that were once read wrongly without an error: each test is a fault of that kind."""

import numpy as np
import pytest

from neuralop_mup.lab.data import OwnData
from support.errors import refused
from support.files import array, write_hdf5

N = 20


def write_groups(path="g.h5", **arrays):
    """Write a group for each sample; a function of the number of the sample makes each array."""
    return write_hdf5(path, {f"{i:04}/{key}": make(i) for i in range(N) for key, make in arrays.items()})


def load(path="g.h5", **read):
    return OwnData(files=path, shuffle=False, **read).load()


@pytest.mark.parametrize(("shape", "dims"), [((), "sample"), ((1,), "channel"), ((8,), "x")])
def test_each_group_has_its_own_numbers(shape, dims):
    """The numbers of the first group were used for all groups."""
    write_groups(u=lambda i: array(9, 8), p=lambda i: np.full(shape, float(i)))
    x, _ = load(x="*/p", y="*/u", dims={"*/u": "time x", "*/p": dims}, time_step=1).train
    assert np.array_equal(x[::8, 1, 0], np.arange(16))


def test_numbers_that_are_equal_in_all_groups_stay_single():
    write_groups(u=lambda i: array(9, 8), p=lambda i: np.arange(3.0), t=lambda i: np.arange(9.0))
    own = OwnData(files="g.h5", time_step=1)
    assert own.load().counts()["train"] == 16 * 8


def test_each_group_has_its_own_times():
    """The times of the first group were used for all groups."""
    write_groups(u=lambda i: array(9, 8), t=lambda i: np.arange(9) * (1.0 + i % 3))
    data = load(y="*/u", dims="sample time x", time_step=1)
    assert set(data.train[0][:, 1].flatten().tolist()) >= {1.0, 2.0, 3.0}
    write_groups(u=lambda i: array(9, 8), t=lambda i: np.arange(9.0) ** (1 + i % 2))
    with refused("g.h5/0001 uneven"):
        load(y="*/u", dims="sample time x", time_step=1)


def test_groups_with_fields_on_one_axis():
    """Only one sample was read."""
    write_groups(x=lambda i: array(32) + i, y=lambda i: array(32) + i)
    x, y = load(x="*/x", y="*/y", dims="x").train
    assert (len(x), x.shape, y.shape) == (16, (16, 1, 32), (16, 1, 32))
    assert np.allclose(x.mean(dim=(1, 2)), np.arange(16), atol=1)
