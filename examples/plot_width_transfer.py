"""
Learning-rate transfer over width
=================================

A Fourier neural operator is trained at three widths over a small grid of learning rates, as it comes out of neuralop
(the standard parametrization) and in maximal update parametrization (μP). In the first case the best learning rate
moves as the model gets wider; in the second it stays, so that it can be found on the smallest model.

The whole script takes about a minute on a CPU.
"""

# %%
# Import dependencies
# -------------------
from collections import defaultdict

import matplotlib.pyplot as plt
import torch
from neuralop.losses import LpLoss
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.problems import get_problem

torch.set_num_threads(1)

# %%
# Data
# ----
# Burgers' equation with viscosity 0.05 on 64 points: from the initial condition to the solution at t = 1. The data is
# generated once and kept in the user's cache.
problem = get_problem("burgers", viscosity=0.05, grid=64, n_train=200, n_val=50, n_test=50)
data = problem.load()
processor = data.processor()
x_test, y_test = data.test


# %%
# One training run
# ----------------
# Only two lines differ from a plain neuralop script: ``nm.parametrize`` after the model is built, and ``nm.MuAdam`` in
# the place of ``torch.optim.Adam``. Width 16 is the base, the size at which both parametrizations are the same model.
def train(width: int, lr: float, rule: str, epochs: int = 6) -> float:
    torch.manual_seed(0)
    model = FNO(n_modes=(16,), in_channels=1, out_channels=1, hidden_channels=width)
    nm.parametrize(model, base={"hidden_channels": 16}, rule=rule)
    optimizer = nm.MuAdam(model, lr=lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    loss = LpLoss(d=1, p=2)
    loader, _ = data.loaders(batch_size=20, seed=0)
    processor.train()
    for _ in range(epochs):
        for batch in loader:
            batch = processor.preprocess(batch)
            optimizer.zero_grad()
            loss(model(batch["x"]), batch["y"]).backward()
            optimizer.step()
        scheduler.step()
    processor.eval()
    with torch.no_grad():
        batch = processor.preprocess({"x": x_test, "y": y_test})
        prediction, _ = processor.postprocess(model(batch["x"]), batch)
    return loss(prediction, y_test).item() / len(x_test)


# %%
# The plan
# --------
# What μP makes of each parameter, relative to base:
model = FNO(n_modes=(16,), in_channels=1, out_channels=1, hidden_channels=64, n_layers=1)
print(nm.summary(nm.parametrize(model, base={"hidden_channels": 16})))

# %%
# The sweep
# ---------
widths = [16, 32, 64]
rates = nm.log2_grid(1e-3, 3.2e-2)
errors = defaultdict(dict)
for rule in ("standard", "none"):
    for width in widths:
        errors[rule][width] = [train(width, lr, rule) for lr in rates]
        best = rates[min(range(len(rates)), key=errors[rule][width].__getitem__)]
        print(f"{rule:>8}, width {width:>2}: best learning rate {best:g}")

# %%
# Loss against learning rate
# --------------------------
# Stars mark the best learning rate at each width.
figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
for ax, rule, title in zip(axes, errors, ("standard parametrization", "μP"), strict=True):
    for width, colour in zip(widths, ("#56B4E9", "#0072B2", "#000000"), strict=True):
        values = errors[rule][width]
        best = min(range(len(rates)), key=values.__getitem__)
        ax.loglog(rates, values, "o-", color=colour, label=f"width {width}", markersize=4)
        ax.plot(rates[best], values[best], "*", color=colour, markersize=15)
    ax.set_title(title)
    ax.set_xlabel("learning rate")
axes[0].set_ylabel("test error (relative L2)")
axes[0].legend(frameon=False)
plt.show()
