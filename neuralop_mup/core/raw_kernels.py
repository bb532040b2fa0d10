"""Fourier kernels in layers that nobody described: recognised by what the layer does with plane waves, and by how it draws.

Most published FNO code has its own spectral convolution, with kernels ``scale * torch.rand(in, out, modes…)`` and
``scale = 1 / (in * out)``. Such a kernel is scaled without a registration only if two proofs hold:

* *Behaviour*, of the same layer built small. The answer to a plane wave in one input channel depends only on the kernel's
  entries at that channel and at the wave's number, and an output channel only on its own entries. The output is affine in
  the kernel. A wave stays a wave of its number. The gain is the same in a wider layer and in a layer of more modes.
* *Initial values*: they are uniform on [0, 1/(in·out)), in the model and in the layers that were built.

If only one holds, :func:`~neuralop_mup.core.growth.place` raises an error with the line to write. The model itself never
runs.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from neuralop_mup.core.arguments import is_size, plain_attributes, solve_arguments
from neuralop_mup.core.layers import UNKNOWN, Param
from neuralop_mup.core.parts import build_on_meta, build_to_compare
from neuralop_mup.core.reading import ParameterInfo
from neuralop_mup.core.rules import default_std

# In the row of a kernel that was recognised.
RECOGNISED = "recognised by plane waves and initial values"
# Sizes of the layers that are built: small enough to take milliseconds in three dimensions.
_WIDTH, _MODES = 8, 4
# What rounding leaves of an entry that a wave does not move, relative to the largest.
_TINY = 1e-4

Axes = tuple[str, ...]
Entry = tuple[int, ...]


def recognise(model: nn.Module, found: Mapping[str, ParameterInfo]) -> dict[str, ParameterInfo]:
    """Describe the Fourier kernels that no description covers, where both proofs hold.

    Parameters
    ----------
    model : torch.nn.Module
        The bare model, as it was constructed. It stays as it is, and so does the state of the random numbers.
    found : mapping
        What :func:`~neuralop_mup.core.reading.read` found in it.

    Returns
    -------
    dict of str to ParameterInfo
        The same. A kernel has its description and ``recognised``; where only one proof holds it has a ``proposal``.
    """
    result, tensors = dict(found), dict(model.named_parameters())
    tested: dict[Any, dict[str, tuple[Axes, str]]] = {}
    for name, info in found.items():
        p = tensors[name].detach()
        if info.param.init != UNKNOWN or info.frozen or not _may_be_kernel(p):
            continue
        layer = model.get_submodule(info.owner)
        choices = sorted((key, value) for key, value in plain_attributes(layer).items() if not is_size(value))
        key = (type(layer), str(choices), *((own, q.ndim, q.dtype) for own, q in layer.named_parameters()))
        if key not in tested:
            tested[key] = _test(layer)
        axes, init = tested[key].get(name.rpartition(".")[2], ((), ""))
        if axes and init == "positive" and is_positive(p, axes):
            result[name] = replace(info, param=Param("spectral", axes, init), recognised=True)
        elif axes or (guess := _guess_axes(p)):
            text = proposal(axes, init) if axes else proposal(guess, "positive")
            result[name] = replace(info, proposal=text, acts_as_kernel=bool(axes))
    return result


def proposal(axes: Axes, init: str) -> str:
    """Return the Python text of a kernel's description; ``init`` is empty where it is not known."""
    return f"nm.Param('spectral', {axes}, {repr(init) if init else 'init=…'})"


def _may_be_kernel(p: torch.Tensor) -> bool:
    """Complex numbers, or pairs of real ones, with two axes of channels and one to three of modes."""
    return p.numel() > 0 and (p.is_complex() or p.shape[-1:] == (2,)) and 1 <= _n_modes_axes(p) <= 3


def _n_modes_axes(p: torch.Tensor) -> int:
    return p.ndim - 2 - (not p.is_complex())


# ---------------------------------------------------------------------------------------------------- initial values


