"""Recognise Fourier kernels in undescribed layers by their response to plane waves and by their initial values.

Most published FNO code defines its own spectral convolution, with kernels ``scale * torch.rand(in, out, modes…)`` and
``scale = 1 / (in * out)``. Such a kernel is only scaled without a registration if it passes two tests:

* *Behaviour* of a small version of the same layer. The response to a plane wave in one input channel only depends on the
  kernel's entries for this channel and wavenumber. Each output channel only depends on its own entries. The output is affine
  in the kernel, and a wave keeps its wavenumber. The gain is the same for a wider layer and for a layer with more modes.
* *Initial values* in the model and in the small layers, which must be uniform on [0, 1/(in·out)).

If only one test passes, :func:`~neuralop_mup.core.width_dims.assign_roles` raises an error with the line to write. The model
itself is never run.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from neuralop_mup.core.arguments import each, is_size, solve_arguments, traits
from neuralop_mup.core.build_models import build_or_none, build_to_compare, changed_dims, sizes_of
from neuralop_mup.core.describe_model import ParameterInfo
from neuralop_mup.core.layers.registry import UNKNOWN, Param
from neuralop_mup.core.rules import default_std

# Text in the plan's row of a recognised kernel.
RECOGNISED = "recognised by plane waves and initial values"
# Error messages about kernels that pass only one of the two tests.
_ACTS = (
    "It acts on plane waves like a Fourier kernel, but its values are not uniform on [0, 1/(in·out)). Set init to the "
    "constructor's initialization."
)
_LOOKS = (
    "Its values are uniform on [0, 1/(in·out)), as in many Fourier kernels, but the tests with plane waves failed. Only "
    "register it if it is a Fourier kernel with these dimensions."
)
# Sizes of the small layers. At these sizes, the tests take milliseconds in three dimensions.
_WIDTH, _MODES = 8, 4
# Effects of entries below this fraction of the largest effect are treated as rounding errors.
_TINY = 1e-4

_SAMPLE = 65536  # largest number of entries to read, because a kernel may have a billion

Axes = tuple[str, ...]


class _NotTestable(Exception):
    """Raised if the layer cannot be built at a size or does not accept an input."""


def recognise(model: nn.Module, found: Mapping[str, ParameterInfo]) -> dict[str, ParameterInfo]:
    """Describe undescribed Fourier kernels that pass both tests.

    Parameters
    ----------
    model : torch.nn.Module
        The unwrapped, untrained model. Neither the model nor the random state changes.
    found : mapping
        Result of :func:`~neuralop_mup.core.describe_model.describe_model`.

    Returns
    -------
    dict of str to ParameterInfo
        Copy of ``found``. Recognised kernels have a description, and kernels that pass only one test have a ``proposal``.
    """
    result, tensors = dict(found), dict(model.named_parameters())
    tested: dict[Any, dict[str, tuple[Axes, str]]] = {}
    for name, info in found.items():
        p = tensors[name].detach()
        if info.param.init != UNKNOWN or info.frozen or not _may_be_kernel(p):
            continue
        layer = model.get_submodule(info.owner)
        choices = {own: value for own, value in traits(layer).items() if not is_size(value)}
        key = (str(choices), *((own, q.ndim, q.dtype) for own, q in layer.named_parameters()))
        if key not in tested:
            tested[key] = _test(layer)
        axes, init = tested[key].get(name.rpartition(".")[2], ((), ""))
        if axes and init == "positive" and is_positive(p, axes):
            result[name] = replace(info, param=Param("spectral", axes, init), recognised=True)
        elif axes:
            result[name] = replace(info, proposal=proposal(axes, init), evidence=_ACTS)
        elif guess := _guess_axes(p):
            result[name] = replace(info, proposal=proposal(guess, "positive"), evidence=_LOOKS)
    return result


def proposal(axes: Axes, init: str) -> str:
    """Return the Python code of a kernel's description, with a placeholder for an unknown (empty) ``init``."""
    return f"nm.Param('spectral', {axes}, {repr(init) if init else 'init=…'})"


