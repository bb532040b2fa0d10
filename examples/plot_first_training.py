"""
A first training with MuSOAP
============================

How does a training script for a Fourier neural operator (FNO) change with ``MuSOAP``? This script trains an FNO on
Burgers' equation with Adam at three learning rates, and with ``MuSOAP`` without tuning.
"""

# %%
# Data
# ----
# The inputs are initial states of Burgers' equation on 64 points, and the outputs are later states. To use your own
# data, replace these tensors of shape ``(samples, channels, points)``. We divide the fields by their standard
# deviation. If the mean of your inputs is not zero, subtract it first.
import matplotlib.pyplot as plt
import torch
from neuralop.losses import LpLoss
from neuralop.models import FNO
from torch.utils.data import DataLoader, TensorDataset

import neuralop_mup as nm
from neuralop_mup.lab.problems import get_problem

torch.set_num_threads(1)  # fastest for small models
data = get_problem("burgers", grid=64, n_train=200, n_val=20, n_test=100).load()
(x, y), (x_test, y_test) = data.train, data.test
x, x_test = x / x.std(), x_test / x.std()
y, y_test = y / y.std(), y_test / y.std()


# %%
# Training
# --------
# The two lines below ``lr is None`` replace the line with Adam. ``nm.parametrize`` rescales the weights of the new
# model in place. ``nm.MuSOAP`` computes its learning rate from the number of optimizer steps.
def train(lr: float | None, seed: int, epochs: int = 20) -> list[float]:
    """Return the relative test error after each epoch."""
    torch.manual_seed(seed)
    model = FNO(n_modes=(16,), in_channels=1, out_channels=1, hidden_channels=32)
    loader = DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True)
    if lr is None:
        nm.parametrize(model)
        optimizer = nm.MuSOAP(model, steps=epochs * len(loader))
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    loss = LpLoss(d=1, reduction="mean")
    errors = []
    for _ in range(epochs):
        for inputs, outputs in loader:
            optimizer.zero_grad()
            loss(model(inputs), outputs).backward()
            optimizer.step()
        scheduler.step()
        with torch.no_grad():
            errors.append(loss(model(x_test), y_test).item())
    return errors


# %%
# Test errors
# -----------
# We print the median and the range of three seeds.
settings = {"Adam, lr 0.004": 4e-3, "Adam, lr 0.016": 1.6e-2, "Adam, lr 0.064": 6.4e-2, "MuSOAP, untuned": None}
runs = {}
for name, lr in settings.items():
    runs[name] = torch.tensor([train(lr, seed) for seed in range(3)])
    final = runs[name][:, -1]
    print(f"{name:16} {final.median():.4f} ({final.min():.4f} to {final.max():.4f})")

# %%
# Lines are medians, and bands are the range of the seeds.
colors = ["#0072B2", "#0072B2", "#0072B2", "#C25E00"]
lines = ["s:", "o-", "v--", "X-"]
epochs = range(1, 21)
figure, ax = plt.subplots(figsize=(6, 3.8), layout="constrained")
for (name, errors), color, line in zip(runs.items(), colors, lines, strict=True):
    ax.semilogy(epochs, errors.median(dim=0).values, line, color=color, markevery=5, label=name)
    ax.fill_between(epochs, errors.amin(dim=0), errors.amax(dim=0), color=color, alpha=0.2, linewidth=0)
ax.set(xlabel="epoch", ylabel="relative test error", xticks=[1, 5, 10, 15, 20], ylim=(None, 2))
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False, loc="lower left")
figure.suptitle("Untuned MuSOAP has a lower error than Adam at three rates")
plt.show()

# %%
# The plan
# --------
# ``nm.summary`` prints the role of each parameter, and the factors on its initial size and its learning rate. The
# class, the forward pass and the names of the weights do not change.
model = nm.parametrize(FNO(n_modes=(16,), in_channels=1, out_channels=1, hidden_channels=64))
print("\n".join(str(nm.summary(model)).splitlines()[:8]))

# %%
# Results
# -------
# The error of ``MuSOAP`` is about 40 % lower than that of Adam at the best of its three rates. No learning rate of
# ``MuSOAP`` was tuned. :doc:`/evidence/optimizers` compares the optimizers on more problems.
#
# Next, :doc:`plot_own_data` trains on a file, and :doc:`plot_width_transfer` shows why the best learning rate of a
# narrow model fails on a wide one.
