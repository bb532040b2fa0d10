"""
Training a large FNO without tuning it
======================================

The best learning rate of a Fourier Neural Operator (FNO) depends on its size: tuned on
a small model, it can be too high for a wide one. This example shows two ways to spare
the search on the large model, both by the
`neuralop_mup <https://pypi.org/project/neuralop-mup>`_ package:

1. ``MuSOAP``, an optimizer whose learning rate follows from the number of steps of the
   training. It needs no search at all, and it reaches lower errors than AdamW here.
2. ``AdamW`` in maximal update parametrization (μP), in which the best learning rate
   of a small model is good for a large one.

μP for FNOs is due to [1]_, and SOAP, the optimizer that ``MuSOAP`` brings to Fourier
layers, to [2]_. The models are small enough to be trained on a CPU in seconds.
"""

# %%
# .. raw:: html
#
#    <div style="margin-top: 3em;"></div>
#
# Import dependencies
# -------------------
# ``neuralop_mup`` changes nothing in ``neuralop``: it takes a model and returns the
# same model.

from statistics import mean

import matplotlib.pyplot as plt
import torch
from neuralop import LpLoss
from neuralop.models import FNO
from neuralop.training import AdamW
from torch.utils.data import DataLoader, TensorDataset

import neuralop_mup as nm

torch.manual_seed(0)
device = "cpu"

# %%
# .. raw:: html
#
#    <div style="margin-top: 3em;"></div>
#
# Generating the data
# -------------------
# We solve Burgers' equation :math:`u_t + u u_x = \nu u_{xx}` on a periodic interval.
# Random smooth initial conditions go in, solutions at :math:`t = 1` come out. Diffusion
# is exact in Fourier space, advection is stepped explicitly.


def solve_burgers(u, viscosity=0.02, n_steps=400):
    """Solve the viscous Burgers equation on [0, 1] up to time 1.

    Parameters
    ----------
    u : torch.Tensor
        Initial conditions, of shape (n_samples, n_points)
    viscosity : float, optional
        By default 0.02
    n_steps : int, optional
        Number of time steps, by default 400

    Returns
    -------
    torch.Tensor
        Solutions at time 1, of the same shape
    """
    n_points, dt = u.shape[-1], 1 / n_steps
    k = 2 * torch.pi * torch.fft.rfftfreq(n_points, 1 / n_points)
    decay = torch.exp(-viscosity * k**2 * dt)
    # The square of u has twice its frequencies: the upper third is cut off
    derivative = 1j * k * (k < k.max() * 2 / 3)
    for _ in range(n_steps):
        flux = torch.fft.irfft(derivative * torch.fft.rfft(u**2 / 2), n=n_points)
        u = torch.fft.irfft(decay * torch.fft.rfft(u - dt * flux), n=n_points)
    return u


