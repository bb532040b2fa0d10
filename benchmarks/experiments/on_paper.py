"""On paper, past this machine: which share of a training step MuSOAP takes on an H100, from counted operators.

Nothing is timed. Forward and backward pass and the optimizer's steps run on torch's meta device, where tensors hold no
numbers. Every operator that makes a kernel run is counted, with the bytes that it reads and writes and its floating-point
operations, and is taken to need

    launch + max(bytes / BANDWIDTH, operations / PEAK),

as if none overlapped another and none were fused. Adam is one fused kernel of 7 numbers read or written for each number
that is trained. With FSDP2 the work of MuSOAP is shared parameter by parameter: the process with the largest share takes
that share of the time, and what it receives and sends, 40 bytes for each complex number, goes through its link. FSDP2's own
messages, the weights twice and the gradients once, overlap with the passes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from neuralop.models import FNO
from torch.optim import adam, adamw
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

import neuralop_mup as nm
from experiments.kept import metrics_of, missing
from experiments.pages import table
from neuralop_mup.lab.records import Run
from neuralop_mup.optim.musoap.gradient_check import GradientCheck
from neuralop_mup.optim.musoap.parallel import owners

# NVIDIA's data sheet of the H100 SXM: memory, float32 without tensor cores; a link of its nodes' network (400 Gb/s).
BANDWIDTH, PEAK, LINK = 3.35e12, 67e12, 5e10
#: Seconds to launch an operator, without and with a CUDA graph (neuralop_mup.capture_steps).
LAUNCH = {"eager": 6e-6, "captured": 0.6e-6}
WIDTHS, MODES = (32, 128, 512), (16, 64, 128)
#: Samples of a batch by the dimensions of the grid, which has twice as many points as modes along each axis.
BATCH = {1: 32, 2: 8, 3: 2}
LAYERS, GPUS = 4, 64
#: Of the weights of all layers, in bytes: with gradients, states and temporaries more do not fit 80 GB.
MOST = 6e9
_NO_WORK = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "scalar_tensor",
    "lift_fresh",
    "detach",
}
_FIRST, _STEPS = 10, 10  # the beginning, and what is repeated from then on


@dataclass(frozen=True)
class OnPaper:
    """The experiment: an FNO of every width and number of modes whose weights fit."""

    axes: tuple[int, ...] = (1, 2, 3)
    widths: tuple[int, ...] = WIDTHS
    modes: tuple[int, ...] = MODES

    about = "on paper: MuSOAP's share of a training step on an H100, from counted operators, bytes and operations"
    metrics = ("numbers", "operators", "training", "optimizer", "largest")

    def tiny(self) -> OnPaper:
        """The smallest case."""
        return OnPaper((1,), self.widths[:1], self.modes[:1])

    def runs(self) -> dict[tuple[int, int, int], Run]:
        """Axes, width and modes → what is counted."""
        cases = [(d, width, k) for d in self.axes for width in self.widths for k in self.modes]
        return {case: self.run(*case) for case in cases if _bytes_of(*case) <= MOST}

    def run(self, axes: int, width: int, modes: int) -> Run:
        """One case."""
        config = {"axes": axes, "width": width, "modes": modes, "layers": LAYERS, "batch": BATCH[axes]}
        content = {"train": "on paper", "version": 2, "torch": torch.__version__, **config}
        return Run(content, config, train=counted, size=f"{axes}D, width {width}, K {modes}", params={}, seed=0)

    def missing_runs(self, records: Any) -> Iterator[Run]:
        """The cases that are missing."""
        return missing(records, self.runs().values())

    def table(self, records: Any) -> str:
        """Shares of a step, in percent."""
        said = (
            "MuSOAP's part of a training step, and in brackets that of fused Adam: on one GPU as it comes, on one with "
            f"steps captured as CUDA graphs, and on {GPUS} with FSDP2, captured. Passes take as long as their batch is "
            "large: the last column is the batch on one GPU, captured, from which on MuSOAP takes less than a fifth."
        )
        return f"# On paper, on H100s\n\n{said}\n\n{self.numbers(records).get('table', '')}\n"

    def numbers(self, records: Any) -> dict[str, str]:
        """The table, and the least and the largest shares."""
        rows, shares, steps = [], {}, []
        for (axes, width, modes), m in metrics_of(records, self.runs()).items():
            cells = {name: _share(m, name) for name in ("eager", "captured", "sharded")}
            for name, (ours, adams) in cells.items():
                shares.setdefault(name, []).append(ours)
                steps += [(1 - adams) / (1 - ours)] if name != "sharded" else []  # both over the rest, which is the same
            told = [f"{100 * ours:.0f} % ({100 * adams:.1f} %)" for ours, adams in cells.values()]
            ours, _ = cells["captured"]
            fifth = math.ceil(BATCH[axes] * 4 * ours / (1 - ours))
            rows.append([f"{axes}D, {width}, {modes}", f"{m['numbers'] / 1e6:,.1f}", str(BATCH[axes]), *told, str(fifth)])
        heads = ["axes, width, K", "million numbers", "batch", "one GPU", "captured", f"{GPUS} GPUs", "batch for a fifth"]
        said = {f"{name}.{end}": f"{100 * of(own):.0f} %" for name, own in shares.items() for end, of in _ENDS.items()}
        said |= {f"step.{end}": f"{of(steps):.1f}" for end, of in _ENDS.items()} if steps else {}
        return {"table": "\n".join(table(heads, rows)), **said}


_ENDS = {"least": min, "most": max}


def _bytes_of(axes: int, width: int, modes: int) -> float:
    return LAYERS * 8.0 * width**2 * modes ** (axes - 1) * (modes // 2 + 1)


def _share(m: Mapping[str, Any], how: str) -> tuple[float, float]:
    """Of a training step what the optimizer takes, and what fused Adam does."""
    launch = LAUNCH["eager" if how == "eager" else "captured"]
    (n, busy), (steps, moving) = m["training"], m["optimizer"]
    others, ours = n * launch + busy, steps * launch + moving
    adams = launch + 7 * 4 * m["numbers"] / BANDWIDTH
    if how == "sharded":
        # Each process has samples of its own; optimizers share their work.
        others = max(others, 3 * 4 * m["numbers"] / LINK)
        ours = m["largest"] * ours + 20 * m["largest"] * m["numbers"] / LINK
        adams /= GPUS
    return ours / (others + ours), adams / (others + adams)


class Work(TorchDispatchMode):
    """How many operators make a kernel run, and the seconds that their bytes and operations take."""

    def __init__(self) -> None:
        super().__init__()
        self.operators, self.busy = 0, 0.0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        name = function.__name__.partition(".")[0]
        is_view = any(a.alias_info is not None and not a.alias_info.is_write for a in function._schema.arguments)
        made = [x for x in (out if isinstance(out, (list, tuple)) else [out]) if isinstance(x, torch.Tensor)]
        if made and not is_view and name not in _NO_WORK:
            lists = [a if isinstance(a, (list, tuple)) else [a] for a in args]
            read = [x for own in lists for x in own if isinstance(x, torch.Tensor)]
            moved = sum(x.numel() * x.element_size() for x in [*read, *made])
            self.operators += 1
            self.busy += max(moved / BANDWIDTH, _operations(function, name, args, kwargs or {}, out, made) / PEAK)
        return out


def _operations(function: Any, name: str, args: Any, kwargs: Any, out: Any, made: list[torch.Tensor]) -> float:
    """Floating-point operations: products by torch's own count, transforms 5 N log2 N, and one a number for the rest."""
    first, n = made[0], sum(x.numel() for x in made)
    whole = 4.0 if first.is_complex() else 1.0
    if function._overloadpacket in flop_registry:
        return whole * flop_registry[function._overloadpacket](*args, **kwargs, out_val=out)
    if name.startswith("_fft"):
        points = math.prod(args[0].shape[d] for d in args[1])
        return 5.0 * args[0].numel() * math.log2(max(2, points))
    if name in ("linalg_cholesky_ex", "linalg_solve_triangular"):
        return float(n * first.shape[-1])
    return whole * n


