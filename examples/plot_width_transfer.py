"""
Learning-rate transfer over width
=================================

Does the best learning rate of a narrow model suit a wide one? This script trains FNOs of two widths at five learning
rates. It compares the standard parametrization (SP, the model as neuralop builds it) with maximal update
parametrization (μP).

The optimizer is Adam. ``MuSOAP`` needs no search (:doc:`/evidence/optimizers`).
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
# ``nm.parametrize`` compares the model with its *base*, the small size of the search. At the base, SP and μP are the
# same model, bit for bit. ``rule="standard"`` is SP, and ``"operator-norm"``, the default, is μP.
def train(width: int, lr: float, rule: str, seed: int, epochs: int = 4) -> float:
    """Return the relative test error."""
    torch.manual_seed(seed)
    model = FNO(n_modes=(8,), in_channels=1, out_channels=1, hidden_channels=width, n_layers=2)
    nm.parametrize(model, base={"hidden_channels": 16}, rule=rule)
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
# ``nm.summary`` prints the factors on the initial size and the learning rate of each parameter.
model = FNO(n_modes=(8,), in_channels=1, out_channels=1, hidden_channels=128, n_layers=1)
print(nm.summary(nm.parametrize(model, base={"hidden_channels": 16})))

# %%
# Test errors
# -----------
# We print the learning rate with the lowest median error of three seeds.
rates = [2.5e-4, 1e-3, 4e-3, 1.6e-2, 6.4e-2]


def sweep(width: int, rule: str) -> torch.Tensor:
    """Return test errors of shape (rates, seeds)."""
    return torch.tensor([[train(width, lr, rule, seed) for seed in range(3)] for lr in rates])


runs = {
    "width 16 (base)": sweep(16, "standard"),
    "width 128, SP": sweep(128, "standard"),
    "width 128, μP": sweep(128, "operator-norm"),
}
base_best = runs["width 16 (base)"].median(dim=1).values.argmin()
for name, errors in runs.items():
    median = errors.median(dim=1).values
    best = median.argmin()
    print(f"{name:16} best rate {rates[best]:g}: error {median[best]:.3f}; ", end="")
    print(f"best rate of the base, {rates[base_best]:g}: error {median[base_best]:.3f}")

# %%
# Lines are medians, and bands are the range of the seeds. Stars mark the best rate of each curve, and the dotted line
# is the best rate at the base. Errors above 1 are drawn at 1, the error of predicting zero.
figure, ax = plt.subplots(figsize=(6, 3.8), layout="constrained")
for (name, errors), color, marker in zip(runs.items(), ["#555555", "#882255", "#009E73"], "osD", strict=True):
    errors = errors.clamp(max=1)
    median = errors.median(dim=1).values
    best = median.argmin()
    ax.loglog(rates, median, marker + "-", color=color, label=name, markersize=5)
    ax.fill_between(rates, errors.amin(dim=1), errors.amax(dim=1), color=color, alpha=0.2, linewidth=0)
    ax.plot(rates[best], median[best], "*", color=color, markersize=15)
ax.axvline(rates[base_best], color="#555555", linestyle=":", zorder=0)
ax.set_xticks(rates, [f"{lr:g}" for lr in rates])
ax.set_yticks([0.1, 0.2, 0.5, 1], ["0.1", "0.2", "0.5", "1"])
ax.minorticks_off()
ax.set(xlabel="learning rate", ylabel="relative test error")
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False)
figure.suptitle("The best rate falls with the width in SP, and stays in μP")
plt.show()

# %%
# Results
# -------
# In SP, the best rate of the wide model is 0.001, and 0.004 is about as good. Both are at most a quarter of the best
# rate at the base, 0.016. At 0.016, the error of the wide model is about three times its lowest error.
#
# In μP, both widths have the same best rate, so a search on the narrow model is enough. The lowest errors of SP and
# μP are similar. :doc:`/evidence/learning_rate` measures more problems.