def is_positive(p: torch.Tensor, axes: Axes) -> bool:
    """Whether numbers look uniform on [0, 1/(in·out)): inside, and with the moments up to six standard errors."""
    if p.is_meta:
        return False
    parts = torch.view_as_real(p) if p.is_complex() else p
    unit = parts.flatten() * math.prod(n for kind, n in zip(axes, p.shape, strict=True) if kind in ("in", "out"))
    n = unit.numel()
    moments = ((unit.mean(), 1 / 2, 12**-0.5), (unit.square().mean(), 1 / 3, (4 / 45) ** 0.5))
    is_inside = unit.min() >= 0 and 1 - 20 / n < unit.max() <= 1 + 1e-5
    return bool(is_inside) and all(abs(float(found) - mean) < 6 * std / n**0.5 for found, mean, std in moments)


def _guess_axes(p: torch.Tensor) -> Axes:
    """The first two axes for which the numbers look uniform on [0, 1/(in·out)), as ``in`` and ``out``; none if none are."""
    n = _n_modes_axes(p) + 2
    for pair in itertools.combinations(range(n), 2):
        axes = ["modes_single"] * n + ["pair"] * (not p.is_complex())
        axes[pair[0]], axes[pair[1]] = "in", "out"
        if is_positive(p, tuple(axes)):
            return tuple(axes)
    return ()


def _init_of(drawn: Sequence[torch.Tensor], axes: Axes) -> str:
    """The word for a kernel's initialization that holds at all sizes; empty if none does."""

    def fits(word: str, p: torch.Tensor) -> bool:
        std = default_std(word, *(p.shape[axes.index(kind)] for kind in ("in", "out"))) / (2**0.5 if "pair" in axes else 1)
        return abs(float(p.abs().square().mean().sqrt()) / std - 1) < 4 / p.numel() ** 0.5

    if all(is_positive(p, axes) for p in drawn):
        return "positive"
    return next((word for word in ("mean_fan", "fan_out") if all(fits(word, p) for p in drawn)), "")


# ------------------------------------------------------------------------------------------------ layers of other sizes


def _test(layer: nn.Module) -> dict[str, tuple[Axes, str]]:
    """Axes and initialization of each parameter of a layer that acts as a Fourier kernel does, in layers built from it."""
    solutions = solve_arguments(layer, partial(build_on_meta, type(layer)))
    if not solutions or "forward" in vars(layer):
        return {}
    arguments, own = solutions[0], dict(layer.named_parameters(recurse=False))
    names = [name for name, p in own.items() if _may_be_kernel(p)]
    if len(n_axes := {_n_modes_axes(own[name]) for name in names}) != 1:
        return {}
    effects = dict(_sizes(layer, arguments, names))
    small = {key: _MODES if "mode" in key.lower() else _WIDTH for key in effects}
    grid = tuple(2 * (_WIDTH + 3) + 2 * j for j in range(n_axes.pop()))  # the layer of more modes has 10 at most
    first = _build(layer, arguments, small)
    for last in (False, True):
        try:
            waves = _Waves(first, names, grid, last)
            axes = {name: kinds for name in names if (kinds := waves.read_axes(name))}
            if axes and waves.is_affine() and waves.keeps_waves():
                return _compare(layer, arguments, effects, small, waves, axes)
        except Exception:  # whatever a layer raises about an input that it does not take, or a size
            continue
    return {}


def _sizes(
    layer: nn.Module, arguments: Mapping[str, Any], names: Sequence[str]
) -> Iterator[tuple[str, set[tuple[str, int]]]]:
    """Arguments that are sizes of the kernels, and the dimensions that are larger if one is added to them."""
    own = {name: layer.get_parameter(name).shape for name in names}
    for key, value in arguments.items():
        again = build_on_meta(type(layer), {**arguments, key: _resized(value, lambda n: n + 1)}) if is_size(value) else None
        other = {} if again is None else {name: p.shape for name, p in again.named_parameters() if name in own}
        if [*map(len, other.values())] == [*map(len, own.values())]:
            changed = {(name, a) for name in names for a, n in enumerate(own[name]) if n != other[name][a]}
            if changed:
                yield key, changed


def _resized(value: Any, to: Any) -> Any:
    return type(value)(_resized(item, to) for item in value) if isinstance(value, (list, tuple)) else to(value)


