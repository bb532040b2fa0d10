"""
Is my proxy representative?
===========================

How many Fourier modes does a *proxy* need, the small model on which the learning rate is tuned? With too few it cannot
learn what the large model learns, and its best learning rate may be that of another problem. The data says how many are
enough, before anything is trained.
"""

# %%
# Import dependencies
# -------------------
import warnings
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import torch
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.lab.problems.mode_energy import ENOUGH, mode_energy, proxy_advice

torch.set_num_threads(1)

# %%
# Data whose spectrum is wide
# ---------------------------
# The input has four frequencies. The output has flattened crests, so its spectrum reaches much further.
generator = torch.Generator().manual_seed(0)
angle = 2 * torch.pi * torch.arange(1, 5)[:, None] * torch.arange(128) / 128
c = torch.randn(200, 4, 2, generator=generator)
x = (c[..., 0] @ torch.cos(angle) + c[..., 1] @ torch.sin(angle))[:, None]
y = torch.tanh(x / 2)

# %%
# How much energy do modes keep?
# ------------------------------
# ``n_modes`` counts modes of both signs, so a model with ``n_modes=(16,)`` keeps the frequencies up to 8.
energy = mode_energy(y)
(enough,) = energy.enough()
print(f"n_modes = {enough} keep {100 * ENOUGH:g} % of the targets' energy.")

figure, axes = plt.subplots(1, 2, figsize=(6, 3), layout="constrained")
axes[0].plot(x[0, 0], color="#0072B2", label="input")
axes[0].plot(y[0, 0], color="#C25E00", label="target")
axes[0].set(xlabel="grid point", title="one sample", ylim=(-3.5, 8))
axes[0].legend(frameon=False, loc="upper left")
for name, shares, colour in (("targets", energy.shares[0], "#C25E00"), ("inputs", mode_energy(x).shares[0], "#0072B2")):
    left = [(n, 1 - share) for n, share in enumerate(shares)][::2]
    drawn = [(n, value) for n, value in left if value > 1e-7]
    axes[1].semilogy(*zip(*drawn, strict=True), "o-", markersize=3, color=colour, label=name)
axes[1].legend(frameon=False)
axes[1].axhline(1 - ENOUGH, color="#555555", linestyle="--", linewidth=1)
axes[1].axvline(enough, color="#555555", linestyle=":", linewidth=1)
axes[1].set(xlabel="n_modes", ylabel="share of energy left out", title=f"n_modes = {enough} is enough")
for ax in axes:
    ax.spines[["top", "right"]].set_visible(False)
figure.suptitle("The targets' spectrum says how many modes are enough")
plt.show()

# %%
# The advice
# ----------
# For a target with 64 modes: a proxy with 8 modes is taken, but we are told what it would miss. The threshold comes from
# eight problems. On six of them the best learning rate was too high with fewer modes (:doc:`/evidence/transfer`), so it is
# advice.
for proxy in (8, 16, enough):
    print(f"n_modes = {proxy}:", proxy_advice(energy, proxy=(proxy,), target=(64,)) or "resolves the data.")


# %%
# ``nm.tune`` and ``nm.transfer`` look at the data in the same way and warn by themselves.
# From the command line, ``neuralop-mup data burgers`` says how many modes are enough.
def build(**size):
    return FNO(in_channels=1, out_channels=1, n_layers=2, **size)


with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    nm.tune(
        build,
        ((x[:20], y[:20]), (x[20:30], y[20:30])),
        base={"hidden_channels": 4, "n_modes": (8,)},
        target={"hidden_channels": 8, "n_modes": (64,)},
        epochs=1,
        n_workers=1,
        progress=False,
        folder=mkdtemp(),
    )
for warning in caught:
    if "spectral energy" in str(warning.message):
        print(warning.message)

# %%
# The answer
# ----------
# As many modes as keep 99.9 % of the targets' energy: 24 for this data, where the target has 64. With fewer the tuned rate
# may be too high, of which ``nm.tune`` warns.
