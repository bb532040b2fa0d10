"""Conversion of files or arrays to Datasets with input and output, and of these to the pairs of each split."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from xarray import Dataset

from neuralop_mup.errors import MupError
from neuralop_mup.lab.data.arrays import CHANNEL, SAMPLE, TIME, dataset_of, is_unnamed
from neuralop_mup.lab.data.axes import with_roles
from neuralop_mup.lab.data.coordinates import check_coordinates
from neuralop_mup.lab.data.files import ONLY_KEY, SPLIT_WORDS, SPLITS, by_split, draw
from neuralop_mup.lab.data.formats import with_format
from neuralop_mup.lab.data.joining import linked_files, read_files
from neuralop_mup.lab.data.roles import LEAST, axes_text, described, fields_of, grid_of, labels_of, option, spaces_of
from neuralop_mup.lab.data.windows import WindowReader

if TYPE_CHECKING:
    from neuralop_mup.lab.data.own import OwnData

_LEAST = 10  # minimum number of samples
_PIECES = 10  # number of pieces per trajectory if there are too few trajectories for train, val and test


def open_sources(own: "OwnData") -> dict[str, list[Dataset]]:
    """Return Datasets with input and output by split, after selection and checks.

    Parameters
    ----------
    own : OwnData

    Raises
    ------
    MupError
        If arrays or axes are ambiguous, or if the files do not match.
    """
    read = {name: getattr(own, name) for name in ("x", "y", "dims", "time_step")}
    if own.arrays is not None:
        raw = {split: [dataset_of(part, own.title if split == "all" else split)] for split, part in own.arrays.items()}
    else:
        pair = {own.x, own.y} <= {None, "x", "y"}
        uneven = "ignore" if own.time_step == "last" else own.uneven  # from the first frame to the last, at any interval
        raw = {split: read_files(files, own.join, pair, uneven) for split, files in own.files.items()}
        own.watch(linked_files([data for group in raw.values() for data in group]))
    is_open = own.arrays is None and (own.x, own.y, own.dims) == (None, None, None)
    found = by_split((with_format(raw) if is_open else {}) or _with_names(raw, read))
    every = [data for group in found.values() for data in group]
    selected = [select(_in_order_of(every[0], data), own.every, own.crop) for data in every]
    checked = iter(check_coordinates(selected, own.uneven, own.time_step))
    made = {split: [next(checked) for _ in group] for split, group in found.items()}
    for group in made.values():
        for data in group:
            _check_alike(data, group[0], grid_of)
    return made


def select(data: Dataset, every: Any, crop: Any) -> Dataset:
    """Select a part of each sample. ``every`` and ``crop`` have the same meaning as in :class:`OwnData`."""
    steps = every if isinstance(every, Mapping) else dict.fromkeys(spaces_of(data), every)
    ranges = crop or {}
    if wrong := [dim for dim in (*steps, *ranges) if dim not in data.dims]:
        raise MupError(
            f"Unknown axis {wrong[0]!r} in every or crop. The axes of {data.attrs['file']} are {', '.join(data.dims)}."
        )
    chosen = [*ranges, *(every if isinstance(every, Mapping) else ())]
    if wrong := [dim for dim in chosen if dim in data.attrs.get("unclear", ())]:
        words = axes_text(next(iter(fields_of(data, "output").values())))
        raise MupError(
            f"The axes {', '.join(data.attrs['unclear'])} of {data.attrs['file']} have the same length, and the file does "
            f"not say which one is {wrong[0]}. Name each axis with {option(dims=words)}, in the order of the file."
        )
    for dim, ends in ranges.items():
        within = all(end is None or -data.sizes[dim] <= end <= data.sizes[dim] for end in ends)
        if not within or not range(*slice(*ends).indices(data.sizes[dim])):
            raise MupError(
                f"crop = {{{dim!r}: {tuple(ends)}}} is empty or exceeds the {data.sizes[dim]} points along {dim} "
                f"in {data.attrs['file']}. Use a range within these points, or None for the end: "
                f"crop={{{dim!r}: ({max(ends[0] or 0, 0)}, None)}}."
            )
    data = data.isel({dim: slice(*ranges.get(dim, (None, None)), steps.get(dim)) for dim in {**ranges, **steps}})
    if min(grid_of(data)) < LEAST:
        raise MupError(
            f"every and crop reduce the grid of {data.attrs['file']} to {grid_of(data)}, but each axis needs at least "
            f"{LEAST} points."
        )
    return data


def _with_names(raw: Mapping[str, Sequence[Dataset]], read: Mapping[str, Any]) -> dict[str, list[Dataset]]:
    """Return the input and output from files without a known format. The axes of the first file apply to all files."""
    found: dict[str, list[Dataset]] = {}
    if not read["y"] and not read["time_step"]:
        _check_unpaired([data for group in raw.values() for data in group])
    for split, group in raw.items():
        for data in group:
            made = with_roles(data, read, group)
            if read["dims"] is None and any(map(is_unnamed, data.dims)):
                read = {**read, "dims": made.attrs["words"]}
            found.setdefault(split, []).append(made)
    return found


def _check_unpaired(group: Sequence[Dataset]) -> None:
    """Raise MupError for files of one array each with different names, such as a.npy and u.npy, which may be a pair."""
    files = [Path(data.attrs["file"]) for data in group if list(data.variables) == [ONLY_KEY] and len(data.dims) > 1]
    names = {re.sub(rf"\d+|{'|'.join(SPLIT_WORDS)}", "", file.stem, flags=re.I): file.name for file in files}
    if len(files) == len(group) and len(names) > 1:
        (one, other, *_), suffix = names.values(), files[0].suffix
        raise MupError(
            f"{one} and {other} each contain one array, and it is unclear whether they are input and output. If they are, "
            f"rename them to x{suffix} and y{suffix}, and further pairs to x_1{suffix} and y_1{suffix} and so on. "
            f"If each is a state that evolves in time, pass {option(time_step=1)}."
        )


def _in_order_of(first: Dataset, data: Dataset) -> Dataset:
    """Return a file with its grid axes in the same order as in the first file. Raise MupError for different fields."""
    _check_alike(data, first, _channels_of)
    spaces, own = spaces_of(first), spaces_of(data)
    if set(own) != set(spaces):
        words = [word for word in (SAMPLE, TIME) if word in first.sizes] + spaces
        raise MupError(
            f"{data.attrs['file']} and {first.attrs['file']} have the axes {', '.join(own)} and {', '.join(spaces)}, and it "
            f"is not clear which of them correspond. Name each axis with {option(dims=' '.join(words))}."
        )
    return data.assign_attrs(spaces=spaces)


def _check_alike(data: Dataset, other: Dataset, what: Callable[[Dataset], tuple]) -> None:
    """Raise MupError if two files differ in the property that ``what`` returns, such as the channels or the grid."""
    if what(data) != what(other):
        held = f"{data.attrs['file']} contains {_held(data)}, but {other.attrs['file']} contains {_held(other)}"
        raise MupError(
            f"{held}. All files must have the same channels and axes, and the files of a split must also have the same grid."
        )


def _channels_of(data: Dataset) -> tuple:
    return labels_of(data, "input"), labels_of(data, "output"), len(grid_of(data)), TIME in data.sizes


def _held(data: Dataset) -> str:
    """Return a short description of a file for a comparison, such as ``a, b → u on 64×64 points``."""
    inputs, outputs = (", ".join(labels_of(data, role)[:8]) for role in ("input", "output"))
    return f"{inputs or 'frames'} → {outputs} on {_by(grid_of(data))} points{' in time' * (TIME in data.sizes)}"


def _by(grid: Sequence[int]) -> str:
    return "×".join(map(str, grid))


# Splits


def open_parts(own: "OwnData") -> dict[str, WindowReader]:
    """Return the pairs of input and output of each split.

    Raises
    ------
    MupError
        If there are too few samples or frames, or if ``time_step`` is missing for data with a time axis.
    """
    _check_steps(own)
    history = own.history if TIME in own.first.sizes else 0
    groups = {split: _in_steps(own, group) for split, group in own.sources.items()}
    if is_cut(own):
        groups["all"] = _in_steps(own, _in_pieces(own.sources["all"]))
    orders = {split: np.arange(n_samples(group)) for split, group in groups.items() if split != "all"}
    if "all" in groups:
        orders |= draw(n_samples(groups["all"]), own.split, orders, own.shuffle and not is_cut(own))
    if own.n_train is not None:
        orders["train"] = _fewer(orders["train"], own)
    found = {}
    for split in sorted(orders, key=SPLITS.index):
        found[split] = WindowReader(
            groups.get(split) or groups["all"], orders[split], history, own.check_unchanged, own.nan == "mask"
        )
    total = sum(map(len, found.values()))
    if total < _LEAST:
        raise MupError(
            f"{own.title} has {total} samples in total, on {_by(own.grid_shape)} points, but at least {_LEAST} are needed "
            "for training, validation and testing. If the sample axis is not first, move it to the front or pass dims."
        )
    return found


def n_samples(group: Sequence[Dataset]) -> int:
    """Return the total number of samples or trajectories in files."""
    return sum(data.sizes.get(SAMPLE, 1) for data in group)


def is_cut(own: "OwnData") -> bool:
    """Return whether there are only one or two trajectories, which are cut into pieces for the splits."""
    return TIME in own.first.sizes and 0 < n_samples(own.sources.get("all", ())) < len(SPLITS)


def _check_steps(own: "OwnData") -> None:
    """Raise MupError if ``time_step``, ``history`` or ``rollout`` does not fit the data."""
    first = own.first
    if TIME not in first.sizes:
        if own.time_step is not None or own.history + own.rollout > 2:
            raise MupError(
                f"time_step, history and rollout require data with a time axis, but {first.attrs['file']} has none. Omit "
                "these options."
            )
        return
    if own.time_step == "last" and is_cut(own):
        raise MupError(
            f"{own.title} has fewer than {len(SPLITS)} trajectories, which are cut into pieces for training, validation and "
            "testing, so the last frame cannot be predicted from the first. Pass a number as time_step."
        )
    inputs = fields_of(first, "input")
    varies = any(TIME in variable.dims for variable in inputs.values())
    if own.time_step is None and not first.attrs["format"]:
        words = axes_text(next(iter(fields_of(first, "output").values())))
        other = "If this is only the input, also pass the output: arrays (x, y), or files ['x.npy', 'y.npy']."
        if inputs and SAMPLE not in first.dims:
            other = (
                f"To predict each frame from the input of the same time, pass {option(dims=words.replace(TIME, SAMPLE))}."
            )
        elif varies:
            other = "If the output is the input one step later, pass only the trajectory, as y."
        elif inputs:
            other = f"To predict all frames at once, name the axes of the output {words.replace(TIME, CHANNEL)!r}."
        raise MupError(
            f"{first.attrs['file']} contains {described(first, 'output')} with {first.sizes[TIME]} time frames. To predict "
            f"each frame from the previous one, pass {option(time_step=1)}. To predict the last frame from the first, pass "
            f"{option(time_step='last')}. {other}"
        )
    if own.rollout > 1 and varies:
        raise MupError(
            f"The input {described(first, 'input')} in {first.attrs['file']} varies in time, so a prediction alone cannot "
            "serve as the next input. Use rollout=1."
        )


def _in_pieces(group: Sequence[Dataset]) -> list[Dataset]:
    """Cut trajectories into pieces. Return the consecutive pieces of one trajectory after the other."""
    made = []
    for data in group:
        each = data.sizes[TIME] // _PIECES
        for sample, piece in product(range(n_samples([data])), range(_PIECES)):
            at = {SAMPLE: slice(sample, sample + 1), TIME: slice(piece * each, (piece + 1) * each)}
            made.append(data.isel(at, missing_dims="ignore"))
    return made


def _in_steps(own: "OwnData", group: Sequence[Dataset]) -> list[Dataset]:
    """Return trajectories with one frame per model step. Trajectories that are too short are omitted."""
    if TIME not in group[0].sizes:
        return list(group)
    made = [data.isel(time=slice(None, None, _step_of(own, data.sizes[TIME]))) for data in group]
    long_enough = [data for data in made if data.sizes[TIME] >= own.history + own.rollout]
    if not long_enough:
        one_each = f" If each file is one time step, pass {option(join='time')}."
        raise MupError(
            f"A trajectory, or a piece of one, in {group[0].attrs['file']} has {group[0].sizes[TIME]} frames, which is too "
            f"few for time_step = {own.time_step or 1}, history = {own.history} and rollout = {own.rollout}. Use smaller "
            f"values.{'' if own.join == 'time' else one_each}"
        )
    return long_enough


def _step_of(own: "OwnData", n_frames: int) -> int:
    """Return the number of frames from the last frame of an input to its output."""
    return max(1, n_frames - 1) if own.time_step == "last" else int(own.time_step or 1)


def _fewer(order: np.ndarray, own: "OwnData") -> np.ndarray:
    if len(order) < own.n_train:
        raise MupError(
            f"n_train = {own.n_train} exceeds the {len(order)} training samples in {own.title}. Use a smaller number."
        )
    chosen = np.random.RandomState(0).permutation(len(order)) if own.shuffle else np.arange(len(order))
    return order[np.sort(chosen[: own.n_train])]


# Report lines


def describe(own: "OwnData") -> dict[str, str]:
    """Return report lines that describe how the data was read, by topic."""
    first, train = own.first, own.parts["train"]
    counts = ", ".join(f"{len(part)} {split}" for split, part in own.parts.items())
    options = [f for f in fields(own) if f.compare and f.name != "files"]
    changed = {f.name: getattr(own, f.name) for f in options if getattr(own, f.name) != f.default}
    varying = {
        name: f"varies between files from {least:g} to {most:g}; added as a constant input channel"
        for name, (least, most) in first.attrs.get("varying", {}).items()
    }
    found = {
        "read as": f"{own.in_channels} → {own.out_channels} channels on {_by(own.grid_shape)} points; {counts}",
        "format": first.attrs["format"],
        "files": ", ".join(own.paths[:8]),
        "options": option(**changed) if changed else "",
        "input": described(first, "input"),
        "output": described(first, "output"),
        "not used": ", ".join(first.attrs.get("unused", ())),
        "time": _time_text(own, train) if train.history else "",
        "training": f"over {own.rollout} steps" * (own.rollout > 1),
        **varying,
        "nan": "filled with the mean and excluded from losses; the last input channel is a mask" * (own.nan == "mask"),
        "splits": _split_text(own),
    }
    return {name: text for name, text in found.items() if text}


def _time_text(own: "OwnData", train: WindowReader) -> str:
    frames = [data.sizes[TIME] for group in own.sources.values() for data in group for _ in range(n_samples([data]))]
    step = _step_of(own, max(frames))
    window = step * (own.history + own.rollout - 1) + 1
    short = sum(n < window for n in frames) if own.time_step != "last" else 0
    before = ", ".join(str(step * number) for number in range(own.history))
    pairs = "–".join(map(str, sorted({train.lengths.min(), train.lengths.max()})))
    text = f"frames {before} → {step * own.history} of {max(frames)} and so on, {pairs} pairs"
    if is_cut(own):
        text += f" in each of {_PIECES} pieces, the last of which are for validation and test"
    if min(frames) < max(frames):
        text += f"; trajectories have {min(frames)} to {max(frames)} frames"
    if short:
        text += f"; {short} of {len(frames)} trajectories are shorter than a window and omitted"
    return text


def _split_text(own: "OwnData") -> str:
    known = {split: group for split, group in own.sources.items() if split != "all"}
    found = []
    for split, group in known.items():
        names = ", ".join(Path(data.attrs["file"]).name for data in group[:8])
        found.append(f"{split} from {names}, on {_by(grid_of(group[0]))} points")
    if "all" in own.sources:
        drawn = ", ".join(split for split in own.parts if split not in known)
        how, what = "in file order", "trajectories" if own.parts["train"].history else "samples"
        if own.shuffle and not is_cut(own):
            how = f"drawn at random, the same in every run; to use the file order, pass {option(shuffle=False)}"
        found.append(f"{drawn} from {'the other' if found else 'all'} {what} {how}")
    return "; ".join(found)
