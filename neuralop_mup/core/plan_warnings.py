"""What a plan takes for granted of a model, where shapes alone do not tell: read off the plan, and told by parametrize."""

from collections.abc import Iterator

from torch import nn

from neuralop_mup.core.layers.registry import UNKNOWN, registration
from neuralop_mup.core.plan import ParamPlan, Plan
from neuralop_mup.core.raw_kernels import RECOGNISED, proposal


def warnings_for(plan: Plan) -> list[str]:
    """A sentence or two for each, with what to write."""
    return [] if plan.rule == "standard" else [*_recognised(plan), *_sums(plan), *_matrices(plan), *_no_readout(plan)]


def _recognised(plan: Plan) -> Iterator[str]:
    """Kernels that nobody described, all in one warning."""
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
    """Parameters that nobody described and that may be matrices: a forward pass may sum over what grows of them."""
    for row in plan.rows:
        lengths = [n for n, kind in zip(row.shape, row.axes, strict=True) if kind == "fixed"]
        # What is added to features has a first axis of one sample, or further axes of one point; torch's layers are no sums.
        is_added = not lengths or row.shape[0] == 1 or (len(lengths) > 1 and max(lengths) == 1)
        is_torchs = hasattr(nn, row.layer) and not row.layer.startswith("Parameter")
        if row.init == UNKNOWN and not row.fixed and not is_added and not is_torchs:
            readout = tuple("in" if kind == "out" else "out_fixed" for kind in row.axes)
            yield (
                f"{row.name!r}, of shape {row.shape}, grows in one dimension, and nobody said what it is: it is taken for "
                "something that is added or multiplied channel by channel, whose learning rate stays. If the forward pass "
                f"sums over that dimension, the rate is too large: write "
                f"{registration({row.name.rpartition('.')[2]: 'nm.Param(…)'}, row.owner, row.layer)}, "
                f"with a readout, nm.Param('readout', {readout}, init=…). If not, nm.Param('vector', {row.axes}) says so."
            )


def _matrices(plan: Plan) -> Iterator[str]:
    """Layers whose output grows by more than the width does: they make matrices, which something sums over."""
    width = max((growth for row in plan.rows if row.role in ("hidden", "spectral") for growth in _growths(row)), default=1.0)
    for row in plan.rows:
        if row.role == "input" and 1 < width < max(_growths(row), default=1.0) ** 0.75:
            yield (
                f"{row.name!r}, of shape {row.shape}, grows by the square of the width, as a layer does that makes matrices "
                "for others. No rule scales it: divide the matrices by the width in the forward pass."
            )


def _growths(row: ParamPlan) -> list[float]:
    """Of its channels, over base."""
    sizes = zip(row.axes, row.shape, row.base_shape, strict=True)
    return [n / b for kind, n, b in sizes if kind in ("in", "out") and b]


def _no_readout(plan: Plan) -> Iterator[str]:
    """An output that is a sum over channels which grow, with no weights in it, becomes larger with them."""
    sums = [row.name for row in plan.rows if "in" in row.axes and not row.fixed]
    if sums and not any("in" in row.axes and "out_fixed" in row.axes for row in plan.rows):
        yield (
            f"No parameter reads channels that grow, as {sums[-1]!r} does, and writes a number of them that stays, as a "
            "readout does. If the output is a sum over channels that grow (of branch and trunk of a DeepONet), keep their "
            "number as it is at base, or divide the sum by it."
        )
