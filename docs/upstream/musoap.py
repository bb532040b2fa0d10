import math
from itertools import product
from typing import Dict, Iterable, List, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

__all__ = ["MuSOAP", "fno_musoap_param_groups"]

_BASIS_BETA = 0.95  # decay of the matrices whose eigenvectors are the bases
_TINY = 1e-30
_NOISE = 1e-5  # components this much below the root mean square of their mode are rounding errors


class MuSOAP(Optimizer):
    r"""SOAP for Fourier kernels, each mode's update of one size, and AdamW for the rest.

    A kernel of a Fourier layer is one ``in x out`` matrix (a block) for each mode. All modes of a layer share an
    orthonormal basis of its input channels and one of its output channels. In these coordinates each entry is
    divided by the root of its second moment, as in Adam. Then each mode's block is brought to one size,
    ``lr * sqrt(out / in)``, which depends on neither width nor the number of modes. What is brought to it is an estimate
    of the block's operator norm, exact for one row or column.

    For one layer, with :math:`G_k` the gradient's block at mode :math:`k`, at step :math:`t`:

    .. math::
        M_k &= \mu M_k + (1 - \mu) G_k, \qquad N_k = \mu M_k + (1 - \mu) G_k \\
        L &= \beta L + (1 - \beta) \sum_k \mathrm{Re}\, G_k G_k^H, \qquad
        R = \beta R + (1 - \beta) \sum_k \mathrm{Re}\, G_k^H G_k \\
        P &= \mathrm{QR}(L P), \qquad Q = \mathrm{QR}(R Q)
            \qquad \text{(every so many steps; at first eigenvectors)} \\
        V_k &= \beta_2 V_k + (1 - \beta_2) |P^T G_k Q|^2, \qquad
        U_k = P \left( P^T N_k Q / \sqrt{V_k} \right) Q^T \\
        W_k &= (1 - \eta \lambda) W_k - \eta \sqrt{d_{out} / d_{in}}\; U_k / s(U_k)

    with :math:`s` the estimate, from fourth powers of singular values. ``neuralop_mup.MuSOAP`` makes the same updates, and
    besides starts kernels small, scales the rates of AdamW with the width, and has a learning rate for each length.

    Parameters
    ----------
    params : iterable of dict
        Parameter groups, as :func:`fno_musoap_param_groups` makes them. A group with ``layouts`` holds kernels and
        hidden linear layers, and its ``lr`` is the size of an update. The others are trained by AdamW.
    lr : float, default 0.03
        Size of an update of what has a layout, in trainings of about 1,000 steps with a schedule that ends with
        them; for ``n`` steps ``0.03 * sqrt(1000 / n)``. Groups that have an ``lr`` keep it.
    aux_lr : float, default 0.004
        Learning rate of AdamW, likewise.
    momentum : float, default 0.95
        Decay of the mean of gradients.
    beta2 : float, default 0.95
        Decay of the second moments.
    period : int, default 2
        Each mode moves once in so many steps, ``period`` times as far, in turn with the others.
    refresh : int, default 10
        Steps between two renewals of the bases; in the beginning also at steps 2, 4, 8, ...
    weight_decay : float, default 0.01
        Decoupled, as in AdamW.
    betas : tuple of float, default (0.9, 0.999)
        AdamW's decays.
    eps : float, default 1e-8
        AdamW's.

    Notes
    -----
    A layout has one letter for each axis of a parameter: ``i`` is summed over, ``o`` is produced, ``b`` numbers the
    modes, ``l`` numbers kernels that share a tensor, ``c`` channels that do not mix (separable kernels), and ``p`` is
    an axis of size 2 that holds the real and the imaginary part. Every ``i`` and ``o`` axis has a basis of its own, so
    a factor of a factorized kernel is treated as a kernel is.

    References
    ----------
    .. [1] Vyas, N. et al., "SOAP: Improving and Stabilizing Shampoo using Adam" (2024). ICLR 2025,
        https://arxiv.org/abs/2409.11321.
    .. [2] Large, T. et al., "Scalable Optimization in the Modular Norm" (2024). NeurIPS 2024,
        https://arxiv.org/abs/2405.14813.

    Examples
    --------
    >>> from neuralop.models import FNO
    >>> model = FNO(n_modes=(16, 16), in_channels=1, out_channels=1, hidden_channels=32)
    >>> optimizer = MuSOAP(fno_musoap_param_groups(model, lr=0.03))
    """

    def __init__(
        self,
        params: Iterable[Dict],
        lr: float = 0.03,
        aux_lr: float = 0.004,
        momentum: float = 0.95,
        beta2: float = 0.95,
        period: int = 2,
        refresh: int = 10,
        weight_decay: float = 0.01,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ):
        for name, value in (("lr", lr), ("aux_lr", aux_lr), ("weight_decay", weight_decay), ("eps", eps)):
            if not value >= 0.0:
                raise ValueError(f"Invalid {name}: {value} - should be >= 0.0")
        for name, value in (("period", period), ("refresh", refresh)):
            if not (isinstance(value, int) and value >= 1):
                raise ValueError(f"Invalid {name}: {value} - should be a whole number >= 1")
        for name, value in (("momentum", momentum), ("beta2", beta2), ("betas[0]", betas[0]), ("betas[1]", betas[1])):
            if not 0.0 <= value < 1.0:
                raise ValueError(f"Invalid {name}: {value} - should be in [0.0, 1.0)")
        params = list(params)
        for group in params:
            if not isinstance(group, dict):
                raise ValueError("MuSOAP takes groups with layouts, such as fno_musoap_param_groups(model)")
            group["params"] = [group["params"]] if isinstance(group["params"], Tensor) else list(group["params"])
            if group.get("layouts") and len(group["layouts"]) != len(group["params"]):
                raise ValueError(f"{len(group['layouts'])} layouts for {len(group['params'])} parameters")
        groups = [{"lr": lr if group.get("layouts") else aux_lr, "layouts": None, **group} for group in params]
        defaults = dict(
            lr=lr,
            momentum=momentum,
            beta2=beta2,
            period=period,
            refresh=refresh,
            weight_decay=weight_decay,
            betas=betas,
            eps=eps,
        )
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure=None):
        """Perform a single optimization step.

        Parameters
        ----------
        closure : callable, optional
            A closure that reevaluates the model and returns the loss.

        Returns
        -------
        loss
            What the closure returns, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for i, p in enumerate(group["params"]):
                if p.grad is None:
                    continue
                state = self.state[p]
                state["step"] = state.get("step", 0) + 1
                if group["layouts"] is None:
                    _adamw(p, state, group)
                else:
                    _musoap(p, state, group["layouts"][i], group)
        return loss


def fno_musoap_param_groups(
    model: nn.Module,
    lr: float = 0.03,
    aux_lr: float = 0.004,
    base_depth: int = 4,
    weight_decay: float = 0.01,
) -> List[Dict]:
    """Parameter groups of an FNO for :class:`MuSOAP`.

    Kernels of spectral convolutions (dense, separable, factorized) and the linear layers between hidden channels
    (skip connections, channel MLPs, the inner layers of lifting and projection) get a layout. All else goes to AdamW:
    biases, norms, and the layers that read the input or write the output.

    Parameters
    ----------
    model : nn.Module
        An FNO, or a model with its names: ``lifting``, ``fno_blocks``, ``projection``.
    lr : float, default 0.03
        Size of an update in a model of ``base_depth`` Fourier layers.
    aux_lr : float, default 0.004
        Learning rate of AdamW.
    base_depth : int, default 4
        Updates of all layers add up, so ``lr`` is multiplied by ``sqrt(base_depth / n_layers)``.
    weight_decay : float, default 0.01
        In a model of ``base_depth`` layers; ``lr * weight_decay`` is the same at every depth.

    Returns
    -------
    list of dict
        Two groups: one with ``layouts``, and one for AdamW.
    """
    convs = [m for m in model.modules() if hasattr(m, "n_modes") and isinstance(getattr(m, "weight", None), nn.Module)]
    kernels = {
        p: _kernel_layout(name, p, len(conv.n_modes), getattr(conv, "separable", False))
        for conv in convs
        for name, p in conv.weight.named_parameters()
    }
    first = next(p for p in model.lifting.parameters() if p.ndim > 1)
    last = [p for p in model.projection.parameters() if p.ndim > 1][-1]
    chosen, layouts, rest = [], [], []
    for p in model.parameters():
        layout = kernels.get(p)
        is_linear = p.ndim >= 2 and math.prod(p.shape[2:]) == 1 and min(p.shape[:2]) > 1
        if p not in kernels and is_linear and p is not first and p is not last:
            layout = "oi" + "l" * (p.ndim - 2)
        if layout is None:
            rest.append(p)
        else:
            chosen.append(p)
            layouts.append(layout)
    scale = math.sqrt(base_depth / max(1, len(convs)))
    return [
        {"params": chosen, "layouts": layouts, "lr": lr * scale, "weight_decay": weight_decay / scale},
        {"params": rest, "layouts": None, "lr": aux_lr, "weight_decay": weight_decay},
    ]


def _kernel_layout(name: str, p: Tensor, order: int, separable: bool) -> Optional[str]:
    """Layout of a parameter of a kernel, by its name in tensorly-torch; None for the weights of a CP kernel's terms."""
    channels = "o" if separable else "io"
    kind, _, number = name.rpartition("_")
    if name == "tensor":
        return ("c" if separable else "io") + "b" * order
    if name == "core":  # of a Tucker kernel, with an axis for each rank
        return channels + "i" * order
    if not kind.endswith("factor"):
        return None
    number, n_factors = int(number), len(channels) + order
    own = channels[number] if number < len(channels) else "b"
    if p.ndim == 3:  # of a tensor train, between the rank before and the one behind
        before = "l" if number == 0 else "i" if own == "o" else "o"
        behind = "l" if number == n_factors - 1 else "o" if own == "i" else "i"
        return before + own + behind
    return own + ("i" if own == "o" else "o")


