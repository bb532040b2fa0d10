"""Arrays in files."""

from pathlib import Path

import h5py
import numpy as np
import torch

RNG = np.random.default_rng(0)


def array(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def write(path: Path, chunks=None, **arrays):
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".pt":
        torch.save({k: torch.from_numpy(v) for k, v in arrays.items()}, path)
    else:
        with h5py.File(path, "w") as file:
            for key, values in arrays.items():
                file.create_dataset(key, data=values, chunks=chunks)
    return str(path)
