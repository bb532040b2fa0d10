"""
Monitoring a training run
=========================

How large are the updates during a training run? This script measures with ``nm.Monitor`` how far each step of Adam
and of ``MuSOAP`` moves the output of FNOs of three widths.
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
x, y = data.train
x, y = x / x.std(), y / y.std()


# %%
# Training
# --------
# The monitor measures every third step, and calls ``records.extend`` with the measurements. It does not change the
# training. Choose an odd interval for ``MuSOAP``, which updates half of the modes in each step. Adam trains the model
# as neuralop builds it (SP), with the same learning rate at all widths. ``MuSOAP`` trains it in μP.
def train(width: int, optimizer_name: str, seed: int, epochs: int = 6) -> list[dict]:
    """Return the records of the monitor."""
    torch.manual_seed(seed)
    model = FNO(n_modes=(8,), in_channels=1, out_channels=1, hidden_channels=width, n_layers=2)
    loader = DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True)
    if optimizer_name == "MuSOAP":
        nm.parametrize(model)
        optimizer = nm.MuSOAP(model, steps=epochs * len(loader))
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=8e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    loss = LpLoss(d=1, reduction="mean")
    records = []
    with nm.Monitor(model, optimizer, to=records.extend, every=3):
        for _ in range(epochs):
            for inputs, outputs in loader:
                optimizer.zero_grad()
                loss(model(inputs), outputs).backward()
                optimizer.step()
            scheduler.step()
    return records


# %%
# Records
# -------
# Each record has a step, a kind of measurement, the name of a layer and a value.
for record in train(16, "MuSOAP", seed=0)[:4]:
    print(record)


# %%
# Change of the output
# --------------------
# We print the mean change in the first 10 steps, and draw all steps (medians of three seeds).
def output_changes(width: int, optimizer_name: str) -> torch.Tensor:
    """Return the median change of the output at each measured step."""
    runs = []
    for seed in range(3):
        records = train(width, optimizer_name, seed)
        runs.append([r["value"] for r in records if r["kind"] == "feature_update" and r["name"] == "projection"])
    return torch.tensor(runs).median(dim=0).values


steps = range(1, 61, 3)
figure, axes = plt.subplots(1, 2, figsize=(6, 3.4), sharey=True, layout="constrained")
for ax, name, parametrization in [(axes[0], "Adam", "SP"), (axes[1], "MuSOAP", "μP")]:
    for width, color, line in [(16, "#3A8FC4", ":"), (64, "#00508A", "--"), (128, "#000000", "-")]:
        changes = output_changes(width, name)
        print(f"{name:6} width {width:3}: mean change {changes[:4].mean():.3f}")
        ax.semilogy(steps, changes, line, color=color, label=f"width {width}")
    ax.set_title(f"{name}, {parametrization}", loc="left")
    ax.set_xlabel("step")
    ax.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel("RMS change of the output")
axes[1].legend(frameon=False)
figure.suptitle("Adam moves wide models further in the first steps")
plt.show()

# %%
# Results
# -------
# In the first ten steps, Adam in SP changes the output about five times as much at width 128 as at width 16. With
# ``MuSOAP`` in μP, the three widths have similar changes, about 0.15. The changes shrink later, because the learning
# rate falls.
