"""
Learning rates that are learned during training
===============================================

Can an optimizer find its learning rate during training? This script trains FNOs with Adam at a low, a good and a high
rate, with and without ``nm.LearnedRates``. This class learns one multiplier on the rate for each role of parameters.

The optimizer is Adam, because ``MuSOAP`` computes its rate from the number of steps (:doc:`/evidence/optimizers`).
"""

# %%
# Data
# ----
# The inputs are initial states of Burgers' equation on 64 points, and the outputs are the solutions at t = 1.
import matplotlib.pyplot as plt
import torch
from neuralop.losses import LpLoss
from neuralop.models import FNO
from torch.utils.data import DataLoader, TensorDataset

import neuralop_mup as nm
from neuralop_mup.lab.problems import get_problem

torch.set_num_threads(1)  # fastest for small models
data = get_problem("burgers", viscosity=0.05, grid=64, n_train=200, n_val=50, n_test=50).load()
(x, y), (x_test, y_test) = data.train, data.test
x, x_test = x / x.std(), x_test / x.std()
y, y_test = y / y.std(), y_test / y.std()


# %%
# Training
# --------
# ``nm.LearnedRates`` follows the optimizer and precedes the scheduler. It learns during the first 110 of 160 steps,
# because multipliers would grow while the scheduler lowers the rate.
def train(lr: float, learn: bool, seed: int, epochs: int = 16) -> tuple[float, list[dict[str, float]]]:
    """Return the relative test error, and the multipliers after each step."""
    torch.manual_seed(seed)
    model = FNO(n_modes=(16,), in_channels=1, out_channels=1, hidden_channels=16)
    loader = DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True)
    nm.parametrize(model, base={"hidden_channels": 16})
    optimizer = nm.MuAdam(model, lr=lr)
    learned = nm.LearnedRates(optimizer, until=110) if learn else None
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * len(loader))
    loss = LpLoss(d=1, reduction="mean")
    history = []
    for _ in range(epochs):
        for inputs, outputs in loader:
            optimizer.zero_grad()
            loss(model(inputs), outputs).backward()
            optimizer.step()
            scheduler.step()
            if learned:
                history.append(learned.mults)
    with torch.no_grad():
        return loss(model(x_test), y_test).item(), history


# %%
# Test errors
# -----------
# We print the median and the range of three seeds.
rates = [1e-3, 8e-3, 6.4e-2]
histories = {}
for lr in rates:
    for learn in [False, True]:
        runs = [train(lr, learn, seed) for seed in range(3)]
        errors = torch.tensor([error for error, _ in runs])
        histories[lr] = [history for _, history in runs]
        name = "learned multipliers" if learn else "fixed"
        print(f"lr {lr:g}, {name:19} {errors.median():.4f} ({errors.min():.4f} to {errors.max():.4f})")

# %%
# Learned multipliers
# -------------------
# Lines are medians of three seeds, and bands are their range.
styles = {
    "input": ("#56B4E9", ":"),
    "hidden": ("#0072B2", "--"),
    "readout": ("#C25E00", "-"),
    "vector": ("#777777", "-."),
    "spectral": ("#000000", "-"),
}
figure, axes = plt.subplots(1, 3, figsize=(6, 3.8), sharey=True, layout="constrained")
for ax, lr in zip(axes, rates, strict=True):
    for role, (color, line) in styles.items():
        mults = torch.tensor([[step[role] for step in history] for history in histories[lr]])
        ax.semilogy(mults.median(dim=0).values, line, color=color, label=role)
        ax.fill_between(range(160), mults.amin(dim=0), mults.amax(dim=0), color=color, alpha=0.2, linewidth=0)
    ax.axhline(1, color="0.85", linewidth=1, zorder=0)
    ax.set(title=f"lr = {lr:g}", xlabel="step")
    ax.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel("learned multiplier")
axes[0].set_yticks([0.2, 0.5, 1, 2, 4], ["0.2", "0.5", "1", "2", "4"])
axes[0].minorticks_off()
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
figure.suptitle("Multipliers rise only where the learning rate is too low")
plt.show()

# %%
# Results
# -------
# At the low rate, all multipliers rise, and the error is about half as large. At the other two rates most multipliers
# fall, and those of the kernels (spectral) stay near 1. At the high rate, the median error is lower, but one seed is
# worse. At the good rate the error hardly changes, and it stays lower than at the other two.
#
# Multipliers only reduce the loss of the next step, so they fall too far, most of all at the readout. On another
# problem they increased the error (:doc:`/reference/contrib`).
