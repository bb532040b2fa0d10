"""Warnings of parametrize about assumptions that shapes cannot confirm. They are derived from the plan."""

from collections.abc import Iterator

from torch import nn

from neuralop_mup.core.layers.registry import UNKNOWN, registration
from neuralop_mup.core.plan import ParamPlan, Plan
from neuralop_mup.core.raw_kernels import RECOGNISED, proposal

WIDER = "The base is wider than the model"  # start of the warning, for filters


def warnings_for(plan: Plan, has_base: bool) -> list[str]:
    """Return the warnings. Each names the parameter and the line to write. Only a base that you pass may be too wide."""
    if plan.rule == "standard":
        return []
    checks = (*([_wider_base] if has_base else []), _recognised, _sums, _matrices, _no_readout)
    return [message for check in checks for message in check(plan)]


def _wider_base(plan: Plan) -> Iterator[str]:
    """Yield the first row with more channels at base. Coordinate checks use this, but elsewhere it is rarely intended."""
    for row in plan.rows:
        for kind, n, b in zip(row.axes, row.shape, row.base_shape, strict=True):
            if kind in ("in", "out") and b > n:
                yield (
                    f"{WIDER}: {row.name!r} has {b} channels at base and {n} here. The base is usually the smaller one, "
                    "since learning rates are tuned at its size. Check whether model and base are swapped."
                )
                return


def _recognised(plan: Plan) -> Iterator[str]:
    """Yield one warning for all kernels without a description."""
    classes: dict[str, dict[str, str]] = {}
    for row in plan.rows:
        if RECOGNISED in row.why:
            axes = tuple(kind.removesuffix("_fixed") for kind in row.axes)
            classes.setdefault(row.layer, {})[row.name.rpartition(".")[2]] = proposal(axes, row.init)
    if classes:
        kernels = " and ".join(f"{', '.join(map(repr, params))} of {layer}" for layer, params in classes.items())
        lines = "; ".join(registration(params, "", layer) for layer, params in classes.items())
        yield (
            f"No description covers {kernels}. parametrize scales them as Fourier kernels: they act on plane waves as "
            f"kernels do, and their initial values are uniform on [0, 1/(in·out)). To silence this warning, write {lines}."
        )


def _sums(plan: Plan) -> Iterator[str]:
    """Yield undescribed parameters that may be matrices: the forward pass may sum over the dimension that grows."""
    for row in plan.rows:
        lengths = [n for n, kind in zip(row.shape, row.axes, strict=True) if kind == "fixed"]
        # An addend has a first axis of one sample, or further axes of one point. torch's layers do not sum.
        is_added = not lengths or row.shape[0] == 1 or (len(lengths) > 1 and max(lengths) == 1)
        is_torchs = hasattr(nn, row.layer) and not row.layer.startswith("Parameter")
        if row.init == UNKNOWN and not row.fixed and not is_added and not is_torchs:
            readout = tuple("in" if kind == "out" else "out_fixed" for kind in row.axes)
            yield (
                f"{row.name!r}, of shape {row.shape}, grows in one dimension, and its role is unknown. As a vector it keeps "
                "its learning rate, which is too large if the forward pass sums over that dimension. Write "
                f"{registration({row.name.rpartition('.')[2]: 'nm.Param(…)'}, row.owner, row.layer)}, "
                f"with nm.Param('readout', {readout}, init=…) for a sum, or else nm.Param('vector', {row.axes})."
            )


def _matrices(plan: Plan) -> Iterator[str]:
    """Yield layers that produce matrices for others: their output grows faster than the width."""
    width = max((growth for row in plan.rows if row.role in ("hidden", "spectral") for growth in _growths(row)), default=1.0)
    for row in plan.rows:
        if row.role == "input" and 1 < width < max(_growths(row), default=1.0) ** 0.75:
            yield (
                f"{row.name!r}, of shape {row.shape}, grows with the square of the width, like a layer of matrices"
                " for other layers. No rule scales these. Divide the matrices by the width in the forward pass."
            )


def _growths(row: ParamPlan) -> list[float]:
    """Return the growth of each channel axis over base."""
    sizes = zip(row.axes, row.shape, row.base_shape, strict=True)
    return [n / b for kind, n, b in sizes if kind in ("in", "out") and b]


def _no_readout(plan: Plan) -> Iterator[str]:
    """Yield a warning if no parameter is a readout. A sum over channels without weights grows with their number."""
    sums = [row.name for row in plan.rows if "in" in row.axes and not row.fixed]
    if sums and not any("in" in row.axes and "out_fixed" in row.axes for row in plan.rows):
        yield (
            f"No parameter reads growing channels, like {sums[-1]!r}, and writes a fixed number, as a readout does. If the "
            "output is a sum over growing channels (branch and trunk of a DeepONet), it grows with them. Keep their number "
            "as at base, or divide the sum by it."
        )
