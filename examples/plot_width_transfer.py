"""
Learning-rate transfer over width
=================================

Is the best learning rate of a narrow model right for a wide one? We train a Fourier neural operator by Adam at two
widths, over a grid of learning rates: as neuralop builds it (the standard parametrization, SP), and in maximal update
parametrization (μP).

The optimizer is Adam here because this move of the best rate is Adam's; to train a model take ``MuSOAP``, whose rate
follows from the number of steps (:doc:`/evidence/optimizers`).

The small size is called the *base*: at the base both parametrizations are the same model, number for number.
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
# Burgers' equation with viscosity 0.05 on 64 points: from the initial condition to the solution at t = 1. The data is
# generated once and kept in the user's cache.
problem = get_problem("burgers", viscosity=0.05, grid=64, n_train=200, n_val=50, n_test=50)
data = problem.load()
processor = data.processor()
x_test, y_test = data.test


# %%
# One training run
# ----------------
# Only two lines differ from a plain neuralop script. ``nm.parametrize`` comes after the model is built, and
# ``nm.MuAdam`` takes the place of ``torch.optim.Adam``. A *rule* says how learning rates and initialisation follow the
# size: ``"standard"`` leaves the model as it is, ``"operator-norm"`` is the default.
BASE = {"hidden_channels": 16}


def train(width: int, lr: float, rule: str, seed: int, epochs: int = 4) -> float:
    torch.manual_seed(seed)
    model = FNO(n_modes=(8,), in_channels=1, out_channels=1, hidden_channels=width, n_layers=2)
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
# The plan
# --------
# ``parametrize`` makes a *plan*: for each parameter, by how much its initialisation and its learning rate change from
# the base to this size.
model = FNO(n_modes=(8,), in_channels=1, out_channels=1, hidden_channels=128, n_layers=1)
print(nm.summary(nm.parametrize(model, base=BASE)))

# %%
# The sweep
# ---------
# Three seeds each: least, middle and largest error. At the base the rule does not matter, so its row is trained once.
rates = nm.log2_grid(1e-3, 3.2e-2)


def sweep(width: int, rule: str) -> list[list[float]]:
    return [sorted(train(width, lr, rule, seed) for seed in range(3)) for lr in rates]


runs = {
    "width 16, the base": sweep(16, "standard"),
    "width 128, SP": sweep(128, "standard"),
    "width 128, μP": sweep(128, "operator-norm"),
}
best = {name: min(range(len(rates)), key=lambda i: errors[i][1]) for name, errors in runs.items()}
for name, errors in runs.items():
    low, middle, high = errors[best[name]]
    print(f"{name:20} best learning rate {rates[best[name]]:g}, error {middle:.3f} ({low:.3f} to {high:.3f})")

# %%
# Loss against learning rate
# --------------------------
# Medians, with the range of the seeds. The dotted line is the learning rate that was best at the base. Stars mark the best
# one of each curve. Errors above 1 are drawn at 1: such a model is worse than one that predicts zero.
carried = rates[best["width 16, the base"]]
figure, ax = plt.subplots(figsize=(6, 3.8), layout="constrained")
for (name, errors), colour, marker in zip(runs.items(), ("#555555", "#882255", "#009E73"), "osD", strict=True):
    low, drawn, high = zip(*([min(error, 1) for error in seeds] for seeds in errors), strict=True)
    ax.loglog(rates, drawn, marker + "-", color=colour, label=name, markersize=5)
    ax.fill_between(rates, low, high, color=colour, alpha=0.2, linewidth=0)
    ax.plot(rates[best[name]], drawn[best[name]], "*", color=colour, markersize=15)
ax.axvline(carried, color="#555555", linestyle=":", zorder=0)
ax.set_xticks(rates, [f"{lr:g}" for lr in rates])
ax.set_xticks([], minor=True)
ax.set(xlabel="learning rate", ylabel="test error (relative L2)")
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False)
figure.suptitle("The best rate falls with the width in SP, and stays in μP")
plt.show()

# %%
# The answer
# ----------
# Not in SP: there the best rate of the wide model is an eighth of the narrow one's. At the narrow one's its error is nearly
# three times its best, and at twice that rate it hardly trains. In μP both widths have one best rate, so it can be found on
# the small model. The best error is no lower for it: μP makes the rate easy to find, and not the model better. This short
# training shows the effect; :doc:`/evidence/transfer` measures it.
