"""neuralop's own initialisation, drawn for a model that was built without weights.

Constructors draw weights as they run. A model built on the meta device, where it costs nothing, lost what they drew, so
it is drawn again, layer by layer: by the layer's ``reset_parameters`` where it has one, otherwise by one of the functions
below. A tensor that none of them draws is an error. Modules are visited as they were constructed, so that in most models
the random numbers fall as they do in the constructor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import neuralop.models
import torch
from neuralop.layers.complex import ComplexValued
from neuralop.layers.differential_conv import FiniteDifferenceConvolution
from neuralop.layers.legacy_spectral_convolution import SpectralConv as LegacySpectralConv
from neuralop.layers.skip_connections import SoftGating
from neuralop.layers.spectral_convolution import SpectralConv
from neuralop.models import CODANO, UQNO
from torch import nn

from neuralop_mup.core.registry import name_of
from neuralop_mup.errors import MupError

__all__ = ["check_drawable", "draw"]


@dataclass(frozen=True)
class _Draw:
    """How a layer draws what it owns: ``covers`` are its tensors, whole children included, ``run`` draws them."""

    covers: tuple[str, ...]
    run: Callable[[nn.Module], None]


def _draw_spectral(layer: Any) -> None:
    # neuralop's init_std="auto", which its models use without exception.
    std = (2 / (layer.in_channels + layer.out_channels)) ** 0.5
    weights: list[Any] = list(layer.weight) if isinstance(layer.weight, nn.ModuleList) else [layer.weight]
    for weight in weights:
        weight.normal_(0, std)
    if layer.bias is not None:
        layer.bias.normal_().mul_(std)


def _draw_ones(layer: SoftGating) -> None:
    for parameter in layer.parameters(recurse=False):
        parameter.fill_(1)


def _draw_normal(layer: nn.Module) -> None:
    for bias in getattr(layer, "biases", None) or [layer.bias_h]:
        if bias.is_complex():  # drawn as two reals, so that its modulus is √2
            torch.view_as_real(bias).normal_()
        else:
            bias.normal_()


def _draw_coefficients(model: CODANO) -> None:
    if hasattr(model, "cls_token"):
        model.cls_token.normal_()
    for encoding in getattr(model, "positional_encoding", {}).values():
        encoding.normal_()


def _tie(layer: FiniteDifferenceConvolution) -> None:
    layer.weight = layer.conv.weight  # one tensor under two names, which to_empty makes two


def _copy_child(first: str, second: str) -> Callable[[nn.Module], None]:
    def copy(layer: nn.Module) -> None:
        source = dict(getattr(layer, first).state_dict(keep_vars=True))
        for name, tensor in getattr(layer, second).state_dict(keep_vars=True).items():
            if isinstance(tensor, torch.Tensor):
                tensor.copy_(source[name])

    return copy


def _draw_positive(layer: Any) -> None:
    for weight in layer.parameters(recurse=False):
        weight.uniform_().mul_(layer.scale)  # its own reset_parameters would leave the weight's device


def _draw_glorot(layer: Any) -> None:
    # Its constructor draws as torch does, then once more.
    for module in layer.modules():
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            module.reset_parameters()
    layer.reset_parameters()


def _draw_scaled(layer: Any) -> None:
    for parameter in layer.parameters(recurse=False):
        parameter.normal_().mul_(layer.scale)


def _draw_afno(model: Any) -> None:
    nn.init.trunc_normal_(model.pos_embed, std=0.02)
    model.apply(model._init_weights)


_KNOWN: dict[type | str, _Draw] = {
    SpectralConv: _Draw(("weight", "bias"), _draw_spectral),
    LegacySpectralConv: _Draw(("weight", "bias"), _draw_spectral),
    SoftGating: _Draw(("weight", "bias"), _draw_ones),
    FiniteDifferenceConvolution: _Draw(("weight",), _tie),
    CODANO: _Draw(("cls_token", "positional_encoding"), _draw_coefficients),
    ComplexValued: _Draw(("fi",), _copy_child("fr", "fi")),
    UQNO: _Draw(("residual_model",), _copy_child("base_model", "residual_model")),
    **{
        f"physicsnemo.SpectralConv{d}d": _Draw(tuple(f"weights{i + 1}" for i in range(2 ** (d - 1))), _draw_positive)
        for d in (1, 2, 3, 4)
    },
    "physicsnemo.FCLayer": _Draw(("linear",), _draw_glorot),
    **{f"physicsnemo.Conv{d}dFCLayer": _Draw(("conv",), _draw_glorot) for d in (1, 2, 3, "N")},
    "physicsnemo.AFNO2DLayer": _Draw(("w1", "b1", "w2", "b2"), _draw_scaled),
    "physicsnemo.AFNO": _Draw(("pos_embed",), _draw_afno),
}
if hasattr(neuralop.models, "LocalNO"):  # neuralop leaves it out where torch_harmonics is missing
    from neuralop.layers.spherical_convolution import SphericalConv

    _KNOWN[SphericalConv] = _Draw(("weight", "bias"), _draw_spectral)
if hasattr(neuralop.models, "RNO"):  # newer than 2.0.0
    from neuralop.layers.rno_block import RNOBlock, RNOCell

    _KNOWN[RNOCell] = _Draw(("biases",), _draw_normal)
    _KNOWN[RNOBlock] = _Draw(("bias_h",), _draw_normal)
_BUFFERS_TOO = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


def _draw_of(module: nn.Module) -> _Draw | None:
    """How ``module`` draws what it owns; None where that is not known."""
    if isinstance(module, UQNO) and not _same_shapes(module.base_model, module.residual_model):
        return _Draw((), lambda layer: None)
    for cls in type(module).__mro__:
        if known := next((_KNOWN[key] for key in (cls, name_of(cls)) if key in _KNOWN), None):
            return known
        if "reset_parameters" in vars(cls):
            own = [name for name, _ in module.named_parameters(recurse=False)]
            if isinstance(module, _BUFFERS_TOO):
                own += [name for name, _ in module.named_buffers(recurse=False)]
            return _Draw(tuple(own), _reset)
        # A constructor of one's own may draw in its own way, unless torch or FSDP2's change of class wrote it.
        if "__init__" in vars(cls) and not cls.__module__.startswith("torch.") and _has_tensors(module):
            return None
    return None


def _reset(layer: Any) -> None:
    layer.reset_parameters()


def _has_tensors(module: nn.Module) -> bool:
    own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
    return any(tensor.numel() for tensor in own)  # PhysicsNeMo's modules have a buffer without numbers


def _same_shapes(a: nn.Module, b: nn.Module) -> bool:
    return {n: p.shape for n, p in a.named_parameters()} == {n: p.shape for n, p in b.named_parameters()}


def _steps(module: nn.Module, prefix: str, missing: list[str]) -> Iterator[tuple[nn.Module, _Draw]]:
    """What to draw, in order; names of tensors that nothing draws are added to ``missing``."""
    draw = _draw_of(module)
    covered = draw.covers if draw else ()
    for name, child in module.named_children():
        if name not in covered:
            yield from _steps(child, f"{prefix}{name}.", missing)
    own = [*module.named_parameters(recurse=False, remove_duplicate=False), *module.named_buffers(recurse=False)]
    missing += [
        f"{prefix}{name} ({type(module).__name__})" for name, tensor in own if tensor.numel() and name not in covered
    ]
    loose = [name for name, value in vars(module).items() if isinstance(value, torch.Tensor) and value.is_meta]
    missing += [f"{prefix}{name} ({type(module).__name__})" for name in loose]
    if draw and covered:
        yield module, draw


def check_drawable(model: nn.Module) -> list[tuple[nn.Module, _Draw]]:
    """The steps that draw every parameter and buffer of ``model``.

    Raises
    ------
    MupError
        If some tensor's default initialisation is not known.
    """
    missing: list[str] = []
    steps = list(_steps(model, "", missing))
    if missing:
        raise MupError(
            f"The default initialisation of {missing[0]} is not known, so it cannot be drawn after the meta device: build "
            "the model on a real device, or give that layer a reset_parameters method."
        )
    return steps


def draw(model: nn.Module) -> None:
    """Draw every parameter and buffer of ``model`` as its constructors would have, or nothing (:func:`check_drawable`)."""
    steps = check_drawable(model)
    with torch.no_grad():
        for module, how in steps:
            with _gather(module):
                how.run(module)


@contextmanager
def _gather(module: nn.Module) -> Iterator[None]:
    """Sharded parameters of ``module`` as whole tensors, of which rank 0's are distributed in the end."""
    sharded: list[tuple[nn.Module, str, Any]] = [
        (owner, name, parameter)
        for owner in module.modules()
        for name, parameter in owner._parameters.items()
        if parameter is not None and hasattr(parameter, "device_mesh")
    ]
    if not sharded:
        yield
        return
    from torch.distributed.tensor import distribute_tensor

    for owner, name, parameter in sharded:
        local = parameter.to_local()
        owner._parameters[name] = nn.Parameter(torch.empty(parameter.shape, dtype=local.dtype, device=local.device))
    try:
        yield
    finally:
        for owner, name, parameter in sharded:
            whole = owner.get_parameter(name).detach()
            owner._parameters[name] = parameter
            parameter.copy_(distribute_tensor(whole, parameter.device_mesh, parameter.placements))
