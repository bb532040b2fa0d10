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


def train(width: int, lr: float, rule: str, epochs: int = 4) -> float:
    torch.manual_seed(0)
    model = FNO(n_modes=(8,), in_channels=1, out_channels=1, hidden_channels=width, n_layers=2)
    nm.parametrize(model, base=BASE, rule=rule)
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
# ``parametrize`` makes a *plan*: for each parameter, by how much its initialisation and its learning rate change from
# the base to this size.
model = FNO(n_modes=(8,), in_channels=1, out_channels=1, hidden_channels=128, n_layers=1)
print(nm.summary(nm.parametrize(model, base=BASE)))

# %%
# The sweep
# ---------
# At the base the rule does not matter, so its row is trained once.
rates = nm.log2_grid(2e-3, 6.4e-2)
runs = {
    "width 16, the base": [train(16, lr, "standard") for lr in rates],
    "width 128, SP": [train(128, lr, "standard") for lr in rates],
    "width 128, μP": [train(128, lr, "operator-norm") for lr in rates],
}
for name, errors in runs.items():
    print(f"{name:20} best learning rate {rates[errors.index(min(errors))]:g}, error {min(errors):.3f}")

# %%
# Loss against learning rate
# --------------------------
# The dotted line is the learning rate that was best at the base. Stars mark the best one of each curve.
# Errors above 1 are drawn at 1: such a model is worse than one that predicts zero.
carried = rates[min(range(len(rates)), key=runs["width 16, the base"].__getitem__)]
figure, ax = plt.subplots(figsize=(6, 3.8), layout="constrained")
for (name, errors), colour, marker in zip(runs.items(), ("#555555", "#882255", "#009E73"), "osD", strict=True):
    drawn = [min(error, 1) for error in errors]
    ax.loglog(rates, drawn, marker + "-", color=colour, label=name, markersize=5)
    best = errors.index(min(errors))
    ax.plot(rates[best], drawn[best], "*", color=colour, markersize=15)
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
# Not in SP: there the best rate of the wide model is half of the narrow one's, at the narrow one's it ends higher, and
# at four times that rate it does not train. In μP both widths have one best rate, so it can be found on the small model.
# The best error is about the same in both: μP makes the rate easy to find, and not the model better. With one seed and a
# short training this shows the effect; :doc:`/evidence/transfer` measures it.
