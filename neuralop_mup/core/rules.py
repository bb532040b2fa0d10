r"""Compute multipliers from a parameter's role and its sizes in this model and in the base model.

All ratios are relative to the base model: ``r_in = fan_in / base fan_in`` and ``r_out = fan_out / base fan_out``. A fixed
dimension has r = 1, and the fan-in of a vector is 1. The width rule is the same for every role:

====================  =========================================  ==================================
quantity              rule                                       why
====================  =========================================  ==================================
init std              ∝ r_in^(-1/2); readout: r_in^(-1)          sums of r_in independent terms;
                                                                 the output starts small
init std, one sign    ∝ r_in^(-1)                                terms with a common mean add up
                                                                 coherently
lr, Adam-like         × 1 / r_in                                 an update's r_in entries add up
                                                                 coherently
lr, SGD               × r_out / r_in                             gradients also shrink as 1/r_out
====================  =========================================  ==================================

For Fourier kernels, the init std and the Adam learning rate have an additional factor κ (:func:`mode_factor`). Their fan-in
only includes channels: it is ``in_channels`` for a dense kernel and 1 for a separable kernel.

The init *multiplier* is the ratio of the rule's change in std to the change in the default std (:func:`default_std`).

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

Each factor of a Tucker, CP or tensor-train kernel is a spectral parameter. Its fan-in is the product of the sizes that it
sums over. Hence ∏ fan_in = in · ∏ ranks, and factors with variance 1/fan_in give a kernel with variance 1/in. κ is only
applied to the factor with the output channels (docs/explain/inferences.md).

The rows for kernels assume that in and out grow by the same ratio. If the output channels are fixed, the init std of a dense
kernel is ∝ κ r_in^(-1). If only one side grows, κ is computed for a square kernel.

There is no depth rule for Adam, because none that we tested transferred (docs/evidence/learning_rate.md).

Sources: Yang & Hu et al., "Tensor Programs V", arXiv:2203.03466, Table 3 (widths, without multipliers in the forward pass);
Li, Yoo, Yang, "Maximal Update Parametrization and Zero-Shot Hyperparameter Transfer for Fourier Neural Operators", ICML
2025, arXiv:2506.19396, Theorem 3.5 (modes).

Examples
--------
>>> from neuralop_mup import rules
>>> size, base = rules.Size(fan_in=64, fan_out=64), rules.Size(fan_in=16, fan_out=16)
>>> rules.multipliers("hidden", size, base, "operator-norm").adam_lr
0.25

Add a rule, which can then be used by name, also on the command line:

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
from neuralop_mup.errors import MupError, error_text, nearest
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
# "spectral" multiplies each factor of a factorized kernel; "kernel" multiplies the reconstructed kernel.
OF_INIT = (*ROLES, "kernel")
# The blocks of neuralop's kernels have operator norm 2, whereas skip connections have norm about 1. With a factor of 0.1, a
# layer is initially close to its skip connection (benchmarks/suite.py init at commit b7062af, docs/evidence/optimizers.md).
SMALL_KERNELS = {"kernel": 0.1}


@dataclass(frozen=True)
class Size:
    """Sizes of one parameter that the rules use.

    Attributes
    ----------
    fan_in, fan_out : int
        Number of terms in the sum for each output entry, and number of output entries. For a vector, ``fan_in`` is 1.
    default_std : float, default 1.0
        Standard deviation of neuralop's own initialisation (:func:`default_std`).
    modes : tuple of int, default ()
        Fourier modes per sign on each axis, ``n_modes_i // 2``. Empty for parameters without κ.
    blocks : int, default 1
        Number of independent channel blocks, one per stored mode.
    block : (int, int), default (1, 1)
        Shape (in, out) of one block, which is (1, 1) for a separable kernel.
    one_sign : bool, default False
        Whether all entries are drawn with the same sign, so that their mean determines the norm.

    Examples
    --------
    A kernel with 16 channels, 12 modes of each sign on its axis, and 13 blocks:

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
    """Factors on one parameter's default initialisation and learning rates, which are all 1 for the base model.

    Attributes
    ----------
    init : float
        Factor on the default initialisation.
    adam_lr, sgd_lr : float
        Factors on the learning rates of an Adam-like optimizer and of SGD.
    kappa : float, default 1.0
        Mode factor, included in ``init`` and ``adam_lr``.

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
    """Return the standard deviation (root mean square) of a default initialisation.

    Parameters
    ----------
    kind : {"fan_in", "mean_fan", "fan_out", "positive", "constant"}
        ``fan_in``: torch's linear and convolution layers, U(±1/√fan_in): 1/√(3 fan_in).
        ``mean_fan``: neuralop's SpectralConv: √(2/(fan_in + fan_out)).
        ``fan_out``: a separable SpectralConv: 1/√fan_out.
        ``positive``: kernels of PhysicsNeMo and of FNO codes before 2023, with real and imaginary part from
        U[0, 1/(fan_in·fan_out)), so E|w|² = 2/3 / (fan_in·fan_out)².
        ``constant``: ones and zeros (gates, norms): 1.
    fan_in, fan_out : int
        Fan-in and fan-out of the layer. The fan-in of a convolution includes its stencil.

    Returns
    -------
    float
        Root mean square of the drawn weights.

    Raises
    ------
    MupError
        If ``kind`` is unknown.

    Examples
    --------
    >>> from neuralop_mup import rules
    >>> rules.default_std("mean_fan", 16, 16), rules.default_std("fan_out", 1, 64)
    (0.25, 0.125)
    """
    if kind not in _STDS:
        raise MupError(f"Unknown default init {kind!r}: {nearest(kind, _STDS)}")
    return _STDS[kind](fan_in, fan_out)


_STDS: dict[str, Callable[[int, int], float]] = {
    "fan_in": lambda fan_in, fan_out: (3 * fan_in) ** -0.5,
    "mean_fan": lambda fan_in, fan_out: (2 / (fan_in + fan_out)) ** 0.5,
    "fan_out": lambda fan_in, fan_out: fan_out**-0.5,
    "positive": lambda fan_in, fan_out: (2 / 3) ** 0.5 / (fan_in * fan_out),
    "constant": lambda fan_in, fan_out: 1.0,
}


def factor_std(kernel_std: float, ranks: int, factors: int, rank_power: float) -> float:
    """Return the standard deviation that neuralop (tensorly-torch) uses for each factor of a factorized kernel.

    Parameters
    ----------
    kernel_std : float
        Target standard deviation of the reconstructed kernel.
    ranks : int
        Product of all ranks.
    factors : int
        Number of random factors, including a Tucker core.
    rank_power : float
        1/2 for Tucker and CP, which reproduce ``kernel_std``, or 1 for TT, which gives a standard deviation that is smaller
        by a factor √ranks.

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

    For one channel, the operator norm of a kernel is the largest of N = Θ(K^d) sub-Gaussian numbers, which grows as √(log N)
    = √(d log K). Axes with K = n_modes // 2 ≤ 1 contribute zero.

    Parameters
    ----------
    size, base : Size
        Sizes of the kernel in this model and in the base model.

    Returns
    -------
    float
        Mode factor κ.

    Raises
    ------
    MupError
        If no axis has K ≥ 2, because Σ log K is then zero.

    Examples
    --------
    >>> from neuralop_mup import rules
    >>> rules.log_modes(rules.Size(16, 16, modes=(16,)), rules.Size(16, 16, modes=(2,)))
    0.5
    """
    for what, ks in (("the model", size.modes), ("base", base.modes)):
        if max(ks) <= 1:
            raise MupError(
                f"rule='log-modes' divides by Σ log K, but this sum is zero for {what}, where K = n_modes // 2 = "
                f"{tuple(ks)} on axes {tuple(range(len(ks)))}. Use n_modes ≥ 4 on at least one axis, or use "
                "rule='operator-norm', which is finite for K = 1."
            )
    at_base, here = (sum(math.log(max(k, 1)) for k in modes) for modes in (base.modes, size.modes))
    return math.sqrt(at_base / here)


def operator_norm(size: Size, base: Size) -> float:
    """κ = g_base / g, g = E max‖block‖ / √in: the expected largest block norm of a kernel, per √in.

    A kernel is block-diagonal over modes, so its operator norm is the largest norm of its N independent in×out blocks. The
    width rule accounts for the factor √in. For one channel and N → ∞, κ converges to that of log-modes. For many channels,
    it tends to 1.

    A separable kernel does not mix channels, so its blocks are numbers (in = out = 1). For a factorized kernel, κ is that of
    the dense kernel that it represents. If only one side grows, κ is computed for a square kernel.

    Parameters
    ----------
    size, base : Size
        Sizes of the kernel in this model and in the base model.

    Returns
    -------
    float
        Mode factor κ.

    Examples
    --------
    With more channels, increasing the modes by a factor of 8 changes κ less:

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