def _may_be_kernel(p: torch.Tensor) -> bool:
    """Return whether a parameter has complex numbers or pairs, and the axes of a kernel in one to three dimensions."""
    return p.numel() > 0 and (p.is_complex() or p.shape[-1:] == (2,)) and 1 <= _n_modes_axes(p) <= 3


def _n_modes_axes(p: torch.Tensor) -> int:
    return p.ndim - 2 - (not p.is_complex())


# ---------------------------------------------------------------------------------------------------- initial values


def is_positive(p: torch.Tensor, axes: Axes) -> bool:
    """Return whether values look uniform on [0, 1/(in·out)), judging by their bounds and first two moments."""
    if p.is_meta:
        return False
    parts = torch.view_as_real(p) if p.is_complex() else p
    sample = parts.reshape(-1, 2)[:: max(1, p.numel() // _SAMPLE)].flatten()
    unit = sample * math.prod(n for kind, n in zip(axes, p.shape, strict=True) if kind in ("in", "out"))
    n = unit.numel()
    least, most = float(unit.min()), float(unit.max())
    if least < 0 or not 1 - 20 / n < most <= 1 + 1e-5:
        return False
    from_mean = float(unit.mean()) - 1 / 2
    from_square = float(unit.square().mean()) - 1 / 3
    deviations = 6 / n**0.5
    return abs(from_mean) < deviations * 12**-0.5 and abs(from_square) < deviations * (4 / 45) ** 0.5


def _guess_axes(p: torch.Tensor) -> Axes:
    """Return the first choice of axes that makes values look uniform on [0, 1/(in·out)), or an empty tuple."""
    n = _n_modes_axes(p) + 2
    for i, j in itertools.combinations(range(n), 2):
        axes = ["modes_single"] * n + ["pair"] * (not p.is_complex())
        axes[i], axes[j] = "in", "out"
        if is_positive(p, tuple(axes)):
            return tuple(axes)
    return ()


def _init_of(drawn: Sequence[torch.Tensor], axes: Axes) -> str:
    """Return the name of the initialization that matches a kernel at all sizes, or an empty string."""
    for word in ("positive", "mean_fan", "fan_out"):
        if all(_is_drawn_by(word, p, axes) for p in drawn):
            return word
    return ""


def _is_drawn_by(word: str, p: torch.Tensor, axes: Axes) -> bool:
    if word == "positive":
        return is_positive(p, axes)
    std = default_std(word, p.shape[axes.index("in")], p.shape[axes.index("out")]) / (2**0.5 if "pair" in axes else 1)
    return abs(float(p.abs().square().mean().sqrt()) / std - 1) < 4 / p.numel() ** 0.5


# ------------------------------------------------------------------------------------------------ layers at other sizes


def _test(layer: nn.Module) -> dict[str, tuple[Axes, str]]:
    """Return the axes and initialization of each parameter that acts as a Fourier kernel in rebuilt layers."""
    names = [name for name, p in layer.named_parameters(recurse=False) if _may_be_kernel(p)]
    n_axes = {_n_modes_axes(layer.get_parameter(name)) for name in names}
    found = solve_arguments(layer, partial(build_or_none, type(layer))) if len(n_axes) == 1 else []
    if not found:
        return {}
    grid = tuple(2 * (_WIDTH + 3) + 2 * j for j in range(n_axes.pop()))  # fine enough to resolve the modes at all sizes
    with build_to_compare(), torch.device("cpu"), torch.enable_grad():
        for last in (False, True):
            with suppress(_NotTestable):
                if kernels := _kernels(layer, found[0], partial(_Waves, names=names, grid=grid, last=last)):
                    return kernels
    return {}


def _kernels(
    layer: nn.Module, arguments: Mapping[str, Any], waves_of: Callable[[nn.Module], "_Waves"]
) -> dict[str, tuple[Axes, str]]:
    """Return parameters that act as Fourier kernels, grow along their axes, and have the same gain at all sizes."""
    effects = _effects(layer, arguments)
    small = {key: _MODES if "mode" in key.lower() else _WIDTH for key, dims in effects.items() if any(dims.values())}

    def build(keys: Iterable[str], more: int) -> nn.Module:
        """Return the small layer with ``more`` added to the sizes ``keys``."""
        sizes = {**small, **{key: small[key] + more for key in keys}}
        resized = {key: _filled(arguments[key], size) for key, size in sizes.items()}
        again = build_or_none(type(layer), {**arguments, **resized}, "cpu")
        if again is None:
            raise _NotTestable
        return again.eval()

    first = build((), 0)
    waves = waves_of(first)
    axes = {name: own for name in waves.kernels if (own := waves.axes_of(name))}
    if not axes or not waves.are_kept():
        return {}
    kinds = {key: {own[a] for name, own in axes.items() for a in effects[key].get(name, ())} for key in small}
    kinds = {key: grown for key, grown in kinds.items() if grown}
    of_width = [key for key, grown in kinds.items() if grown <= {"in", "out"}]
    of_modes = [key for key, grown in kinds.items() if grown <= {"modes", "modes_single"}]
    if not of_width or not of_modes or len(of_width) + len(of_modes) < len(kinds):
        return {}
    others = [build(of_width, _WIDTH), build(of_modes, 2)]
    gains = [waves.gains(), *(waves_of(other).gains() for other in others)]
    drawn = [first, *others, build([key for key in of_width if kinds[key] == {"out"}], _WIDTH)]
    found = {}
    for name, own in axes.items():
        at_sizes = [gain[name] for gain in gains]
        if max(at_sizes) < 1.001 * min(at_sizes):
            found[name] = own, _init_of([layer.get_parameter(name).detach() for layer in drawn], own)
    return found


def _filled(value: Any, size: int) -> Any:
    return each(value, lambda n: size)


def _effects(layer: nn.Module, arguments: Mapping[str, Any]) -> dict[str, dict[str, set[int]]]:
    """Return, for each size argument, the dimensions of each parameter that change if the argument increases by one."""
    larger = {
        key: build_or_none(type(layer), {**arguments, key: each(value, lambda n: n + 1)})
        for key, value in arguments.items()
        if is_size(value)
    }
    return {key: changed_dims(sizes_of(layer), sizes_of(other)) for key, other in larger.items() if other is not None}


# -------------------------------------------------------------------------------------------------------- plane waves


@dataclass
class _Waves:
    """Measure how a layer's response to plane waves depends on each entry of its kernels, for random kernels."""

    layer: nn.Module
    names: Sequence[str]
    grid: tuple[int, ...]
    last: bool  # whether channels are the last axis of the input

    def __post_init__(self) -> None:
        self._random = torch.Generator().manual_seed(0)
        self.kernels = {name: self._normal_like(self.layer.get_parameter(name)).requires_grad_() for name in self.names}
        widths = {n for p in self.kernels.values() for n in p.shape}
        self.channels = 2 * _WIDTH if 2 * _WIDTH in widths else _WIDTH
        # For real fields, wavenumbers with a positive last component represent all wavenumbers.
        self.signs = [(*signs, 1) for signs in itertools.product((1, -1), repeat=len(self.grid) - 1)]
        self.moved = cache(self._moved)

    def _normal_like(self, p: torch.Tensor) -> torch.Tensor:
        parts = torch.randn(*p.shape, *([2] if p.is_complex() else []), generator=self._random)
        return torch.view_as_complex(parts) if p.is_complex() else parts

    def wave(self, k: tuple[int, ...], phase: float = 0.7) -> torch.Tensor:
        terms = [2 * math.pi * number / n * torch.arange(n) for number, n in zip(k, self.grid, strict=True)]
        return torch.cos(phase + torch.stack(torch.meshgrid(*terms, indexing="ij")).sum(0))

    def answer(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        """Return the layer's output if kernels are multiplied by ``scale``. In ``x`` and the output, channels come first."""
        kernels = {name: p * scale for name, p in self.kernels.items()}
        try:
            y = functional_call(self.layer, kernels, (x.movedim(1, -1) if self.last else x,))
            y = y.movedim(-1, 1) if self.last else y
        except Exception as error:  # the layer may raise any exception for an unsuitable input
            raise _NotTestable from error
        if y.shape[2:] != self.grid or y.is_complex():
            raise _NotTestable
        return y

    def _moved(self, k: tuple[int, ...], channel: int = 0, out: int = 0) -> dict[str, torch.Tensor]:
        """Return the effect of each kernel entry on one output channel for a wave in one input channel."""
        x = torch.zeros(1, self.channels, *self.grid)
        x[0, channel] = self.wave(k)
        y = self.answer(x)
        if out >= y.shape[1]:
            raise _NotTestable
        onto = (y[0, out] * self.wave(k, 0.3)).sum()
        grads = torch.autograd.grad(onto, list(self.kernels.values()), materialize_grads=True)
        sizes = [g.abs() if g.is_complex() else g.abs().amax(-1) for g in grads]
        return dict(zip(self.kernels, sizes, strict=True))

    def gains(self) -> dict[str, float]:
        """Return the largest effect of an entry for each kernel."""
        return {name: max(float(self.moved(signs)[name].max()) for signs in self.signs) for name in self.names}

    def entries(self, name: str, k: tuple[int, ...], channel: int = 0, out: int = 0) -> list[tuple[int, ...]]:
        """Return the indices of the kernel entries that affect the output."""
        hits = self.moved(k, channel, out)[name] > _TINY * self.gains()[name]
        return [tuple(entry) for entry in torch.nonzero(hits).tolist()]

    def axes_of(self, name: str) -> Axes:
        """Return the kinds of a kernel's axes, or an empty tuple if it does not act as a Fourier kernel."""
        p, n = self.kernels[name], len(self.grid)
        seen = [signs for signs in self.signs if self.entries(name, signs)]
        both = [len({signs[j] for signs in seen}) == 2 for j in range(n)]
        if not seen or len(seen) != 2 ** sum(both):
            return ()
        first, ends = seen[0], (0, 1, self.channels - 1)
        of_in = [self.entries(name, first, i, 0) for i in ends]
        of_out = [self.entries(name, first, 0, o) for o in ends]
        kinds = {_axis_of(of_in): "in", _axis_of(of_out): "out"}
        for j in range(n):
            signs = (1, -1) if both[j] else (first[j],)
            numbers = [sign * k for sign in signs for k in (1, 2, _MODES - 1)]
            beyond = (_WIDTH + 1) * first[j]  # larger than the length of any axis
            *along, none = (self.entries(name, (*first[:j], k, *first[j + 1 :])) for k in (*numbers, beyond))
            if none:
                return ()
            kinds[_axis_of(along)] = "modes" if both[j] else "modes_single"
        if {*kinds} != {*range(n + 2)}:
            return ()
        return (*(kinds[a] for a in range(n + 2)), *([] if p.is_complex() else ["pair"]))

    def are_kept(self) -> bool:
        """Return whether the output is affine in the kernels and their contribution keeps the wavenumber of a wave."""
        for signs in self.signs:
            k = (*signs[:-1], 2)
            amplitudes = torch.randn(1, self.channels, *(1,) * len(k), generator=self._random)
            with torch.no_grad():
                none, plus, minus = (self.answer(amplitudes * self.wave(k), scale) for scale in (0.0, 1.0, -1.0))
            bend, size = (plus + minus - 2 * none).abs().max(), (plus - minus).abs().max()
            energy = torch.fft.fftn((plus - none)[0], dim=tuple(range(1, none.ndim - 1))).abs().square().sum(0)
            at_k = energy[k] + energy[tuple(-number for number in k)]
            if not bend < 1e-3 * size or at_k < 0.999 * energy.sum():
                return False
        return True


def _axis_of(found: Sequence[list[tuple[int, ...]]]) -> int:
    """Return the axis along which the entries of different waves or channels differ, or -1 if it is not unique.

    Each wave or channel must have exactly one entry.
    """
    entries = [own[0] for own in found if len(own) == 1]
    if len({*entries}) < len(found):
        return -1
    differing = [a for a, numbers in enumerate(zip(*entries, strict=True)) if len({*numbers}) > 1]
    return differing[0] if len(differing) == 1 else -1
