r"""The theory: a parameter's role and its sizes, here and at base, become multipliers.

Everything is *relative to base*. With ``r_in = fan_in / base fan_in`` and ``r_out`` alike (a fixed dimension
has r = 1; a vector's fan-in is 1), the whole width rule is three lines, for every role:

====================  =========================================  ==================================
quantity              rule                                       why
====================  =========================================  ==================================
init std              ∝ r_in^(-1/2); readout: r_in^(-1)          sums of r_in independent terms;
                                                                 the output starts small
the same, one sign    ∝ r_in^(-1)                                terms with a common mean add up
                                                                 coherently
lr, Adam-like         × 1 / r_in                                 an update's r_in entries add up
                                                                 coherently
lr, SGD               × r_out / r_in                             besides, gradients shrink as 1/r_out
====================  =========================================  ==================================

Fourier kernels take a further factor κ, the *mode factor*, on init std and on the Adam learning rate; see
:func:`mode_factor`. Their width part sees the channel contraction alone: a dense kernel contracts ``in_channels``
terms for each mode, a separable one a single term (fan_in = 1).

An init *multiplier* is what the default initialisation must be multiplied with, i.e. the wanted change of std divided by
the change that the default initialisation makes on its own (:func:`default_std`).

========  ================================  ============  ==========  ===================
role      default std                       init ×        Adam lr ×   SGD lr ×
========  ================================  ============  ==========  ===================
input     1/√fan_in (fixed)                 1             1           r_out
hidden    1/√fan_in                         1             1 / r_in    r_out / r_in
readout   1/√fan_in                         r_in^(-1/2)   1 / r_in    1 / r_in
vector    1/√fan_in of its layer, or Θ(1)   r^(1/2) or 1  1           r_out
spectral  √(2/(in+out))                     κ (in = out)  κ / r_in    r_out / r_in
spectral  1/√channels (separable)           κ √r          κ           r_out
spectral  ∝ 1/(in·out), one sign            κ r_out       κ / r_in    r_out / r_in
factor    (kernel std / ∏ranks^p)^(1/n)     see below     κ / r_in    r_out / r_in
========  ================================  ============  ==========  ===================

The factors of a Tucker, CP or tensor-train kernel are spectral parameters with fans of their own: read from inputs
(channels and a mode) to outputs, each rank index is summed by exactly one factor, and a factor's fan-in is the product
of what it sums. Then ∏ fan_in = in · ∏ ranks, and factors of variance 1/fan_in reconstruct a kernel of variance 1/in,
as the dense rule wants. κ goes to one factor, the one with the output channels, so that the kernel and each part of its
update carry it once (derived in docs/explain/layouts.md).

The rows of kernels suppose that in and out grow alike. A dense kernel that writes channels which do not grow starts as the
readout does, at κ r_in^(-1), and κ of a kernel of which one side alone grows is that of a square one (``planning.py``).

Depth has no rule under Adam: none held (docs/evidence/transfer.md). :func:`length_factor` says how a learning rate follows
the number of steps.

Sources: Yang & Hu et al., "Tensor Programs V", arXiv:2203.03466, Table 3 (widths, without multipliers in the forward);
Li, Yoo, Yang, "Maximal Update Parametrization and Zero-Shot Hyperparameter Transfer for Fourier Neural Operators",
ICML 2025, arXiv:2506.19396, Theorem 3.5 (modes).

Examples
--------
>>> from neuralop_mup import rules
>>> size, base = rules.Size(fan_in=64, fan_out=64), rules.Size(fan_in=16, fan_out=16)
>>> rules.multipliers("hidden", size, base, "operator-norm").adam_lr
0.25

A rule of one's own, by its name on the command line too:

>>> def half_as_steep(size, base):
...     "κ = the root of log-modes."
...     return rules.log_modes(size, base) ** 0.5
>>> rules.RULES["half-as-steep"] = half_as_steep
>>> rules.reason_of("half-as-steep")
'κ = the root of log-modes'
>>> del rules.RULES["half-as-steep"]
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from neuralop_mup.core.block_norms import largest_norm
from neuralop_mup.errors import MupError, nearest
from neuralop_mup.validation import is_multiplier

__all__ = [
    "DEFAULT_RULE",
    "ROLES",
    "RULES",
    "RULE_VERSION",
    "ModeRule",
    "Multipliers",
    "Size",
    "check_rule",
    "default_std",
    "factor_std",
    "length_factor",
    "log_modes",
    "mode_factor",
    "multipliers",
    "operator_norm",
    "reason_of",
]

ROLES = ("input", "hidden", "readout", "vector", "spectral")
# Roles, and Fourier kernels as wholes, where "spectral" is each factor of a factorized one.
OF_INIT = (*ROLES, "kernel")
# neuralop's kernels have blocks of operator norm 2, as against about 1 of the skip beside them; a tenth of that lets each
# layer begin as its skip (benchmarks/suite.py init of commit b7062af, docs/evidence/optimizers.md).
SMALL_KERNELS = {"kernel": 0.1}


@dataclass(frozen=True)
class Size:
    """The numbers of one parameter that the rules read.

    Attributes
    ----------
    fan_in, fan_out : int
        Terms that one output entry sums, and output entries; for a vector ``fan_in = 1``.
    default_std : float, default 1.0
        Standard deviation of neuralop's own initialisation (:func:`default_std`).
    modes : tuple of int, default ()
        Fourier modes per sign on each axis, ``K_i = n_modes_i // 2`` (an odd n_modes keeps the mean and K of either sign,
        an even one K of one sign and K - 1 of the other); empty for all but kernels (of a factorized kernel: all but the
        factor that carries κ).
    blocks : int, default 1
        Number N of the kernel's independent channel blocks, one for each stored mode.
    block : (int, int), default (1, 1)
        Shape (in, out) of one such block; (1, 1) for a separable kernel.
    one_sign : bool, default False
        Whether entries are drawn with one sign, so that their mean, not their spread, makes the norm.

    Examples
    --------
    A kernel of 16 channels with 12 modes of each sign on one axis, and 13 blocks:

    >>> from neuralop_mup import rules
    >>> rules.Size(fan_in=16, fan_out=16, modes=(12,), blocks=13, block=(16, 16)).default_std
    1.0
    """

    fan_in: int
    fan_out: int
    default_std: float = 1.0
    modes: tuple[int, ...] = ()
    blocks: int = 1
    block: tuple[int, int] = (1, 1)
    one_sign: bool = False


@dataclass(frozen=True)
class Multipliers:
    """What a rule makes of one parameter: factors on default init and learning rates (all 1 at base).

    Attributes
    ----------
    init : float
        Factor on the default initialisation.
    adam_lr, sgd_lr : float
        Factors on the learning rate of an Adam-like optimizer, and of SGD.
    kappa : float, default 1.0
        The mode factor κ, which is in ``init`` and ``adam_lr``; 1 for all but kernels.

    Examples
    --------
    >>> from neuralop_mup import rules
    >>> readout = rules.multipliers("readout", rules.Size(64, 1, 0.125), rules.Size(16, 1, 0.25), "none")
    >>> readout.init, readout.adam_lr
    (0.5, 0.25)
    """

    init: float
    adam_lr: float
    sgd_lr: float
    kappa: float = 1.0


def default_std(kind: str, fan_in: int, fan_out: int) -> float:
    """Standard deviation of a default initialisation (root mean square; of the modulus where entries are complex).

    Parameters
    ----------
    kind : {"fan_in", "mean_fan", "fan_out", "positive", "constant"}
        ``fan_in``: torch's default for linear and convolution layers, weight and bias: U(±1/√fan_in), so
        1/√(3 fan_in); the fan-in of a convolution includes its stencil.
        ``mean_fan``: neuralop's SpectralConv, kernel and bias: √(2/(fan_in + fan_out)).
        ``fan_out``: the same where the kernel is separable, so in = out = channels: 1/√fan_out.
        ``positive``: real and imaginary part from U[0, 1/(fan_in·fan_out)), as PhysicsNeMo and FNO codes before 2023 draw
        kernels: E|w|² = 2/3 / (fan_in·fan_out)². All entries have one sign.
        ``constant``: ones and zeros (gates, norms): 1.
    fan_in, fan_out : int
        Fans of the layer.

    Returns
    -------
    float
        The root mean square of the weights as they are drawn.

    Raises
    ------
    MupError
        For an unknown kind.

    Examples
    --------
    >>> from neuralop_mup import rules
    >>> rules.default_std("mean_fan", 16, 16), rules.default_std("fan_out", 1, 64)
    (0.25, 0.125)
    """
    if kind not in _STDS:
        raise MupError(f"There is no default init {kind!r}: {nearest(kind, _STDS)}")
    return _STDS[kind](fan_in, fan_out)


_STDS: dict[str, Callable[[int, int], float]] = {
    "fan_in": lambda fan_in, fan_out: (3 * fan_in) ** -0.5,
    "mean_fan": lambda fan_in, fan_out: (2 / (fan_in + fan_out)) ** 0.5,
    "fan_out": lambda fan_in, fan_out: fan_out**-0.5,
    "positive": lambda fan_in, fan_out: (2 / 3) ** 0.5 / (fan_in * fan_out),
    "constant": lambda fan_in, fan_out: 1.0,
}


def factor_std(kernel_std: float, ranks: int, factors: int, rank_power: float) -> float:
    """Standard deviation that neuralop (tensorly-torch) gives to each factor of a factorized kernel.

    Parameters
    ----------
    kernel_std : float
        Standard deviation that the reconstructed kernel is meant to have.
    ranks : int
        Product of all ranks.
    factors : int
        Number of random factors, a Tucker core included.
    rank_power : float
        1/2 for Tucker and CP, whose reconstruction hits ``kernel_std``; 1 for TT, whose misses it by √ranks.

    Returns
    -------
    float
        (kernel_std / ranks^rank_power)^(1/factors).

    Examples
    --------
    >>> from neuralop_mup import rules
    >>> rules.factor_std(0.25, ranks=16, factors=2, rank_power=0.5)
    0.25
    """
    return (kernel_std / ranks**rank_power) ** (1 / factors)


def log_modes(size: Size, base: Size) -> float:
    """κ = √(Σ log K_base / Σ log K), summed over axes (the paper's Theorem 3.5).

    The largest of N = Θ(K^d) sub-Gaussian numbers grows as √(log N) = √(d log K), and so does the operator norm of a
    kernel, and of its update, at one channel. K = n_modes // 2 is the number of modes per sign on an axis. One that keeps
    the mean alone (n_modes = 1, K = 0) adds nothing to the sum, as K = 1 does.

    Parameters
    ----------
    size, base : Size
        The kernel here and at base.

    Returns
    -------
    float
        κ; exactly 1 where the modes are equal.

    Raises
    ------
    MupError
        If no axis has K ≥ 2: the logarithms sum to zero and the rule is undefined.

    Examples
    --------
    >>> from neuralop_mup import rules
    >>> rules.log_modes(rules.Size(16, 16, modes=(16,)), rules.Size(16, 16, modes=(2,)))
    0.5
    """
    for what, ks in (("the model", size.modes), ("base", base.modes)):
        if max(ks) <= 1:
            raise MupError(
                f"Under rule='log-modes' the mode factor divides by Σ log K, which is zero for {what}: K = "
                f"n_modes // 2 = {tuple(ks)} on axes {tuple(range(len(ks)))}. Take n_modes ≥ 4 on some axis, or "
                "rule='operator-norm', which is finite at K = 1."
            )
    at_base, here = (sum(math.log(max(k, 1)) for k in modes) for modes in (base.modes, size.modes))
    return math.sqrt(at_base / here)


def operator_norm(size: Size, base: Size) -> float:
    """κ = g_base / g, g = E max‖block‖ / √in: the expected largest block norm of a kernel, per √in.

    A kernel is block-diagonal over modes, so its operator norm is that of the largest of its N independent in×out blocks,
    ``largest_norm`` for Gaussian entries; the width rule takes care of the factor √in, where in and out grow alike. A kernel
    of which one side alone grows takes the κ of a square one of these channels.
    At one channel and N → ∞ this is log-modes; at many channels it tends to no mode rule at all; it is finite at K = 1.
    Channels of a separable kernel do not mix: what counts is the norm of a channel over modes, in = out = 1, as features
    are measured by their RMS over channels. A factorized kernel takes the κ of the dense kernel that it stands for.

    Parameters
    ----------
    size, base : Size
        The kernel here and at base.

    Returns
    -------
    float
        κ; exactly 1 where blocks are equal in shape and number.

    Examples
    --------
    Eight times the modes count for less at more channels:

    >>> from neuralop_mup import rules
    >>> def kappa(channels):
    ...     base, size = (rules.Size(1, 1, modes=(k,), blocks=k + 1, block=(channels, channels)) for k in (8, 64))
    ...     return rules.operator_norm(size, base)
    >>> kappa(1) < kappa(16) < kappa(64) < 1
    True
    """

    def g(of: Size) -> float:
        return largest_norm(*of.block, of.blocks) / math.sqrt(of.block[0])

    return g(base) / g(size)


def _width_alone(size: Size, base: Size) -> float:
    """κ = 1: kernels scale with width alone."""
    return 1.0


def _standard(size: Size, base: Size) -> float:
    """no μP: everything is as constructed, every multiplier 1."""
    return 1.0


ModeRule = Callable[[Size, Size], float]

# The mode factor κ of a kernel from its sizes, here and at base. The first line of the docstring is the reason that a
# summary prints. A function of one's own works as an argument; put in here, it works by name, from the command line too.
RULES: dict[str, ModeRule] = {
    "operator-norm": operator_norm,
    "log-modes": log_modes,
    "none": _width_alone,
    "standard": _standard,
}
DEFAULT_RULE = "operator-norm"

# Goes up when a rule of that name gives other numbers, so that plans of another version are refused.
RULE_VERSION = 2


def check_rule(rule: str | ModeRule) -> str:
    """Name of a rule, which is a key of :data:`RULES` or a function of two sizes.

    Parameters
    ----------
    rule : str or callable
        What was given as a rule.

    Returns
    -------
    str
        The key, or the function's name.

    Raises
    ------
    MupError
        If it is neither, or the function's name is that of another rule.

    Examples
    --------
    >>> from neuralop_mup import rules
    >>> rules.check_rule("log-modes"), rules.check_rule(rules.operator_norm)
    ('log-modes', 'operator-norm')
    """
    if callable(rule):
        name = getattr(rule, "__name__", type(rule).__name__)
        if RULES.get(name, rule) is not rule:
            raise MupError(f"The function given as rule is named {name!r}, as another rule is: give it another name.")
        return next((known for known, function in RULES.items() if function is rule), name)
    if rule not in RULES:
        raise MupError(
            f"There is no rule {rule!r}: {nearest(str(rule), RULES)} A function of two Sizes (the kernel's, and its base's) "
            "that returns κ is a rule, too."
        )
    return rule


def reason_of(rule: str | ModeRule) -> str:
    """What a rule does, in the first line of its function's docstring; empty if it has none.

    Parameters
    ----------
    rule : str or callable
        As for :func:`mode_factor`.

    Returns
    -------
    str
        Without its full stop.

    Raises
    ------
    MupError
        For an unknown name.

    Examples
    --------
    >>> from neuralop_mup import rules
    >>> rules.reason_of("none")
    'κ = 1: kernels scale with width alone'
    """
    function = rule if callable(rule) else RULES[check_rule(rule)]
    return (function.__doc__ or "").strip().partition("\n")[0].rstrip(".")


def mode_factor(rule: str | ModeRule, size: Size, base: Size) -> float:
    """κ of one kernel: how its init std and Adam learning rate shrink as modes are added.

    Parameters
    ----------
    rule : str or callable
        A key of :data:`RULES`, or ``function(size, base) -> κ``.
    size, base : Size
        The kernel here and at base.

    Returns
    -------
    float
        Exactly 1 where the sizes are equal.

    Raises
    ------
    MupError
        If a function fails, does not return a positive number, or is not 1 at base.

    Examples
    --------
    >>> from neuralop_mup import rules
    >>> size, base = rules.Size(16, 16, modes=(16,)), rules.Size(16, 16, modes=(2,))
    >>> rules.mode_factor("log-modes", size, base), rules.mode_factor("none", size, base)
    (0.5, 1.0)
    """
    name = check_rule(rule)
    function = rule if callable(rule) else RULES[name]
    try:
        kappa, at_base = function(size, base), function(base, base)
    except MupError:
        raise
    except Exception as error:  # whatever a user's function raises
        raise MupError(
            f"The rule {name!r} failed with {type(error).__name__}: {error}. It is called with two Sizes, of a kernel and "
            f"of the same at base, here {size} and {base}."
        ) from error
    for what, value in (("κ", kappa), ("κ at base", at_base)):
        if not is_multiplier(value):
            raise MupError(
                f"The rule {name!r} gives {what} = {value!r} for {size} with base {base}; it must return a positive number."
            )
    if not math.isclose(at_base, 1, rel_tol=1e-9):
        raise MupError(
            f"The rule {name!r} gives κ = {at_base:.6g} for equal sizes, and at base a model must stay as it is: return "
            "g(base) / g(size) for some function g."
        )
    return 1.0 if size == base else float(kappa)


def length_factor(steps: int, base_steps: int) -> float:
    """√(T_base / T), the factor on the learning rate of a run of T steps that was tuned for T_base, schedules alike.

    Optimization that is averaged over T noisy steps wants a learning rate ∝ 1/√T (Nemirovski et al., SIAM Journal on
    Optimization 19, 2009); for language models other powers were fitted (arXiv:2409.19913). The root is what was measured
    here, from 300 to 1,000 steps (docs/evidence/transfer.md).

    Parameters
    ----------
    steps, base_steps : int
        Optimizer steps of this run, and of the one that the learning rate is of.

    Returns
    -------
    float
        1 where the steps are equal.

    Examples
    --------
    >>> from neuralop_mup import rules
    >>> rules.length_factor(4000, 1000)
    0.5
    """
    return math.sqrt(base_steps / steps)


def multipliers(role: str, size: Size, base: Size, rule: str | ModeRule) -> Multipliers:
    """Multipliers of one parameter (the table at the top of this module).

    Parameters
    ----------
    role : {"input", "hidden", "readout", "vector", "spectral"}
        What the parameter is.
    size, base : Size
        Its numbers here and at base.
    rule : str or callable
        See :func:`mode_factor`; ``standard`` is the standard parametrization: every multiplier is 1.

    Returns
    -------
    Multipliers
        All exactly 1 when ``size == base``.

    Raises
    ------
    MupError
        For an unknown rule, or a function that is none; see :func:`mode_factor`.

    Examples
    --------
    >>> from neuralop_mup import rules
    >>> size, base = rules.Size(64, 64, 0.125), rules.Size(16, 16, 0.25)
    >>> rules.multipliers("hidden", size, base, "operator-norm")
    Multipliers(init=1.0, adam_lr=0.25, sgd_lr=1.0, kappa=1.0)
    """
    if check_rule(rule) == "standard":
        return Multipliers(1.0, 1.0, 1.0)
    r_in = size.fan_in / base.fan_in
    r_out = size.fan_out / base.fan_out
    kappa = mode_factor(rule, size, base) if size.modes else 1.0
    wanted = kappa * (1 / r_in if role == "readout" or size.one_sign else r_in**-0.5)
    return Multipliers(
        init=wanted / (size.default_std / base.default_std),
        adam_lr=kappa / r_in,
        # The rule for modes is Adam's; SGD keeps the width rule alone.
        sgd_lr=r_out / r_in,
        kappa=kappa,
    )


def check_multipliers(values: Mapping[str, float] | None, what: str, known: Sequence[str] = ROLES) -> dict[str, float]:
    """Multipliers by role, which a user gives on top of the rule: known roles, positive finite numbers."""
    if not isinstance(values, (Mapping, type(None))):
        raise MupError(f"{what} is {values!r}; give a dict by role, such as {{'readout': 0.5}}.")
    values = dict(values or {})
    for role, value in values.items():
        if role not in known:
            raise MupError(f"{what} has no role {role!r}: {nearest(str(role), known)}")
        if not is_multiplier(value):
            raise MupError(f"{what}[{role!r}] is {value!r}; give a number between 1e-12 and 1e12.")
    return {role: float(value) for role, value in values.items()}