def _only_width(size: Size, base: Size) -> float:
    """κ = 1: kernels scale only with width."""
    return 1.0


def _standard(size: Size, base: Size) -> float:
    """no μP: standard parametrization, every multiplier is 1."""
    return 1.0


ModeRule = Callable[[Size, Size], float]

# Functions (size, base) → κ. The summary shows the first line of their docstrings.
RULES: dict[str, ModeRule] = {
    "operator-norm": operator_norm,
    "log-modes": log_modes,
    "none": _only_width,
    "standard": _standard,
}
DEFAULT_RULE = "operator-norm"

# Increase this number if a named rule returns different values.
RULE_VERSION = 2


def check_rule(rule: str | ModeRule) -> str:
    """Validate a rule and return its name.

    Parameters
    ----------
    rule : str or callable
        A key of :data:`RULES`, or ``function(size, base) -> κ``.

    Returns
    -------
    str
        The key, or the name of the function.

    Raises
    ------
    MupError
        If ``rule`` is neither a key nor a function, or if the function has the name of another rule.

    Examples
    --------
    >>> from neuralop_mup import rules
    >>> rules.check_rule("log-modes"), rules.check_rule(rules.operator_norm)
    ('log-modes', 'operator-norm')
    """
    if callable(rule):
        name = getattr(rule, "__name__", type(rule).__name__)
        if RULES.get(name, rule) is not rule:
            raise MupError(f"A different rule already has the name {name!r} of this function. Rename the function.")
        return next((known for known, function in RULES.items() if function is rule), name)
    if rule not in RULES:
        raise MupError(
            f"Unknown rule {rule!r}: {nearest(str(rule), RULES)} Alternatively, pass a function that accepts the Sizes of "
            "the kernel and of the base kernel and returns κ."
        )
    return rule