def _adamw(p: Tensor, state: Dict, group: Dict) -> None:
    """AdamW for one parameter; of complex numbers the real and the imaginary part each for itself."""
    p, grad = (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x for x in (p, p.grad))
    if "exp_avg" not in state:
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
    (beta1, beta2), t = group["betas"], state["step"]
    state["exp_avg"].lerp_(grad, 1 - beta1)
    state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    root = (state["exp_avg_sq"] / (1 - beta2**t)).sqrt() + group["eps"]
    p.mul_(1 - group["lr"] * group["weight_decay"])
    p.sub_(group["lr"] / (1 - beta1**t) * state["exp_avg"] / root)


def _musoap(p: Tensor, state: Dict, layout: str, group: Dict) -> None:
    """One step of a kernel or of a linear layer."""
    w, g = _blocks(p, layout), _blocks(p.grad, layout)  # (layers, channels, modes, *in axes, *out axes)
    t, real = state["step"], dict(dtype=w.abs().dtype, device=w.device)
    if "exp_avg" not in state:
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(w), torch.zeros(w.shape, **real)
        state["grams"] = [torch.zeros(len(w), d, d, **real) for d in w.shape[3:]]
        state["bases"] = [torch.zeros(len(w), d, d, **real) for d in w.shape[3:]]
        state["ratio"] = torch.ones(len(w), w.shape[2], **real)
    m, v, mu = state["exp_avg"], state["exp_avg_sq"], group["momentum"]
    m.mul_(mu).add_(g, alpha=1 - mu)
    ahead = mu * m + (1 - mu) * g
    moving, turns = _turn([n for n, letter in zip(p.shape, layout) if letter == "b"], group["period"], t - 1)
    lr = turns * group["lr"]  # a mode moves as far in one step as it would have in all that it waited
    n_in, n_out = (math.prod(n for n, own in zip(p.shape, layout) if own == letter) for letter in "io")
    renewed = t % group["refresh"] == 0 or (t < group["refresh"] and t & (t - 1) == 0)
    measured = t <= group["refresh"] or (t - 1) % group["refresh"] < turns
    for layer in range(len(w)):
        bases = [basis[layer] for basis in state["bases"]]
        due = g[layer][:, moving]  # (channels, modes that move, *in axes, *out axes)
        for axis, (gram, basis) in enumerate(zip(state["grams"], bases)):
            x = due.movedim(2 + axis, 0).flatten(1)
            gram[layer] = _BASIS_BETA * gram[layer] + (1 - _BASIS_BETA) * (x @ x.mH).real
            if t == 1:
                basis.copy_(torch.linalg.eigh(gram[layer]).eigenvectors.flip(-1))
            elif renewed:
                basis.copy_(torch.linalg.qr(gram[layer] @ basis).Q)
        each, of_mode = (*due.shape[:2], -1), (1, -1, *(1 for _ in bases))
        squares = group["beta2"] * v[layer][:, moving]
        squares = squares + (1 - group["beta2"]) * _rotate(due, bases, back=True).abs() ** 2
        # A mode without a gradient is left alone, and so is one whose squares are too small for their numbers.
        alive = ((due.reshape(each) != 0).any(2) & (squares.reshape(each) > 0).any(2)).any(0).view(of_mode)
        v[layer][:, moving] = torch.where(alive, squares, v[layer][:, moving])
        # Where a gradient has no component, its rounding errors must not be taken for one.
        means = squares.reshape(each).mean(2).view(*due.shape[:2], *of_mode[2:])
        root = squares.sqrt() + _NOISE * means.sqrt()
        turned = _rotate(ahead[layer][:, moving], bases, back=True) / torch.where(root > 0, root, 1.0)
        u = turned.reshape(*turned.shape[:2], n_in, n_out)
        if measured:
            state["ratio"][layer, moving] = _operator_norm(u, 4) / _operator_norm(u, 2).clamp(min=_TINY)
        size = (_operator_norm(u, 2) * state["ratio"][layer, moving]).clamp(min=_TINY).view(of_mode)
        old = w[layer][:, moving]
        new = (1 - lr * group["weight_decay"]) * old - lr * math.sqrt(n_out / n_in) * _rotate(turned / size, bases)
        w[layer][:, moving] = torch.where(alive, new, old)
    p.copy_(_unblocked(w, p, layout))


