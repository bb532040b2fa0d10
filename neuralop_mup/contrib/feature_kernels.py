r"""Compute forward and backward kernels between samples at each Fourier layer.

A Fourier layer maps features v to s, both with C channels on N grid points. For a sample α, let :math:`f^\alpha` be one
number (by default the mean of the prediction). With the mean inner product :math:`\langle u, w\rangle =
\frac{1}{CN}\sum_{c,x} u_c(x)\,w_c(x)` and the corresponding gradient :math:`z = CN\,\partial f/\partial s`, the kernels are

.. math:: \Phi^{\alpha\beta} = \langle v^\alpha, v^\beta\rangle,\qquad
   G^{\alpha\beta} = \langle z^\alpha, z^\beta\rangle,\qquad
   Q^{\alpha\beta} = \langle s^\alpha, z^\beta\rangle .

Under μP, Φ and G are Θ(1) for any width and any grid. At initialisation, Q decreases as 1/√(CN), like the output. Training
makes it Θ(1).

The layer's kernel R acts on each mode separately. Its **tangent kernel** :math:`\langle\partial f^\alpha/\partial R,
\partial f^\beta/\partial R\rangle` over all its real numbers is therefore a sum with one term per stored mode k:

.. math:: \Theta^{\alpha\beta} = \sum_k \operatorname{Re}\,\Phi_k^{\alpha\beta}\, G_k^{\alpha\beta},\qquad
   \Phi_k^{\alpha\beta} = \sum_c \hat v_{c,k}^\alpha\, \overline{\hat v_{c,k}^\beta},\qquad
   G_k^{\alpha\beta} = \sum_c \overline{\hat g_{c,k}^\alpha}\, \hat g_{c,k}^\beta ,

Here :math:`\hat v` is the convolution's own transform of v. The gradient :math:`\hat g_k = \partial f/\partial \hat s_k` is
the transform of :math:`\partial f/\partial s`, doubled if mode -k is not stored. The tangent kernel is exact. It describes
gradient flow, not Adam.

Sources: Jacot, Gabriel, Hongler, "Neural Tangent Kernel", NeurIPS 2018, arXiv:1806.07572, for Θ. Li, Noci, Hanin, "Feature
Learning in the Proportional Limit", for Φ, G and Q: work in progress, cited from the notes of STAT 946, lecture 19
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
    """Kernels between samples for each Fourier layer, keyed by layer name in the order of calls.

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
    _tangent: dict[str, Any]  # a str with the reason if the transform of a layer is unknown

    @property
    def tangent(self) -> dict[str, torch.Tensor]:
        """Θ of each layer's kernel. The sum over layers is the tangent kernel of all Fourier kernels.

        Returns
        -------
        dict of str to torch.Tensor
            One tensor per layer, of shape (samples, samples), in float64.

        Raises
        ------
        MupError
            If a layer's transform is unknown.

        Examples
        --------
        >>> theta = nm.kernels(model, x).tangent
        >>> sum(theta.values()).shape
        torch.Size([4, 4])
        """
        if unknown := [layer for layer, value in self._tangent.items() if isinstance(value, str)]:
            layer = unknown[0]
            raise MupError(f"The tangent kernel of {layer!r} is unknown: {self._tangent[layer]}. Φ, G and Q are available.")
        return self._tangent

    def change(self, before: "Kernels") -> list[dict[str, Any]]:
        """Return the relative change ‖K − K₀‖ / ‖K₀‖ of each kernel in the Frobenius norm.

        Parameters
        ----------
        before : Kernels
            Earlier kernels K₀ of the same model on the same batch.

        Returns
        -------
        list of dict
            ``layer``, ``kernel`` ("forward", "backward", "mixed"), ``value``. The value is not finite if K₀ is zero, as are
            G and Q with a zero readout.

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
    """Compute the forward, backward, mixed and tangent kernels of every Fourier layer on a batch.

    Parameters
    ----------
    model : torch.nn.Module
        A model of described layers, parametrized or not. It runs in evaluation mode and is not changed.
    batch : tensor or dict
        Samples: the model's input, or a dict of several inputs by name (``y`` is ignored).
    output : callable, optional
        Differentiable function that maps the prediction to one real number per sample, with shape (samples,). Default: the
        mean over channels and points.

    Returns
    -------
    Kernels
        The kernels of each layer.

    Raises
    ------
    MupError
        If the batch is invalid, if the model has no Fourier layer, or if ``output`` does not return one number per sample
        that depends on every layer. If a layer is not called exactly once, or does not process the batch sample by sample
        (FNOGNO, CODANO).

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
        raise MupError(f"{type(model).__name__} has no Fourier layers, so there are no kernels to compute.")
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
    seen.append((args[0], out.requires_grad_()))  # needed if the model is frozen
    return out.clone()  # later operations may modify it in place


