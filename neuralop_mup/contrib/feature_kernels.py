r"""Kernels over depth: how a model's Fourier layers see samples, forward and backward, and what training does to that.

For a Fourier layer that maps features v to s, both of C channels on N grid points, for samples α and β, and one number
:math:`f^\alpha` a sample (by default the mean of the prediction), with the mean inner product
:math:`\langle u, w\rangle = \frac{1}{CN}\sum_{c,x} u_c(x)\,w_c(x)` and the gradient that belongs to it,
:math:`z = CN\,\partial f/\partial s`:

.. math:: \Phi^{\alpha\beta} = \langle v^\alpha, v^\beta\rangle,\qquad
   G^{\alpha\beta} = \langle z^\alpha, z^\beta\rangle,\qquad
   Q^{\alpha\beta} = \langle s^\alpha, z^\beta\rangle .

Channels and grid points together are the width: Φ and G are Θ(1) under μP, at any width and on any grid. Q is a mean of
terms of random sign at first and falls as one over the root of the width, as the output does; training makes it Θ(1). (For
Φ, G and Q of fully connected networks, where width is channels alone and G is as large as the NTK parametrization makes it,
see the second source.)

The **tangent kernel** of the layer's kernel R, :math:`\langle\partial f^\alpha/\partial R, \partial f^\beta/\partial
R\rangle` over all its real numbers, is a sum of products, one for each stored mode k, since R acts on each mode alone:

.. math:: \Theta^{\alpha\beta} = \sum_k \operatorname{Re}\,\Phi_k^{\alpha\beta}\, G_k^{\alpha\beta},\qquad
   \Phi_k^{\alpha\beta} = \sum_c \hat v_{c,k}^\alpha\, \overline{\hat v_{c,k}^\beta},\qquad
   G_k^{\alpha\beta} = \sum_c \overline{\hat g_{c,k}^\alpha}\, \hat g_{c,k}^\beta ,

with the convolution's own transform :math:`\hat v` and :math:`\hat g_k = \partial f/\partial \hat s_k`, the transform of
:math:`\partial f/\partial s`, twice where mode -k is not stored. It is the exact one, in the units of R. Under Adam the
network does not move by it (it is gradient flow's), which is why it comes beside the others.

Sources: Jacot, Gabriel, Hongler, "Neural Tangent Kernel", NeurIPS 2018, arXiv:1806.07572, for Θ. Li, Noci, Hanin, "Feature
Learning in the Proportional Limit", for Φ, G and Q: work in progress, known here from the notes of STAT 946, lecture 19
(Marty Mukherjee, 24 November 2025).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from neuralop.layers.spectral_convolution import SpectralConv
from torch import nn

from neuralop_mup.core.unwrap import unwrap
from neuralop_mup.diagnostics.features import call_with_hooks, inputs_of
from neuralop_mup.diagnostics.update_stats import check_inputs, kernels_of
from neuralop_mup.errors import MupError


@dataclass(frozen=True)
class Kernels:
    """The kernels of each Fourier layer, by its name, from input to output.

    Attributes
    ----------
    forward, backward, mixed : dict of str to torch.Tensor
        Φ, G and Q, each of shape (samples, samples), in float64.

    Examples
    --------
    >>> import torch
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> model, x = nm.parametrize(FNO((8,), 1, 1, 16)), torch.randn(4, 1, 16)
    >>> kernels = nm.kernels(model, x)
    >>> list(kernels.forward) == list(kernels.backward) == list(kernels.mixed)
    True
    >>> phi = kernels.forward["fno_blocks.convs.0"]
    >>> phi.shape, torch.allclose(phi, phi.T)
    (torch.Size([4, 4]), True)
    """

    forward: dict[str, torch.Tensor]
    backward: dict[str, torch.Tensor]
    mixed: dict[str, torch.Tensor]
    _tangent: dict[str, Any]  # of a layer whose transform is not known, why

    @property
    def tangent(self) -> dict[str, torch.Tensor]:
        """Θ of each layer's kernel; their sum is the tangent kernel of all Fourier kernels.

        Returns
        -------
        dict of str to torch.Tensor
            By layer, of shape (samples, samples), in float64.

        Raises
        ------
        MupError
            If it is not known how a layer transforms its features.

        Examples
        --------
        >>> theta = nm.kernels(model, x).tangent
        >>> sum(theta.values()).shape
        torch.Size([4, 4])
        """
        if unknown := [layer for layer, value in self._tangent.items() if isinstance(value, str)]:
            layer = unknown[0]
            raise MupError(f"The tangent kernel of {layer!r} is not known: {self._tangent[layer]}. Φ, G and Q are there.")
        return self._tangent

    def change(self, before: "Kernels") -> list[dict[str, Any]]:
        """How far kernels have moved since ``before``: ‖K − K₀‖ / ‖K₀‖ in the Frobenius norm.

        Parameters
        ----------
        before : Kernels
            Of the same model on the same batch, earlier.

        Returns
        -------
        list of dict
            ``layer``, ``kernel`` ("forward", "backward", "mixed"), ``value``: not finite where K₀ is zero, as G and
            Q are under a readout of zeros.

        Examples
        --------
        >>> before = nm.kernels(model, x)
        >>> nm.kernels(model, x).change(before)[0]
        {'layer': 'fno_blocks.convs.0', 'kernel': 'forward', 'value': 0.0}
        """
        pairs = {
            "forward": (self.forward, before.forward),
            "backward": (self.backward, before.backward),
            "mixed": (self.mixed, before.mixed),
        }
        return [
            {"layer": layer, "kernel": kind, "value": ((now[layer] - then[layer]).norm() / then[layer].norm()).item()}
            for kind, (now, then) in pairs.items()
            for layer in now
        ]


def kernels(
    model: nn.Module,
    batch: torch.Tensor | Mapping[str, torch.Tensor],
    output: Callable[[Any], torch.Tensor] | None = None,
) -> Kernels:
    """Forward, backward, mixed and tangent kernel of every Fourier layer on a batch; the model is left as it is.

    Parameters
    ----------
    model : torch.nn.Module
        A model of known layers, parametrized or not. It is called in evaluation mode.
    batch : tensor or dict
        Samples: the model's input, or several by name (``y`` is left out).
    output : callable, optional
        From the prediction to one real number a sample, shape (samples,), with its gradient. The mean over channels and
        points if not given.

    Returns
    -------
    Kernels

    Raises
    ------
    MupError
        If the batch is no batch, the model has no Fourier layer, a layer is called more than once (so that its calls cannot
        be told apart) or not at all, a layer does not get the batch sample by sample (FNOGNO takes one sample, CODANO makes
        samples of its variables), ``output`` does not give a number a sample, or that number does not follow from a layer.

    Examples
    --------
    >>> import torch
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> model, x = nm.parametrize(FNO((8,), 1, 1, 16)), torch.randn(4, 1, 16)
    >>> kernels = nm.kernels(model, x)
    >>> {name: tuple(kernel.shape) for name, kernel in kernels.forward.items()}["fno_blocks.convs.0"]
    (4, 4)
    """
    inputs = check_inputs(inputs_of(batch) if isinstance(batch, Mapping) else batch)
    model = unwrap(model)
    calls: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {name: [] for name in kernels_of(model)}
    if not calls:
        raise MupError(f"{type(model).__name__} has no Fourier layer, and these kernels are of those.")
    with torch.enable_grad():
        prediction = call_with_hooks(model, inputs, {name: partial(_keep, seen) for name, seen in calls.items()})
        layers = _with_gradients(model, _number(prediction, output), calls)
    return Kernels(
        forward={name: _gram(v, v) / v[0].numel() for name, (v, _, _) in layers.items()},
        backward={name: _gram(g, g) * g[0].numel() for name, (_, _, g) in layers.items()},
        mixed={name: _gram(s, g) for name, (_, s, g) in layers.items()},
        _tangent={name: _tangent(model.get_submodule(name), v, g) for name, (v, _, g) in layers.items()},
    )


def _keep(seen: list, module: nn.Module, args: tuple, out: torch.Tensor) -> torch.Tensor:
    seen.append((args[0], out.requires_grad_()))  # a frozen model's does not
    return out.clone()  # what follows may change it in place


def _number(prediction: Any, output: Callable[[Any], torch.Tensor] | None) -> torch.Tensor:
    if output is None and isinstance(prediction, torch.Tensor):
        number: Any = prediction.real.flatten(1).mean(1)
    else:
        number = prediction if output is None else output(prediction)
    if not isinstance(number, torch.Tensor) or number.ndim != 1 or number.is_complex():
        shape = tuple(number.shape) if isinstance(number, torch.Tensor) else type(number).__name__
        raise MupError(
            f"{'The model' if output is None else 'output'} gives {shape}: give an output=… from what the model returns to "
            "one real number a sample, of shape (samples,)."
        )
    if not number.requires_grad:
        raise MupError(
            "What output gives has no gradient, and the kernels are made of gradients: compute it from the prediction with "
            "torch's operations alone, without detach, numpy or no_grad."
        )
    return number


def _with_gradients(
    model: nn.Module, number: torch.Tensor, calls: Mapping[str, list[tuple[torch.Tensor, torch.Tensor]]]
) -> dict[str, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """What entered each layer, what left it, and the output's gradient by that, a row a sample."""
    layers: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    for name, seen in calls.items():
        if len(seen) != 1:
            raise MupError(
                f"{name!r} of this {type(model).__name__} is called {len(seen)} times when the model is: kernels are for "
                "models that call each Fourier layer once."
            )
        v, s = layers[name] = seen[0]
        if not len(v) == len(s) == len(number):  # nothing else tells what a first dimension means
            raise MupError(
                f"{name!r} of this {type(model).__name__} has {len(v)} row(s) of features and "
                f"the output is {len(number)} numbers, so the rows are not the samples: kernels are for models that hand "
                "each Fourier layer the batch sample by sample, with an output of one number a sample."
            )
    gradients = torch.autograd.grad(number.sum(), [s for _, s in layers.values()], allow_unused=True)
    if cut := [name for name, gradient in zip(layers, gradients, strict=True) if gradient is None]:
        raise MupError(
            f"The output does not follow from {cut[0]!r}, or the model cuts its gradient off there: give an output=… that "
            "every Fourier layer has a part in."
        )
    return {name: (v.detach(), s.detach(), g) for (name, (v, s)), g in zip(layers.items(), gradients, strict=True)}