def _build(layer: nn.Module, arguments: Mapping[str, Any], sizes: Mapping[str, int]) -> nn.Module:
    """The layer with these sizes, on the CPU, in eval mode."""
    given = {
        key: _resized(value, lambda n, key=key: sizes[key]) if key in sizes else value for key, value in arguments.items()
    }
    with build_to_compare(), torch.device("cpu"):
        torch.manual_seed(0)
        return type(layer)(**given).eval()


def _compare(
    layer: nn.Module,
    arguments: Mapping[str, Any],
    effects: Mapping[str, set[tuple[str, int]]],
    small: Mapping[str, int],
    waves: "_Waves",
    axes: Mapping[str, Axes],
) -> dict[str, tuple[Axes, str]]:
    """Kernels whose dimensions grow as the waves show, and whose gain is the same at other sizes; with their init."""
    kinds = {key: {axes[name][a] for name, a in changed if name in axes} for key, changed in effects.items()}
    wide = {key for key, own in kinds.items() if own and own <= {"in", "out"}}
    fine = {key for key, own in kinds.items() if own and own <= {"modes", "modes_single"}}
    if not wide or not fine or any(own and key not in wide | fine for key, own in kinds.items()):
        return {}
    tall = {key for key in wide if kinds[key] == {"out"}}
    others = [{}, dict.fromkeys(wide, 2 * _WIDTH), {key: small[key] + 2 for key in fine}, dict.fromkeys(tall, 2 * _WIDTH)]
    built = [_build(layer, arguments, {**small, **other}) for other in others]
    gains = [_Waves(other, waves.names, waves.grid, waves.last).gains() for other in built[:3]]
    return {
        name: (own, _init_of([other.get_parameter(name).detach() for other in built], own))
        for name, own in axes.items()
        if max(gain[name] for gain in gains) < 1.001 * min(gain[name] for gain in gains)
    }


# -------------------------------------------------------------------------------------------------------- plane waves


