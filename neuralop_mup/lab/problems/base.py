"""What every problem is: a frozen description, from which data is made."""

from __future__ import annotations

import shutil
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from tqdm import tqdm

from neuralop_mup.errors import MupError, nearest
from neuralop_mup.lab.fingerprint import fingerprint
from neuralop_mup.lab.problems import cache
from neuralop_mup.lab.problems.data import SPLITS, Pair, ProblemData, chunks_of
from neuralop_mup.validation import check_count, check_number

if TYPE_CHECKING:
    from neuralop.data.transforms.data_processors import DataProcessor

_KEPT_AFTER = 30.0  # seconds of generating; what takes less is made anew after a kill


def check_even(name: str, value: int) -> None:
    """Raise MupError for an odd number of points."""
    if value % 2:
        raise MupError(
            f"{name} must be even (neuralop's SpectralConv is wrong on odd grids), but it is {value}: try {value + 1}."
        )


def check_refines(solver_grid: Any, grid: int, least: int, last: int = 0) -> None:
    """Raise MupError unless a solver grid has ``least`` points or more and holds every point of the data.

    A periodic grid leaves out its end point; where it is there, ``last`` is 1, and the cells between points are counted.
    """
    check_count("solver_grid", solver_grid, least=least)
    if (solver_grid - last) % (grid - last):
        nearby = -(-(solver_grid - last) // (grid - last)) * (grid - last) + last
        raise MupError(
            f"solver_grid = {solver_grid} has not every point of the data, which has {grid}: try solver_grid={nearby}."
        )


@dataclass(frozen=True, kw_only=True)
class Problem(ABC):
    """A problem, described by its arguments. Frozen: the same arguments always mean the same data.

    Sample ``i`` of a split depends on ``(seed, split, i)`` alone, so a larger ``n_train`` adds samples and
    leaves those already there, as well as validation and test, what they were.

    Arguments whose name ends in ``_weight`` are weights of the losses. The data does not depend on them, and a loss of
    weight 0 is not evaluated, except that of the data, by which runs are compared.

    Parameters
    ----------
    n_train, n_val, n_test : int
        Samples of each split.
    grid : int
        Points per axis of the data; at least 8.
    seed : int, default 0
        Seed of the samples.

    Raises
    ------
    MupError
        For a value that cannot work.

    Examples
    --------
    >>> from neuralop_mup.lab.problems import Burgers, Problem
    >>> problem = Burgers(n_train=8, n_val=2, n_test=2, grid=16, viscosity=0.1)
    >>> isinstance(problem, Problem), problem.title, list(problem.losses())
    (True, 'burgers', ['data'])
    >>> x, y = problem.load("cache").train
    >>> x.shape, y.shape
    (torch.Size([8, 1, 16]), torch.Size([8, 1, 16]))
    """

    n_train: int
    n_val: int
    n_test: int
    grid: int
    seed: int = 0

    name: ClassVar[str]
    data_of: ClassVar[str] = ""  # the problem whose data it has, if not its own
    n_dim: ClassVar[int]
    in_channels: ClassVar[int] = 1
    out_channels: ClassVar[int] = 1
    version: ClassVar[int] = 1  # of the generator: raise it whenever the same arguments give other numbers
    chunk: ClassVar[int] = 50  # samples solved at once

    def __post_init__(self) -> None:
        for argument in ("n_train", "n_val", "n_test"):
            check_count(argument, getattr(self, argument))
        check_count("grid", self.grid, least=8)
        check_count("seed", self.seed, least=0)
        weights = self._weights()
        for argument, weight in weights.items():
            check_number(argument, weight)
        if weights and not any(weights.values()):
            raise MupError(f"{' and '.join(weights)} are 0: there is nothing to train on.")

    def _weights(self) -> dict[str, float]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name.endswith("_weight")}

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Points per axis, one entry an axis."""
        return (self.grid,) * self.n_dim

    def losses(self) -> dict[str, tuple[float, Callable[..., torch.Tensor]]]:
        """What training minimises, by name: weight and ``loss(y_pred, **sample)``, summed over the batch.

        ``"data"`` is there always: the relative L2 error, by which hyperparameters are chosen.

        Returns
        -------
        dict of str to (float, callable)
            Those of weight 0 are left out.

        Examples
        --------
        >>> from neuralop_mup.lab.problems import get_problem
        >>> {name: weight for name, (weight, loss) in get_problem("darcy-pino").losses().items()}
        {'data': 5.0, 'equation': 1.0}
        """
        from neuralop.losses import LpLoss

        weights = {"data": 1.0} | {name.removesuffix("_weight"): float(w) for name, w in self._weights().items()}
        losses = {"data": LpLoss(d=self.n_dim, p=2), **self.equation_losses()}
        return {name: (weights[name], loss) for name, loss in losses.items() if weights[name] or name == "data"}

    def equation_losses(self) -> dict[str, Callable[..., torch.Tensor]]:
        """The losses besides that of the data, by name; none here."""
        return {}

    def processor(self, data: ProblemData) -> DataProcessor:
        """The data processor that the losses need: that of the data, unless a problem with an equation has another.

        Parameters
        ----------
        data : ProblemData
            To whose training samples the normalisation is fitted.

        Returns
        -------
        neuralop DataProcessor
            Of neuralop's class, or :class:`~neuralop_mup.losses.PhysicalDataProcessor`.

        Examples
        --------
        >>> from neuralop_mup.lab.problems import get_problem
        >>> problem = get_problem("burgers", n_train=8, n_val=2, n_test=2, grid=16, viscosity=0.1)
        >>> type(problem.processor(problem.load("cache"))).__name__
        'DefaultDataProcessor'
        """
        return data.processor()

    @property
    def fine_grid(self) -> int:
        """Points per axis that the solver works on; the data is every so-many-th of them."""
        return self.grid

    @property
    def title(self) -> str:
        """What the data is called in reports."""
        return self.name

    def content(self) -> dict[str, Any]:
        """What makes the data the same: the problem, its arguments and the version of what generates it."""
        return {"problem": self.name, **asdict(self), "solver_grid": self.fine_grid, "generator": self.version}

    def fingerprint_content(self) -> dict[str, Any]:
        """:meth:`content`: nothing is generated to tell the data from other data."""
        return self.content()

    @property
    def key(self) -> str:
        """Content key (64 hex digits): of the name, the arguments that the data depends on and the generator's version."""
        arguments = {name: value for name, value in asdict(self).items() if name not in self._weights()}
        arguments["solver_grid"] = self.fine_grid
        return fingerprint({"name": self.data_of or self.name, "version": self.version, "arguments": arguments})

    @property
    def file_name(self) -> str:
        """Name of the data's file in the cache folder."""
        return f"{self.data_of or self.name}-{self.key[:24]}.safetensors"

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
            The same that :meth:`load` gives.

        Raises
        ------
        MupError
            When the solver fails.

        Examples
        --------
        >>> from neuralop_mup.lab.problems import get_problem
        >>> problem = get_problem("burgers", n_train=8, n_val=2, n_test=2, grid=16, viscosity=0.1)
        >>> problem.generate().counts()
        {'train': 8, 'val': 2, 'test': 2}
        """
        return self._data(self._solve_all())

    def _solve_all(self, parts: Path | None = None) -> dict[str, torch.Tensor]:
        """Every split; chunks of samples are kept in ``parts`` on the way, once it takes long."""
        sizes = {split: int(getattr(self, f"n_{split}")) for split in SPLITS}
        started = time.monotonic()
        told = {"desc": f"generating {self.name} data", "total": sum(sizes.values()), "unit": " samples"}
        with _one_thread(), tqdm(**told, leave=sys.stderr.isatty(), mininterval=1 if sys.stderr.isatty() else 10) as bar:
            tensors = {}
            for number, (split, size) in enumerate(sizes.items()):
                chunks = []
                for indices in chunks_of(size, self.chunk):
                    path = parts and parts / f"{split}-{indices.start}.safetensors"
                    chunk = path and cache.read(path, self.key)
                    if chunk is None:
                        fields = self.solve([np.random.default_rng((self.seed, number, i)) for i in indices])
                        pairs = zip(self._shapes(len(indices)).items(), fields, strict=True)
                        chunk = {letter: values.reshape(shape).float() for (letter, shape), values in pairs}
                        if path is not None and time.monotonic() - started > _KEPT_AFTER:
                            cache.store(path, self.key, chunk)
                    chunks.append(chunk)
                    bar.update(len(indices))
                tensors |= {f"{split}_{letter}": torch.cat([chunk[letter] for chunk in chunks]) for letter in "xy"}
        return tensors

    def _shapes(self, n: int) -> dict[str, tuple[int, ...]]:
        return {"x": (n, self.in_channels, *self.grid_shape), "y": (n, self.out_channels, *self.grid_shape)}

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
            Samples of train, val and test.

        Raises
        ------
        MupError
            When the folder cannot be written, or the solver fails.

        Warns
        -----
        UserWarning
            When the cached file cannot be read; the data is then generated anew.

        Examples
        --------
        >>> from neuralop_mup.lab.problems import get_problem
        >>> problem = get_problem("burgers", n_train=8, n_val=2, n_test=2, grid=16, viscosity=0.1)
        >>> problem.load("cache").counts()
        {'train': 8, 'val': 2, 'test': 2}
        """
        folder = cache.cache_folder(cache_dir)
        path = folder / self.file_name
        tensors = cache.read(path, self.key)
        if tensors is None:
            # Whoever wants the same data at the same time waits until the file is there under its name, and then finds it.
            # The temporary file is made before the work: a folder that cannot be written is told then.
            with cache.alone(self.key), cache.atomic(path) as partial:
                tensors = cache.read(path, self.key)
                if tensors is None:
                    parts = path.with_name(f".{path.name}.parts")
                    tensors = self._solve_all(parts)
                    shutil.rmtree(parts, ignore_errors=True)
                cache.write(partial, self.key, tensors)
        return self._data(tensors)

    def _data(self, tensors: dict[str, torch.Tensor]) -> ProblemData:
        return ProblemData(**{split: (tensors[f"{split}_x"], tensors[f"{split}_y"]) for split in SPLITS})


def named(known: Mapping[str, type[Problem]], name: str, arguments: Mapping[str, Any]) -> Problem:
    """The problem of that name, described by its arguments.

    Raises
    ------
    MupError
        For an unknown name, an unknown argument or a value that cannot work.
    """
    if name not in known:
        raise MupError(f"There is no problem {name!r}; {nearest(str(name), known)}")
    valid = [field.name for field in fields(known[name])]
    for argument in arguments:
        if argument not in valid:
            raise MupError(f"The problem {name!r} has no argument {argument!r}; {nearest(argument, valid)}")
    return known[name](**arguments)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Small solves on many threads of shared cores spend their time waiting for each other: 26 to 46 times slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
