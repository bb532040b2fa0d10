"""
Watching a training
===================

Do the steps of a training have the size that they should have? ``nm.Monitor`` measures, every so many steps, what an
optimizer step did: how far each kernel moved and how far each block's output moved. You can leave it switched on in a
real training.
"""

# %%
# Import dependencies
# -------------------
from statistics import median

import matplotlib.pyplot as plt
import torch
from neuralop.losses import LpLoss
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.lab.problems import get_problem

torch.set_num_threads(1)
data = get_problem("burgers", viscosity=0.05, grid=64, n_train=200, n_val=50, n_test=50).load()
processor = data.processor()
processor.train()


# %%
# A training loop with one more line
# ----------------------------------
# ``to`` is called with the records of each step that is measured. The training itself is the same to the last bit. For
# comparison we watch Adam on the model as neuralop builds it, at one learning rate for all widths.
def train(width: int, way: str, seed: int, epochs: int = 6) -> list[dict]:
    torch.manual_seed(seed)
    model = FNO(n_modes=(8,), in_channels=1, out_channels=1, hidden_channels=width, n_layers=2)
    loader, _ = data.loaders(batch_size=20, seed=seed)
    if way == "MuSOAP":
        nm.parametrize(model)
        optimizer = nm.MuSOAP(model, steps=epochs * len(loader))
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=8e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    loss, records = LpLoss(d=1, p=2), []
    with nm.Monitor(model, optimizer, to=records.extend, every=3):
        for _ in range(epochs):
            for batch in loader:
                batch = processor.preprocess(batch)
                optimizer.zero_grad()
                loss(model(batch["x"]), batch["y"]).backward()
                optimizer.step()
            scheduler.step()
    return records


WIDTHS = (16, 64, 128)
runs = {(way, width): [train(width, way, seed) for seed in range(3)] for way in ("Adam", "MuSOAP") for width in WIDTHS}

# %%
# What a record looks like
# ------------------------
for record in runs["MuSOAP", 16][0][:4]:
    print(record)

# %%
# How far a step moves the output
# -------------------------------
# Medians of three seeds. Look at their level and not at single steps. The schedule makes all steps shrink.
figure, axes = plt.subplots(1, 2, figsize=(6, 3.4), sharey=True, layout="constrained")
for ax, way, title in zip(axes, ("Adam", "MuSOAP"), ("Adam, SP", "MuSOAP, μP"), strict=True):
    for width, colour in zip(WIDTHS, ("#3A8FC4", "#00508A", "#000000"), strict=True):
        moved = [
            {r["step"]: r["value"] for r in records if r["kind"] == "feature_update" and r["name"] == "projection"}
            for records in runs[way, width]
        ]
        ax.semilogy(
            list(moved[0]), [median(own[step] for own in moved) for step in moved[0]], color=colour, label=f"width {width}"
        )
    ax.set_title(title, loc="left")
    ax.set_xlabel("step")
    ax.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel("RMS change of the output")
axes[1].legend(frameon=False)
figure.suptitle("One step: wider models move further under Adam alone")
plt.show()

# %%
# The answer
# ----------
# Under Adam, with the model as neuralop builds it, the wider ones move further in the first steps. With ``MuSOAP`` in
# maximal update parametrization (μP) all widths move alike, so one learning rate does for all.