n_train, n_test, n_points = 200, 50, 64
frequencies = torch.arange(n_points // 2 + 1)
spectrum = torch.randn(n_train + n_test, n_points // 2 + 1, dtype=torch.cfloat)
spectrum = spectrum * n_points / 2 * torch.exp(-frequencies / 2) * (frequencies > 0)
x = torch.fft.irfft(spectrum, n=n_points)
y = solve_burgers(x)

# Add the channel dimension and normalize
x, y = x.unsqueeze(1) / x.std(), y.unsqueeze(1) / y.std()
x_test, y_test = x[n_train:].to(device), y[n_train:].to(device)
train_db = TensorDataset(x[:n_train], y[:n_train])

# %%
# .. raw:: html
#
#    <div style="margin-top: 3em;"></div>
#
# Creating the model and the optimizer
# ------------------------------------
# Two lines make the difference. ``nm.parametrize`` rescales the freshly drawn weights,
# in place. The optimizer comes from ``nm`` and gives each parameter its learning rate.
#
# - ``nm.MuSOAP`` is told how many steps the training takes.
# - ``nm.MuAdamW`` runs ``neuralop``'s own AdamW here, at a learning rate that is
#   tuned at a *base* size. At the base the model and its training are those of
#   ``neuralop``, bit for bit.

base = {"hidden_channels": 16}


def build(width, optimizer_name, learning_rate, n_steps):
    """Create an FNO of the given width and its optimizer.

    Parameters
    ----------
    width : int
        Hidden channels
    optimizer_name : {"MuSOAP", "AdamW", "AdamW in μP"}
        How the model is parametrized and trained
    learning_rate : float or None
        None for MuSOAP
    n_steps : int
        Optimizer steps of the whole training

    Returns
    -------
    torch.nn.Module, torch.optim.Optimizer
    """
    model = FNO(
        n_modes=(16,),
        in_channels=1,
        out_channels=1,
        hidden_channels=width,
        n_layers=2,
    ).to(device)
    if optimizer_name == "MuSOAP":
        nm.parametrize(model)
        return model, nm.MuSOAP(model, steps=n_steps)
    if optimizer_name == "AdamW in μP":
        nm.parametrize(model, base=base)
        return model, nm.MuAdamW(model, lr=learning_rate, impl=AdamW)
    return model, AdamW(model.parameters(), lr=learning_rate)


# %%
# .. raw:: html
#
#    <div style="margin-top: 3em;"></div>
#
# Training
# --------
# Each model is trained for a few epochs, with two seeds, whose test errors are averaged.

l2loss = LpLoss(d=1, p=2)
seeds = [0, 1]


def train(width, optimizer_name, learning_rate=None, n_epochs=10):
    """Train a model per seed and return their mean relative L2 error on the test set."""
    errors = []
    for seed in seeds:
        torch.manual_seed(seed)
        loader = DataLoader(train_db, batch_size=20, shuffle=True)
        model, optimizer = build(
            width, optimizer_name, learning_rate, n_epochs * len(loader)
        )
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
            optimizer, T_max=n_epochs
        )
        for _ in range(n_epochs):
            for xb, yb in loader:
                optimizer.zero_grad()
                l2loss(model(xb.to(device)), yb.to(device)).backward()
                optimizer.step()
            scheduler.step()
        with torch.no_grad():
            errors.append(l2loss(model(x_test), y_test).item() / n_test)
    return mean(errors)


# %%
# .. raw:: html
#
#    <div style="margin-top: 3em;"></div>
#
# No tuning at all
# ----------------
# AdamW is tuned at both widths, on the model as ``neuralop`` builds it (the standard
# parametrization, SP). ``MuSOAP`` is trained once at each of them, and ends lower.

learning_rates = [2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2]
widths = [16, 64]
soap = {width: train(width, "MuSOAP") for width in widths}
adamw = {
    width: [train(width, "AdamW", lr) for lr in learning_rates] for width in widths
}

for width in widths:
    best = min(adamw[width])
    print(
        f"width {width}: MuSOAP, not tuned, test error {soap[width]:.3f}; AdamW "
        f"{best:.3f} at its best learning rate "
        f"{learning_rates[adamw[width].index(best)]:.3g}"
    )

# %%
# .. raw:: html
#
#    <div style="margin-top: 3em;"></div>
#
# Tune small, train large
# -----------------------
# If you stay with AdamW, tune it on the small model. In SP the wide model wants a lower
# learning rate, and that of the small model raises its error by half. In μP no learning
# rate that was tried is better than that of the small model.

in_mup = [train(64, "AdamW in μP", lr) for lr in learning_rates]
carried = adamw[16].index(min(adamw[16]))
for name, errors in {"SP": adamw[64], "μP": in_mup}.items():
    best = min(errors)
    print(
        f"width 64 in {name}: {errors[carried]:.3f} with the small model's rate; "
        f"{best:.3f} at the best learning rate {learning_rates[errors.index(best)]:.3g}"
    )

# %%
# The dotted line marks the learning rate that was best for the small model, and the
# horizontal lines are ``MuSOAP``, which has none to choose.

curves = {
    "AdamW, width 16": (adamw[16], "tab:gray"),
    "AdamW in SP, width 64": (adamw[64], "tab:red"),
    "AdamW in μP, width 64": (in_mup, "tab:green"),
}
fig, ax = plt.subplots(figsize=(6, 4))
for name, (errors, color) in curves.items():
    # Errors above 1 are drawn at 1: predicting zero is as good
    shown = [min(error, 1.0) for error in errors]
    ax.loglog(learning_rates, shown, "o-", color=color, label=name)
ax.axvline(learning_rates[carried], color="gray", linestyle=":")
for width, style in zip(widths, ["--", "-"], strict=True):
    label = f"MuSOAP, not tuned, width {width}"
    ax.axhline(soap[width], color="tab:orange", linestyle=style, label=label)
ax.set_xticks(learning_rates, [f"{lr:g}" for lr in learning_rates])
ax.set_xticks([], minor=True)
ax.set_xlabel("learning rate of AdamW")
ax.set_ylabel("test error (relative L2)")
ax.legend(fontsize=8)
plt.tight_layout()
fig.show()

# %%
# References
# ----------
# .. [1] Li, S., Yoo, S., Yang, Y., "Maximal Update Parametrization and Zero-Shot
#    Hyperparameter Transfer for Fourier Neural Operators" (2025). ICML 2025,
#    https://arxiv.org/abs/2506.19396.
#
# .. [2] Vyas, N. et al., "SOAP: Improving and Stabilizing Shampoo using Adam" (2024).
#    https://arxiv.org/abs/2409.11321.
