"""
Your first training in μP
=========================

What do two lines change in a usual training script of a Fourier neural operator (FNO)? Here it is, before and after, run
with three seeds. Copy it, put in your own data, and it is your script.
"""

# %%
# Before: a usual script
# ----------------------
# The data are initial states of Burgers' equation and the states at a later time, 64 points each. Put your own tensors
# here: inputs of shape ``(samples, channels, points)``, and outputs of the same shape.
import matplotlib.pyplot as plt
import torch
from neuralop.losses import LpLoss
from neuralop.models import FNO
from torch.utils.data import DataLoader, TensorDataset

import neuralop_mup as nm
from neuralop_mup.lab.problems import get_problem

torch.set_num_threads(1)
data = get_problem("burgers", n_train=200, n_val=20, n_test=100, grid=64).load()
(x, y), (x_test, y_test) = data.train, data.test

# %%
# Inputs and outputs are normalised by the training data, since a network likes numbers of size one.
mean_x, std_x, mean_y, std_y = x.mean(), x.std(), y.mean(), y.std()


# %%
# ``train`` is an ordinary loop: a loader, a loss, one cosine for the learning rate. It takes a function that makes the
# optimizer, which is all that is going to change.
def train(make_optimizer, seed: int, epochs: int = 25) -> list[float]:
    """Relative error on the test data after each epoch."""
    torch.manual_seed(seed)
    model = FNO(n_modes=(16,), in_channels=1, out_channels=1, hidden_channels=32)
    loader = DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True)
    optimizer = make_optimizer(model, epochs * len(loader))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    loss, errors = LpLoss(d=1, reduction="mean"), []
    for _ in range(epochs):
        for inputs, outputs in loader:
            optimizer.zero_grad()
            prediction = model((inputs - mean_x) / std_x) * std_y + mean_y
            loss(prediction, outputs).backward()
            optimizer.step()
        scheduler.step()
        with torch.no_grad():
            prediction = model((x_test - mean_x) / std_x) * std_y + mean_y
            errors.append(loss(prediction, y_test).item())
    return errors


# %%
# Adam needs a learning rate. Which one is best is not known beforehand, so three are tried.
def adam(lr: float):
    return lambda model, steps: torch.optim.Adam(model.parameters(), lr=lr)


before = {lr: [train(adam(lr), seed) for seed in range(3)] for lr in (4e-3, 1.6e-2, 6.4e-2)}


# %%
# After: two lines
# ----------------
# ``parametrize`` rescales the model's weights in place, once, right after it was built. ``MuSOAP`` computes its learning
# rate from the number of steps of the training, so there is none to choose.
def musoap(model, steps):
    nm.parametrize(model)
    return nm.MuSOAP(model, steps=steps)


after = [train(musoap, seed) for seed in range(3)]

# %%
# What came out
# -------------
# The error at the end, as the median of three seeds and their range.
runs = {**{f"Adam, lr {lr:g}": errors for lr, errors in before.items()}, "MuSOAP, untuned": after}
for name, errors in runs.items():
    last = sorted(own[-1] for own in errors)
    print(f"{name:16} {last[1]:.4f}  ({last[0]:.4f} to {last[2]:.4f})")

# %%
# One line is the median of three seeds, and the band is their range.
figure, ax = plt.subplots(figsize=(6, 3.8), layout="constrained")
styles = zip(runs.items(), ("#0072B2", "#0072B2", "#0072B2", "#C25E00"), ("s:", "o-", "v--", "X-"), strict=True)
for (name, errors), color, line in styles:
    low, middle, high = torch.tensor(errors).sort(dim=0).values
    epochs = range(1, len(middle) + 1)
    ax.semilogy(epochs, middle, line, color=color, markevery=5, label=name)
    ax.fill_between(epochs, low, high, color=color, alpha=0.2, linewidth=0)
ax.set(xlabel="epoch", ylabel="relative error on test data", ylim=(None, 2))
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False, loc="lower left")
figure.suptitle("Errors on test data: MuSOAP against Adam at three rates")
plt.show()

# %%
# What was done to the model
# --------------------------
# ``summary`` prints the *plan*: for each parameter its role, the factors on its initial size and its learning rate, and the
# reason. Class, forward pass and checkpoints of the model are as they were.
model = nm.parametrize(FNO(n_modes=(16,), in_channels=1, out_channels=1, hidden_channels=64))
print("\n".join(str(nm.summary(model)).splitlines()[:8]))

# %%
# The answer
# ----------
# Two lines change, no learning rate is chosen, and the table above has what is gained. How much that is depends on the
# problem, on the samples and on the number of steps: :doc:`/evidence/optimizers` has many problems.
#
# Next, :doc:`plot_own_data` trains on a file of your own, and :doc:`plot_width_transfer` shows why a learning rate that was
# found on a narrow model fails on a wide one.
