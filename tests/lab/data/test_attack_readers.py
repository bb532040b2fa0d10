"""Files that were once read wrongly without an error: each test is a fault of that kind."""

import datetime
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray

from neuralop_mup.lab.data import OwnData
from neuralop_mup.lab.data.arrays import dataset_of
from neuralop_mup.lab.data.files import files_of
from neuralop_mup.lab.data.joining import read_files
from neuralop_mup.lab.data.readers import read_file
from support.errors import refused
from support.files import array, needs_zarr, write, write_hdf5

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


def test_each_group_has_its_own_packing():
    """The scale factor of the first group was used for all groups."""
    write_groups(u=lambda i: np.arange(72, dtype="i2").reshape(9, 8))
    with h5py.File("g.h5", "a") as file:
        for i in range(N):
            file[f"{i:04}/u"].attrs["scale_factor"] = float(i + 1)
        file["0003/u"].attrs["_FillValue"] = np.int16(-1)
    (data,) = read_file("g.h5")
    expected = np.arange(72).reshape(9, 8) * np.arange(1, N + 1)[:, None, None]
    assert np.array_equal(data["*/u"], expected)
    assert np.array_equal(data["*/u"][4, 1:3], expected[4, 1:3])


@pytest.mark.parametrize("suffix", ["nc", pytest.param("zarr", marks=needs_zarr)])
@pytest.mark.parametrize(
    "packing", [{"scale_factor": 0.5}, {"_Unsigned": "true"}, {"_Unsigned": "true", "_FillValue": np.int8(-1)}]
)
def test_packed_integers_are_those_of_xarray(suffix, packing):
    """In NetCDF 4, these attributes are arrays: the dtype was object, or the file was called damaged. Signs were ignored."""
    values = np.arange(240, dtype="u1").view("i1").reshape(15, 16)
    data = xarray.Dataset({"u": (("sample", "x"), values, packing)})
    (data.to_zarr if suffix == "zarr" else data.to_netcdf)(f"u.{suffix}", **{"engine": "h5netcdf"} if suffix == "nc" else {})
    read, expected = read_file(f"u.{suffix}")[0]["u"], values if "scale_factor" in packing else values.view("u1")
    assert np.array_equal(read, expected * packing.get("scale_factor", 1)) and read.dtype.kind in "uf"


def test_groups_of_several_types_are_joined_without_loss():
    """The type of the first group was used for all groups."""
    write_groups(u=lambda i: np.full((9, 8), i + 0.5) if i else np.zeros((9, 8), int))
    (data,) = read_file("g.h5")
    assert data["*/u"].dtype == float
    assert np.array_equal(data["*/u"][:, 0, 0], np.append(0, np.arange(1, N) + 0.5))


def save_steps(names, folder="steps"):
    """Write a file for each name. The values of the file are its place in the order that is expected."""
    Path(folder).mkdir()
    for place, name in enumerate(names):
        np.save(f"{folder}/{name}.npy", np.full(8, float(place)))


def joined(folder="steps"):
    (data,) = read_files(files_of(folder), "time")
    return data


def test_steps_are_sorted_by_decimal_numbers_in_their_names():
    """The step 0.1 was read before 0.05."""
    save_steps([f"u_{0.05 * step:.4g}" for step in range(40)])
    assert np.array_equal(joined()["data"][:, 0], np.arange(40))


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([f"u_{step}" for step in range(40) if step != 7], "u_8.npy u_6.npy intervalis1"),
        ([f"u_{step}" for step in (0, 1, 5)], "u_5.npy u_1.npy"),
        (
            [f"run3_{100 * step:05}" for step in range(20) if step not in (7, 8)],
            "run3_00900.npy run3_00600.npy intervalis100",
        ),
    ],
)
def test_gaps_in_the_numbers_of_steps_are_refused(names, words):
    """The step after a missing file was learned as one of the usual length."""
    save_steps(names)
    with refused(f"{words} {{'uneven':'ignore'}}"):
        joined()
    with refused("{'uneven':'ignore'}"):
        load("steps", join="time", time_step=1)
    assert len(read_files(files_of("steps"), "time", uneven="ignore")[0]["data"]) == len(names)


@pytest.mark.parametrize(
    "names",
    [
        [f"u_{date:%Y%m%d}" for date in map(datetime.date.fromordinal, range(737_440, 737_480))],
        [f"u_{hour:02}{minute:02}" for hour in range(3) for minute in (0, 15, 30, 45)],
        [f"u_t{step / 30:.2f}" for step in range(40)],
        [f"u_{step:04}_64x64" for step in range(12)],
    ],
)
def test_dates_clock_times_and_rounded_times_have_no_gaps(names):
    save_steps(names)
    assert np.array_equal(joined()["data"][:, 0], np.arange(len(names)))


