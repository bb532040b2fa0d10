"""Pairs of input and output from files, as windows over trajectories of any length. Each frame is read only once."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from xarray import Dataset, Variable

from neuralop_mup.lab.data.arrays import SAMPLE, TIME, Stored, is_channel
from neuralop_mup.lab.data.batches import chunks_of
from neuralop_mup.lab.data.handles import GAP, reading
from neuralop_mup.lab.data.problem_data import check_finite
from neuralop_mup.lab.data.roles import fields_of, grid_of, spaces_of

_ROLES = ("input", "output")
_MOST = 2**23  # maximum number of bytes that are read at once, unless the chunks of the file are larger


class RowReader:
    """The fields of one role in a Dataset, by row. Rows are ordered by sample and, within each sample, by time.

    Parameters
    ----------
    data : Dataset
        Dataset with roles.
    role : str

    Attributes
    ----------
    samples : array of int
        Number of each sample in the file.
    shape : tuple of int
        Shape ``(channels, *grid)`` of a row.
    dtype : dtype
        Precision of the file, float32 or float64.
    chunk : tuple of int
        Number of samples and times in one chunk of the file.
    """

    def __init__(self, data: Dataset, role: str) -> None:
        self.file, self.fields, self.spaces = data.attrs["file"], fields_of(data, role), spaces_of(data)
        self.n_times = data.sizes.get(TIME, 1)
        self.samples = data[SAMPLE].values if SAMPLE in data.dims else np.zeros(1, int)
        variables = list(self.fields.values())
        self.counts = [math.prod(n for dim, n in v.sizes.items() if is_channel(dim)) for v in variables]
        self.shape = (sum(self.counts), *grid_of(data))
        self.dtype = np.result_type(np.float32, *(variable.dtype for variable in variables))
        self.chunk = _chunk_of(variables[0]) if variables else (1, 1)
        self.stored = _stored_in_rows(data, variables, self.dtype)

    def read(self, rows: np.ndarray, out: np.ndarray) -> None:
        """Read ``rows``, in ascending order, into ``out`` of shape ``(len(rows), channels, *grid)``."""
        if self.stored is not None and out.dtype == self.dtype:
            self.stored.read_rows(rows, out)
            return
        samples, times = np.divmod(rows, self.n_times)
        for run in self._runs(rows, samples, times):
            first, last = run[0], run[-1]
            at = {SAMPLE: slice(samples[first], samples[last] + 1), TIME: slice(times[run].min(), times[run].max() + 1)}
            sizes = [part.stop - part.start for part in at.values()]
            is_whole = math.prod(sizes) == len(run)
            block = out[first : last + 1] if is_whole else np.empty((math.prod(sizes), *self.shape), out.dtype)
            filled, ends = block.reshape(*sizes, *self.shape), np.cumsum(self.counts)
            for variable, start, stop in zip(self.fields.values(), ends - self.counts, ends, strict=True):
                part = variable.isel(at, missing_dims="ignore")
                part = part.transpose(SAMPLE, TIME, ..., *self.spaces, missing_dims="ignore")
                lead, grid = ([part.sizes.get(dim, 1) for dim in dims] for dims in ((SAMPLE, TIME), self.spaces))
                filled[:, :, start:stop] = part.values.reshape(*lead, -1, *grid)  # repeated along absent axes
            if not is_whole:
                inside = (samples[run] - samples[first]) * sizes[1] + times[run] - at[TIME].start
                out[first : last + 1] = block[inside]

    def _runs(self, rows: np.ndarray, samples: np.ndarray, times: np.ndarray) -> list[np.ndarray]:
        """Return groups of positions in ``rows`` that are read together.

        A group may span small gaps. It may also cover several samples, if all are read at the same times and are small or
        read completely.
        """
        size = math.prod(self.shape) * self.dtype.itemsize
        ends = np.diff(rows) > 1 + GAP // size
        starts = np.flatnonzero(np.diff(samples)) + 1  # position of the first row of each sample except the first
        first, last = times[np.append(0, starts)], times[np.append(starts, len(rows)) - 1]
        is_joint = (last - first == self.n_times - 1)[1:] | (self.n_times * size <= GAP or self.chunk[0] > 1)
        ends[starts - 1] |= (np.diff(first) != 0) | (np.diff(last) != 0) | ~is_joint
        if self.chunk == (1, 1):
            most = max(1, _MOST // size)
            ends[most - 1 :: most] = True
        return np.split(np.arange(len(rows)), np.flatnonzero(ends) + 1)


def _stored_in_rows(data: Dataset, variables: Sequence[Variable], dtype: np.dtype) -> Stored | None:
    """Return the only array if its file stores all rows one after the other, in the axis order and precision of a row."""
    array = getattr(variables[0]._data, "array", None) if len(variables) == 1 else None
    if getattr(array, "offset", None) is None or array.dtype != dtype:
        return None
    dims = variables[0].dims
    order = [dim for dim in (SAMPLE, TIME, *filter(is_channel, dims), *spaces_of(data)) if dim in data.dims]
    parts = zip(variables[0]._data.key.tuple, array.shape, strict=True)
    is_whole = all(isinstance(part, slice) and part.indices(n) == (0, n, 1) for part, n in parts)
    return array if is_whole and list(dims) == order else None


def _chunk_of(variable: Variable) -> tuple[int, int]:
    """Return the number of samples and times in one chunk of the file."""
    array = getattr(variable._data, "array", None)  # xarray has no public access to the array of a lazy variable
    sizes = dict(zip(variable.dims, getattr(array, "chunks", ()), strict=False))
    return sizes.get(SAMPLE, 1), sizes.get(TIME, 1)


class WindowReader:
    """The pairs of input and output of one split in files, read on demand.

    Parameters
    ----------
    parts : sequence of Dataset
        Datasets with roles. Consecutive frames are one model step apart.
    samples : array of int
        Indices of the samples or trajectories in the split, counted through all parts.
    history : int
        Number of frames in an input, or 0 without a time axis.
    check_unchanged : callable
        Function that raises MupError if a file has changed.
    masked : bool, default False
        Whether NaN is allowed.

    Attributes
    ----------
    fields : tuple of LazyField
        Input and output.
    lengths : array of int
        Number of pairs from each sample or trajectory.
    chunk : int
        Number of pairs in one chunk of a file.
    """

    def __init__(
        self,
        parts: Sequence[Dataset],
        samples: np.ndarray,
        history: int,
        check_unchanged: Callable[[], None],
        masked: bool = False,
    ) -> None:
        self.order, self.history, self.check_unchanged, self.masked = samples, history, check_unchanged, masked
        self.readers = {role: [RowReader(data, role) for data in parts] for role in _ROLES}
        times = [np.full(len(reader.samples), reader.n_times) for reader in self.readers["output"]]
        self.offsets = np.cumsum([0, *map(np.sum, times)])  # index of the first row of each part
        times = np.concatenate(times)
        self.lengths = times[samples] - history
        # The first row of each sample, minus the number of pairs before it: adding the number of a pair gives its first row.
        shifts = (np.cumsum(times) - times)[samples] - (np.cumsum(self.lengths) - self.lengths)
        self.starts = np.repeat(shifts, self.lengths) + np.arange(self.lengths.sum())
        beside, own = (self.readers[role][0] for role in _ROLES)
        self.chunk = math.prod(own.chunk)
        channels = (beside.shape[0] + history * own.shape[0], own.shape[0])
        self.fields = tuple(LazyField(self, which, (len(self), n, *own.shape[1:])) for which, n in enumerate(channels))

    def __len__(self) -> int:
        return len(self.starts)

    def read(self, index: Sequence[int], which: Sequence[int], steps: int = 1) -> list[torch.Tensor]:
        """Read inputs (0), outputs (1) or both for some pairs in the file's precision. Outputs are ordered by step first."""
        return self.hold(index, which, steps, {})(torch.arange(len(index)))

    def hold(
        self, index: Sequence[int], which: Sequence[int], steps: int, rooms: dict[str, np.ndarray]
    ) -> Callable[[torch.Tensor], list[torch.Tensor]]:
        """Read pairs, with each frame read once and in file order. Return a function that copies pairs at given positions.

        ``rooms`` is a dict of buffers, empty at first. The next call reuses and overwrites them.
        """
        rows = self.starts[np.asarray(index, dtype=int), None] + np.arange(self.history + steps)
        # Inputs use the frames of the history, and outputs use those that follow.
        wanted = rows[:, 0 if 0 in which else self.history : None if 1 in which else self.history]
        frames, places = self._read("output", wanted, rooms) if wanted.size else (torch.empty(0), torch.empty(0))
        inputs = [(frames, places[:, : self.history])] if self.history else []
        if 0 in which and self.readers["input"][0].fields:
            inputs.append(self._read("input", rows[:, [max(0, self.history - 1)]], rooms))

        def input_of(some: torch.Tensor) -> torch.Tensor:
            found = [frames.index_select(0, places[some].flatten()) for frames, places in inputs]
            found = [own.reshape(len(some), -1, *own.shape[2:]) for own in found]
            return torch.cat(found, dim=1) if len(found) > 1 else found[0]

        def output_of(some: torch.Tensor) -> torch.Tensor:
            return frames.index_select(0, places[some, -steps:].T.flatten())

        return lambda some: [(input_of, output_of)[each](some) for each in which]

    def _read(self, role: str, wanted: np.ndarray, rooms: dict[str, np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the distinct frames and the position of each requested row among them."""
        rows, places = np.unique(wanted, return_inverse=True)
        readers = self.readers[role]
        if role not in rooms or len(rooms[role]) < len(rows):
            rooms[role] = np.empty((len(rows), *readers[0].shape), np.result_type(*(reader.dtype for reader in readers)))
        ends = np.searchsorted(rows, self.offsets)
        with reading():
            for reader, start, stop, offset in zip(readers, ends, ends[1:], self.offsets, strict=False):
                if start < stop:
                    here, out = rows[start:stop] - offset, rooms[role][start:stop]
                    reader.read(here, out)
                    if not self.masked:
                        names = f"{' and '.join(reader.fields)} in {reader.file}"
                        check_finite(names, torch.from_numpy(out), reader.samples[here // reader.n_times])
        return torch.from_numpy(rooms[role]), torch.from_numpy(places.reshape(wanted.shape))

    def whole(self) -> tuple[torch.Tensor, ...]:
        """Read all pairs into memory, one chunk at a time."""
        pair = tuple(torch.empty(values.shape) for values in self.fields)
        with reading():
            for numbers in chunks_of(*self.fields):
                for whole, part in zip(pair, self.read(numbers, (0, 1)), strict=True):
                    whole[numbers.start : numbers.stop] = part
        return pair


class LazyField:
    """Input or output of one split. It is indexed like a tensor of shape ``(n, channels, *grid)`` and read on access."""

    def __init__(self, pairs: WindowReader, which: int, shape: tuple[int, ...]) -> None:
        self.pairs, self.which, self.shape, self.ndim = pairs, which, shape, len(shape)
        self.check_unchanged = pairs.check_unchanged

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: int | Sequence[int]) -> torch.Tensor:
        if isinstance(index, (int, np.integer)):
            return self[[int(index)]][0]
        return self.exact(index).float()

    def exact(self, index: Sequence[int]) -> torch.Tensor:
        """Return the samples with these indices in the precision of the file."""
        return self.pairs.read(index, (self.which,))[0]
