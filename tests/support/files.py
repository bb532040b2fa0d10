"""Arrays in files."""

import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.io
import torch

HAS_ZARR = sys.version_info >= (3, 11)
needs_zarr = pytest.mark.skipif(not HAS_ZARR, reason="zarr 3 needs Python 3.11")
RNG = np.random.default_rng(0)


def array(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def assert_equal(arrays, expected):
    """Compare arrays or tensors one by one, such as input and output of a split."""
    for one, other in zip(arrays, expected, strict=True):
        assert np.array_equal(one, other)


def write(path, chunks=None, **arrays):
    """Write arrays to a file whose suffix is .npz, .pt, .mat (version 5) or an HDF5 one; return its path."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    suffix = Path(path).suffix
    if suffix == ".npz":
        np.savez(path, **arrays)
    elif suffix == ".mat":
        scipy.io.savemat(path, arrays)
    elif suffix == ".pt":
        torch.save({key: torch.from_numpy(values) for key, values in arrays.items()}, path)
    else:
        write_hdf5(path, arrays, chunks=chunks)
    return str(path)


def write_hdf5(path, arrays, attrs=(), chunks=None):
    """Write arrays by their paths in the file, and attributes by the paths of their owners; return the file's path."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for key, values in arrays.items():
            file.create_dataset(key, data=values, chunks=chunks)
        for key, values in dict(attrs).items():
            owner = file[key] if key in file else file.create_group(key)
            owner.attrs.update(values)
    return str(path)


def write_matlab73(path, **arrays):
    """Write HDF5 as MATLAB 7.3 does: its own header, and arrays column by column, so that HDF5 reverses their axes."""
    with h5py.File(path, "w", userblock_size=512) as file:
        file["#refs#/a"] = np.zeros(3)
        for key, values in arrays.items():
            file[key] = values.T
            file[key].attrs["MATLAB_class"] = np.bytes_("double")
    with open(path, "r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM")
    return str(path)