def _number(prediction: Any, output: Callable[[Any], torch.Tensor] | None) -> torch.Tensor:
    if output is None and isinstance(prediction, torch.Tensor):
        number: Any = prediction.real.flatten(1).mean(1)
    else:
        number = prediction if output is None else output(prediction)
    if not isinstance(number, torch.Tensor) or number.ndim != 1 or number.is_complex():
        shape = tuple(number.shape) if isinstance(number, torch.Tensor) else type(number).__name__
        raise MupError(
            f"{'The model' if output is None else 'output'} returns {shape}, not one real number per sample. Pass "
            "output=…, a function from the prediction to a tensor of shape (samples,)."
        )
    if not number.requires_grad:
        raise MupError(
            "The result of output does not require grad, but the kernels need gradients. Compute it from the prediction "
            "with torch operations, without detach, NumPy or no_grad."
        )
    return number


def _with_gradients(
    model: nn.Module, number: torch.Tensor, calls: Mapping[str, list[tuple[torch.Tensor, torch.Tensor]]]
) -> dict[str, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Return each layer's input, output and gradient with respect to the output, with one row per sample."""
    layers: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    for name, seen in calls.items():
        if len(seen) != 1:
            raise MupError(
                f"{name!r} of this {type(model).__name__} is called {len(seen)} times in a forward pass. Kernels are only "
                "defined for models that call each Fourier layer exactly once."
            )
        v, s = layers[name] = seen[0]
        if not len(v) == len(s) == len(number):  # the rows do not correspond to samples
            raise MupError(
                f"{name!r} of this {type(model).__name__} receives {len(v)} row(s), but the output has {len(number)} "
                "numbers, so the rows do not correspond to samples. Kernels need layers that process the batch sample by "
                "sample."
            )
    gradients = torch.autograd.grad(number.sum(), [s for _, s in layers.values()], allow_unused=True)
    if cut := [name for name, gradient in zip(layers, gradients, strict=True) if gradient is None]:
        raise MupError(
            f"The output does not depend on {cut[0]!r}, or the model detaches the output of this layer. Pass output=…, a "
            "function of the prediction that depends on every Fourier layer."
        )
    return {name: (v.detach(), s.detach(), g) for (name, (v, s)), g in zip(layers.items(), gradients, strict=True)}


def _gram(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the sums of products over all axes except samples, in float64."""
    a, b = (torch.view_as_real(x) if x.is_complex() else x for x in (a, b))
    return a.flatten(1).double() @ b.flatten(1).double().T


def _tangent(conv: Any, v: torch.Tensor, g: torch.Tensor) -> torch.Tensor | str:
    """Return Σ_k Re Φ_k G_k of one convolution, or the reason why it is unavailable."""
    if type(conv) is not SpectralConv or conv.complex_data:
        return f"the kernel is only implemented for SpectralConv on real fields, but this layer is a {type(conv).__name__}"
    grid, order = v.shape[2:], conv.order
    if g.shape[2:] != grid or any(n % 2 for n in grid[:-1]):
        return (
            "the kernel is only implemented for layers that keep an even grid, but this layer maps "
            f"{tuple(grid)} to {tuple(g.shape[2:])}"
        )
    kept = [min(stored, size) for stored, size in zip(conv.n_modes, (*grid[:-1], grid[-1] // 2 + 1), strict=True)]
    # All axes except the last keep the modes around zero: −K … K − 1 if their number is even, or −K … K if it is odd.
    axes = [torch.arange(-(n // 2), n - n // 2, device=v.device) for n in kept[:-1]]
    axes.append(torch.arange(kept[-1], device=v.device))
    index = (..., *(k.reshape([-1 if i == j else 1 for j in range(order)]) for i, k in enumerate(axes)))
    dims = tuple(range(-order, 0))
    adjoint = {"forward": "backward", "backward": "forward", "ortho": "ortho"}[conv.fft_norm or "backward"]
    v_hat = torch.fft.rfftn(v.double(), norm=conv.fft_norm, dim=dims)[index]
    own_conjugate = (axes[-1] == 0) | (2 * axes[-1] == grid[-1])  # along the last axis
    g_hat = torch.fft.rfftn(g.double(), norm=adjoint, dim=dims)[index] * (2.0 - own_conjugate.double())
    # A dense kernel contracts the channels within each mode. A separable kernel has one number per channel and mode.
    v_hat, g_hat = (x.flatten(2).transpose(1, 2) for x in (v_hat, g_hat))  # (samples, modes, channels)
    if conv.separable:
        v_hat, g_hat = (x.flatten(1).unsqueeze(-1) for x in (v_hat, g_hat))
    phi = torch.einsum("akc,bkc->kab", v_hat, v_hat.conj())
    back = torch.einsum("akc,bkc->kab", g_hat.conj(), g_hat)
    return (phi * back).real.sum(0)