def counted(config: Mapping[str, Any]) -> dict[str, Any]:
    """Count a training step and the optimizer's, the latter in the mean over a cycle."""
    axes, modes = config["axes"], config["modes"]
    torch.manual_seed(0)
    with _like_a_gpu():
        model, optimizer = _built((modes,) * axes, config["width"])
        fields = torch.empty(config["batch"], 1, *(2 * modes,) * axes, device="meta")
        with Work() as training:
            (model(fields) - fields).square().mean().backward()
        for _ in range(_FIRST):
            optimizer.step()
        with Work() as own:
            for _ in range(_STEPS):
                optimizer.step()
    numbers = [p.numel() * (2 if p.is_complex() else 1) for p in model.parameters()]
    shared = owners(numbers, GPUS)
    loads = [sum(n for n, owner in zip(numbers, shared, strict=True) if owner == gpu) for gpu in range(GPUS)]
    return {
        "loss": own.busy / _STEPS,
        "numbers": sum(numbers),
        "operators": own.operators / _STEPS,
        "training": [training.operators, training.busy],
        "optimizer": [own.operators / _STEPS, own.busy / _STEPS],
        "largest": max(loads) / sum(numbers),
    }


def _built(modes: tuple[int, ...], width: int) -> tuple[torch.nn.Module, nm.MuSOAP]:
    """A model without numbers: the optimizer is made for a small real one, since it refuses those, and takes its places."""
    small = nm.parametrize(FNO((4,) * len(modes), 1, 1, 8, n_layers=LAYERS))
    optimizer = nm.MuSOAP(small, steps=10**4, foreach=True, capturable=True, check="next")
    with torch.device("meta"):
        model = FNO(modes, 1, 1, width, n_layers=LAYERS)
    parameters = dict(model.named_parameters())
    for group in optimizer.param_groups:
        group["params"] = [parameters[name] for name in group["param_names"]]
    return model, optimizer


@contextmanager
def _like_a_gpu() -> Iterator[None]:
    """The meta device has no autocast and counts no steps for AdamW; gradients are looked at without a copy to the host."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(torch, "autocast", lambda *args, **kwargs: nullcontext()))
        stack.enter_context(patch.object(GradientCheck, "_send", lambda *args: None))
        for owner in (adam, adamw):
            name = "_get_capturable_supported_devices"
            stack.enter_context(patch.object(owner, name, lambda *args, **kwargs: ["meta"], create=True))
        yield
