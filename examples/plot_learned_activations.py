"""
Activations with learned parameters
===================================

AdaGELU has a learned amplitude, scale and shift, a leaky form has two learned slopes. Both are GELU at the start. Their
parameters have a role (vectors of fixed shape), so that μP's rules, summaries and checks know them. A Fourier neural
operator is trained with each of them and with GELU.

The whole script takes about twenty seconds on a CPU.
"""

# %%
# Import dependencies
# -------------------
# The modules, and how to describe them to neuralop_mup, are in ``learned_activations.py`` beside this script.
import matplotlib.pyplot as plt
import torch
from learned_activations import AdaGELU, AdaptiveFNO, LeakyGELU
from neuralop.losses import LpLoss
from torch import nn

import neuralop_mup as nm
from neuralop_mup.problems import get_problem

torch.set_num_threads(1)

# %%
# Data
# ----
problem = get_problem("burgers", viscosity=0.05, grid=64, n_train=200, n_val=50, n_test=50)
data = problem.load()
processor = data.processor()
x_test, y_test = data.test


# %%
# One training run
# ----------------
def train(activation: type[nn.Module], epochs: int = 20) -> tuple[float, nn.Module]:
    torch.manual_seed(0)
    model = AdaptiveFNO((16,), 1, 1, 16, non_linearity=activation)
    nm.parametrize(model, base={"hidden_channels": 16})
    optimizer = nm.MuAdam(model, lr=8e-3)
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
    return loss(prediction, y_test).item() / len(x_test), model


# %%
# What is learned
# ---------------
# One activation for all Fourier blocks (neuralop calls one object for every layer), one each for lifting and projection.
grid = torch.linspace(-3, 3, 200)
figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
error, _ = train(nn.GELU)
print(f"GELU: test error {error:.4f}")
for ax, activation in zip(axes, (AdaGELU, LeakyGELU), strict=True):
    error, model = train(activation)
    print(f"{activation.__name__}: test error {error:.4f}")
    ax.plot(grid, nn.functional.gelu(grid), color="0.7", linewidth=4, label="GELU, the start")
    for part, colour in (("lifting", "#56B4E9"), ("fno_blocks", "#0072B2"), ("projection", "#D55E00")):
        with torch.no_grad():
            ax.plot(grid, model.get_submodule(f"{part}.non_linearity")(grid), color=colour, label=part)
    ax.set_title(activation.__name__)
axes[0].legend(frameon=False)
plt.show()
