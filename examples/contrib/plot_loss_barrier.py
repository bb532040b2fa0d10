"""
The loss between two trained networks
=====================================

Are two trained networks the same, up to the order of their channels? This script computes the loss on the line
between the weights of two FNOs with ``nm.loss_barrier``. It compares the loss before and after ``nm.match_channels``
permutes the channels of one FNO.

Entezari et al. (arXiv:2110.06296) conjecture that this loss stays low after a suitable permutation.
"""

# %%
# Data
# ----
# The inputs are smooth periodic functions u on 32 points. The outputs are the derivatives of u² / 2, scaled to
# variance 1.
from itertools import combinations

import matplotlib.pyplot as plt
import torch
from neuralop.models import FNO

import neuralop_mup as nm

torch.set_num_threads(1)  # fastest for small models
generator = torch.Generator().manual_seed(0)
grid = torch.arange(32) / 32
waves = torch.stack([f(2 * torch.pi * k * grid) / k for k in range(1, 4) for f in (torch.sin, torch.cos)])
x = (torch.randn(96, 6, generator=generator) @ waves)[:, None]
y = torch.fft.irfft(2j * torch.pi * torch.arange(17) * torch.fft.rfft(x.square() / 2), n=32)
y = y / y.std()


# %%
# Training
# --------
# The optimizer is Adam, because the conjecture is about plain gradient methods. The loss is the mean squared error,
# which is 1 for a network that predicts zero.
def train(n_layers: int, seed: int, steps: int = 250) -> FNO:
    torch.manual_seed(seed)
    model = FNO((16,), 1, 1, 16, n_layers=n_layers, use_channel_mlp=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    for _ in range(steps):
        optimizer.zero_grad()
        (model(x[:64]) - y[:64]).square().mean().backward()
        optimizer.step()
        scheduler.step()
    return model


def test_loss(model: FNO) -> torch.Tensor:
    return (model(x[64:]) - y[64:]).square().mean()


# %%
# Barriers
# --------
# We train three networks of each depth, which form three pairs. The barrier is the largest difference between the
# loss and a linear interpolation of the losses of the two networks. We print medians and ranges of the pairs.
barriers = {}
for n_layers in [1, 2, 4]:
    pairs = list(combinations([train(n_layers, seed) for seed in range(3)], 2))
    barriers[n_layers, "before matching"] = [nm.loss_barrier(a, b, test_loss) for a, b in pairs]
    barriers[n_layers, "after matching"] = [nm.loss_barrier(a, nm.match_channels(b, a), test_loss) for a, b in pairs]
for (n_layers, name), found in barriers.items():
    heights = torch.tensor([barrier.height for barrier in found])
    print(f"n_layers={n_layers}, {name:15} {heights.median():.2f} ({heights.min():.2f} to {heights.max():.2f})")

# %%
# The loss on the line
# --------------------
# The two networks are at positions 0 and 1. Each color has one line per pair.
figure, axes = plt.subplots(1, 3, figsize=(6, 3.2), sharey=True, layout="constrained")
for ax, n_layers in zip(axes, [1, 2, 4], strict=True):
    for name, color, line in [("before matching", "0.5", "--"), ("after matching", "#0066A3", "-")]:
        for i, barrier in enumerate(barriers[n_layers, name]):
            ax.plot(barrier.positions, barrier.losses, line, color=color, label=name if i == 0 else None)
    ax.set(title="1 layer" if n_layers == 1 else f"{n_layers} layers", xlabel="position")
    ax.spines[["top", "right"]].set_visible(False)
axes[0].set(ylabel="test loss", ylim=(0, None))
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
figure.suptitle("With one layer, matching removes most of the barrier")
plt.show()

# %%
# Results
# -------
# Before matching, the barriers are 1.1 to 1.4, so the loss on the line exceeds that of predicting zero. With one
# Fourier layer, matching lowers the median from about 1.2 to 0.1. With two layers it falls from about 1.3 to 0.6, and
# with four layers only to 1.26.
#
# A high barrier after matching does not refute the conjecture. ``nm.match_channels`` finds a local maximum of the
# inner product of the weights, and a better permutation may exist.
