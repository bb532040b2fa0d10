"""
Learning-rate transfer over Fourier modes
=========================================

Does the best learning rate for few Fourier modes suit many? We train a Fourier neural operator with Adam for two numbers of
modes and a grid of learning rates: as neuralop builds it (the standard parametrization, SP), and with the rule of Li, Yoo
and Yang (ICML 2025), ``rule="log-modes"``.

:doc:`/howto/modes` explains the rule, and :doc:`/evidence/paper` has longer trainings on four problems.
"""

# %%
# Import dependencies
# -------------------
import matplotlib.pyplot as plt
import torch
from neuralop.losses import LpLoss
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.lab.problems import get_problem

torch.set_num_threads(1)

# %%
# Data
# ----
# Burgers' equation with viscosity 0.01 on 64 points: from the initial condition to the solution at t = 1.
problem = get_problem("burgers", viscosity=0.01, grid=64, n_train=200, n_val=50, n_test=50)
data = problem.load()
processor = data.processor()
x_test, y_test = data.test


# %%
# One training run
# ----------------
# The base has K = 4 modes per sign, which is ``n_modes=(8,)``. At the base, both parametrizations are the same model, bit
# for bit.
BASE = {"n_modes": (8,)}


def train(n_modes: int, lr: float, rule: str, seed: int, epochs: int = 4) -> float:
    torch.manual_seed(seed)
    model = FNO(n_modes=(n_modes,), in_channels=1, out_channels=1, hidden_channels=16, n_layers=2)
    nm.parametrize(model, base=BASE, rule=rule)
    optimizer = nm.MuAdam(model, lr=lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    loss = LpLoss(d=1, p=2)
    loader, _ = data.loaders(batch_size=20, seed=seed)
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
# The factor of the rule
# ----------------------
# The plan shows κ = √(log 4 / log 32) = 0.632 for the kernels. All other parameters keep their size and learning rate.
model = FNO(n_modes=(64,), in_channels=1, out_channels=1, hidden_channels=16, n_layers=1)
print(nm.summary(nm.parametrize(model, base=BASE, rule="log-modes")))

# %%
# The sweep
# ---------
# Three seeds per rate: lowest, middle and highest error.
rates = nm.log2_grid(2e-3, 6.4e-2)


def sweep(n_modes: int, rule: str) -> list[list[float]]:
    return [sorted(train(n_modes, lr, rule, seed) for seed in range(3)) for lr in rates]


runs = {
    "K = 4, the base": sweep(8, "standard"),
    "K = 32, SP": sweep(64, "standard"),
    "K = 32, log-modes": sweep(64, "log-modes"),
}
best = {name: min(range(len(rates)), key=lambda i: errors[i][1]) for name, errors in runs.items()}
for name, errors in runs.items():
    low, middle, high = errors[best[name]]
    print(f"{name:20} best learning rate {rates[best[name]]:g}, error {middle:.3f} ({low:.3f} to {high:.3f})")

# %%
# Error over learning rate
# ------------------------
# Lines are medians and bands the range of the seeds. Stars mark the best rate of each curve, and the dotted line is the best
# rate at the base.
figure, ax = plt.subplots(figsize=(6, 3.8), layout="constrained")
for (name, errors), colour, marker in zip(runs.items(), ("#555555", "#882255", "#3A8FC4"), "osv", strict=True):
    low, drawn, high = zip(*([min(error, 1) for error in seeds] for seeds in errors), strict=True)
    ax.loglog(rates, drawn, marker + "-", color=colour, label=name, markersize=5)
    ax.fill_between(rates, low, high, color=colour, alpha=0.2, linewidth=0)
    ax.plot(rates[best[name]], drawn[best[name]], "*", color=colour, markersize=15)
ax.axvline(rates[best["K = 4, the base"]], color="#555555", linestyle=":", zorder=0)
ax.set_xticks(rates, [f"{lr:g}" for lr in rates])
ax.set_xticks([], minor=True)
ax.set(xlabel="learning rate", ylabel="test error (relative L2)")
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False)
figure.suptitle("Modes move the best rate little, with the rule and without it")
plt.show()

# %%
# The answer
# ----------
# Here the best rate is 0.032 for both numbers of modes, with the rule and without it. The standard parametrization has the
# slightly lower error. A rule for modes guards against a worst case, the strongest single mode, which this training does not
# meet (:doc:`/explain/theory`). Width moves the best rate far more:
# :ref:`sphx_glr_gallery_plot_width_transfer.py`.
