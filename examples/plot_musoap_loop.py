"""
MuSOAP in a plain loop
======================

How do you train with ``MuSOAP`` in your own loop, with and without a fixed number of steps? Here is the loop, with the learning rate and the error
over the steps.
"""

# %%
# The data
# --------
# The inputs are permeabilities of a porous medium on 20 × 20 points, and the outputs are pressures (Darcy flow). Inputs and outputs
# are normalized by the training data.
import matplotlib.pyplot as plt
import torch
from neuralop.losses import LpLoss
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.lab.problems import get_problem

torch.set_num_threads(1)
data = get_problem("darcy", n_train=200, n_val=20, n_test=100, grid=20).load()
(x, y), (x_test, y_test) = data.train, data.test
mean_x, std_x, mean_y, std_y = x.mean(), x.std(), y.mean(), y.std()
x, x_test = (x - mean_x) / std_x, (x_test - mean_x) / std_x
loss = LpLoss(d=2, reduction="mean")


# %%
# The loop
# --------
# With ``steps``, the learning rate follows from the number of steps and falls to zero at the last step. There is no scheduler. Without
# ``steps``, the loop runs until you call ``cooldown(n)``, and the rate then falls to zero in ``n`` steps.
def train(steps: int | None = None, end: int = 600, cooldown: int = 180) -> dict[str, list[float]]:
    torch.manual_seed(0)
    model = FNO(n_modes=(10, 10), in_channels=1, out_channels=1, hidden_channels=16)
    nm.parametrize(model)
    optimizer = nm.MuSOAP(model, steps=steps)
    curves = {"rate": [], "at": [], "error": []}
    for step in range(end):
        if steps is None and step == end - cooldown:
            optimizer.cooldown(cooldown)
        batch = torch.randint(len(x), (20,))
        optimizer.zero_grad()
        loss(model(x[batch]) * std_y + mean_y, y[batch]).backward()
        optimizer.step()
        curves["rate"].append(optimizer.param_groups[0]["step_lr"])
        if step % 20 == 19:
            with torch.no_grad():
                curves["at"].append(step + 1)
                curves["error"].append(loss(model(x_test) * std_y + mean_y, y_test).item())
    return curves


runs = {"steps=600": train(steps=600), "cooldown(180) at step 420": train()}
for name, curves in runs.items():
    print(f"{name:26} test error {curves['error'][-1]:.4f}")

# %%
# Learning rate and error
# -----------------------
figure, axes = plt.subplots(2, 1, figsize=(6, 5), sharex=True, layout="constrained")
for (name, curves), color, line in zip(runs.items(), ("#C25E00", "#0072B2"), ("-", "--"), strict=True):
    axes[0].plot(range(1, len(curves["rate"]) + 1), curves["rate"], line, color=color, label=name)
    axes[1].semilogy(curves["at"], curves["error"], line, color=color)
axes[0].set(ylabel="learning rate", ylim=(0, None))
axes[1].set(xlabel="step", ylabel="relative error\non test data")
axes[0].legend(frameon=False)
for ax in axes:
    ax.spines[["top", "right"]].set_visible(False)
figure.suptitle("Learning rate and test error, with and without a fixed end")
plt.show()

# %%
# The answer
# ----------
# Build the optimizer with ``steps``, or call ``cooldown`` when you want to stop. Most of the gain comes while the rate falls, so read the error
# at the end. :doc:`/howto/optimizer` has the formula for the rate, and :doc:`/evidence/learning_rate` measures it.
