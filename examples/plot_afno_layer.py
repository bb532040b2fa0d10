"""
A new layer: AFNO mixing
========================

How do you use μP with a layer that neuralop_mup does not know? This script describes the Fourier filter of an
Adaptive Fourier Neural Operator (AFNO, Guibas et al., ICLR 2022). A coordinate check over width and modes tests the
description.
"""

# %%
# The layer
# ---------
# An AFNO layer transforms tokens to Fourier space over the sequence and the hidden axis. It multiplies the lowest
# modes by a learned filter, mixes them with an MLP, and adds the result to its input. The classes store their
# arguments, so that ``nm.parametrize`` can build the model at other sizes.
import matplotlib.pyplot as plt
import torch
from torch import nn

import neuralop_mup as nm

torch.set_num_threads(1)  # fastest for small models
SEQUENCE = 64


class AFNOMixing(nn.Module):
    def __init__(self, hidden_dim: int, max_sequence_length: int, modes_seq: int, modes_hidden: int):
        super().__init__()
        self.hidden_dim, self.max_sequence_length = hidden_dim, max_sequence_length
        self.modes_seq, self.modes_hidden = modes_seq, min(modes_hidden, hidden_dim // 2 + 1)
        n_modes = self.modes_seq * self.modes_hidden
        self.fourier_weight = nn.Parameter(torch.randn(self.modes_seq, self.modes_hidden, 2) / n_modes)
        self.norm = nn.LayerNorm(hidden_dim)
        mlp_hidden_dim = 2 * hidden_dim
        self.mlp = nn.Sequential(nn.Linear(2 * n_modes, mlp_hidden_dim), nn.GELU(), nn.Linear(mlp_hidden_dim, 2 * n_modes))

    def forward(self, x):
        modes = torch.fft.rfft2(self.norm(x), dim=(1, 2), norm="ortho")
        kept = modes[:, : self.modes_seq, : self.modes_hidden] * torch.view_as_complex(self.fourier_weight)
        mixed = self.mlp(torch.view_as_real(kept).flatten(1))
        out = torch.zeros_like(modes)
        out[:, : self.modes_seq, : self.modes_hidden] = torch.view_as_complex(mixed.reshape(*kept.shape, 2))
        return x + torch.fft.irfft2(out, s=(self.max_sequence_length, self.hidden_dim), dim=(1, 2), norm="ortho")


class AFNO(nn.Module):
    def __init__(self, width: int, modes_seq: int, modes_hidden: int, n_layers: int = 2):
        super().__init__()
        self.width, self.modes_seq, self.modes_hidden, self.n_layers = width, modes_seq, modes_hidden, n_layers
        self.lifting = nn.Linear(1, width)
        self.layers = nn.ModuleList([AFNOMixing(width, SEQUENCE, modes_seq, modes_hidden) for _ in range(n_layers)])
        self.projection = nn.Linear(width, 1)

    def forward(self, x):
        x = self.lifting(x)
        for layer in self.layers:
            x = layer(x)
        return self.projection(x)


# %%
# The description
# ---------------
# ``nm.parametrize`` recognizes linear layers and norms. ``nm.Param`` describes the filter:
#
# - Its role is ``spectral``, so the rule for modes applies.
# - Its axes are two axes of modes of one sign (``modes_single``) and the pair of real and imaginary part. It has no
#   input axis, because a filter does not sum over channels.
# - Its initial size is one over the number of modes. Without ``init``, the filter would shrink as the number of modes
#   grows.
nm.register_layer(
    AFNOMixing,
    {
        "fourier_weight": nm.Param(
            "spectral", ("modes_single", "modes_single", "pair"), init=lambda shape: 1 / (shape[0] * shape[1])
        )
    },
)

# %%
# The plan
# --------
# ``nm.summary`` prints the role and the factors of each parameter.
BASE = {"width": 16, "modes_seq": 8, "modes_hidden": 2}


def build_model(rule: str, kernel_init: float, width: int, modes_hidden: int) -> AFNO:
    """Return a parametrized model, with initial filters multiplied by ``kernel_init``."""
    model = AFNO(width=width, modes_seq=8, modes_hidden=modes_hidden)
    return nm.parametrize(model, base=BASE, rule=rule, init_mult={"kernel": kernel_init})


print(nm.summary(build_model("operator-norm", 1, width=64, modes_hidden=16)))

# %%
# Coordinate check
# ----------------
# The check trains models of several sizes for three steps. A slope of 0 means that the size of the updates does not
# depend on the size of the model. ``MuSOAP`` starts with filters of a tenth of the size.
generator = torch.Generator().manual_seed(0)
phase = 2 * torch.pi * torch.arange(1, 9)[:, None] * torch.arange(SEQUENCE) / SEQUENCE
batches = []
for _ in range(3):
    a, b = torch.randn(2, 16, 8, generator=generator)
    x = ((a @ torch.cos(phase) + b @ torch.sin(phase)) / 3)[..., None]
    batches.append({"x": x, "y": torch.tanh(x) * x.roll(5, 1)})

SIZES = {"width": [16, 32, 64], "modes_hidden": [4, 8, 16]}
METHODS = {
    "Adam, SP": {"rule": "standard", "kernel_init": 1, "optimizer": nm.MuAdam, "lr": 5e-3},
    "Adam, μP": {"rule": "operator-norm", "kernel_init": 1, "optimizer": nm.MuAdam, "lr": 5e-3},
    "MuSOAP, μP": {"rule": "operator-norm", "kernel_init": 0.1, "optimizer": nm.MuSOAP, "lr": 0.03},
}


def check(axis: str, rule: str, kernel_init: float, optimizer: type, lr: float) -> nm.CoordCheck:
    def build(size):
        if axis == "width":
            return build_model(rule, kernel_init, width=size, modes_hidden=size // 4)
        return build_model(rule, kernel_init, width=64, modes_hidden=size)

    return nm.coord_check(build, SIZES[axis], batches, lr=lr, seeds=4, steps=(1, 3), optimizer=optimizer, size_name=axis)


checks = {(axis, name): check(axis, **method) for axis in SIZES for name, method in METHODS.items()}
for (axis, name), result in checks.items():
    updates = [row for row in result.slopes if row["kind"] == "update"]
    output = max(row["slope"] for row in updates if row["block"] == "projection")
    inner = max(row["slope"] for row in updates if row["block"] != "projection")
    print(f"{axis:12} {name:10} largest slope: output {output:+.2f}, other layers {inner:+.2f}")

# %%
# The figure shows the change of the output in the first step.
styles = {"Adam, SP": ("#882255", "s"), "Adam, μP": ("#009E73", "D"), "MuSOAP, μP": ("#C25E00", "X")}
figure, axes = plt.subplots(1, 2, figsize=(6, 3.2), sharey=True, layout="constrained")
for ax, (axis, sizes) in zip(axes, SIZES.items(), strict=True):
    for name, (color, marker) in styles.items():
        records = [r for r in checks[axis, name].records if r["block"] == "projection" and r["step"] == 1]
        means = [sum(r["value"] for r in records if r["size"] == size) / 4 for size in sizes]
        ax.loglog(sizes, means, marker + "-", color=color, label=name)
    ax.set_xticks(sizes, [str(size) for size in sizes])
    ax.set_xticks([], minor=True)
    ax.set_xlabel(axis)
    ax.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel("RMS change of the output")
axes[0].set_yticks([0.05, 0.1, 0.2], ["0.05", "0.1", "0.2"])
axes[0].set_yticks([], minor=True)
axes[0].legend(frameon=False)
figure.suptitle("The first step grows with the width in SP, but not in μP")
plt.show()

# %%
# Results
# -------
# In SP, the update of the output grows with the width, with a slope of about 0.8. In μP this slope is near 0 with
# both optimizers. The updates of other layers grow with the modes in μP, with slopes of about 0.3 (Adam) and 0.4
# (``MuSOAP``). So the large model should be wider than the small one and have the same number of modes.
