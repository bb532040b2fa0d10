"""
Activations with learned parameters
===================================

Do activations with learned parameters reduce the error? This script trains FNOs with GELU and with two learned
activations, and draws the learned functions. One of them is ``nm.AdaGELU`` (Gardès, Juigner and Mazette, 2023), and
the other is a GELU with two learned slopes.
"""

# %%
# Data
# ----
# The inputs are initial states of Burgers' equation, and the outputs are the solutions at t = 1. The model is in
# ``learned_activations.py`` in the folder of this script.
import matplotlib.pyplot as plt
import torch
from learned_activations import AdaptiveFNO, LeakyGELU
from neuralop.losses import LpLoss
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import neuralop_mup as nm
from neuralop_mup.lab.problems import get_problem

torch.set_num_threads(1)  # fastest for small models
data = get_problem("burgers", viscosity=0.05, grid=64, n_train=200, n_val=50, n_test=50).load()
(x, y), (x_test, y_test) = data.train, data.test
x, x_test = x / x.std(), x_test / x.std()
y, y_test = y / y.std(), y_test / y.std()
loss = LpLoss(d=1, reduction="mean")


# %%
# Training
# --------
# All activations start as GELU. Their parameters do not grow with the width, so μP does not change them. ``MuSOAP``
# trains the model. For AdaGELU, the paper uses a separate Adam with the learning rate 0.01.
# ``nm.activation_optimizer`` makes this optimizer, and ``lr_mult`` is relative to the rate of ``MuSOAP`` for such
# parameters, 0.004.
def train(activation: type[nn.Module], seed: int, epochs: int = 20) -> nn.Module:
    torch.manual_seed(seed)
    model = AdaptiveFNO((16,), 1, 1, 16, non_linearity=activation)
    loader = DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True)
    nm.parametrize(model)
    optimizers = [nm.MuSOAP(model, steps=epochs * len(loader))]
    if activation is nm.AdaGELU:
        optimizers.append(nm.activation_optimizer(model, optimizers[0], lr_mult=2.5))
    schedulers = [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs) for optimizer in optimizers]
    for _ in range(epochs):
        for inputs, outputs in loader:
            model.zero_grad()
            loss(model(inputs), outputs).backward()
            for optimizer in optimizers:
                optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
    return model


# %%
# Test errors
# -----------
# We print the median and the range of three seeds.
models = {}
for activation in [nn.GELU, nm.AdaGELU, LeakyGELU]:
    models[activation] = [train(activation, seed) for seed in range(3)]
    with torch.no_grad():
        errors = torch.stack([loss(model(x_test), y_test) for model in models[activation]])
    print(f"{activation.__name__:9} {errors.median():.4f} ({errors.min():.4f} to {errors.max():.4f})")

# %%
# Learned activations
# -------------------
# The lifting, the Fourier blocks and the projection have one activation each. Each color has one line per seed.
grid = torch.linspace(-3, 3, 200)
styles = {"lifting": ("#3A8FC4", ":"), "fno_blocks": ("#000000", "-"), "projection": ("#C25E00", "--")}
figure, axes = plt.subplots(1, 2, figsize=(6, 3.6), sharey=True, layout="constrained")
for ax, activation in zip(axes, [nm.AdaGELU, LeakyGELU], strict=True):
    for part, (color, line) in styles.items():
        with torch.no_grad():
            learned = torch.stack([model.get_submodule(f"{part}.non_linearity")(grid) for model in models[activation]])
        differences = learned - nn.functional.gelu(grid)
        lines = ax.plot(grid, differences.T, line, color=color)
        lines[0].set_label(part)
        print(f"{activation.__name__:9} {part:10} largest difference from GELU {differences.abs().max():.2f}")
    ax.set_title(activation.__name__, loc="left")
    ax.set_xlabel("input")
    ax.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel("learned activation − GELU")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
figure.suptitle("The learned activations stay close to GELU")
plt.show()

# %%
# Results
# -------
# The learned activations do not reduce the error here. All medians are about 0.007, and the ranges of the seeds
# overlap. The learned functions differ from GELU by at most about 0.2, where GELU itself reaches 3.
