"""
MuSOAP in a training loop
=========================

How do you train with ``MuSOAP`` in your own loop, with and without a fixed number of steps? This script trains an FNO
on Darcy flow in both ways, and compares the learning rates and the test errors.
"""

# %%
# Data
# ----
# The inputs are permeabilities of a porous medium on 20 × 20 points, and the outputs are pressures. We normalize
# both.
import matplotlib.pyplot as plt
import torch
from neuralop.losses import LpLoss
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.lab.problems import get_problem

torch.set_num_threads(1)  # fastest for small models
data = get_problem("darcy", grid=20, n_train=200, n_val=20, n_test=100).load()
(x, y), (x_test, y_test) = data.train, data.test
x, x_test = (x - x.mean()) / x.std(), (x_test - x.mean()) / x.std()
y, y_test = y / y.std(), y_test / y.std()
loss = LpLoss(d=2, reduction="mean")


# %%
# The loop
# --------
# With ``steps``, the learning rate falls to zero at the last step. Without ``steps``, you call ``cooldown(n)``, and
# the rate falls to zero in the next ``n`` steps. Neither needs a scheduler.
def train(steps: int | None) -> tuple[list[float], list[float]]:
    """Return the learning rate of each of 300 steps, and the relative test error after every 10th step."""
    torch.manual_seed(0)
    model = FNO(n_modes=(10, 10), in_channels=1, out_channels=1, hidden_channels=16)
    nm.parametrize(model)
    optimizer = nm.MuSOAP(model, steps=steps)
    rates, errors = [], []
    for step in range(1, 301):
        if steps is None and step == 211:
            optimizer.cooldown(90)
        batch = torch.randint(len(x), (20,))
        optimizer.zero_grad()
        loss(model(x[batch]), y[batch]).backward()
        optimizer.step()
        rates.append(optimizer.param_groups[0]["step_lr"])
        if step % 10 == 0:
            with torch.no_grad():
                errors.append(loss(model(x_test), y_test).item())
    return rates, errors


runs = {"steps=300": train(steps=300), "cooldown(90) after 210 steps": train(steps=None)}
for name, (_, errors) in runs.items():
    print(f"{name:30} test error after 210 steps {errors[20]:.3f}, after 300 steps {errors[-1]:.3f}")

# %%
# Learning rate and test error
# ----------------------------
figure, axes = plt.subplots(2, 1, figsize=(6, 5), sharex=True, layout="constrained")
for (name, (rates, errors)), color, line in zip(runs.items(), ["#C25E00", "#0072B2"], ["-", "--"], strict=True):
    axes[0].plot(range(1, 301), rates, line, color=color, label=name)
    axes[1].semilogy(range(10, 301, 10), errors, line, color=color)
axes[0].set(ylabel="learning rate", ylim=(0, None))
axes[1].set(xlabel="step", ylabel="relative test error")
axes[1].set_yticks([0.03, 0.1, 0.3, 1], ["0.03", "0.1", "0.3", "1"])
axes[1].minorticks_off()
axes[0].legend(frameon=False)
for ax in axes:
    ax.spines[["top", "right"]].set_visible(False)
figure.suptitle("Both ways end with about the same test error")
plt.show()

# %%
# Results
# -------
# Both ways end with a test error of about 0.03. Pass ``steps`` if you know the number of steps. Otherwise, call
# ``cooldown`` when you want to stop. :doc:`/howto/optimizer` has the formula for the learning rate, and
# :doc:`/evidence/learning_rate` measures it.
