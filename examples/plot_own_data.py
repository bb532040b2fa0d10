"""
My own data: from a file to a tuned model
=========================================

You have arrays of inputs and outputs in a file, and a model that is expensive to tune: which learning rate should it have?
``nm.tune`` checks that of ``MuSOAP`` at a small size, trains the large size with it, and writes a report.
"""

# %%
# Import dependencies
# -------------------
from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import numpy as np
import torch
from neuralop.models import FNO

import neuralop_mup as nm

torch.set_num_threads(1)
folder = Path(mkdtemp())

# %%
# A small file
# ------------
# Stand-ins for your fields: initial temperatures on a ring, and the same after some time. Samples come first. The last one
# stays out of the file, to be predicted.
generator = np.random.default_rng(0)
n, grid = 121, 64
spectrum = generator.normal(size=(n, 9)) + 1j * generator.normal(size=(n, 9))
k = np.arange(9)
spectrum[:, 0] = 0
start = np.fft.irfft(spectrum, n=grid) * grid / 4
later = np.fft.irfft(spectrum * np.exp(-0.02 * k**2), n=grid) * grid / 4
np.savez(folder / "heat.npz", x=start[:-1].astype("float32"), y=np.tanh(later[:-1]).astype("float32"))


# %%
# Your model
# ----------
# A function that takes the size and returns a fresh model.
def build(**size):
    return FNO(in_channels=1, out_channels=1, n_layers=2, **size)


# %%
# Tune the small size, train the large one
# ----------------------------------------
# The small size, the proxy, is chosen from the target and the data, and printed with the reasons. ``n_workers=1`` keeps
# everything in this process; leave it out to use all cores. Called again, the same line reads all of this from the folder.
tuned = nm.tune(
    build,
    folder / "heat.npz",
    target={"hidden_channels": 64, "n_modes": (16,)},
    epochs=40,
    batch_size=16,
    folder=folder / "run",
    n_workers=1,
)
print(tuned)
print(f"report: {tuned.report.name}")

# %%
# What it found
# -------------
# Left: the search at the proxy, with the rate that was taken dotted. Right: what the trained target makes of the sample
# that it has never seen. ``tuned.predict`` takes and gives fields in the units of the file, with the channels after the
# samples; ``tuned.model`` by itself takes normalised ones. Later, ``nm.load_tuned(folder / "run", build)`` reads all of
# this from the folder.
points = sorted((p["params"]["lr"], p["loss"]) for p in tuned.results.points())
x, y = start[:, None], np.tanh(later)[:, None]
prediction = tuned.predict(x[-1:])

figure, axes = plt.subplots(1, 2, figsize=(6, 3), layout="constrained")
axes[0].loglog(*zip(*points, strict=True), "o-", color="#C25E00")
axes[0].axvline(tuned.lr, color="#555555", linestyle=":")
axes[0].set_xticks([lr for lr, _ in points[::2]], [f"{lr:.2g}" for lr, _ in points[::2]])
axes[0].set_xticks([], minor=True)
axes[0].set(xlabel="learning rate", ylabel="validation error", title="at the proxy, width 16")
axes[1].plot(y[-1, 0], color="#555555", label="truth")
axes[1].plot(prediction[0, 0], "--", color="#C25E00", label="prediction")
axes[1].set(xlabel="grid point", title="the target, width 64", ylim=(-1.1, 2.2))
axes[1].legend(frameon=False, loc="upper left")
for ax in axes:
    ax.spines[["top", "right"]].set_visible(False)
figure.suptitle("The search at the small size, and a new sample")
plt.show()

# %%
# The answer
# ----------
# The search on the proxy selects the rate, and the report shows the errors at the others. On average over four problems, the
# rate of the formula was as good and needs no search (:doc:`/evidence/transfer`). ``nm.train`` uses it.