def reason_of(rule: str | ModeRule) -> str:
    """Return the first line of the docstring of a rule's function, or an empty string if it has none.

    Parameters
    ----------
    rule : str or callable
        A key of :data:`RULES`, or ``function(size, base) -> κ``.

    Returns
    -------
    str
        The line without its final full stop.

    Raises
    ------
    MupError
        If the name is unknown.

    Examples
    --------
    >>> from neuralop_mup import rules
    >>> rules.reason_of("none")
    'κ = 1: kernels scale only with width'
    """
    function = rule if callable(rule) else RULES[check_rule(rule)]
    return (function.__doc__ or "").strip().partition("\n")[0].rstrip(".")


def mode_factor(rule: str | ModeRule, size: Size, base: Size) -> float:
    """Return κ, the factor on a kernel's init std and Adam learning rate that accounts for its number of modes.

    Parameters
    ----------
    rule : str or callable
        A key of :data:`RULES`, or ``function(size, base) -> κ``.
    size, base : Size
        Sizes of the kernel in this model and in the base model.

    Returns
    -------
    float
        Mode factor κ.

    Raises
    ------
    MupError
        If the rule fails, does not return a positive number, or does not return 1 for the base model.

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
    except Exception as error:  # a user-defined function may raise any exception
        raise MupError(
            f"The rule {name!r} failed with {error_text(error)}. It must accept the Sizes of the kernel and of "
            f"the base kernel. Here these are {size} and {base}."
        ) from error
    for what, value in (("κ", kappa), ("κ at base", at_base)):
        if not is_multiplier(value):
            raise MupError(
                f"The rule {name!r} must return a positive number, but it returned {what} = {value!r} for {size} with base "
                f"{base}."
            )
    if not math.isclose(at_base, 1, rel_tol=1e-9):
        raise MupError(
            f"The rule {name!r} must return κ = 1 if both sizes are equal, but it returned {at_base:.6g}. Return g(base) / "
            "g(size) for some function g."
        )
    return 1.0 if size == base else float(kappa)


def length_factor(steps: int, base_steps: int) -> float:
    """Return √(T_base / T), the factor on a learning rate that was tuned with T_base steps for a run of T steps.

    Averaging over T noisy steps requires a learning rate ∝ 1/√T (Nemirovski et al., SIAM Journal on Optimization 19, 2009).
    We confirmed the square root for 300 to 1,000 steps, with schedules stretched to the length of the run
    (docs/evidence/learning_rate.md). For language models, other exponents were fitted (arXiv:2409.19913).

    Parameters
    ----------
    steps, base_steps : int
        Numbers of optimizer steps of this run and of the tuning run.

    Returns
    -------
    float
        Factor on the learning rate.

    Examples
    --------
    >>> from neuralop_mup import rules
    >>> rules.length_factor(4000, 1000)
    0.5
    """
    return math.sqrt(base_steps / steps)


def multipliers(role: str, size: Size, base: Size, rule: str | ModeRule) -> Multipliers:
    """Return the multipliers of one parameter, according to the table at the top of this module.

    Parameters
    ----------
    role : {"input", "hidden", "readout", "vector", "spectral"}
        Role of the parameter.
    size, base : Size
        Sizes of the parameter in this model and in the base model.
    rule : str or callable
        A key of :data:`RULES`, or ``function(size, base) -> κ``.

    Returns
    -------
    Multipliers
        Multipliers, which are all exactly 1 if ``size == base``.

    Raises
    ------
    MupError
        If the rule is unknown or fails.

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
    std = kappa * (1 / r_in if role == "readout" or size.one_sign else r_in**-0.5)
    return Multipliers(
        init=std / (size.default_std / base.default_std),
        adam_lr=kappa / r_in,
        # The mode rule is derived for Adam, so SGD only uses the width rule.
        sgd_lr=r_out / r_in,
        kappa=kappa,
    )


def check_multipliers(values: Mapping[str, float] | None, what: str, known: Sequence[str] = ROLES) -> dict[str, float]:
    """Validate the user's multipliers by role and return them as a dict of floats."""
    if not isinstance(values, (Mapping, type(None))):
        raise MupError(f"{what} must be a dict that maps roles to numbers, such as {{'readout': 0.5}}, got {values!r}.")
    values = dict(values or {})
    for role, value in values.items():
        if role not in known:
            raise MupError(f"{what} has no role {role!r}: {nearest(str(role), known)}")
        if not is_multiplier(value):
            raise MupError(f"{what}[{role!r}] must be a number between 1e-12 and 1e12, got {value!r}.")
    return {role: float(value) for role, value in values.items()}
