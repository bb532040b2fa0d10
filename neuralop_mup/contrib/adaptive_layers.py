r"""A GELU and a skip connection with learned parameters, and an optimizer for the activations only.

Source: Gardès, Juigner, Mazette, "Deep Learning Frontiers: Hyper-Optimization and Learnable Parameters", student project,
ETH Zürich, 2023: sections 2.4 (skip) and 2.5 (GELU), Algorithm 1 in B.1 (the optimizer). The report does not number its
formulas.

Under μP these parameters do not grow with width. Their learning rate is therefore the base learning rate at every width.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from neuralop_mup.contrib.learned_rates import PER_PARAMETER
from neuralop_mup.core.unwrap import unwrap
from neuralop_mup.errors import MupError
from neuralop_mup.optim.checks import unwrap_optimizer
from neuralop_mup.validation import check_number


class AdaGELU(nn.Module):
    r"""GELU with learned α, β and γ.

    .. math:: \operatorname{AdaGELU}(x) = \tfrac12\, x \bigl(1 + \tanh(\beta\,(\alpha x + \gamma(\alpha x)^3))\bigr)

    The initial values α = 1, β = :math:`\sqrt{2/\pi}` and γ = 0.044715 give GELU in its tanh approximation, which differs
    from neuralop's exact GELU by at most 5e-4. α is the steepness (section 2.5).

    The source trains α, β and γ with a separate optimizer: see :func:`~neuralop_mup.activation_optimizer`.

    Examples
    --------
    >>> import torch
    >>> import neuralop_mup as nm
    >>> x = torch.linspace(-3, 3, 7)
    >>> torch.allclose(nm.AdaGELU()(x), torch.nn.functional.gelu(x, approximate="tanh"))
    True
    """

    def __init__(self) -> None:
        super().__init__()
        values = (1.0, math.sqrt(2 / math.pi), 0.044715)
        self.alpha, self.beta, self.gamma = (nn.Parameter(torch.tensor(value)) for value in values)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled = self.alpha * x
        return 0.5 * x * (1 + torch.tanh(self.beta * (scaled + self.gamma * scaled**3)))


class AdaptiveSkip(nn.Module):
    r"""Learn how much a layer uses its branch f and how much its skip connection.

    .. math:: y = (1 - \sigma(w))\, f(x) + \sigma(w)\, \operatorname{skip}(x)

    σ is the sigmoid and w is one learned number, initially 0, so that both have the weight 1/2 (section 2.4).

    The module replaces the skip and returns the second term. It also scales the output of ``branch`` by 1 − σ(w), with a
    forward hook. The surrounding layer still adds the two, so it works inside neuralop's blocks and keeps the names of the
    branch's weights.

    Parameters
    ----------
    branch : torch.nn.Module
        f, a layer that stays where it is.
    skip : torch.nn.Module, optional
        The skip connection. Default: the identity, as in the source.

    Examples
    --------
    >>> import torch
    >>> import neuralop_mup as nm
    >>> x, branch = torch.randn(3, 4), torch.nn.Linear(4, 4)
    >>> before = branch(x)
    >>> skip = nm.AdaptiveSkip(branch)
    >>> torch.allclose(branch(x) + skip(x), 0.5 * before + 0.5 * x)
    True

    In a Fourier neural operator, for each Fourier layer:

    >>> from neuralop.models import FNO
    >>> blocks = FNO((8,), 1, 1, 16).fno_blocks
    >>> blocks.fno_skips = torch.nn.ModuleList(map(nm.AdaptiveSkip, blocks.convs, blocks.fno_skips))
    """

    def __init__(self, branch: nn.Module, skip: nn.Module | None = None) -> None:
        super().__init__()
        self.skip = nn.Identity() if skip is None else skip
        self.weight = nn.Parameter(torch.zeros(()))
        branch.register_forward_hook(self._scale_branch)

    def _scale_branch(self, branch: nn.Module, args: tuple, out: torch.Tensor) -> torch.Tensor:
        return (1 - self.weight.sigmoid()) * out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight.sigmoid() * self.skip(x)


def activation_optimizer(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    lr_mult: float = 10.0,
    impl: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    **kwargs: Any,
) -> torch.optim.Optimizer:
    """Move the parameters of all :class:`~neuralop_mup.AdaGELU` into a separate optimizer with a higher learning rate.

    This is Algorithm 1 of the source. The source uses Adam with the learning rates 0.001 for the model and 0.01 for the
    activations. In a training step, call ``zero_grad`` and ``step`` of both optimizers.

    Call it before the first step, and before you build schedulers. A schedule of ``optimizer`` does not affect the new
    optimizer.

    Parameters
    ----------
    model : torch.nn.Module
        The model that contains the activations.
    optimizer : torch.optim.Optimizer
        The model's optimizer. The parameters of the activations are removed from its groups.
    lr_mult : float, default 10.0
        Learning rate of the activations, relative to the rate that ``optimizer`` has for them.
    impl : callable, default torch.optim.Adam
        ``impl(params, lr=…, **kwargs)`` builds the new optimizer.
    **kwargs
        Arguments of ``impl``.

    Returns
    -------
    torch.optim.Optimizer
        The optimizer of the activations.

    Raises
    ------
    MupError
        If ``optimizer`` holds no parameters of an AdaGELU, or has already taken a step.

    Examples
    --------
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> model = FNO((8,), 1, 1, 16, non_linearity=nm.AdaGELU())
    >>> model = nm.parametrize(model, base=lambda: FNO((8,), 1, 1, 8, non_linearity=nm.AdaGELU()))
    >>> optimizer = nm.MuAdam(model, lr=1e-3)
    >>> activations = nm.activation_optimizer(model, optimizer)
    >>> activations.param_groups[0]["lr"]
    0.01
    """
    check_number("lr_mult", lr_mult)
    optimizer = unwrap_optimizer(optimizer)
    if optimizer.state:
        raise MupError("This optimizer has taken a step. Call activation_optimizer before the first one.")
    owned = {p for module in unwrap(model).modules() if isinstance(module, AdaGELU) for p in module.parameters()}
    moved: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        params = group["params"]
        if found := [p for p in params if p in owned]:
            moved.append({"params": found, "lr": lr_mult * group["lr"]})
        keep = [i for i, p in enumerate(params) if p not in owned]
        for key in PER_PARAMETER:
            if group.get(key) is not None:
                group[key] = [group[key][i] for i in keep]
    if not moved:
        raise MupError(f"The optimizer has no parameters of an AdaGELU in this {type(model).__name__}.")
    optimizer.param_groups[:] = [group for group in optimizer.param_groups if group["params"]]
    return impl(moved, lr=moved[0]["lr"], **kwargs)
