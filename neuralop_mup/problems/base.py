"""What every problem is (a frozen description) and what every data set is (three pairs of tensors)."""

from __future__ import annotations

import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from neuralop_mup.counting import Counting
from neuralop_mup.errors import MupError, nearest
from neuralop_mup.problems import cache
from neuralop_mup.validation import check_count

if TYPE_CHECKING:
    from neuralop.data.transforms.data_processors import DataProcessor, DefaultDataProcessor

__all__ = ["Problem", "ProblemData", "check_refines"]

Pair = tuple[torch.Tensor, torch.Tensor]
SPLITS = ("train", "val", "test")
_KEPT_AFTER = 30.0  # seconds of generating; what takes less is made anew after a kill


def check_refines(solver_grid: Any, grid: int, least: int) -> None:
    """Raise MupError unless a periodic solver grid has ``least`` points or more and holds every point of the data."""
    check_count("solver_grid", solver_grid, least=least)
    if solver_grid % grid:
        nearby = -(-solver_grid // grid) * grid
        raise MupError(
            f"solver_grid must be a multiple of grid, so that the data's points are points of the solver; "
            f"{solver_grid} is no multiple of {grid}, {nearby} is."
        )


class _Pairs(Dataset):
    """Pairs as dicts; a whole batch is one indexing, where torch's default would collate sample by sample."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[index], "y": self.y[index]}

    def __getitems__(self, indices: list[int]) -> dict[str, torch.Tensor]:
        return {"x": self.x[indices], "y": self.y[indices]}


def _collate(batch: Any) -> dict[str, torch.Tensor]:
    return batch if isinstance(batch, dict) else default_collate(batch)


@dataclass(frozen=True, eq=False)
class ProblemData:
    """The data of one problem: a pair ``(x, y)`` for each of train, val and test.

    Attributes
    ----------
    train, val, test : tuple of torch.Tensor
        ``(x, y)``, float32, each of shape ``(n, channels, *grid_shape)``; the x of a problem in space-time is a view
        that repeats the initial state along time.
    """

    train: Pair
    val: Pair
    test: Pair

    def loaders(self, batch_size: int, seed: int) -> tuple[DataLoader, dict[str, DataLoader]]:
        """Loaders of batches ``{"x": …, "y": …}`` as neuralop's Trainer takes them.

        Parameters
        ----------
        batch_size : int
            Samples a batch; the last batch may be smaller.
        seed : int
            Fixes the order of the training samples, epoch by epoch.

        Returns
        -------
        train_loader : DataLoader
            Shuffled anew each epoch.
        eval_loaders : dict of DataLoader
            ``{"val": …, "test": …}``, in the stored order.

        Raises
        ------
        MupError
            For a batch size below 1 or a seed that is no non-negative integer.
        """
        check_count("batch_size", batch_size)
        check_count("seed", seed, least=0)
        order = torch.Generator().manual_seed(int(seed))
        train = DataLoader(_Pairs(*self.train), int(batch_size), shuffle=True, generator=order, collate_fn=_collate)
        evals = {
            name: DataLoader(_Pairs(*getattr(self, name)), int(batch_size), collate_fn=_collate) for name in ("val", "test")
        }
        return train, evals

    def processor(self) -> DefaultDataProcessor:
        """neuralop's data processor, with x and y normalized per channel by the training data.

        In ``train()`` mode the targets are normalized; in ``eval()`` mode the model's output is put back into
        the units of y, so that a validation error is one of the solution itself.

        Returns
        -------
        neuralop.data.transforms.data_processors.DefaultDataProcessor
        """
        from neuralop.data.transforms.data_processors import DefaultDataProcessor
        from neuralop.data.transforms.normalizers import UnitGaussianNormalizer

        normalizers = []
        for values in self.train:
            normalizer = UnitGaussianNormalizer(dim=[0, *range(2, values.ndim)])
            normalizer.fit(values)
            normalizers.append(normalizer)
        return DefaultDataProcessor(*normalizers)


@dataclass(frozen=True, kw_only=True)
class Problem(ABC):
    """A problem, described by its arguments. Frozen: the same arguments always mean the same data.

    Sample ``i`` of a split depends on ``(seed, split, i)`` alone, so a larger ``n_train`` adds samples and
    leaves those already there, as well as validation and test, what they were.
    """

    n_train: int
    n_val: int
    n_test: int
    grid: int
    seed: int = 0

    name: ClassVar[str]
    n_dim: ClassVar[int]
    in_channels: ClassVar[int] = 1
    out_channels: ClassVar[int] = 1
    version: ClassVar[int] = 1  # of the generator: raise it whenever the same arguments give other numbers
    chunk: ClassVar[int] = 50  # samples solved at once
    presets: ClassVar[dict[str, dict[str, Any]]] = {"cpu": {}}

    def __post_init__(self) -> None:
        for argument in ("n_train", "n_val", "n_test"):
            check_count(argument, getattr(self, argument))
        check_count("grid", self.grid, least=8)
        check_count("seed", self.seed, least=0)

    @classmethod
    def preset(cls, name: str = "cpu", **changes: Any) -> Problem:
        """The problem with the arguments of a named preset.

        Parameters
        ----------
        name : {"cpu", "gpu", "paper"}
            ``"cpu"``: the defaults, small. ``"gpu"``: between. ``"paper"``: as in Li, Yoo and Yang (2025), arXiv
            2506.19396. Not every problem has the last two.
        **changes
            Arguments that replace those of the preset.

        Raises
        ------
        MupError
            For an unknown preset.
        """
        if name not in cls.presets:
            raise MupError(f"{cls.__name__} has no preset {name!r}; {nearest(str(name), cls.presets)}")
        return cls(**{**cls.presets[name], **changes})

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Points per axis, one entry an axis."""
        return (self.grid,) * self.n_dim

    @property
    def stored_x_shape(self) -> tuple[int, ...]:
        """Shape of one input as it is kept: with its channel, before :meth:`expand_x`."""
        return (self.in_channels, *self.grid_shape)

    def expand_x(self, x: torch.Tensor) -> torch.Tensor:
        """Kept inputs ``(n, *stored_x_shape)`` as the model takes them, ``(n, in_channels, *grid_shape)``; a view."""
        return x

    def losses(self) -> dict[str, tuple[float, Callable[..., torch.Tensor]]]:
        """What training minimises, by name: weight and ``loss(y_pred, **sample)``, summed over the batch.

        ``"data"`` is there always: the relative L2 error, by which hyperparameters are chosen.
        """
        from neuralop.losses import LpLoss

        return {"data": (1.0, LpLoss(d=self.n_dim, p=2))}

    def processor(self, data: ProblemData) -> DataProcessor:
        """The data processor that the losses need; see :meth:`ProblemData.processor` for the usual one."""
        return data.processor()

    @property
    @abstractmethod
    def fine_grid(self) -> int:
        """Points per axis that the solver works on; the data is every so-many-th of them."""

    @property
    def key(self) -> str:
        """Content key (64 hex digits): of the name, every argument and the generator's version."""
        arguments = {**asdict(self), "solver_grid": self.fine_grid}
        return cache.content_key({"name": self.name, "version": self.version, "arguments": arguments})

    @property
    def file_name(self) -> str | None:
        """Name of the data's file in the cache folder; None for data that is not kept there."""
        return f"{self.name}-{self.key[:24]}.safetensors"

    @abstractmethod
    def solve(self, generators: list[np.random.Generator]) -> Pair:
        """One input and its solution for each generator: float64, one row a generator.

        The channel axis is the second one; where there is one channel it may be left out.
        """

    def generate(self) -> ProblemData:
        """Compute the data, on one thread and telling how far it is on stderr; the cache is not touched.

        Returns
        -------
        ProblemData
        """
        return self._data(self._solve_all())

    def _solve_all(self, parts: Path | None = None) -> dict[str, torch.Tensor]:
        """Every split; chunks of samples are kept in ``parts`` on the way, once it takes long."""
        sizes = {split: int(getattr(self, f"n_{split}")) for split in SPLITS}
        started = time.monotonic()
        with _one_thread(), Counting(f"generating {self.name} data, samples", sum(sizes.values())) as bar:
            tensors = {}
            for number, (split, size) in enumerate(sizes.items()):
                chunks = []
                for indices in _chunks(size, self.chunk):
                    path = None if parts is None else parts / f"{split}-{indices.start}.safetensors"
                    shapes = self._shapes(len(indices))
                    chunk = None if path is None else cache.read(path, self.key, shapes)
                    if chunk is None:
                        fields = self.solve([np.random.default_rng((self.seed, number, i)) for i in indices])
                        pairs = zip(shapes.items(), fields, strict=True)
                        chunk = {letter: _with_channels(values, shape).float() for (letter, shape), values in pairs}
                        if path is not None and time.monotonic() - started > _KEPT_AFTER:
                            with cache.atomic(path) as partial:
                                cache.write(partial, self.key, chunk)
                    chunks.append(chunk)
                    bar.update(len(indices))
                tensors |= {f"{split}_{letter}": torch.cat([chunk[letter] for chunk in chunks]) for letter in "xy"}
        return tensors

    def _shapes(self, n: int) -> dict[str, tuple[int, ...]]:
        return {"x": (n, *self.stored_x_shape), "y": (n, self.out_channels, *self.grid_shape)}

    def load(self, cache_dir: str | Path | None = None) -> ProblemData:
        """The data: from the cache if it is there, else generated and cached.

        A generation of more than half a minute keeps what it has: killed and called again, it goes on from there.

        Parameters
        ----------
        cache_dir : str or Path, optional
            Folder of the cache. Default: ``$NEURALOP_MUP_CACHE``, else ``$XDG_CACHE_HOME/neuralop_mup``, else
            ``~/.cache/neuralop_mup``.

        Returns
        -------
        ProblemData

        Raises
        ------
        MupError
            When the folder cannot be written, or the solver fails.

        Warns
        -----
        UserWarning
            When the cached file cannot be read; the data is then generated anew.
        """
        folder = cache.cache_folder(cache_dir)
        path = folder / self.file_name
        shapes = {
            f"{split}_{letter}": shape
            for split in SPLITS
            for letter, shape in self._shapes(int(getattr(self, f"n_{split}"))).items()
        }
        tensors = cache.read(path, self.key, shapes)
        if tensors is None:
            # Whoever wants the same data at the same time waits until the file is there under its name, and then finds it.
            # The temporary file is made before the work: a folder that cannot be written is told then.
            with cache.alone(self.key), cache.atomic(path) as partial:
                tensors = cache.read(path, self.key, shapes)
                if tensors is None:
                    parts = path.with_name(f".{path.name}.parts")
                    tensors = self._solve_all(parts)
                    shutil.rmtree(parts, ignore_errors=True)
                cache.write(partial, self.key, tensors)
        return self._data(tensors)

    def _data(self, tensors: dict[str, torch.Tensor]) -> ProblemData:
        return ProblemData(**{split: (self.expand_x(tensors[f"{split}_x"]), tensors[f"{split}_y"]) for split in SPLITS})


def _with_channels(values: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return values if values.ndim == len(shape) else values.unsqueeze(1)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Small solves on many threads of shared cores spend their time waiting for each other: 26 to 46 times slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _chunks(size: int, chunk: int) -> Iterator[range]:
    for start in range(0, size, chunk):
        yield range(start, min(start + chunk, size))
