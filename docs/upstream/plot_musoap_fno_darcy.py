"""
Training an FNO with MuSOAP
===========================

We train a Fourier Neural Operator (FNO) on the small Darcy-Flow data set with ``MuSOAP``,
which is SOAP [1]_ for Fourier kernels, and compare it with ``AdamW``: errors at both
resolutions, the memory of the optimizer's state, and seconds.

``AdamW`` is trained with three learning rates, under a cosine that ends with the training.
``MuSOAP`` is not tuned: the size of its updates follows from the number of steps,
:math:`0.03 \\sqrt{1000 / \\mathrm{steps}}`.
"""

# %%
# .. raw:: html
#
#    <div style="margin-top: 3em;"></div>
#
# Import dependencies
# -------------------

import math
import time

import matplotlib.pyplot as plt
import torch
from neuralop import H1Loss, LpLoss
from neuralop.data.datasets import load_darcy_flow_small
from neuralop.models import FNO
from neuralop.training import AdamW
from neuralop.training.musoap import MuSOAP, fno_musoap_param_groups

device = "cpu"

# %%
# .. raw:: html
#
#    <div style="margin-top: 3em;"></div>
#
# Loading the data
# ----------------
# The model is trained at a resolution of 16 and tested at 16 and 32.

train_loader, test_loaders, data_processor = load_darcy_flow_small(
    n_train=1000,
    batch_size=64,
    n_tests=[100, 50],
    test_resolutions=[16, 32],
    test_batch_sizes=[32, 32],
)
data_processor = data_processor.to(device)
n_epochs = 10
n_steps = n_epochs * len(train_loader)

# %%
# .. raw:: html
#
#    <div style="margin-top: 3em;"></div>
#
# Training and measuring
# ----------------------
# Every optimizer trains a model with the same initial weights, on the same batches.

l2loss, h1loss = LpLoss(d=2, p=2), H1Loss(d=2)


def test_error(model, resolution):
    """Mean relative L2 error on the test data of a resolution."""
    data_processor.eval()
    model.eval()
    error, n_samples = 0.0, 0
    with torch.no_grad():
        for sample in test_loaders[resolution]:
            sample = data_processor.preprocess(sample)
            out, sample = data_processor.postprocess(model(sample["x"]), sample)
            error += l2loss(out, sample["y"]).item()
            n_samples += len(sample["y"])
    return error / n_samples


def state_memory(optimizer):
    """Bytes of the optimizer's state."""
    tensors = []
    for state in optimizer.state.values():
        for value in state.values():
            tensors.extend(value if isinstance(value, list) else [value])
    return sum(x.numel() * x.element_size() for x in tensors if torch.is_tensor(x))


def train(make_optimizer):
    """Train a fresh model; its errors, the optimizer's memory and the seconds it took."""
    torch.manual_seed(0)
    model = FNO(n_modes=(8, 8), in_channels=1, out_channels=1, hidden_channels=24).to(device)
    optimizer = make_optimizer(model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=n_epochs)
    start = time.perf_counter()
    for _ in range(n_epochs):
        model.train()
        data_processor.train()
        for sample in train_loader:
            sample = data_processor.preprocess(sample)
            optimizer.zero_grad()
            out, sample = data_processor.postprocess(model(sample["x"]), sample)
            h1loss(out, sample["y"]).backward()
            optimizer.step()
        scheduler.step()
    seconds = time.perf_counter() - start
    errors = [test_error(model, resolution) for resolution in test_loaders]
    return errors, state_memory(optimizer), seconds


def adamw(lr):
    """AdamW with a learning rate."""
    return lambda model: AdamW(model.parameters(), lr=lr, weight_decay=1e-4)


def musoap(model):
    """MuSOAP with the size of updates that follows from the number of steps."""
    return MuSOAP(fno_musoap_param_groups(model, lr=0.03 * math.sqrt(1000 / n_steps)))


contenders = {f"AdamW, lr={lr:g}": adamw(lr) for lr in (5e-3, 1e-2, 2e-2)}
contenders["MuSOAP, not tuned"] = musoap
results = {}
for name, make_optimizer in contenders.items():
    results[name] = train(make_optimizer)
    errors, memory, seconds = results[name]
    told = ", ".join(f"{error:.4f} at {resolution}" for error, resolution in zip(errors, test_loaders))
    print(f"{name}: L2 error {told}; {memory / 1e6:.2f} MB of state; {seconds:.0f} s")

# %%
# .. raw:: html
#
#    <div style="margin-top: 3em;"></div>
#
# Comparing the errors
# --------------------
# The seconds are of the slow and obvious version of ``MuSOAP`` in this file, which moves
# one mode after the other.

fig, ax = plt.subplots(figsize=(7, 3))
for offset, resolution in zip((-0.2, 0.2), test_loaders):
    values = [errors[list(test_loaders).index(resolution)] for errors, _, _ in results.values()]
    places = [place + offset for place in range(len(values))]
    ax.barh(places, values, height=0.36, label=f"resolution {resolution}")
ax.set_yticks(range(len(results)), list(results))
ax.set_xlabel("relative L2 error on the test data")
ax.legend()
fig.tight_layout()
plt.show()

# %%
# References
# ----------
# .. [1] Vyas, N. et al., "SOAP: Improving and Stabilizing Shampoo using Adam" (2024). ICLR 2025,
#     https://arxiv.org/abs/2409.11321.