class _Waves:
    """A layer whose kernels hold random numbers, and how its answers to plane waves depend on each of these."""

    def __init__(self, layer: nn.Module, names: Sequence[str], grid: tuple[int, ...], last: bool) -> None:
        self.layer, self.names, self.grid, self.last = layer, names, grid, last
        self._random = torch.Generator().manual_seed(0)
        self.kernels = {name: self._normal_like(layer.get_parameter(name)).requires_grad_() for name in names}
        self.channels = 2 * _WIDTH if any(2 * _WIDTH in p.shape for p in self.kernels.values()) else _WIDTH
        self._moved: dict[Any, dict[str, torch.Tensor]] = {}
        # A real field has each wave once with a positive last number.
        self.signs = [(*signs, 1) for signs in itertools.product((1, -1), repeat=len(grid) - 1)]

    def _normal_like(self, p: torch.Tensor) -> torch.Tensor:
        parts = torch.randn(*p.shape, *([2] if p.is_complex() else []), generator=self._random)
        return torch.view_as_complex(parts) if p.is_complex() else parts

    def wave(self, k: tuple[int, ...], phase: float = 0.7) -> torch.Tensor:
        terms = [2 * math.pi * number / n * torch.arange(n) for number, n in zip(k, self.grid, strict=True)]
        return torch.cos(phase + torch.stack(torch.meshgrid(*terms, indexing="ij")).sum(0))

    def answer(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        """What the layer makes of an input, both with channels first; its kernels are multiplied by ``scale``."""
        kernels = {name: p * scale for name, p in self.kernels.items()}
        y = functional_call(self.layer, kernels, (x.movedim(1, -1) if self.last else x,))
        y = y.movedim(-1, 1) if self.last else y
        if y.shape[2:] != self.grid or y.is_complex():
            raise ValueError("the answer is no real field on the same grid")
        return y

    def on_channel(self, field: torch.Tensor, channel: int, of: int) -> torch.Tensor:
        return torch.zeros(1, of, *self.grid).index_fill(1, torch.tensor(channel), 1) * field

    def moved(self, k: tuple[int, ...], channel: int = 0, out: int = 0) -> dict[str, torch.Tensor]:
        """How much each entry of each kernel counts in an output channel, where the input is a wave in one channel."""
        if (k, channel, out) not in self._moved:
            y = self.answer(self.on_channel(self.wave(k), channel, self.channels))
            onto = self.on_channel(self.wave(k, 0.3), out, y.shape[1])
            found = torch.autograd.grad((y * onto).sum(), list(self.kernels.values()), allow_unused=True)
            sizes = {
                name: torch.zeros(p.shape) if g is None else g.abs()
                for (name, p), g in zip(self.kernels.items(), found, strict=True)
            }
            self._moved[k, channel, out] = {
                name: own if self.kernels[name].is_complex() else own.amax(-1) for name, own in sizes.items()
            }
        return self._moved[k, channel, out]

    def gains(self) -> dict[str, float]:
        return {name: max(float(self.moved(signs)[name].max()) for signs in self.signs) for name in self.names}

    def read_axes(self, name: str) -> Axes:
        """Kinds of a kernel's axes, if it does to waves what a Fourier kernel does; empty if not."""
        top, n = self.gains()[name], len(self.grid)
        seen = [signs for signs in self.signs if float(self.moved(signs)[name].max()) > _TINY * top]
        both = [len({signs[j] for signs in seen}) == 2 for j in range(n)]
        if top == 0 or len(seen) != 2 ** sum(both):
            return ()
        first, ends = seen[0], (0, 1, self.channels - 1)

        def entries(k: tuple[int, ...], channel: int = 0, out: int = 0) -> list[Entry]:
            return [tuple(entry) for entry in torch.nonzero(self.moved(k, channel, out)[name] > _TINY * top).tolist()]

        def axis_of(found: Mapping[int, list[Entry]]) -> int:
            """The one axis that distinguishes what different waves or channels move: one entry each."""
            if any(len(own) != 1 for own in found.values()) or len({own[0] for own in found.values()}) < len(found):
                return -1
            differing = [a for a, of in enumerate(zip(*(own[0] for own in found.values()), strict=True)) if len({*of}) > 1]
            return differing[0] if len(differing) == 1 else -1

        kinds: dict[int, str] = {}
        ways = {"in": {i: entries(first, i) for i in ends}, "out": {o: entries(first, 0, o) for o in ends}}
        for kind, found in ways.items():
            kinds[a := axis_of(found)] = kind
            if a < 0 or any(own[0][a] != i for i, own in found.items()):
                return ()
        for j in range(n):
            numbers = [sign * k for sign in ((1, -1) if both[j] else (first[j],)) for k in (1, 2, _MODES - 1)]
            along = {k: entries((*first[:j], k, *first[j + 1 :])) for k in (*numbers, (_WIDTH + 1) * first[j])}
            if along.pop((_WIDTH + 1) * first[j]):  # above all modes
                return ()
            kinds[axis_of(along)] = "modes" if both[j] else "modes_single"
        if {*kinds} != {*range(n + 2)}:
            return ()
        return (*(kinds[a] for a in range(n + 2)), *([] if self.kernels[name].is_complex() else ["pair"]))

    def is_affine(self) -> bool:
        """Whether the output is affine in the kernels: not, say, in their logarithms or products."""
        x = torch.randn(1, self.channels, *self.grid, generator=self._random)
        with torch.no_grad():
            none, plus, minus = (self.answer(x, scale) for scale in (0.0, 1.0, -1.0))
        return bool((plus + minus - 2 * none).abs().max() < 1e-3 * (plus - minus).abs().max())

    def keeps_waves(self) -> bool:
        """Whether what the kernels add to the answer to a wave is a wave of the same number."""
        for signs in self.signs:
            k = (*signs[:-1], 2)
            x = self.on_channel(self.wave(k), 0, self.channels)
            with torch.no_grad():
                added = (self.answer(x) - self.answer(x, 0.0))[0]
            energy = torch.fft.fftn(added, dim=tuple(range(1, added.ndim))).abs().square().sum(0)
            if energy[k] + energy[tuple(-number for number in k)] < 0.999 * energy.sum():
                return False
        return True
