"""What a step's memory is: optimizer states, and what a step takes besides at its peak, counted byte by byte.

Counted are tensors, no process: each new storage of a step until it is freed. So they are the same on every machine, and
nothing is averaged.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from neuralop.models import FNO
from torch.utils._python_dispatch import TorchDispatchMode

import neuralop_mup as nm
from experiments.kept import metrics_of, missing
from experiments.pages import dotted, table
from neuralop_mup.lab.records import Run
from neuralop_mup.optim.musoap import optimizer as musoap

#: Kernel (in, out, modes) → what ``n_modes`` makes it.
CASES: dict[str, tuple[int, ...]] = {
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
_STEPS = 12  # ranks are measured and bases renewed within


@dataclass(frozen=True)
class Memory:
    """The experiment: every optimizer on every kernel."""

    cases: tuple[str, ...] = tuple(CASES)
    layers: int = 2

    about = "memory of a step: states, and temporaries at its peak"
    metrics = ("weights", "states", "temporaries")

    def tiny(self) -> Memory:
        """The smallest kernel."""
        return Memory(self.cases[:1])

    def run(self, case: str, optimizer: str) -> Run:
        """One measurement."""
        config = {"case": case, "modes": CASES[case], "optimizer": optimizer, "layers": self.layers, "steps": _STEPS}
        labels = {"size": f"{case}: {optimizer}", "params": {}, "seed": 0}
        return Run({"train": "memory", "torch": torch.__version__, **config}, config, train=measured, **labels)

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """The measurements that are missing."""
        return missing(records, (self.run(case, name) for case in self.cases for name in OPTIMIZERS))

    def table(self, records: Any) -> str:
        """Every number."""
        said = f"Bytes over those of all weights, of an FNO with {self.layers} layers; the most within {_STEPS} steps."
        return f"# Memory of a step\n\n{said}\n{self.numbers(records).get('table', '')}\n"

    def numbers(self, records: Any) -> dict[str, str]:
        """What pages quote: the table, and the largest numbers of each optimizer."""
        rows, most = [], {}
        for case in self.cases:
            done = metrics_of(records, {name: self.run(case, name) for name in OPTIMIZERS})
            shares = {name: [m[key] / m["weights"] for key in ("states", "temporaries")] for name, m in done.items()}
            weights = [f"{m['weights'] / 1e6:.1f} MB" for m in done.values()][:1] or ["–"]
            cells = [f"{shares[name][0]:.2f} + {shares[name][1]:.2f}" if name in shares else "–" for name in OPTIMIZERS]
            rows.append([case, *weights, *cells])
            for name, own in shares.items():
                most[name] = max(most.get(name, 0.0), sum(own))
        said = {f"{dotted(name)}.most": f"{value:.1f}" for name, value in most.items()}
        return {"table": "\n".join(table(["kernels", "weights", *OPTIMIZERS], rows)), **said}


class Temporaries(TorchDispatchMode):
    """The most bytes that new storages held at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.held, self.most = 0, 0

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
    """Bytes of weights, of states, and the most of temporaries after the first step, as on a device that is no CPU."""
    torch.manual_seed(0)
    model = nm.parametrize(FNO(config["modes"], 1, 1, 32 if len(config["modes"]) == 3 else 64, n_layers=config["layers"]))
    optimizer = OPTIMIZERS[config["optimizer"]](model)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    most = 0
    of_cpu = musoap._CHUNK.pop("cpu")
    try:
        for step in range(config["steps"]):
            with Temporaries() as temporaries:
                optimizer.step()
            most = max(most, temporaries.most if step else 0)  # the first makes the states
    finally:
        musoap._CHUNK["cpu"] = of_cpu
    tensors = (x.untyped_storage() for state in optimizer.state.values() for x in state.values() if torch.is_tensor(x))
    states = {storage.data_ptr(): storage.nbytes() for storage in tensors}
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    return {"loss": most / weights, "weights": weights, "states": sum(states.values()), "temporaries": most}
