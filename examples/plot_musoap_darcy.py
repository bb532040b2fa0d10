"""
Darcy flow with MuSOAP against Adam
===================================

``MuSOAP`` is Adam in better coordinates: all Fourier modes of a layer share one basis of input channels and one of output
channels. A step takes longer than Adam's, and its learning rate follows from the number of steps. What was measured at 1,000
steps, on eight problems, stands in :doc:`/optimizers`.
"""

# %%
# Import dependencies
# -------------------
import time

import matplotlib.pyplot as plt
import torch
from neuralop.losses import LpLoss
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.problems import get_problem

torch.set_num_threads(1)

# %%
# Data
# ----
# The coefficient of Darcy flow, and its solution, on a small grid.
data = get_problem("darcy", grid=24, n_train=100, n_val=40, n_test=10).load()
processor = data.processor()
x_val, y_val = data.val


# %%
# One training run
# ----------------
# Adam trains the model as neuralop builds it, with three learning rates. ``MuSOAP`` gets no rate: it is told of the steps
# of the training. ``nm.parametrize`` without a base goes with it and starts the kernels, the Fourier layers' weights, small.
def train(optimizer_name: str, lr: float | None = None, epochs: int = 30) -> tuple[list[float], float]:
    torch.manual_seed(0)
    model = FNO(n_modes=(8, 8), in_channels=1, out_channels=1, hidden_channels=16, n_layers=2)
    loader, _ = data.loaders(batch_size=10, seed=0)
    if optimizer_name == "MuSOAP":
        nm.parametrize(model)
        optimizer = nm.MuSOAP(model, steps=epochs * len(loader))
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    loss = LpLoss(d=2, p=2)
    errors, started = [], time.process_time()
    for _ in range(epochs):
        processor.train()
        for batch in loader:
            batch = processor.preprocess(batch)
            optimizer.zero_grad()
            loss(model(batch["x"]), batch["y"]).backward()
            optimizer.step()
        scheduler.step()
        processor.eval()
        with torch.no_grad():
            batch = processor.preprocess({"x": x_val, "y": y_val})
            prediction, _ = processor.postprocess(model(batch["x"]), batch)
        errors.append(loss(prediction, y_val).item() / len(x_val))
    return errors, time.process_time() - started


adam = {lr: train("Adam", lr) for lr in (8e-3, 1.6e-2, 3.2e-2)}
best = min(adam, key=lambda lr: adam[lr][0][-1])
soap = train("MuSOAP")
for name, (errors, seconds) in {**{f"Adam, lr {lr:g}": run for lr, run in adam.items()}, "MuSOAP": soap}.items():
    print(f"{name:16} validation error {errors[-1]:.4f} after {len(errors)} epochs, {seconds:.1f} s of processor time")

# %%
# Error against epochs
# --------------------
# ``MuSOAP`` ends lower than Adam with the best of its three rates. This is one seed. How much is gained depends on the
# problem and on the number of steps; what was measured on larger sets stands in :doc:`/optimizers`.
figure, ax = plt.subplots(figsize=(6, 3.8), layout="constrained")
for lr, (errors, _) in adam.items():
    label = f"Adam, lr {lr:g}" + (" (its best)" if lr == best else "")
    ax.semilogy(range(1, len(errors) + 1), errors, color="#0072B2", alpha=1 if lr == best else 0.35, label=label)
ax.semilogy(range(1, len(soap[0]) + 1), soap[0], color="#E69F00", linewidth=2, label="MuSOAP, not tuned")
ax.set(xlabel="epoch", ylabel="validation error (relative L2)")
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False)
plt.show()