def _places(layout: str) -> List[List[int]]:
    """Axes of layers, channels, modes, in and out, where complex numbers are one number each."""
    return [[axis for axis, own in enumerate(layout.replace("p", "")) if own == letter] for letter in "lcbio"]


def _blocks(x: Tensor, layout: str) -> Tensor:
    """A copy as (layers, channels, modes, *in axes, *out axes), complex where numbers are."""
    if "p" in layout:
        x = torch.view_as_complex(x.movedim(layout.index("p"), -1).contiguous())
    layers, channels, modes, *mixed = ([x.shape[axis] for axis in own] for own in _places(layout))
    x = x.permute(sum(_places(layout), []))
    return x.reshape(math.prod(layers), math.prod(channels), math.prod(modes), *sum(mixed, [])).clone()


def _unblocked(blocks: Tensor, p: Tensor, layout: str) -> Tensor:
    """The way back."""
    sizes = [n for n, letter in zip(p.shape, layout) if letter != "p"]
    order = sum(_places(layout), [])
    whole = blocks.reshape([sizes[axis] for axis in order]).permute([order.index(axis) for axis in range(len(order))])
    return torch.view_as_real(whole).movedim(-1, layout.index("p")) if "p" in layout else whole


def _turn(sizes: List[int], period: int, step: int) -> Tuple[List[int], int]:
    """Modes that move at a step, every ``period``-th along the longest axis, and after how many steps all have moved."""
    longest = max(sizes, default=1)
    period = min(period, longest)
    axis = sizes.index(longest) if sizes else 0
    due = range(step % period, longest, period)
    return [i for i, at in enumerate(product(*map(range, sizes))) if not sizes or at[axis] in due], period


def _rotate(blocks: Tensor, bases: List[Tensor], back: bool = False) -> Tensor:
    """Blocks with each basis multiplied onto one of their last axes, or with its transpose."""
    for axis, q in enumerate(bases, start=blocks.ndim - len(bases)):
        q = (q.mT if back else q).to(blocks.dtype)
        blocks = torch.tensordot(q, blocks, ([1], [axis])).movedim(0, axis)
    return blocks


def _operator_norm(blocks: Tensor, power: int) -> Tensor:
    """Of each mode of (channels, modes, m, n), an estimate from their Schatten norm; exact for one row or column."""
    m, n = blocks.shape[-2:]
    moments = torch.linalg.vector_norm(blocks, dim=(-2, -1)) ** 2  # sums of squares of singular values
    if min(m, n) == 1:
        return moments.sqrt().amax(0)
    if power == 4:
        moments = torch.linalg.vector_norm(blocks @ blocks.mH, dim=(-2, -1)) ** 2
    of_random = m * n * (1 if power == 2 else m + n + (0 if blocks.is_complex() else 1))
    return moments.sum(0) ** (1 / power) * (math.sqrt(m) + math.sqrt(n)) / of_random ** (1 / power)
