"""The base class of problems, a frozen description that generates data and stores it in a cache."""

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tqdm import tqdm

from neuralop_mup.errors import MupError, nearest
from neuralop_mup.files import whole_file
from neuralop_mup.lab.data.problem_data import SPLITS, Pair, ProblemData
from neuralop_mup.lab.fingerprint import fingerprint
from neuralop_mup.lab.loss import Losses, Term, relative_l2
from neuralop_mup.validation import check_count, check_names, check_number


def cache_folder(folder: str | Path | None = None) -> Path:
    """Return ``folder`` if given, else ``$NEURALOP_MUP_CACHE``, else ``neuralop_mup`` in the user's cache folder."""
    shared = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "neuralop_mup")
    return Path(folder or os.environ.get("NEURALOP_MUP_CACHE") or shared).expanduser()


@dataclass(frozen=True, kw_only=True)
class Problem(ABC):
    """A problem that is described by its arguments. The same arguments always produce the same data.

    Sample ``i`` of a split depends only on ``(seed, split, i)``, so a larger ``n_train`` adds samples without changing the
    existing ones.

    Arguments whose names end in ``_weight`` are weights of the losses and do not affect the data. A loss with weight 0 is
    not evaluated, except for the loss of the data, which is used to compare runs.

    Parameters
    ----------
    n_train, n_val, n_test : int
        Number of samples in each split.
    grid : int
        Number of grid points per axis of the data, at least 8.
    seed : int, default 0
        Seed for the samples.

    Raises
    ------
    MupError
        If a value is invalid.

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
    n_dim: ClassVar[int]
    in_channels: ClassVar[int] = 1
    out_channels: ClassVar[int] = 1
    version: ClassVar[int] = 1  # version of the generator; increase it when the same arguments give different data
    chunk: ClassVar[int] = 50  # number of samples that are solved together
    ends: ClassVar[int] = 0  # 1 if the grid includes both ends, so it has one cell fewer than points

    def __post_init__(self) -> None:
        for argument, least in {"n_train": 1, "n_val": 1, "n_test": 1, "grid": 8, "seed": 0}.items():
            check_count(argument, getattr(self, argument), least=least)
        check_count("solver_grid", self.fine_grid, least=self.grid)
        cells = self.grid - self.ends
        if (self.fine_grid - self.ends) % cells:
            raise MupError(
                f"solver_grid={self.fine_grid} does not contain the {self.grid} grid points of the data. Use "
                f"solver_grid={-(-(self.fine_grid - self.ends) // cells) * cells + self.ends}."
            )
        weights = self._weights()
        for argument, weight in weights.items():
            check_number(argument, weight)
        if weights and not any(weights.values()):
            raise MupError(f"{' and '.join(weights)} are 0, so there is no loss. At least one of them must be positive.")

    def _weights(self) -> dict[str, float]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name.endswith("_weight")}

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Number of grid points along each axis."""
        return (self.grid,) * self.n_dim

    def losses(self) -> Losses:
        """Return the training losses by name: a weight and a function ``loss(y_pred, **sample)`` that sums over the batch.

        They always include ``"data"``, the relative L2 error, which is used to select hyperparameters.

        Returns
        -------
        dict of str to (float, callable)
            The losses. Other losses than ``"data"`` are omitted if their weight is 0.

        Examples
        --------
        >>> from neuralop_mup.lab.problems import get_problem
        >>> {name: weight for name, (weight, loss) in get_problem("darcy-pino").losses().items()}
        {'data': 5.0, 'equation': 1.0}
        """
        weights = {"data": 1.0} | {name.removesuffix("_weight"): float(w) for name, w in self._weights().items()}
        losses = {"data": relative_l2(self.n_dim), **self.equation_losses()}
        return {name: (weights[name], loss) for name, loss in losses.items() if weights[name] or name == "data"}

    def equation_losses(self) -> dict[str, Term]:
        """Return the losses for the residual of an equation by name. By default, there are none."""
        return {}

    def processor(self, data: ProblemData) -> Any:
        """Return the data processor that the losses require. By default, this is the processor of the data.

        Parameters
        ----------
        data : ProblemData
            Data whose training samples determine the normalization.

        Returns
        -------
        neuralop DataProcessor
            neuralop's default processor, or a :class:`~neuralop_mup.losses.PhysicalDataProcessor` for an equation.

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
        """Number of grid points per axis of the solver. The grid of the data is an evenly spaced subset of them."""
        return self.grid

    @property
    def title(self) -> str:
        """Name of the data that is used in reports."""
        return self.name

    def content(self) -> dict[str, Any]:
        """Return everything that determines the data: the problem, its arguments, and the version of the generator."""
        return {"problem": self.name, **asdict(self), "solver_grid": self.fine_grid, "generator": self.version}

    @property
    def file_name(self) -> str:
        """Name of the data file in the cache, which contains a hash of everything that the data depends on."""
        decisive = {name: value for name, value in self.content().items() if not name.endswith("_weight")}
        return f"{self.name}-{fingerprint(decisive)[:24]}.safetensors"

    @abstractmethod
    def solve(self, generators: list[np.random.Generator]) -> Pair:
        """Return one input and its solution per generator, in float64, of shape ``(generators, channels, *grid_shape)``."""

    def generate(self) -> ProblemData:
        """Generate the data on one thread without using the cache, and show progress on stderr.

        Returns
        -------
        ProblemData
            The same data that :meth:`load` returns.

        Raises
        ------
        MupError
            If the solver fails.

        Examples
        --------
        >>> from neuralop_mup.lab.problems import get_problem
        >>> problem = get_problem("burgers", n_train=8, n_val=2, n_test=2, grid=16, viscosity=0.1)
        >>> problem.generate().counts()
        {'train': 8, 'val': 2, 'test': 2}
        """
        return self._data(self._generated())

    def _generated(self) -> dict[str, torch.Tensor]:
        """Generate the tensors of every split."""
        tensors, threads = {}, torch.get_num_threads()
        total = sum(getattr(self, f"n_{split}") for split in SPLITS)
        with tqdm(desc=f"generating {self.name} data", total=total, unit=" samples", mininterval=1) as bar:
            try:
                # Small solves were 26 to 46 times slower with many threads on shared cores.
                torch.set_num_threads(1)
                for number, split in enumerate(SPLITS):
                    chunks = []
                    samples = range(getattr(self, f"n_{split}"))
                    for start in samples[:: self.chunk]:
                        indices = samples[start : start + self.chunk]
                        chunks.append(self.solve([np.random.default_rng((self.seed, number, i)) for i in indices]))
                        bar.update(len(indices))
                    for letter, parts in zip("xy", zip(*chunks, strict=True), strict=True):
                        tensors[f"{split}_{letter}"] = torch.cat(parts).float().contiguous()
            finally:
                torch.set_num_threads(threads)
        return tensors

    def load(self, cache_dir: str | Path | None = None) -> ProblemData:
        """Return the data from the cache. If it is not cached, generate it and store it in the cache.

        Parameters
        ----------
        cache_dir : str or Path, optional
            Folder of the cache. Default: ``$NEURALOP_MUP_CACHE``, else ``$XDG_CACHE_HOME/neuralop_mup``, else
            ``~/.cache/neuralop_mup``.

        Returns
        -------
        ProblemData
            The training, validation and test samples.

        Raises
        ------
        MupError
            If the folder cannot be written or the solver fails.

        Warns
        -----
        UserWarning
            If the cached file cannot be read. In this case, the data is generated again.

        Examples
        --------
        >>> from neuralop_mup.lab.problems import get_problem
        >>> problem = get_problem("burgers", n_train=8, n_val=2, n_test=2, grid=16, viscosity=0.1)
        >>> problem.load("cache").counts()
        {'train': 8, 'val': 2, 'test': 2}
        """
        path = cache_folder(cache_dir) / self.file_name
        try:
            if path.is_file():
                return self._data(load_file(path))  # the file is memory-mapped, so processes share memory
        except SafetensorError as error:
            warnings.warn(f"The cached file {path} cannot be read ({error}), so its data is generated again.", stacklevel=2)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # The file is created first, so that an unwritable folder causes an error before any data is generated.
            with whole_file(path) as partial:
                tensors = self._generated()
                save_file(tensors, partial)
        except (OSError, SafetensorError) as error:
            raise MupError(
                f"Cannot write to the cache folder {path.parent}: {error}. Make it writable, free up space, or set "
                "NEURALOP_MUP_CACHE to another folder."
            ) from error
        return self._data(tensors)

    def _data(self, tensors: dict[str, torch.Tensor]) -> ProblemData:
        return ProblemData(**{split: (tensors[f"{split}_x"], tensors[f"{split}_y"]) for split in SPLITS})


def named(known: Mapping[str, type[Problem]], name: str, arguments: Mapping[str, Any]) -> Problem:
    """Return the problem with this name and these arguments.

    Raises
    ------
    MupError
        If the name or an argument is unknown, or if a value is invalid.
    """
    if name not in known:
        raise MupError(f"Unknown problem {name!r}: {nearest(str(name), known)}")
    check_names(arguments, known[name])
    return known[name](**arguments)