def _gram(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Sums of products over all but samples, in float64."""
    a, b = (torch.view_as_real(x) if x.is_complex() else x for x in (a, b))
    return a.flatten(1).double() @ b.flatten(1).double().T


def _tangent(conv: Any, v: torch.Tensor, g: torch.Tensor) -> torch.Tensor | str:
    """Σ_k Re Φ_k G_k of one convolution, or why it cannot be had."""
    if type(conv) is not SpectralConv or conv.complex_data:
        return f"it is written for SpectralConv on real fields, not for {type(conv).__name__} here"
    grid, order = v.shape[2:], conv.order
    if g.shape[2:] != grid or any(n % 2 for n in grid[:-1]):
        return f"it is written for layers that keep an even grid, and this one maps {tuple(grid)} to {tuple(g.shape[2:])}"
    kept = [min(stored, size) for stored, size in zip(conv.n_modes, (*grid[:-1], grid[-1] // 2 + 1), strict=True)]
    # Of the other axes, those around zero: −K … K − 1, or to K where their number is odd.
    axes = [torch.arange(-(n // 2), n - n // 2, device=v.device) for n in kept[:-1]]
    axes.append(torch.arange(kept[-1], device=v.device))
    index = (..., *(k.reshape([-1 if i == j else 1 for j in range(order)]) for i, k in enumerate(axes)))
    dims = tuple(range(-order, 0))
    adjoint = {"forward": "backward", "backward": "forward", "ortho": "ortho"}[conv.fft_norm or "backward"]
    v_hat = torch.fft.rfftn(v.double(), norm=conv.fft_norm, dim=dims)[index]
    alone = (axes[-1] == 0) | (2 * axes[-1] == grid[-1])  # their own conjugates along the last axis
    g_hat = torch.fft.rfftn(g.double(), norm=adjoint, dim=dims)[index] * (2.0 - alone.double())
    # A dense kernel contracts channels within a mode; a separable one has a number of its own for each channel.
    v_hat, g_hat = (x.flatten(2).transpose(1, 2) for x in (v_hat, g_hat))  # (samples, modes, channels)
    if conv.separable:
        v_hat, g_hat = (x.flatten(1).unsqueeze(-1) for x in (v_hat, g_hat))
    phi = torch.einsum("akc,bkc->kab", v_hat, v_hat.conj())
    back = torch.einsum("akc,bkc->kab", g_hat.conj(), g_hat)
    return (phi * back).real.sum(0)
