"""Clip the gradients of complex Fourier kernels."""

import torch
from torch import nn

from neuralop_mup.core.parametrize import kernels_and_axes
from neuralop_mup.core.unwrap import look_through
from neuralop_mup.errors import MupError
from neuralop_mup.torch_private import own_parameters
from neuralop_mup.validation import check_positive


def clip_spectral_grad_value_(model: nn.Module, clip_value: float) -> None:
    """Clip the real and imaginary parts of the gradients of Fourier kernels in place.

    This enforces sub-Gaussian updates, which is Assumption 3.4 of arXiv:2506.19396 (section 3.3; the paper uses 0.01 for
    Navier–Stokes). ``torch.nn.utils.clip_grad_value_`` does not support complex gradients. The gradients of other parameters
    are left unchanged.

    Parameters
    ----------
    model : torch.nn.Module
        A model of supported layers, parametrized or not.
    clip_value : float
        Largest allowed magnitude of the real and imaginary parts.

    Raises
    ------
    MupError
        If ``clip_value`` is not a positive number, or if the model has no Fourier kernels.

    Examples
    --------
    >>> import torch
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> model = nm.parametrize(FNO((8,), 1, 1, 16))
    >>> model(torch.randn(2, 1, 16)).square().sum().backward()
    >>> nm.clip_spectral_grad_value_(model, 0.01)
    >>> gradient = model.fno_blocks.convs[0].weight.tensor.grad
    >>> bool(torch.view_as_real(gradient).abs().max() <= 0.01)
    True
    """
    check_positive("clip_value", clip_value, finite=False)
    model = look_through(model)
    names = list(kernels_and_axes(model))
    if not names:
        raise MupError(f"{type(model).__name__} has no Fourier kernels, so there are no gradients to clip.")
    for name in names:
        # get_parameter would only return the active modes of an incremental kernel.
        owner, _, leaf = name.rpartition(".")
        parameter = own_parameters(model.get_submodule(owner))[leaf]
        if parameter is not None and (grad := parameter.grad) is not None:
            if grad.is_complex():  # the bounds are symmetric, so clipping the conjugate is equivalent
                grad = torch.view_as_real(grad.conj() if grad.is_conj() else grad)
            grad.clamp_(-clip_value, clip_value)
