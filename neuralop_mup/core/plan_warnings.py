"""Derive warnings from a plan about assumptions that shapes cannot confirm."""

from collections.abc import Iterator

from torch import nn

from neuralop_mup.core.layers.registry import UNKNOWN, registration
from neuralop_mup.core.plan import ParamPlan, Plan
from neuralop_mup.core.raw_kernels import RECOGNISED, proposal

WIDER = "The base is wider than the model"  # first words of the warning, for filters


def warnings_for(plan: Plan, has_base: bool) -> list[str]:
    """Return the warnings about a plan, which name the parameter and the line to write."""
    if plan.rule == "standard":
        return []
    checks = (*([_wider_base] if has_base else []), _recognised, _sums, _matrices, _no_readout)
    return [message for check in checks for message in check(plan)]


def _wider_base(plan: Plan) -> Iterator[str]:
    """Yield a warning about the first parameter with more channels in the base, which is rarely intended."""
    for row in plan.rows:
        for kind, n, b in zip(row.axes, row.shape, row.base_shape, strict=True):
            if kind in ("in", "out") and b > n:
                yield (
                    f"{WIDER}: {row.name!r} has {b} channels in the base but {n} in the model. The base is usually the "
                    "smaller model, because learning rates are tuned at its size. Check whether model and base are "
                    "swapped."
                )
                return


def _recognised(plan: Plan) -> Iterator[str]:
    """Yield one warning about all kernels without a description."""
    classes: dict[str, dict[str, str]] = {}
    for row in plan.rows:
        if RECOGNISED in row.why:
            axes = tuple(kind.removesuffix("_fixed") for kind in row.axes)
            classes.setdefault(row.layer, {})[row.name.rpartition(".")[2]] = proposal(axes, row.init)
    if classes:
        kernels = " and ".join(f"{', '.join(map(repr, params))} of {layer}" for layer, params in classes.items())
        lines = "; ".join(registration(params, "", layer) for layer, params in classes.items())
        yield (
            f"{kernels} have no description. parametrize scales them as Fourier kernels, because they act on plane waves "
            "like Fourier kernels and their initial values are uniform on [0, 1/(in·out)). To silence this warning, write "
            f"{lines}."
        )


def _sums(plan: Plan) -> Iterator[str]:
    """Yield warnings about undescribed parameters if the forward pass may sum over the dimension that grows."""
    for row in plan.rows:
        lengths = [n for n, kind in zip(row.shape, row.axes, strict=True) if kind == "fixed"]
        # A parameter that is added has a first axis of one sample, or several other axes of one point. torch's layers do not
        # sum.
        is_added = not lengths or row.shape[0] == 1 or (len(lengths) > 1 and max(lengths) == 1)
        is_torchs = hasattr(nn, row.layer) and not row.layer.startswith("Parameter")
        if row.init == UNKNOWN and not row.fixed and not is_added and not is_torchs:
            readout = tuple("in" if kind == "out" else "out_fixed" for kind in row.axes)
            yield (
                f"{row.name!r}, of shape {row.shape}, grows in one dimension, and its role is unknown. It is treated as a "
                "vector and keeps its learning rate, which is too large if the forward pass sums over this dimension. "
                f"Write {registration({row.name.rpartition('.')[2]: 'nm.Param(…)'}, row.owner, row.layer)}, with "
                f"nm.Param('readout', {readout}, init=…) if it does, and nm.Param('vector', {row.axes}) otherwise."
            )


def _matrices(plan: Plan) -> Iterator[str]:
    """Yield warnings about layers that produce matrices for other layers, because such outputs outgrow the width."""
    width = max((growth for row in plan.rows if row.role in ("hidden", "spectral") for growth in _growths(row)), default=1.0)
    for row in plan.rows:
        if row.role == "input" and 1 < width < max(_growths(row), default=1.0) ** 0.75:
            yield (
                f"{row.name!r}, of shape {row.shape}, grows with the square of the width, like a layer that produces "
                "matrices for other layers. No rule scales such layers. Divide the matrices by the width in the forward "
                "pass."
            )


def _growths(row: ParamPlan) -> list[float]:
    """Return the ratio of model size to base size for each channel axis."""
    sizes = zip(row.axes, row.shape, row.base_shape, strict=True)
    return [n / b for kind, n, b in sizes if kind in ("in", "out") and b]


def _no_readout(plan: Plan) -> Iterator[str]:
    """Yield a warning if no parameter is a readout, because an unweighted sum over channels grows with their number."""
    sums = [row.name for row in plan.rows if "in" in row.axes and not row.fixed]
    if sums and not any("in" in row.axes and "out_fixed" in row.axes for row in plan.rows):
        yield (
            f"The model has no readout: no parameter reads growing channels, as {sums[-1]!r} does, and writes a fixed "
            "number of channels. If the output is a sum over growing channels (branch and trunk of a DeepONet), it grows "
            "with their number. Keep the number of the base, or divide the sum by the number of channels."
        )
