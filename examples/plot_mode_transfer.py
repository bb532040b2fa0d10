"""
Learning-rate transfer over Fourier modes
=========================================

Does the best learning rate for few Fourier modes suit many? This script trains FNOs with two numbers of modes at six
learning rates. It compares the standard parametrization (SP) with the rule of Li, Yoo and Yang (ICML 2025),
``rule="log-modes"``.

:doc:`/howto/proxy` explains the rule, and :doc:`/evidence/paper` measures it on four problems.
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
data = get_problem("burgers", viscosity=0.01, grid=64, n_train=200, n_val=50, n_test=50).load()
(x, y), (x_test, y_test) = data.train, data.test
x, x_test = x / x.std(), x_test / x.std()
y, y_test = y / y.std(), y_test / y.std()


# %%
# Training
# --------
# The base has K = 4 modes per sign (``n_modes=(8,)``). At the base, both parametrizations are the same model, bit for
# bit. The optimizer is Adam, because the rule is derived for it.
def train(n_modes: int, lr: float, rule: str, seed: int, epochs: int = 4) -> float:
    """Return the relative test error."""
    torch.manual_seed(seed)
    model = FNO(n_modes=(n_modes,), in_channels=1, out_channels=1, hidden_channels=16, n_layers=2)
    nm.parametrize(model, base={"n_modes": (8,)}, rule=rule)
    optimizer = nm.MuAdam(model, lr=lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    loader = DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True)
    loss = LpLoss(d=1, reduction="mean")
    for _ in range(epochs):
        for inputs, outputs in loader:
            optimizer.zero_grad()
            loss(model(inputs), outputs).backward()
            optimizer.step()
        scheduler.step()
    with torch.no_grad():
        return loss(model(x_test), y_test).item()


# %%
# The plan
# --------
# The rule multiplies the initial size and the learning rate of the kernels by κ = √(log 4 / log 32) = 0.632. It
# changes no other parameter.
model = FNO(n_modes=(64,), in_channels=1, out_channels=1, hidden_channels=16, n_layers=1)
print(nm.summary(nm.parametrize(model, base={"n_modes": (8,)}, rule="log-modes")))

# %%
# Test errors
# -----------
# We print the learning rate with the lowest median error of three seeds.
rates = nm.log2_grid(2e-3, 6.4e-2)


def sweep(n_modes: int, rule: str) -> torch.Tensor:
    """Return test errors of shape (rates, seeds)."""
    return torch.tensor([[train(n_modes, lr, rule, seed) for seed in range(3)] for lr in rates])


runs = {
    "K = 4 (base)": sweep(8, "standard"),
    "K = 32, SP": sweep(64, "standard"),
    "K = 32, log-modes": sweep(64, "log-modes"),
}
for name, errors in runs.items():
    median = errors.median(dim=1).values
    best = median.argmin()
    print(f"{name:18} best rate {rates[best]:g}: error {median[best]:.3f}", end=" ")
    print(f"({errors[best].min():.3f} to {errors[best].max():.3f})")

# %%
# Lines are medians, and bands are the range of the seeds. Stars mark the best rate of each curve. Errors above 1 are
# drawn at 1, the error of predicting zero.
figure, ax = plt.subplots(figsize=(6, 3.8), layout="constrained")
for (name, errors), color, marker in zip(runs.items(), ["#555555", "#882255", "#3A8FC4"], "osv", strict=True):
    errors = errors.clamp(max=1)
    median = errors.median(dim=1).values
    best = median.argmin()
    ax.loglog(rates, median, marker + "-", color=color, label=name, markersize=5)
    ax.fill_between(rates, errors.amin(dim=1), errors.amax(dim=1), color=color, alpha=0.2, linewidth=0)
    ax.plot(rates[best], median[best], "*", color=color, markersize=15)
ax.set_xticks(rates, [f"{lr:g}" for lr in rates])
ax.set_yticks([0.1, 0.2, 0.5], ["0.1", "0.2", "0.5"])
ax.minorticks_off()
ax.set(xlabel="learning rate", ylabel="relative test error")
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False)
figure.suptitle("The best rate hardly depends on the number of modes")
plt.show()

# %%
# Results
# -------
# The best rate is about 0.032 for both numbers of modes, with and without the rule. The median errors there are about
# 0.1, and the ranges of the seeds overlap. The rule guards against a worst case, a single strong mode, which does not
# occur here (:doc:`/explain/theory`). The width matters more (:doc:`plot_width_transfer`).
