"""
A Tucker-factorized operator (TFNO)
===================================

A TFNO stores each kernel, the weights of a Fourier layer, as a small core tensor and one factor for each axis. When the
model gets wider, core and factors must not all change in the same way. The plan says what each of them needs; the
script itself is the same as for a dense model.
"""

# %%
# Import dependencies
# -------------------
import matplotlib.pyplot as plt
import torch
from neuralop.losses import LpLoss
from neuralop.models import TFNO

import neuralop_mup as nm
from neuralop_mup.problems import get_problem

torch.set_num_threads(1)
data = get_problem("burgers", viscosity=0.05, grid=64, n_train=200, n_val=50, n_test=50).load()
processor = data.processor()
x_test, y_test = data.test
BASE = {"hidden_channels": 16}


# %%
# The plan
# --------
# The *role* of a parameter says what it does: an input layer, a hidden map, the readout (the last map, from features to
# output), or a part of a kernel. Learning rate and initialisation follow from the role and from the sizes.
def build(width: int, n_layers: int = 2) -> TFNO:
    return TFNO(
        n_modes=(8,),
        in_channels=1,
        out_channels=1,
        hidden_channels=width,
        n_layers=n_layers,
        factorization="Tucker",
        rank=0.4,
    )


print(nm.summary(nm.parametrize(build(64, n_layers=1), base=BASE)))


# %%
# Training
# --------
def train(width: int, lr: float, rule: str, epochs: int = 4) -> float:
    torch.manual_seed(0)
    model = nm.parametrize(build(width), base=BASE, rule=rule)
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


rates = [4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2]
runs = {
    "width 16, the base": [train(16, lr, "standard") for lr in rates],
    "width 64, SP": [train(64, lr, "standard") for lr in rates],
    "width 64, μP": [train(64, lr, "operator-norm") for lr in rates],
}
for name, errors in runs.items():
    print(f"{name:20} best learning rate {rates[errors.index(min(errors))]:g}, error {min(errors):.3f}")

# %%
# Loss against learning rate
# --------------------------
# SP is the model as neuralop builds it. The dotted line is the learning rate that was best at the base. Errors above 1
# are drawn at 1: such a model is worse than one that predicts zero.
carried = rates[min(range(len(rates)), key=runs["width 16, the base"].__getitem__)]
figure, ax = plt.subplots(figsize=(6, 3.8), layout="constrained")
for (name, errors), colour, marker in zip(runs.items(), ("#555555", "#D55E00", "#009E73"), "osD", strict=True):
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
plt.show()
