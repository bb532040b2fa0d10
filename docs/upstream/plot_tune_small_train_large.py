"""
Tune small, train large
=======================

The best learning rate of a Fourier Neural Operator (FNO) depends on its size: tuned on a
small model, it can be far too high for a wide one. Maximal update parametrization (μP)
changes initialization and learning rates with the size of the model, such that the best
learning rate stays where it is. So it can be tuned on a small model and used on a large one.

In this example we sweep the learning rate at two widths:

1. as ``neuralop`` builds the model (the standard parametrization, SP)
2. in μP, by the `neuralop_mup <https://pypi.org/project/neuralop-mup>`_ package

μP for FNOs is due to [1]_. The models are small enough to be trained on a CPU in seconds.
"""

# %%
# .. raw:: html
#
#    <div style="margin-top: 3em;"></div>
#
# Import dependencies
# -------------------
# ``neuralop_mup`` changes nothing in ``neuralop``: it takes a model and returns the same model.

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
# We solve Burgers' equation :math:`u_t + u u_x = \nu u_{xx}` on a periodic interval. Random
# smooth initial conditions go in, solutions at :math:`t = 1` come out. Diffusion is exact in
# Fourier space, advection is stepped explicitly.


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
# μP is relative to a *base* size, at which the learning rate is tuned. There the model and its
# training are those of ``neuralop``, bit for bit. At other sizes
#
# - ``nm.parametrize`` rescales the freshly drawn weights, in place
# - ``nm.MuAdamW`` gives each parameter its learning rate. It is ``neuralop``'s own AdamW here.

base = {"hidden_channels": 16}


def build(width, learning_rate, mup):
    """Create an FNO of the given width and its optimizer, in SP or in μP."""
    torch.manual_seed(0)
    model = FNO(
        n_modes=(16,),
        in_channels=1,
        out_channels=1,
        hidden_channels=width,
        n_layers=2,
    ).to(device)
    if mup:
        model = nm.parametrize(model, base=base)
        return model, nm.MuAdamW(model, lr=learning_rate, impl=AdamW)
    return model, AdamW(model.parameters(), lr=learning_rate)


# %%
# .. raw:: html
#
#    <div style="margin-top: 3em;"></div>
#
# The plan shows what μP makes of each parameter of a model that is 8 times as wide.

model, _ = build(128, 1e-2, mup=True)
print(nm.summary(model))

# %%
# .. raw:: html
#
#    <div style="margin-top: 3em;"></div>
#
# Sweeping the learning rate
# --------------------------
# Each model is trained for a few epochs. At the base width, SP and μP are the same.

l2loss = LpLoss(d=1, p=2)


def train(width, learning_rate, mup, n_epochs=6):
    """Train a model and return its relative L2 error on the test set."""
    model, optimizer = build(width, learning_rate, mup)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=n_epochs)
    loader = DataLoader(train_db, batch_size=20, shuffle=True)
    for _ in range(n_epochs):
        for xb, yb in loader:
            optimizer.zero_grad()
            l2loss(model(xb.to(device)), yb.to(device)).backward()
            optimizer.step()
        scheduler.step()
    with torch.no_grad():
        return l2loss(model(x_test), y_test).item() / n_test


learning_rates = [2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2]
runs = {
    "width 16 (base)": [train(16, lr, mup=False) for lr in learning_rates],
    "width 128, SP": [train(128, lr, mup=False) for lr in learning_rates],
    "width 128, μP": [train(128, lr, mup=True) for lr in learning_rates],
}
best = {name: errors.index(min(errors)) for name, errors in runs.items()}
for name, errors in runs.items():
    print(
        f"{name:16} best learning rate {learning_rates[best[name]]:.3g}, "
        f"test error {min(errors):.3f}"
    )

# %%
# .. raw:: html
#
#    <div style="margin-top: 3em;"></div>
#
# Carrying the learning rate over
# -------------------------------
# The dotted line marks the learning rate that was best for the small model, and stars mark the
# best one of each curve. In μP the wide model can use what was tuned on the small one. A wide
# model in SP that is tuned itself need not be worse: what μP saves is that tuning.

carried = best["width 16 (base)"]
for name in ("width 128, SP", "width 128, μP"):
    print(f"{name}: test error {runs[name][carried]:.3f} with the small model's rate")

fig, ax = plt.subplots(figsize=(6, 4))
for name, errors in runs.items():
    # Errors above 1 are drawn at 1: predicting zero is as good
    shown = [min(error, 1.0) for error in errors]
    (line,) = ax.loglog(learning_rates, shown, "o-", label=name)
    ax.plot(
        learning_rates[best[name]],
        shown[best[name]],
        "*",
        color=line.get_color(),
        markersize=15,
    )
ax.axvline(learning_rates[carried], color="gray", linestyle=":")
ax.set_xlabel("learning rate")
ax.set_ylabel("test error (relative L2)")
ax.legend()
plt.tight_layout()
fig.show()

# %%
# References
# ----------
# .. [1] Li, S., Yoo, S., Yang, Y., "Maximal Update Parametrization and Zero-Shot Hyperparameter
#    Transfer for Fourier Neural Operators" (2025). ICML 2025, https://arxiv.org/abs/2506.19396.
