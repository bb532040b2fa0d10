"""
Why naive transfer fails: the coordinate check
==============================================

Why does a learning rate that was found on a narrow model ruin a wide one? This script measures by how much a few steps of
Adam change the features of models of several widths: in the standard parametrization (SP), and in maximal update
parametrization (μP). Measuring this is called a coordinate check.

The optimizer is Adam here because growing steps are what it does to a wide model in SP; to train a model take ``MuSOAP``
(:doc:`/evidence/optimizers`). ``nm.coord_check(…, optimizer="musoap", lr=0.03)`` checks that one.
"""

# %%
# Import dependencies
# -------------------
import matplotlib.pyplot as plt
import torch
from neuralop.models import FNO

import neuralop_mup as nm

torch.set_num_threads(1)

# %%
# A few batches
# -------------
# Smooth random functions and a nonlinear function of each: a coordinate check needs batches, not a benchmark.
generator = torch.Generator().manual_seed(0)
angle = 2 * torch.pi * torch.arange(1, 6)[:, None] * torch.arange(32) / 32
batches = []
for _ in range(3):
    c = torch.randn(16, 5, 2, generator=generator)
    x = ((c[..., 0] @ torch.cos(angle) + c[..., 1] @ torch.sin(angle)) / 2)[:, None]
    batches.append({"x": x, "y": torch.tanh(x) * x.roll(4, -1)})

# %%
# The check
# ---------
# ``coord_check`` builds the model at each width and trains it for a few steps. It measures every block: how large its
# features are at the start, and how far the steps have moved them.
WIDTHS = [16, 32, 64, 128]


def build_sp(width):
    return FNO(n_modes=(8,), in_channels=1, out_channels=1, hidden_channels=width, n_layers=2)


def build_mup(width):
    return nm.parametrize(build_sp(width), base={"hidden_channels": 16})


checks = {
    name: nm.coord_check(build, WIDTHS, batches, lr=4e-3, steps=(1, 3), seeds=10)
    for name, build in (("SP", build_sp), ("μP", build_mup))
}

# %%
# A slope is the exponent of width: 0 means that the size does not depend on width, 1 that it doubles with it. The block
# ``projection`` is the model's output. A slope passes if its whole 95 % interval (±) lies within the limits. It is undecided
# if the interval crosses a limit, and more seeds decide it.
for name, result in checks.items():
    print(f"{name}: {result}\n")

# %%
# In pictures
# -----------
# The change of each block's output after the first step. A line that rises grows with the width.
colours = {"lifting": "#3A8FC4", "fno_blocks.0": "#00508A", "fno_blocks.1": "#000000", "projection": "#D55E00"}
figure, axes = plt.subplots(1, 2, figsize=(6, 3.4), sharey=True, layout="constrained")
for ax, (name, result) in zip(axes, checks.items(), strict=True):
    for block, colour in colours.items():
        values = [
            [r["value"] for r in result.records if (r["block"], r["step"], r["size"]) == (block, 1, width)]
            for width in WIDTHS
        ]
        ax.loglog(WIDTHS, [sum(v) / len(v) for v in values], "o-", color=colour, label=block, markersize=4)
    ax.set_title(name, loc="left")
    ax.set_xticks(WIDTHS, [str(width) for width in WIDTHS])
    ax.set_xticks([], minor=True)
    ax.set_xlabel("width (hidden_channels)")
    ax.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel("RMS change after one step")
axes[0].set_yticks([0.05, 0.1, 0.2, 0.5], ["0.05", "0.1", "0.2", "0.5"])
axes[0].set_yticks([], minor=True)
axes[1].legend(frameon=False)
figure.suptitle("A step moves the output of wider models more in SP")
plt.show()

# %%
# The answer
# ----------
# Under SP one step changes every block by more, the wider the model is, and its output most. A learning rate that is
# right at width 16 moves the model several times too far at width 128. In μP the lines are nearly flat, so the rate may
# stay.