def test_a_gap_is_found_although_another_number_ends_the_name():
    save_steps([f"u_{step}_64x64" for step in range(12) if step != 7])
    with refused("u_6_64x64.npy u_8_64x64.npy"):
        joined()


def test_steps_from_the_first_frame_to_the_last_need_not_be_even():
    for run in range(12):
        save_steps([f"v_{step}" for step in (1, 10, 100)], f"run{run}")
    x, _ = load([f"run{run}" for run in range(12)], join="time", time_step="last", dims="time x").train
    assert x.shape[1:] == (1, 8)


@pytest.mark.parametrize("form", ["u_2020-{m:02}-{d:02}", "part{m}_{d}"])
def test_names_with_several_numbers_have_no_gaps(form):
    save_steps([form.format(m=m, d=d) for m in (1, 2, 3) for d in range(1, 32 - 3 * (m == 2))])
    assert np.array_equal(joined()["data"][:, 0], np.arange(90))


def test_steps_are_sorted_by_the_times_in_the_files():
    """The numbers in the names were used, so that time ran backwards."""
    for step in range(40):
        write(f"steps/f_{step}.npz", u=np.full(8, 39.0 - step), t=np.array(39.0 - step))
    data = joined()
    assert np.array_equal(data["u"][:, 0], np.arange(40))
    assert np.array_equal(data["time"], np.arange(40))


def test_the_same_time_in_two_files_is_refused():
    for step in range(12):
        write(f"steps/f_{step}.npz", u=np.full(8, 0.0), t=np.array(max(1.0, step)))
    with refused("f_0.npz f_1.npz 1.0"):
        joined()


def test_times_with_different_units_are_refused():
    for step in range(12):
        write_netcdf(
            f"steps/f{step}.nc", u=("x", array(8)), time=((), step % 4, {"units": f"hours since 2020-01-0{1 + step // 4}"})
        )
    with refused("hourssince2020-01-01 unit"):
        joined()


def write_netcdf(path, **variables):
    Path(path).parent.mkdir(exist_ok=True)
    xarray.Dataset(variables).to_netcdf(path, engine="scipy")


@pytest.mark.parametrize("names", ["u_1 u_2 mean", "u_0.05_1 u_1", "a_1 b_1", "u1.9 u1.10", "a b"])
def test_names_that_give_no_order_are_refused(names):
    """Numbers and words were compared, which raised TypeError, or the order was that of the text."""
    save_steps(names.split())
    with refused("u_0007 steps"):
        joined()


@pytest.mark.parametrize("name", ["time", "valid_time"])
@pytest.mark.parametrize("has_times", [True, False])
@pytest.mark.parametrize("n_steps", [1, 30])
def test_steps_of_files_with_an_axis_of_time(name, has_times, n_steps):
    """Files of several steps raised ValueError, and an axis valid_time was not recognized."""
    for file in range(40):
        at = np.arange(n_steps) + n_steps * float(file)
        times = {name: (name, at)} if has_times else {}
        write_netcdf(f"steps/f{file}.nc", u=((name, "x"), np.tile(at[:, None], 8)), **times)
    data = joined()
    assert data["u"].dims == ("time", "x")
    assert np.array_equal(data["u"][:, 0], np.arange(40 * n_steps))
    assert ("time" in data.coords) == has_times
    load("steps", join="time", y="u", time_step=1)


def test_times_that_belong_to_no_axis_are_refused():
    for file in range(12):
        write(f"steps/f{file}.npz", u=array(30, 8), t=np.arange(30.0))
    with refused("f0.npz t join='time'"):
        joined()


def test_many_compressed_files():
    """The temporary file of an array was removed while its path was still in use."""
    u = array(70, 4, 16)
    for file, values in enumerate(u):
        Path("many").mkdir(exist_ok=True)
        np.savez_compressed(f"many/f{file:02}.npz", x=values, y=values)
    x, y = OwnData(files="many", dims="sample x", shuffle=False, in_memory=1e-9).load().train
    picked = np.arange(0, len(x), 4)
    assert np.array_equal(x[picked][:, 0], u[: len(picked), 0])
    assert np.array_equal(y[picked][:, 0], u[: len(picked), 0])


def test_arrays_of_different_lengths_on_one_axis():
    """A ValueError of xarray was raised."""
    x, y = (xarray.DataArray(array(n, 16), dims=("n", "s")) for n in (40, 30))
    with refused("'n' 'x' 'y' 40 30 isel"):
        dataset_of({"x": x, "y": y})
