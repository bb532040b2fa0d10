"""neuralop's own data sets, read from files that are on disk already; nothing is downloaded.

They are problems of their own, not another source of ``darcy``, ``burgers`` or ``navier-stokes``: their coefficients,
units and forcing are others, so an argument such as ``contrast`` or ``viscosity`` would say something untrue of them, and no
equation loss is offered.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from neuralop_mup.errors import MupError
from neuralop_mup.problems.base import SPLITS, Pair, Problem, ProblemData
from neuralop_mup.problems.physics import check_even
from neuralop_mup.validation import check_count

__all__ = ["BurgersFiles", "DarcyFiles", "NavierStokesFiles"]


@dataclass(frozen=True, kw_only=True)
class _Files(Problem):
    """A data set in ``PREFIX_train_GRID.pt`` and ``PREFIX_test_GRID.pt``: dicts of tensors x and y without channel axis.

    The first ``n_train`` samples of the training file are for training, the ``n_val`` after them for validation.
    """

    data_root: str = "."

    prefix: ClassVar[str]
    dataset: ClassVar[str]  # neuralop's class that downloads it
    presets: ClassVar[dict[str, dict[str, Any]]] = {"cpu": {}}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.data_root, (str, Path)):
            raise MupError(f"data_root must be the path of a folder, but it is {self.data_root!r}.")
        object.__setattr__(self, "data_root", str(self.data_root))
        if self.seed:
            raise MupError(f"{self.name} reads its samples from files in their order: seed has no effect, leave it at 0.")

    @property
    def fine_grid(self) -> int:
        """Points per axis in the file."""
        return self.grid

    def solve(self, generators: list[np.random.Generator]) -> Pair:
        """Nothing is solved."""
        raise MupError(f"{self.name} is read from files, it cannot be solved for.")

    def _file_shapes(self) -> dict[str, tuple[int | None, ...]]:
        """Shape of one sample of x and of y in the file; None where any size will do."""
        return dict.fromkeys("xy", self.grid_shape)

    def _cut(self, y: torch.Tensor) -> torch.Tensor:
        return y

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
            fits = len(shape) == len(expected) + 1 and all(b in (None, a) for a, b in zip(shape[1:], expected, strict=True))
            if not fits:
                wanted = ", ".join("any" if size is None else str(size) for size in ("samples", *expected))
                raise MupError(f"{key} in the file {path} must have shape ({wanted}), but it has {shape}.")
            if shape[0] < needed:
                held = f"{shape[0]} {'sample' if shape[0] == 1 else 'samples'}"
                raise MupError(f"The file {path} has {held} of {key}, but {needed} are asked for.")
        x, y = content["x"][:needed].float(), self._cut(content["y"][:needed]).float()
        for key, values in {"x": x, "y": y}.items():
            if not torch.isfinite(values).all():
                raise MupError(f"{key} in the file {path} has entries that are not finite.")
        return x.unsqueeze(1), y.unsqueeze(1)

    def generate(self) -> ProblemData:
        """The data, read from the files.

        Raises
        ------
        MupError
            For a file that is missing or cannot be read, lacks samples, or holds other shapes or entries not finite.
        """
        x, y = self._read("train", self.n_train + self.n_val)
        test_x, test_y = self._read("test", self.n_test)
        n, full = self.n_train, self.n_train + self.n_val
        pairs = {"train": (x[:n], y[:n]), "val": (x[n:full], y[n:full]), "test": (test_x, test_y)}
        return ProblemData(**{split: (self.expand_x(pairs[split][0]), pairs[split][1]) for split in SPLITS})

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
    data_root : str
        Folder of the files.
    grid : int
        Resolution: 16, 32, 64, 128 or 421 in the published record (zenodo.org/records/12784353).
    n_train, n_val, n_test : int
        Samples of each split; validation comes from the training file.
    """

    n_train: int = 800
    n_val: int = 100
    n_test: int = 50
    grid: int = 16

    name: ClassVar[str] = "darcy-files"
    prefix: ClassVar[str] = "darcy"
    dataset: ClassVar[str] = "DarcyDataset"
    n_dim: ClassVar[int] = 2


@dataclass(frozen=True, kw_only=True)
class NavierStokesFiles(_Files):
    """neuralop's ``NavierStokesDataset``, from ``nsforcing_train_GRID.pt`` and ``nsforcing_test_GRID.pt``.

    One field of two axes to another: no space-time, unlike the problem ``navier-stokes``.

    Parameters
    ----------
    data_root : str
        Folder of the files.
    grid : int
        Resolution: 128 or 1024 in the published record (zenodo.org/records/12825163).
    n_train, n_val, n_test : int
        Samples of each split; validation comes from the training file.
    """

    n_train: int = 800
    n_val: int = 200
    n_test: int = 200
    grid: int = 128

    name: ClassVar[str] = "navier-stokes-files"
    prefix: ClassVar[str] = "nsforcing"
    dataset: ClassVar[str] = "NavierStokesDataset"
    n_dim: ClassVar[int] = 2


@dataclass(frozen=True, kw_only=True)
class BurgersFiles(_Files):
    """neuralop's ``Burgers1dTimeDataset``, from ``burgers_train_GRID.pt`` and ``burgers_test_GRID.pt``: u0 → u(t, x).

    Fields have the axes (time, x); x repeats the initial state along time.

    Parameters
    ----------
    data_root : str
        Folder of the files.
    grid : int
        Points in space: 16 or 128.
    time_points : int
        The first so many times in the file are used; even.
    n_train, n_val, n_test : int
        Samples of each split; validation comes from the training file.
    """

    n_train: int = 80
    n_val: int = 20
    n_test: int = 50
    grid: int = 16
    time_points: int = 16

    name: ClassVar[str] = "burgers-files"
    prefix: ClassVar[str] = "burgers"
    dataset: ClassVar[str] = "Burgers1dTimeDataset"
    n_dim: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("time_points", self.time_points, least=4)
        check_even("time_points", self.time_points)

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Points per axis: time, x."""
        return (self.time_points, self.grid)

    @property
    def stored_x_shape(self) -> tuple[int, ...]:
        """One initial state; it is repeated along time when it is used."""
        return (1, self.grid)

    def expand_x(self, x: torch.Tensor) -> torch.Tensor:
        """Initial states ``(n, 1, grid)`` at every point of time; a view."""
        return x.unsqueeze(2).expand(-1, -1, self.time_points, -1)

    def _file_shapes(self) -> dict[str, tuple[int | None, ...]]:
        return {"x": (self.grid,), "y": (None, self.grid)}

    def _cut(self, y: torch.Tensor) -> torch.Tensor:
        if y.shape[1] < self.time_points:
            raise MupError(f"The burgers files have {y.shape[1]} times, but time_points asks for {self.time_points}.")
        return y[:, : self.time_points]
