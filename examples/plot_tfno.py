"""
A Tucker-factorized operator (TFNO)
===================================

Does a factorized model need anything else than a dense one? A TFNO stores each kernel, the weights of a Fourier layer, as
a small core tensor and one factor for each axis. When the model gets wider, core and factors must not all change in the
same way. The plan says what each of them needs. We train it with ``MuSOAP``, which is not tuned, and with Adam at six
learning rates.
"""

# %%
# Import dependencies
# -------------------
import matplotlib.pyplot as plt
import torch
from neuralop.losses import LpLoss
from neuralop.models import TFNO

import neuralop_mup as nm
from neuralop_mup.lab.problems import get_problem

torch.set_num_threads(1)
data = get_problem("burgers", viscosity=0.05, grid=64, n_train=200, n_val=50, n_test=50).load()
processor = data.processor()
x_test, y_test = data.test


# %%
# The plan
# --------
# The *role* of a parameter says what it does: an input layer, a hidden map, the readout (the last map, from features to
# output), or a part of a kernel. Learning rate and initialisation follow from the role and from the sizes. Under
# ``MuSOAP`` the column ``lr ×`` counts for input, readout and vectors. Core, factors and hidden maps share one rate.
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


print(nm.summary(nm.parametrize(build(64, n_layers=1))))


# %%
# Training
# --------
# Without a base the model takes the reference size, 32 channels and ``n_modes`` 16, and its kernels start small. The
# learning rate of ``MuSOAP`` follows from the number of steps. Adam trains the model as neuralop builds it (the standard
# parametrization, SP).
def train(width: int, seed: int, lr: float | None = None, epochs: int = 15) -> float:
    torch.manual_seed(seed)
    model = build(width)
    loader, _ = data.loaders(batch_size=20, seed=seed)
    if lr is None:
        nm.parametrize(model)
        optimizer = nm.MuSOAP(model, steps=epochs * len(loader))
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    loss = LpLoss(d=1, p=2)
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


def seeds(width: int, lr: float | None = None) -> list[float]:
    """Least, middle and largest error of three seeds; above 1 a model is worse than one that predicts zero."""
    return sorted(min(train(width, seed, lr), 1.0) for seed in range(3))


rates = [2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2]
WIDTHS = (16, 64)
soap = {width: seeds(width) for width in WIDTHS}
adam = {width: [seeds(width, lr) for lr in rates] for width in WIDTHS}
best = {width: min(range(len(rates)), key=lambda i: adam[width][i][1]) for width in WIDTHS}
for width in WIDTHS:
    for name, (low, middle, high) in {
        "MuSOAP, not tuned": soap[width],
        f"Adam at its best rate {rates[best[width]]:g}": adam[width][best[width]],
    }.items():
        print(f"width {width}, {name}: {middle:.4f} ({low:.4f} to {high:.4f})")

# %%
# Error against learning rate
# ---------------------------
# Stars mark Adam's best rate at each width. ``MuSOAP`` has no rate to choose, so it is a line. Medians of three seeds, with
# their range.
figure, ax = plt.subplots(figsize=(6, 3.8), layout="constrained")
for width, line in zip(WIDTHS, ("--", "-"), strict=True):
    low, drawn, high = zip(*adam[width], strict=True)
    ax.loglog(rates, drawn, "o" + line, color="#0072B2", label=f"Adam, SP, width {width}", markersize=5)
    ax.fill_between(rates, low, high, color="#0072B2", alpha=0.2, linewidth=0)
    ax.plot(rates[best[width]], drawn[best[width]], "*", color="#0072B2", markersize=15)
    low, middle, high = soap[width]
    ax.axhline(middle, linestyle=line, color="#C25E00", label=f"MuSOAP, not tuned, width {width}")
    ax.axhspan(low, high, color="#C25E00", alpha=0.2, linewidth=0)
ax.set_xticks(rates, [f"{lr:g}" for lr in rates])
ax.set_xticks([], minor=True)
ax.set(xlabel="Adam's learning rate", ylabel="test error (relative L2)")
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False)
figure.suptitle("MuSOAP without tuning ends below Adam at its best rate")
plt.show()

# %%
# The answer
# ----------
# No: the script is the same as for a dense model. Under Adam the wider model wants a quarter of the narrow one's rate, and
# at that one it ends higher than at its own. ``MuSOAP`` ends below Adam's best at both widths, with every seed.
