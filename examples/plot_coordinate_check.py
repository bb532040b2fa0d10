"""
Coordinate check
================

Why does the best learning rate of a narrow model fail on a wide one? This script measures how far one step of Adam
moves the features of FNOs of four widths. It compares the standard parametrization (SP) with maximal update
parametrization (μP).

To check ``MuSOAP``, write ``nm.coord_check(…, optimizer="musoap", lr=0.03)``.
"""

# %%
# Data
# ----
# We use a few batches of smooth random functions and nonlinear functions of them.
import matplotlib.pyplot as plt
import torch
from neuralop.models import FNO

import neuralop_mup as nm

torch.set_num_threads(1)  # fastest for small models
generator = torch.Generator().manual_seed(0)
phase = 2 * torch.pi * torch.arange(1, 6)[:, None] * torch.arange(32) / 32
batches = []
for _ in range(3):
    a, b = torch.randn(2, 16, 5, generator=generator)
    x = ((a @ torch.cos(phase) + b @ torch.sin(phase)) / 2)[:, None]
    batches.append({"x": x, "y": torch.tanh(x) * x.roll(4, -1)})

# %%
# The check
# ---------
# ``nm.coord_check`` builds a model of each width and trains it for a few steps. It measures the features of each
# block and their change.
widths = [16, 32, 64, 128]


def build_sp(width):
    return FNO(n_modes=(8,), in_channels=1, out_channels=1, hidden_channels=width, n_layers=2)


def build_mup(width):
    return nm.parametrize(build_sp(width), base={"hidden_channels": 16})


checks = {
    "SP": nm.coord_check(build_sp, widths, batches, lr=4e-3, steps=(1, 3), seeds=10),
    "μP": nm.coord_check(build_mup, widths, batches, lr=4e-3, steps=(1, 3), seeds=10),
}

# %%
# A slope is the exponent of the width: 0 means independent of the width, and 1 means proportional to it.
# ``projection`` is the output of the model. A slope passes if its 95 % interval (±) lies within the limits. If the
# interval crosses a limit, the slope is undecided, and more seeds help.
for name, check in checks.items():
    print(f"{name}: {check}\n")

# %%
# Change of the features
# ----------------------
# Each line is the mean of ten seeds.
colors = {"lifting": "#3A8FC4", "fno_blocks.0": "#00508A", "fno_blocks.1": "#000000", "projection": "#D55E00"}
markers = {"lifting": "s", "fno_blocks.0": "o", "fno_blocks.1": "v", "projection": "X"}
figure, axes = plt.subplots(1, 2, figsize=(6, 3.4), sharey=True, layout="constrained")
for ax, (name, check) in zip(axes, checks.items(), strict=True):
    for block, color in colors.items():
        records = [r for r in check.records if r["block"] == block and r["step"] == 1]
        means = [sum(r["value"] for r in records if r["size"] == width) / 10 for width in widths]
        ax.loglog(widths, means, markers[block] + "-", color=color, label=block, markersize=5)
    ax.set_title(name, loc="left")
    ax.set_xticks(widths, [str(width) for width in widths])
    ax.set_xticks([], minor=True)
    ax.set_xlabel("width (hidden_channels)")
    ax.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel("RMS change in one step")
axes[0].set_yticks([0.05, 0.1, 0.2, 0.5], ["0.05", "0.1", "0.2", "0.5"])
axes[0].set_yticks([], minor=True)
axes[1].legend(frameon=False)
figure.suptitle("One step changes the output of wide models more in SP")
plt.show()

# %%
# Results
# -------
# In SP, the change in the first step grows with the width in every block. The slope of the output is about 1.1. So
# one step moves the output about nine times as far at width 128 as at width 16. In μP the slopes of the first step
# are below 0.1, so the learning rate can stay. (See :doc:`plot_width_transfer`.)
