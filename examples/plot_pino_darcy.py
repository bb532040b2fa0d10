"""
Learning-rate transfer in physics-informed training
===================================================

A physics-informed neural operator (PINO) learns Darcy flow from solutions and from the equation −∇·(a∇u) = 1 at once. The
learning rate is searched on a small model and carried to one that is eight times as wide. We do this twice: as neuralop
builds the model (the standard parametrization, SP), and in maximal update parametrization (μP).
"""

# %%
# Import dependencies
# -------------------
import warnings

import matplotlib.pyplot as plt
import torch
from neuralop.losses import LpLoss, WeightedSumLoss
from neuralop.models import FNO
from neuralop.training import Trainer

import neuralop_mup as nm
from neuralop_mup.losses import DarcyEqnLoss
from neuralop_mup.problems import get_problem

torch.set_num_threads(1)
warnings.filterwarnings("ignore", message=".*received unexpected keyword arguments")

# %%
# Data
# ----
# Coefficients and solutions on 24² points, boundary included. The processor keeps fields in physical units for the losses.
# neuralop's own normalises them in training, where the equation does not hold.
problem = get_problem("darcy-pino", grid=24, n_train=60, n_val=30, n_test=10)
data = problem.load()
SMALL = {"hidden_channels": 8, "n_modes": (6, 6)}
LARGE = {"hidden_channels": 64, "n_modes": (6, 6)}
LOSSES = {"data": LpLoss(d=2), "equation": DarcyEqnLoss()}


# %%
# One training run
# ----------------
# A plain neuralop script, but for two lines. Data and equation are weighted 5 : 1, as in the paper.
def train(size: dict, lr: float, rule: str, epochs: int = 5) -> dict:
    torch.manual_seed(0)
    model = FNO(in_channels=1, out_channels=1, n_layers=2, **size)
    nm.parametrize(model, base=SMALL, rule=rule)
    optimizer = nm.MuAdam(model, lr=lr)
    loader, held_out = data.loaders(batch_size=10, seed=0)
    trainer = Trainer(model=model, n_epochs=epochs, data_processor=problem.processor(data), verbose=False)
    trainer.train(
        train_loader=loader,
        test_loaders={},
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs),
        training_loss=WeightedSumLoss(list(LOSSES.values()), weights=[5, 1]),
    )
    return trainer.evaluate(LOSSES, held_out["val"], log_prefix="val")


# %%
# Loss against learning rate
# --------------------------
# At the small size both parametrizations are the same model. The residual of the equation is relative to the right-hand
# side, so that of u = 0 is 1. After so short a training it is still above that: flux across jumps is learned last.
grid = nm.log2_grid(0.016, 0.128)
runs = {
    "small": [train(SMALL, lr, "none") for lr in grid],
    "large, SP": [train(LARGE, lr, "standard") for lr in grid],
    "large, μP": [train(LARGE, lr, "none") for lr in grid],
}
best = min(range(len(grid)), key=lambda i: float(runs["small"][i]["val_data"]))
for name, results in runs.items():
    at_best = {part: f"{float(value):.3f}" for part, value in results[best].items()}
    print(f"{name:16} at the small model's best lr {grid[best]:g}: {at_best}")

# %%
# The dotted line is the learning rate that was best at the small size. Errors above 3 are drawn at 3.
STYLE = {"small": ("#555555", "o"), "large, SP": ("#D55E00", "s"), "large, μP": ("#009E73", "D")}
fig, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
for ax, part in zip(axes, LOSSES, strict=True):
    for name, results in runs.items():
        colour, marker = STYLE[name]
        ax.loglog(grid, [min(float(r[f"val_{part}"]), 3) for r in results], marker + "-", color=colour, label=name)
    ax.axvline(grid[best], color="#555555", linestyle=":", zorder=0)
    ax.set_xticks(grid, [f"{lr:g}" for lr in grid])
    ax.set_xticks([], minor=True)
    ax.set(xlabel="learning rate", title=f"{part}: relative error, validation")
    ax.spines[["top", "right"]].set_visible(False)
axes[0].legend(frameon=False)
plt.show()
