"""
Your own data: from a file to a tuned model
===========================================

How do you train a model on a file of inputs and outputs? This script tunes the learning rate of a small FNO with
``nm.tune``, trains a larger FNO with it, and predicts a new sample.
"""

# %%
# A file
# ------
# The inputs are initial temperatures on a periodic square, and the outputs are a nonlinear function of the
# temperatures at a later time. Both have the shape ``(samples, 24, 24)``. We keep the last sample out of the file.
from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import numpy as np
import torch
from neuralop.models import FNO

import neuralop_mup as nm

torch.set_num_threads(1)  # fastest for small models
folder = Path(mkdtemp())

n = 24
frequencies = np.fft.fftfreq(n, 1 / n)
k2 = frequencies[:, None] ** 2 + frequencies**2
noise = np.random.default_rng(0).normal(size=(121, n, n))
start = np.fft.ifft2(np.fft.fft2(noise) * np.exp(-0.05 * k2)).real
start = start / start.std()
later = np.fft.ifft2(np.fft.fft2(start) * np.exp(-0.05 * k2)).real
later = np.tanh(2 * later)
np.savez(folder / "heat.npz", x=start[:-1], y=later[:-1])


# %%
# The model
# ---------
# ``build`` accepts the sizes and returns a new model.
def build(**size):
    return FNO(in_channels=1, out_channels=1, n_layers=2, **size)


# %%
# Tuning and training
# -------------------
# ``nm.tune`` selects the small size, tries five learning rates there, and trains the target size with the best one.
# Runs are saved in ``folder``, so a second call only reads them. ``n_workers=1`` trains in this process.
tuned = nm.tune(
    build,
    folder / "heat.npz",
    target={"hidden_channels": 32, "n_modes": (12, 12)},
    epochs=20,
    batch_size=16,
    folder=folder / "run",
    n_workers=1,
)
print(tuned)
print(f"report: {tuned.report.name}")

# %%
# The search
# ----------
# The dotted line marks the selected learning rate.
points = sorted((point["params"]["lr"], point["loss"]) for point in tuned.results.points())
rates, errors = zip(*points, strict=True)
for lr, error in points:
    print(f"learning rate {lr:.2g}: validation error {error:.3f}")

figure, ax = plt.subplots(figsize=(6, 3), layout="constrained")
ax.loglog(rates, errors, "o-", color="#C25E00")
ax.axvline(tuned.lr, color="#555555", linestyle=":")
ax.set_xticks(rates, [f"{lr:.2g}" for lr in rates])
ax.set_yticks([0.02, 0.05, 0.1, 0.2, 0.5], ["0.02", "0.05", "0.1", "0.2", "0.5"])
ax.minorticks_off()
ax.set(xlabel="learning rate", ylabel="validation error")
ax.spines[["top", "right"]].set_visible(False)
figure.suptitle("The selected learning rate (dotted) is close to the best of five")
plt.show()

# %%
# A new sample
# ------------
# ``tuned.predict`` works in the units of the file. ``nm.load_tuned(folder / "run", build)`` loads the same object
# later.
truth = later[-1]
prediction = tuned.predict(start[-1:])[0]
print(f"relative error {np.linalg.norm(prediction - truth) / np.linalg.norm(truth):.3f}")

figure, axes = plt.subplots(1, 3, figsize=(6, 2.6), layout="constrained")
fields = {"truth": truth, "prediction": prediction, "error": prediction - truth}
for ax, (name, field) in zip(axes, fields.items(), strict=True):
    limit = abs(field).max() if name == "error" else abs(truth).max()
    image = ax.imshow(field, cmap="RdBu_r", vmin=-limit, vmax=limit)
    ax.set(title=name, xticks=[], yticks=[])
    figure.colorbar(image, ax=ax, location="bottom")
figure.suptitle("The prediction of a new sample is close to the truth")
# sphinx_gallery_thumbnail_number = 2
plt.show()

# %%
# Results
# -------
# The small model has its lowest validation error, about 0.02, near the middle rate. This is the rate that ``MuSOAP``
# computes from the number of steps. The relative error of the new sample is about 0.02.
#
# ``nm.train`` uses the computed rate without a search. A search may lower the error if the formula is far off
# (:doc:`/evidence/learning_rate`).
