"""
Watching a training
===================

``nm.Monitor`` measures, every so many steps, what an optimizer step did: how far each kernel moved and how far each
block's output moved. In maximal update parametrization (μP) these curves lie on top of each other at every width. That
is a check which you can leave switched on in a real training.
"""

# %%
# Import dependencies
# -------------------
import matplotlib.pyplot as plt
import torch
from neuralop.losses import LpLoss
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.problems import get_problem

torch.set_num_threads(1)
data = get_problem("burgers", viscosity=0.05, grid=64, n_train=200, n_val=50, n_test=50).load()
processor = data.processor()
processor.train()


# %%
# A training loop with one more line
# ----------------------------------
# ``to`` takes a function, a path ending in ``.csv``, ``"wandb"`` or ``"tensorboard"``. The training itself is the same to
# the last bit. The ``probe`` is the batch on which features are compared.
def train(width: int, rule: str, lr: float = 8e-3, epochs: int = 4) -> list[dict]:
    torch.manual_seed(0)
    model = FNO(n_modes=(8,), in_channels=1, out_channels=1, hidden_channels=width, n_layers=2)
    nm.parametrize(model, base={"hidden_channels": 16}, rule=rule)
    optimizer = nm.MuAdam(model, lr=lr)
    loss, records = LpLoss(d=1, p=2), []
    loader, _ = data.loaders(batch_size=20, seed=0)
    with nm.Monitor(model, optimizer, to=records.extend, every=3):
        for _ in range(epochs):
            for batch in loader:
                batch = processor.preprocess(batch)
                optimizer.zero_grad()
                loss(model(batch["x"]), batch["y"]).backward()
                optimizer.step()
    return records


WIDTHS = (16, 64, 128)
runs = {(rule, width): train(width, rule) for rule in ("standard", "operator-norm") for width in WIDTHS}

# %%
# What a record looks like
# ------------------------
for record in runs["operator-norm", 16][:4]:
    print(record)

# %%
# How far a step moves the output
# -------------------------------
# Left: as neuralop builds the model (SP), wider models move further at each step, and the widest one is thrown about.
# Right: in μP all widths move alike, so one learning rate does for all.
figure, axes = plt.subplots(1, 2, figsize=(8, 3.6), sharey=True, layout="constrained")
for ax, rule, title in zip(axes, ("standard", "operator-norm"), ("SP", "μP"), strict=True):
    for width, colour in zip(WIDTHS, ("#56B4E9", "#0072B2", "#000000"), strict=True):
        rows = [r for r in runs[rule, width] if r["kind"] == "feature_update" and r["name"] == "projection"]
        ax.semilogy([r["step"] for r in rows], [r["value"] for r in rows], color=colour, label=f"width {width}")
    ax.set_title(title, loc="left")
    ax.set_xlabel("step")
    ax.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel("RMS change of the output in one step")
axes[1].legend(frameon=False)
plt.show()
