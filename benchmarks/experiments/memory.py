"""Memory of a step: the optimizer's state and the temporary tensors at the peak of a step.

We count the bytes of tensors, from the allocation of their storage until it is freed. These counts are the same on every
machine.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from neuralop.models import FNO
from torch.utils._python_dispatch import TorchDispatchMode

import neuralop_mup as nm
from experiments.experiment import Experiment
from experiments.pages import dotted, table
from experiments.records import metrics_of, missing
from neuralop_mup.lab.records import Run
from neuralop_mup.optim.musoap import optimizer as musoap

#: Shape of the kernel (in, out, modes) → ``n_modes``.
CASES = {
    "(64, 64, 9)": (16,),
    "(64, 64, 33)": (64,),
    "(64, 64, 16, 9)": (16, 16),
    "(64, 64, 32, 17)": (32, 32),
    "(32, 32, 8, 8, 5)": (8, 8, 8),
    "(32, 32, 16, 16, 9)": (16, 16, 16),
}
OPTIMIZERS = {
    "Adam": partial(nm.MuAdam, lr=1e-3),
    "Adam, foreach": partial(nm.MuAdam, lr=1e-3, foreach=True),
    "MuSOAP": partial(nm.MuSOAP, check="next"),
    "MuSOAP, period 1": partial(nm.MuSOAP, check="next", mode_stride=1),
}
_STEPS = 12  # enough for measurements of ranks and updates of bases


@dataclass(frozen=True)
class Memory(Experiment):
    """Measure each optimizer on each kernel."""

    cases: tuple[str, ...] = tuple(CASES)

    about = "memory of a step: state, and temporary tensors at its peak"
    notes = f"State + temporary tensors relative to all weights of an FNO with two layers, at most within {_STEPS} steps."
    metrics = ("weights", "states", "temporaries")

    def tiny(self) -> Memory:
        """Return the smallest kernel."""
        return Memory(self.cases[:1])

    def run(self, case: str, optimizer: str) -> Run:
        """Return one measurement."""
        config = {"case": case, "modes": CASES[case], "optimizer": optimizer, "layers": 2, "steps": _STEPS}
        labels = {"size": f"{case}: {optimizer}", "params": {}, "seed": 0}
        return Run({"train": "memory", "torch": torch.__version__, **config}, config, train=measured, **labels)

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """Return the missing measurements."""
        return missing(records, (self.run(case, name) for case in self.cases for name in OPTIMIZERS))

    def numbers(self, records: Any) -> dict[str, str]:
        """Return the table, and the largest sum of each optimizer."""
        rows, sums = [], {name: [0.0] for name in OPTIMIZERS}
        for case in self.cases:
            measured = metrics_of(records, {name: self.run(case, name) for name in OPTIMIZERS})
            parts = {name: (m["states"] / m["weights"], m["temporaries"] / m["weights"]) for name, m in measured.items()}
            for name, both in parts.items():
                sums[name].append(sum(both))
            if len(parts) == len(OPTIMIZERS):
                rows.append([case, *(f"{state:.2f} + {temporary:.2f}" for state, temporary in parts.values())])
        largest = {f"{dotted(name)}.most": f"{max(values):.1f}" for name, values in sums.items()}
        return {"table": table(["kernels", *OPTIMIZERS], rows), **largest}


class Temporaries(TorchDispatchMode):
    """Count the bytes of new storages.

    Attributes
    ----------
    held : int
        Bytes that are in use now.
    most : int
        Largest number of bytes that were in use at the same time.
    """

    held = most = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        for x in out if isinstance(out, (list, tuple)) else [out]:
            if isinstance(x, torch.Tensor) and not any(r.alias_info for r in function._schema.returns):
                storage = x.untyped_storage()
                self.held += storage.nbytes()
                self.most = max(self.most, self.held)
                weakref.finalize(storage, self._free, storage.nbytes())
        return out

    def _free(self, n: int) -> None:
        self.held -= n


def measured(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bytes of weights, state and temporary tensors. The update is not split into chunks, as on a GPU."""
    torch.manual_seed(0)
    model = nm.parametrize(FNO(config["modes"], 1, 1, 32 if len(config["modes"]) == 3 else 64, n_layers=config["layers"]))
    optimizer = OPTIMIZERS[config["optimizer"]](model)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    most = 0
    with patch.dict(musoap._CHUNK, cpu=musoap._CHUNK["elsewhere"]):
        for step in range(config["steps"]):
            with Temporaries() as temporaries:
                optimizer.step()
            most = max(most, temporaries.most if step else 0)  # the first step allocates the state
    tensors = (x.untyped_storage() for state in optimizer.state.values() for x in state.values() if torch.is_tensor(x))
    states = {storage.data_ptr(): storage.nbytes() for storage in tensors}
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    return {"loss": most / weights, "weights": weights, "states": sum(states.values()), "temporaries": most}
