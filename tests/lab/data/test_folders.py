"""Which files are read, and how often: names, folders, time steps, and samples that two splits share."""

import os
import resource
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import xarray

from neuralop_mup.errors import MupError
from neuralop_mup.lab.data import OwnData
from neuralop_mup.lab.data.given import as_source
from support.errors import refused
from support.files import array, write


def save_pairs(*folders, n=20):
    """x.npy and y.npy in each folder; the values are the number of the sample in all of them."""
    for i, folder in enumerate(folders):
        Path(folder).mkdir(parents=True)
        values = np.repeat(np.arange(i * n, (i + 1) * n)[:, None] + 1.0, 16, axis=1)
        for letter in "xy":
            np.save(f"{folder}/{letter}.npy", values)


def numbers(own):
    data = own.load()
    return sorted(int(value) for split in data.counts() for value in getattr(data, split)[0][:, 0, 0])


@pytest.mark.parametrize("files", ["runs/*/*.npy", "runs", ["runs/a", "runs/b", "runs/c"], "runs/*"])
def test_files_with_one_stem_in_several_folders(files):
    """Only the last folder was read."""
    save_pairs("runs/a", "runs/b", "runs/c")
    assert numbers(OwnData(files=files)) == list(range(1, 61))


def test_files_with_one_stem_and_other_suffixes():
    for folder in "ab":
        write(f"{folder}/heat.npz", x=array(20, 16), y=array(20, 16))
    assert sum(OwnData(files=["a/heat.npz", "b/heat.npz"]).load().counts().values()) == 40


@pytest.mark.parametrize("suffix", ["npy", "npz", "nc"])
def test_one_file_per_time_step(suffix):
    """Folders full of such files had "no file that can be read here"."""
    u = array(3, 12, 8, 8)
    for run, frames in enumerate(u):
        Path(f"sim/run{run}").mkdir(parents=True)
        for t, frame in enumerate(frames):
            path = f"sim/run{run}/frame_{t}.{suffix}"  # 10 comes after 9
            if suffix == "npy":
                np.save(path, frame)
            elif suffix == "npz":
                np.savez(path, u=frame, time=2.0 * t)
            else:
                named = xarray.Dataset(
                    {"u": (("time", "south", "east"), frame[None])}, {"time": [2.0 * t], "south": np.arange(8.0)}
                )
                named.to_netcdf(path, engine="h5netcdf")
    dims = {} if suffix == "nc" else {"dims": "time x y"}
    own = OwnData(files="sim", join="time", time_step=1, split=(1, 1, 1), shuffle=False, **dims)
    data = own.load()
    assert data.counts() == {"train": 11, "val": 11, "test": 11}
    for split, frames in zip(("train", "val", "test"), u, strict=True):
        x, y = getattr(data, split)
        assert np.array_equal(x[:, 0], frames[:-1]) and np.array_equal(y[:, 0], frames[1:])
    if suffix != "npy":
        assert own.first["time"].values.tolist() == [2.0 * t for t in range(12)]
    other = f"sim/run0/frame_12.{suffix}"
    Path(f"sim/run0/frame_0.{suffix}").rename(other)
    np.save("sim/run1/frame_12.npy", array(7, 7))
    with refused("frame_12.npy run1 join='time'"):
        OwnData(files="sim/run1", join="time", time_step=1, **dims).load()


def test_a_state_without_times_is_asked_about_its_files():
    for t in range(12):
        np.save(f"frame_{t}.npy", array(8, 8))
    with refused("{'join':'time'}"):
        OwnData(files=".", y="data", dims="x y", time_step=1).load()


def test_subfolders():
    for i, folder in enumerate(("all/a/deep", "all/b")):
        write(f"{folder}/d{i}.npz", x=array(20, 16), y=array(20, 16))
    assert sum(OwnData(files="all").load().counts().values()) == 40
    assert OwnData(files="all").files == {"all": ("all/a/deep/d0.npz", "all/b/d1.npz")}


def test_a_name_may_start_with_a_tilde():
    """It ended in a RuntimeError of pathlib, since there is no user with this name."""
    assert OwnData(files=write("~heat.npz", x=array(20, 16), y=array(20, 16))).title == "~heat"
    with refused("~heat.npy exist"):
        OwnData(files="~heat.npy")


