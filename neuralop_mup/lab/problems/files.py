"""neuralop's own data sets, read from files that are on disk already; nothing is downloaded.

They are problems of their own, not another source of ``darcy``, ``burgers`` or ``navier-stokes``: their coefficients,
units and forcing are others, so an argument such as ``contrast`` or ``viscosity`` would say something untrue of them, and no
equation loss is offered.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from neuralop_mup.errors import MupError
from neuralop_mup.lab.problems.base import Problem, SpaceTime
from neuralop_mup.lab.problems.data import Pair, ProblemData

__all__ = ["BurgersFiles", "DarcyFiles", "NavierStokesFiles"]


@dataclass(frozen=True, kw_only=True)
class _Files(Problem):
    """A data set in ``PREFIX_train_GRID.pt`` and ``PREFIX_test_GRID.pt``: dicts of tensors x and y without channel axis.

    The first ``n_train`` samples of the training file are for training, the ``n_val`` after them for validation.
    """

    data_root: str = "."

    prefix: ClassVar[str]
    dataset: ClassVar[str]  # neuralop's class that downloads it
    n_dim: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.data_root, (str, Path)):
            raise MupError(f"data_root must be the path of a folder, but it is {self.data_root!r}.")
        object.__setattr__(self, "data_root", str(self.data_root))
        if self.seed:
            raise MupError(f"{self.name} reads its samples from files in their order: seed has no effect, leave it at 0.")

    def solve(self, generators: list[np.random.Generator]) -> Pair:
        """Nothing is solved."""
        raise MupError(f"{self.name} is read from files, it cannot be solved for.")

    def _file_shapes(self) -> dict[str, tuple[int | None, ...]]:
        """Shape of one sample of x and of y in the file; None where any size will do."""
        return dict.fromkeys("xy", self.grid_shape)

    def check_files(self) -> None:
        """MupError unless both files are there."""
        for part in ("train", "test"):
            self._path(part)

    def _path(self, part: str) -> Path:
        path = Path(self.data_root).expanduser() / f"{self.prefix}_{part}_{self.grid}.pt"
        if not path.is_file():
            there = sorted(found.name for found in path.parent.glob(f"{self.prefix}_*.pt"))
            raise MupError(
                f"There is no file {path}: neuralop's {self.dataset} keeps its data at resolution {self.grid} there "
                f"(the folder has {', '.join(there) or f'no {self.prefix}_*.pt'}). Nothing is downloaded here: "
                f"name the folder that has it (data_root), or another resolution (grid)."
            )
        return path

    def _read(self, part: str, needed: int) -> Pair:
        path = self._path(part)
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged file can fail in as many ways as pickle and zip know
            raise MupError(f"The file {path} cannot be read by torch.load: {error}") from error
        if not isinstance(content, dict) or not all(isinstance(content.get(key), torch.Tensor) for key in "xy"):
            raise MupError(f"The file {path} must hold a dict with tensors 'x' and 'y', as neuralop's files do.")
        for key, expected in self._file_shapes().items():
            shape = tuple(content[key].shape)
            if len(shape) != len(expected) + 1 or any(b not in (None, a) for a, b in zip(shape[1:], expected, strict=True)):
                wanted = ", ".join("any" if size is None else str(size) for size in ("samples", *expected))
                raise MupError(f"{key} in the file {path} must have shape ({wanted}), but it has {shape}.")
            if shape[0] < needed:
                held = f"{shape[0]} {'sample' if shape[0] == 1 else 'samples'}"
                raise MupError(f"The file {path} has {held} of {key}, but {needed} are asked for.")
            content[key] = content[key][:needed].float().unsqueeze(1)
            if not torch.isfinite(content[key]).all():
                raise MupError(f"{key} in the file {path} has entries that are not finite.")
        return content["x"], content["y"]

    def generate(self) -> ProblemData:
        """The data, read from the files.

        Returns
        -------
        ProblemData
            The first samples of the files.

        Raises
        ------
        MupError
            For a file that is missing or cannot be read, lacks samples, or holds other shapes or entries not finite.

        Examples
        --------
        >>> import torch
        >>> from neuralop_mup.lab.problems import DarcyFiles
        >>> for part in ("train", "test"):
        ...     torch.save({"x": torch.rand(12, 16, 16), "y": torch.rand(12, 16, 16)}, f"darcy_{part}_16.pt")
        >>> DarcyFiles(n_train=8, n_val=4, n_test=4).generate().counts()
        {'train': 8, 'val': 4, 'test': 4}
        """
        n = self.n_train
        x, y = self._read("train", n + self.n_val)
        pairs = ((x[:n], y[:n]), (x[n:], y[n:]), self._read("test", self.n_test))
        return ProblemData(*((self.expand_x(x), y) for x, y in pairs))

    @property
    def file_name(self) -> None:
        """The files are the cache."""
        return None

    def load(self, cache_dir: str | Path | None = None) -> ProblemData:
        """The same as :meth:`generate`: the files are the cache."""
        return self.generate()


@dataclass(frozen=True, kw_only=True)
class DarcyFiles(_Files):
    """neuralop's ``DarcyDataset``: coefficient → pressure, from ``darcy_train_GRID.pt`` and ``darcy_test_GRID.pt``.

    Parameters
    ----------
    data_root : str, default "."
        Folder of the files.
    grid : int, default 16
        Resolution: 16, 32, 64, 128 or 421 in the published record (zenodo.org/records/12784353).
    n_train, n_val, n_test : int, default 800, 100, 50
        Samples of each split; validation comes from the training file.
    seed : int, default 0
        Stays 0: samples come in the files' order.

    Raises
    ------
    MupError
        For a value that cannot work, or a seed; in :meth:`load`, for files that are missing or hold something else.

    Examples
    --------
    >>> import torch
    >>> from neuralop_mup.lab.problems import DarcyFiles
    >>> for part in ("train", "test"):
    ...     torch.save({"x": torch.rand(12, 16, 16), "y": torch.rand(12, 16, 16)}, f"darcy_{part}_16.pt")
    >>> data = DarcyFiles(data_root=".", grid=16, n_train=8, n_val=4, n_test=4).load()
    >>> data.train[0].shape, data.counts()
    (torch.Size([8, 1, 16, 16]), {'train': 8, 'val': 4, 'test': 4})
    """

    n_train: int = 800
    n_val: int = 100
    n_test: int = 50
    grid: int = 16

    name: ClassVar[str] = "darcy-files"
    prefix: ClassVar[str] = "darcy"
    dataset: ClassVar[str] = "DarcyDataset"


@dataclass(frozen=True, kw_only=True)
class NavierStokesFiles(_Files):
    """neuralop's ``NavierStokesDataset``, from ``nsforcing_train_GRID.pt`` and ``nsforcing_test_GRID.pt``.

    One field of two axes to another: no space-time, unlike the problem ``navier-stokes``.

    Parameters
    ----------
    data_root : str, default "."
        Folder of the files.
    grid : int, default 128
        Resolution: 128 or 1024 in the published record (zenodo.org/records/12825163).
    n_train, n_val, n_test : int, default 800, 200, 200
        Samples of each split; validation comes from the training file.
    seed : int, default 0
        Stays 0: samples come in the files' order.

    Raises
    ------
    MupError
        For a value that cannot work, or a seed; in :meth:`load`, for files that are missing or hold something else.

    Examples
    --------
    >>> import torch
    >>> from neuralop_mup.lab.problems import NavierStokesFiles
    >>> for part in ("train", "test"):
    ...     torch.save({"x": torch.rand(12, 16, 16), "y": torch.rand(12, 16, 16)}, f"nsforcing_{part}_16.pt")
    >>> data = NavierStokesFiles(data_root=".", grid=16, n_train=8, n_val=4, n_test=4).load()
    >>> data.train[0].shape, data.counts()
    (torch.Size([8, 1, 16, 16]), {'train': 8, 'val': 4, 'test': 4})
    """

    n_train: int = 800
    n_val: int = 200
    n_test: int = 200
    grid: int = 128

    name: ClassVar[str] = "navier-stokes-files"
    prefix: ClassVar[str] = "nsforcing"
    dataset: ClassVar[str] = "NavierStokesDataset"


@dataclass(frozen=True, kw_only=True)
class BurgersFiles(SpaceTime, _Files):
    """neuralop's ``Burgers1dTimeDataset``, from ``burgers_train_GRID.pt`` and ``burgers_test_GRID.pt``: u0 → u(t, x).

    Fields have the axes (time, x); x repeats the initial state along time.

    Parameters
    ----------
    data_root : str, default "."
        Folder of the files.
    grid : int, default 16
        Points in space: 16 or 128.
    time_points : int, default 16
        The first so many times in the file are used; even.
    n_train, n_val, n_test : int, default 80, 20, 50
        Samples of each split; validation comes from the training file.
    seed : int, default 0
        Stays 0: samples come in the files' order.

    Raises
    ------
    MupError
        For a value that cannot work, or a seed; in :meth:`load`, for files that are missing or hold something else.

    Examples
    --------
    >>> import torch
    >>> from neuralop_mup.lab.problems import BurgersFiles
    >>> for part in ("train", "test"):
    ...     torch.save({"x": torch.rand(12, 16), "y": torch.rand(12, 17, 16)}, f"burgers_{part}_16.pt")
    >>> data = BurgersFiles(data_root=".", grid=16, time_points=8, n_train=8, n_val=4, n_test=4).load()
    >>> data.train[0].shape, data.counts()
    (torch.Size([8, 1, 8, 16]), {'train': 8, 'val': 4, 'test': 4})
    """

    n_train: int = 80
    n_val: int = 20
    n_test: int = 50
    grid: int = 16
    time_points: int = 16

    name: ClassVar[str] = "burgers-files"
    prefix: ClassVar[str] = "burgers"
    dataset: ClassVar[str] = "Burgers1dTimeDataset"

    def _file_shapes(self) -> dict[str, tuple[int | None, ...]]:
        return {"x": (self.grid,), "y": (None, self.grid)}

    def _read(self, part: str, needed: int) -> Pair:
        x, y = super()._read(part, needed)
        if y.shape[2] < self.time_points:
            raise MupError(f"The burgers files have {y.shape[2]} times, but time_points asks for {self.time_points}.")
        return x, y[:, :, : self.time_points]
