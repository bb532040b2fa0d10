"""
Learning rates that are learned during training
===============================================

Can a training find its own learning rate? A Fourier neural operator is trained with rates that are too small, about right
and too large, once as they are and once with ``nm.LearnedRates``, which learns a multiplier on the rate of each role, each
with three seeds.

The optimizer is Adam here because it needs a learning rate to be found; to train a model take ``MuSOAP``, whose rate
follows from the number of steps (:doc:`/evidence/optimizers`).

The whole script takes about a minute on a CPU.
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
# Burgers' equation with viscosity 0.05 on 64 points, generated once and kept in the user's cache.
problem = get_problem("burgers", viscosity=0.05, grid=64, n_train=200, n_val=50, n_test=50)
data = problem.load()
processor = data.processor()
x_test, y_test = data.test
STEPS = 200


# %%
# One training run
# ----------------
# One line is added, after the optimizer and before the scheduler. Rates are learned in the first 140 steps: later, a
# schedule that decays would be answered by growing multipliers.
def train(lr: float, learn: bool, seed: int) -> tuple[float, list[dict]]:
    torch.manual_seed(seed)
    model = FNO(n_modes=(16,), in_channels=1, out_channels=1, hidden_channels=16)
    nm.parametrize(model, base={"hidden_channels": 16})
    optimizer = nm.MuAdam(model, lr=lr)
    rates = nm.LearnedRates(optimizer, until=140) if learn else None
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)
    loss = LpLoss(d=1, p=2)
    loader, _ = data.loaders(batch_size=20, seed=seed)
    history: list[dict] = []
    processor.train()
    for _ in range(STEPS // len(loader)):
        for batch in loader:
            batch = processor.preprocess(batch)
            optimizer.zero_grad()
            loss(model(batch["x"]), batch["y"]).backward()
            optimizer.step()
            scheduler.step()
            if rates is not None:
                history.append(rates.mults)
    processor.eval()
    with torch.no_grad():
        batch = processor.preprocess({"x": x_test, "y": y_test})
        prediction, _ = processor.postprocess(model(batch["x"]), batch)
    return loss(prediction, y_test).item() / len(x_test), history


lrs = [1e-3, 8e-3, 6.4e-2]
histories = {}
for lr in lrs:
    for learn, name in ((False, "as it is"), (True, "with learned multipliers")):
        errors, histories[lr] = zip(*(train(lr, learn, seed) for seed in range(3)), strict=True)
        low, middle, high = sorted(errors)
        print(f"lr {lr:g} {name}: test error {middle:.4f} ({low:.4f} to {high:.4f})")
    for role in histories[lr][0][-1]:
        print(f"    {role:8}", *(f"{history[-1][role]:.3f}" for history in histories[lr]))

# %%
# The multipliers
# ---------------
# One line is the multiplier of a role, over the steps: the median of three seeds, and their range.
colours = {"input": "#3A8FC4", "hidden": "#00508A", "readout": "#C25E00", "vector": "#777777", "spectral": "#000000"}
figure, axes = plt.subplots(1, 3, figsize=(6, 3.4), sharey=True, layout="constrained")
for ax, lr in zip(axes, lrs, strict=True):
    for role, colour in colours.items():
        low, middle, high = zip(
            *(sorted(mults[role] for mults in step) for step in zip(*histories[lr], strict=True)), strict=True
        )
        ax.semilogy(middle, color=colour, label=role)
        ax.fill_between(range(len(low)), low, high, color=colour, alpha=0.2, linewidth=0)
    ax.axhline(1, color="0.85", linewidth=1, zorder=0)
    ax.set_title(f"lr = {lr:g}")
    ax.set_xlabel("step")
axes[0].set_ylabel("learned multiplier")
axes[0].legend(frameon=False)
figure.suptitle("Multipliers rise where the rate is too small, and fall elsewhere")
plt.show()

# %%
# The answer
# ----------
# In part. At the rate that is too low, all multipliers rise. At the other two they fall. The error decreases at the low rate
# with every seed, and at the high one in the median. At the right rate it stays. But the error of the right rate is not
# reached. Multipliers look one step ahead, and what lowers the next loss may not lower the last one. So they fall further
# than they should, most of all at the readout. On another problem they increased the error (:doc:`/explain/contrib`).