def test_hidden_files_are_no_data():
    """macOS writes ._heat.npz beside heat.npz on other disks, which made the folder unreadable."""
    write("mac/heat.npz", x=array(20, 16), y=array(20, 16))
    for hidden in ("mac/._heat.npz", "mac/.cache/old.npz"):
        Path(hidden).parent.mkdir(exist_ok=True)
        Path(hidden).write_bytes(b"\0\5\26\7")
    for files in ("mac", "mac/*", ["mac"]):
        assert OwnData(files=files).files == {"all": ("mac/heat.npz",)}


@pytest.mark.parametrize("form", ["files", "arrays", "in time"])
def test_samples_that_two_splits_share(form):
    """A validation set that was a part of the training set went unnoticed."""
    x, y = array(40, 16), array(40, 16)
    read = {}
    if form == "files":
        write("train.npz", x=x, y=y)
        write("val.npz", x=x[:8], y=y[:8])
        source = as_source("*.npz")
    elif form == "arrays":
        source = as_source({"train": (x[:, None], y[:, None]), "val": (x[:8, None], y[:8, None])})
    else:
        u, read = array(20, 5, 16), {"time_step": 1, "dims": "sample time x", "in_memory": 0.0}
        write("train.npz", u=u)
        write("val.npz", u=u[:2])
        source = as_source("*.npz", read)
    with pytest.warns(UserWarning, match="8 of 8 samples of val are also in train"):
        source.load().check()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inside = np.zeros((40, 64, 64), np.float32)  # zero outside of a few columns
        inside[:, 20:40, 3:13] = array(40, 20, 10)
        for pair in ((x, y), (x, x), (x > 0, y > 0), (inside, inside)):  # also outputs equal to inputs, zeros and ones
            as_source(tuple(np.asarray(part, np.float32) for part in pair)).load().check()


@pytest.mark.parametrize("link", [os.link, os.symlink, None])
def test_one_file_for_two_splits(link):
    write("train.npz", x=array(40, 16), y=array(40, 16))
    if link:
        link("train.npz", "val.npz")
    with refused("two splits"):
        OwnData(files={"train": "train.npz", "val": "val.npz" if link else "./train.npz"})


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_is_read_once(save, monkeypatch):
    """Each file was read twice, and every array in it, also those that nobody asked for."""
    arrays = {"x": array(20, 16), "y": array(20, 16), "other": array(20, 16)}
    for i in range(12):
        save(f"many{i}.npz", **arrays)
    opened, whole = [], zipfile.ZipFile.open
    kept = []

    def open_member(archive, member, *args, **kwargs):
        handle = whole(archive, member, *args, **kwargs)
        read, name = handle.read, getattr(member, "filename", member)
        handle.read = lambda n=-1: kept.append((archive.filename, name, data := read(n), len(data))) or data
        opened.append(name)
        return handle

    monkeypatch.setattr(zipfile.ZipFile, "open", open_member)
    own = OwnData(files="many*.npz", dims="sample x", in_memory=0.0)
    data = own.load()
    for _ in range(3):
        assert sum(len(batch["x"]) for batch in data.loaders(8, 0)[0]) == data.counts()["train"]
    copied = {(file, name) for file, name, _, n in kept if n > 500}
    assert all("other" not in name for _, name in copied)
    assert len(opened) == 12 * 3 + (24 if save is np.savez_compressed else 0)  # headers, and each array once


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_stays_within_memory(save):
    """All arrays were decompressed into memory, in every process."""
    numbers = np.arange(2000, dtype="f4")[:, None, None] + np.zeros((64, 64), "f4")
    save("z.npz", x=numbers, y=numbers + 1, other=np.zeros(60_000_000, "f4"))
    del numbers
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    own = OwnData(files="z.npz", dims="sample x y", in_memory=0.001)
    own.load()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


def test_objects_of_python_are_named():
    np.savez("o.npz", x=np.array([1, "a"], object))
    with refused("x o.npz objects"):
        OwnData(files="o.npz")
        OwnData(files="o.npz").load()
    with pytest.raises(MupError):
        as_source("nowhere")
