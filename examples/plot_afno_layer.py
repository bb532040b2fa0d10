"""
A layer of your own: AFNO mixing
================================

How do you bring a layer into μP that neuralop_mup does not know? An Adaptive Fourier Neural Operator (AFNO) mixes a
sequence of tokens in Fourier space, over both of its axes, sequence and hidden (Guibas et al., ICLR 2022). The layer
keeps the lowest modes, multiplies them with a learnable complex filter, and mixes them with an MLP. Then it goes back,
and a residual connection goes around it all. This script describes the one parameter that cannot be measured, and checks
the result over two sizes that can grow: ``width``, which is the layer's hidden axis, and ``modes_hidden``.
"""

# %%
# Import dependencies
# -------------------
import matplotlib.pyplot as plt
import torch
from torch import nn

import neuralop_mup as nm

torch.set_num_threads(1)
SEQUENCE = 64


# %%
# The layer, and a model made of it
# ---------------------------------
# Nothing here knows about μP. The model stores its arguments under their own names, so that it can be built again with
# another width, and what grows with it be measured.
class AFNOMixing(nn.Module):
    def __init__(self, hidden_dim: int, max_sequence_length: int, modes_seq: int, modes_hidden: int, mlp_ratio: float = 2):
        super().__init__()
        self.hidden_dim, self.max_sequence_length = hidden_dim, max_sequence_length
        self.modes_seq, self.modes_hidden = modes_seq, min(modes_hidden, hidden_dim // 2 + 1)
        n_modes = self.modes_seq * self.modes_hidden
        self.fourier_weight = nn.Parameter(torch.randn(self.modes_seq, self.modes_hidden, 2) / n_modes)
        self.norm = nn.LayerNorm(hidden_dim)
        mlp_hidden_dim = int(hidden_dim * mlp_ratio)
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
# What the filter is
# ------------------
# Linear maps and norms are known, and which of their sides grow is read off shapes: the model's against those of its base.
# ``nm.Param`` describes the one parameter that belongs to the layer itself.
#
# - Its role is ``spectral``: a filter over Fourier modes, so the mode rule applies.
# - Its axes hold modes of one sign (``modes_single``) and a pair of real numbers. No axis is ``in``: a filter
#   multiplies each mode and sums over nothing, so its learning rate does not fall with width.
# - Its default initialisation is one over the number of modes. The package has no name for that, so it is given as a
#   function of the parameter's shape. Left alone, the filter would fade as modes are added.
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
# The summary says what was measured, and against what.
BASE = {"width": 16, "modes_seq": 8, "modes_hidden": 2}


def parametrized(rule: str = "operator-norm", kernels: float = 1, **sizes) -> AFNO:
    """``kernels`` multiplies the filters at the start; ``MuSOAP`` wants a tenth."""
    model = AFNO(**{**BASE, **sizes})
    return nm.parametrize(model, base=BASE, rule=rule, init_mult={"kernel": kernels})


print(nm.summary(parametrized(width=64, modes_hidden=16)))

# %%
# Coordinate check
# ----------------
# Smooth random functions, and a nonlinear function of each and its shift.
g = torch.Generator().manual_seed(0)
phase = 2 * torch.pi * torch.arange(1, 9)[:, None] * torch.arange(SEQUENCE) / SEQUENCE
batches = []
for _ in range(3):
    c = torch.randn(16, 8, 2, generator=g)
    a = ((c[..., 0] @ torch.cos(phase) + c[..., 1] @ torch.sin(phase)) / 3)[..., None]
    batches.append({"x": a, "y": torch.tanh(a) * a.roll(5, 1)})

AXES = {
    "width": [{"width": width, "modes_hidden": width // 4} for width in (16, 32, 64)],
    "modes_hidden": [{"width": 64, "modes_hidden": modes} for modes in (4, 8, 16)],
}
WAYS = {"Adam, SP": ("standard", nm.MuAdam, 5e-3), "Adam, μP": ("operator-norm", nm.MuAdam, 5e-3)}
WAYS["MuSOAP, μP"] = ("operator-norm", nm.MuSOAP, 0.03)


def slope(row: dict) -> str:
    return f"  {row['block']}, {row['kind']} after {row['step']} steps: {row['slope']:+.2f} ± {row['reach']:.2f}"


checks = {}
for axis, settings in AXES.items():
    by_size = {setting[axis]: setting for setting in settings}
    for way, (rule, optimizer, lr) in WAYS.items():

        def build(size, by_size=by_size, rule=rule, optimizer=optimizer):
            return parametrized(rule, 0.1 if optimizer is nm.MuSOAP else 1, **by_size[size])

        checks[axis, way] = nm.coord_check(
            build, list(by_size), batches, lr=lr, seeds=4, steps=(1, 3), optimizer=optimizer, size_name=axis
        )
        print(f"\n{axis}, {way}", *map(slope, checks[axis, way].slopes), sep="\n")

# %%
# The picture shows by how much the first step changes the output.
colours = {"Adam, SP": ("#882255", "s"), "Adam, μP": ("#009E73", "D"), "MuSOAP, μP": ("#C25E00", "X")}
fig, axes = plt.subplots(1, 2, figsize=(6, 3.2), sharey=True, layout="constrained")
for ax, axis in zip(axes, AXES, strict=True):
    for way, (colour, marker) in colours.items():
        records = [r for r in checks[axis, way].records if r["block"] == "projection" and r["step"] == 1]
        sizes = sorted({r["size"] for r in records})
        mean = [sum(r["value"] for r in records if r["size"] == s) / 4 for s in sizes]
        ax.loglog(sizes, mean, marker + "-", color=colour, label=way)
    ax.set_xticks(sizes, [str(size) for size in sizes])
    ax.set_xticks([], minor=True)
    ax.set_xlabel(axis)
    ax.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel("RMS change of the output")
axes[0].set_yticks([0.05, 0.1, 0.2], ["0.05", "0.1", "0.2"])
axes[0].set_yticks([], minor=True)
axes[0].legend(frameon=False)
fig.suptitle("Over width the first step grows in SP, and stays in μP")
plt.show()

# %%
# Training
# --------
# ``MuSOAP`` trains this model as it does neuralop's, and its learning rate follows from the number of steps
# (:doc:`/evidence/optimizers`).
model = parametrized(kernels=0.1, width=64, modes_hidden=16)
optimizer = nm.MuSOAP(model, steps=3000)
print(f"{optimizer.param_groups[0]['lr']:.3f}")

# %%
# The answer
# ----------
# One description is enough: the filter's role, axes and initialisation. Under Adam in the standard parametrization (SP)
# the change of the output grows with ``width``; in μP it stays, under Adam and under ``MuSOAP``. Over modes it is nearly
# flat for all three, but the slopes say more: there the updates of inner layers grow, with ``MuSOAP`` by the power 0.4
# after three steps. So let ``width`` be what grows between proxy and target.
