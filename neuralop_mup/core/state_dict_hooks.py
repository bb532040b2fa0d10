"""Store the plan with the weights in the metadata of ``state_dict``.

``state_dict()`` returns an OrderedDict with an attribute ``_metadata``, which contains a dict for each module.
``torch.save`` keeps this attribute and ``load_state_dict`` receives it. The plan is stored there as JSON, so it is kept by
neuralop's ``save_checkpoint`` and ``Trainer(save_every=…)``, by DistributedDataParallel and by ``torch.save``. Loading
weights with a different plan raises an error before any weight is copied. If modes may grow during training, the active
modes are also stored and restored.

neuralop adds an entry ``"_metadata"`` with the constructor arguments to the dict itself, but only reads a version number
from it. Because this entry is not a tensor, safetensors cannot write the ``state_dict``, ``torch.load`` rejects it, and a
module that contains the model (Lightning, DistributedDataParallel, torch.compile) cannot load it. Parametrized models
therefore omit the entry, also inside other modules.
"""

import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, ClassVar

import torch
from neuralop.models.base_model import BaseModel
from torch import nn

from neuralop_mup.core.plan import Plan
from neuralop_mup.core.weights_status import WeightsStatus, set_status, status_of
from neuralop_mup.errors import MupError, listed
from neuralop_mup.torch_private import mark_public, remove_hooks

ATTRIBUTE = "_neuralop_mup_plan"
KEY = "neuralop_mup_plan"
_MODES_KEY = "neuralop_mup_n_modes"
_BEING_LOADED = "_neuralop_mup_being_loaded"


def _omit_constructor_arguments() -> None:
    """Wrap ``BaseModel.state_dict``, which adds constructor arguments after all hooks, to omit them if there is a plan."""
    stock = BaseModel.state_dict

    @wraps(stock)
    def state_dict(self: BaseModel, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        state = stock(self, destination=destination, prefix=prefix, keep_vars=keep_vars)
        if hasattr(self, ATTRIBUTE):
            _drop_arguments(state)
        return state

    BaseModel.state_dict = state_dict


def _drop_arguments(state: Any) -> None:
    """Remove the constructor arguments that neuralop's models add to a state dict."""
    if not isinstance(state.get("_metadata", 0), (torch.Tensor, int)):
        del state["_metadata"]


# Functions to call when the first model of a process receives a plan. Modules outside this package add their own.
on_first_plan: list[Callable[[], Any]] = [_omit_constructor_arguments]


def attach_hooks(model: nn.Module) -> None:
    """Register the hooks that store and compare the plan. It is safe to call this function again."""
    detach_hooks(model)
    model.register_state_dict_post_hook(_write)
    model.register_load_state_dict_pre_hook(_compare)
    model.register_load_state_dict_post_hook(_after_load)


def detach_hooks(model: nn.Module) -> None:
    """Remove the hooks of :func:`attach_hooks`."""
    remove_hooks(model, (_write, _compare, _after_load))


def attach_shapes(model: nn.Module) -> None:
    """Set mup's ``infshape`` of each parameter, unless the weights have not been initialised yet.

    Loading with ``assign=True``, sharding and ``to_empty`` keep the plan but create parameters without ``infshape``.
    """
    plan: Plan = getattr(model, ATTRIBUTE)
    if status_of(model) is WeightsStatus.FRESH:
        return  # mup's optimizers then also reject the model
    # If weights are untrained, an optimizer for some of the parameters is also compared with the plan. Otherwise, it may be
    # fine-tuning them.
    of = 1 if status_of(model) is WeightsStatus.SCALED else sum(not row.frozen for row in plan.rows)
    for name, parameter in model.named_parameters():
        if name in plan and getattr(getattr(parameter, "infshape", None), "of", 0) != of:
            parameter.infshape = plan[name].mup_shape(of)  # type: ignore[attr-defined]


class CopiesShapes:
    """Attribute of a model that sets the ``infshape`` of parameters in deep copies of the model.

    In torch, deep copies of parameters omit their attributes, but pickles keep them.

    Parameters
    ----------
    model : torch.nn.Module or None
        The unwrapped model, or None if only this object was copied.

    Attributes
    ----------
    made : int
        Number of plans that were attached in this process, used to detect new plans.
    """

    made: ClassVar[int] = 0

    def __init__(self, model: nn.Module | None) -> None:
        self._model = (lambda: None) if model is None else weakref.ref(model)
        CopiesShapes.made += 1
        while on_first_plan:
            on_first_plan.pop()()

    def __deepcopy__(self, memo: dict[int, Any]) -> "CopiesShapes":
        # The memo contains the new model and its parameters, because modules store parameters first.
        model = self._model()
        for parameter in () if model is None else model.parameters():
            if id(parameter) in memo and hasattr(parameter, "infshape"):
                memo[id(parameter)].infshape = parameter.infshape
        return CopiesShapes(memo.get(id(model)))

    def __reduce__(self) -> tuple:
        return CopiesShapes, (self._model(),)


@mark_public
def _write(module: nn.Module, state: Any, prefix: str, local_metadata: dict) -> None:
    plan: Plan = getattr(module, ATTRIBUTE)
    _drop_arguments(state)  # added by nested models
    if status_of(module) is not WeightsStatus.FRESH:
        local_metadata[KEY] = plan.text
        if modes := _active_modes(module):
            local_metadata[_MODES_KEY] = modes


def _active_modes(model: nn.Module) -> dict[str, list[int]]:
    """Return ``n_modes`` of each module with a setter, or an empty dict if all modes are active and cannot grow."""
    own = {name: m for name, m in model.named_modules() if getattr(getattr(type(m), "n_modes", None), "fset", None)}
    own = {name: m for name, m in own.items() if isinstance(m.n_modes, (list, tuple))}
    limited = [m for m in own.values() if getattr(m, "max_n_modes", None) is not None]
    # For blocks, max_n_modes is None unless modes may grow. For convolutions, it is the number of stored modes.
    may_grow = any(hasattr(m, "convs") or [*m.max_n_modes] != [*m.n_modes] for m in limited)
    return {name: [*map(int, m.n_modes)] for name, m in own.items()} if may_grow else {}


def _restore_modes(model: nn.Module, modes: Mapping[str, Sequence[int]]) -> None:
    """Set the modes that were active when the weights were saved, in parents before their children."""
    before = _active_modes(model)
    both = [name for name in before if name in modes]
    for name in both:
        module: Any = model.get_submodule(name)
        saved = [*modes[name]]
        if [*module.n_modes] == saved:
            continue
        # For convolutions of real fields, n_modes returns n // 2 + 1 on the last axis, but its setter expects n.
        if hasattr(module, "weight") and not getattr(module, "complex_data", False):
            saved[-1] = 2 * (saved[-1] - 1)
        module.n_modes = tuple(saved)
    if lower := [name for name in both if any(n > m for n, m in zip(before[name], modes[name], strict=False))]:
        warnings.warn(
            f"Loading these weights reduced the model's n_modes from {tuple(before[lower[0]])} to the saved value "
            f"{tuple(modes[lower[0]])}. To train more modes, set n_modes after loading.",
            UserWarning,
            stacklevel=2,
        )


def _compare(module: nn.Module, state: Any, prefix: str, local_metadata: Mapping, *_: Any) -> None:
    plan: Plan = getattr(module, ATTRIBUTE)
    _drop_arguments(state)  # a class that contains a neuralop model cannot load them
    for wrapper in ("_orig_mod.", "module."):
        if state and not hasattr(module, wrapper[:-1]) and all(key.startswith(prefix + wrapper) for key in state):
            raise MupError(
                f"The names of these weights start with {wrapper!r}, because they were saved from a compiled or wrapped "
                f"model, but this {type(module).__name__} is not wrapped. Save nm.unwrap(model).state_dict(), or call "
                f"torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(state, {wrapper!r})."
            )
    status = status_of(module)
    if status is WeightsStatus.FRESH and any(prefix + row.name not in state for row in plan.rows):
        raise MupError(
            "These weights only contain some of the model's parameters, and initializing the others later would overwrite "
            "the loaded values. Call neuralop_mup.initialize(model) first, then load_state_dict(state, strict=False)."
        )
    theirs = None
    if KEY in local_metadata:
        text = local_metadata[KEY]
        theirs = plan if text == plan.text else Plan.from_json(text)
        # torch's argument strict determines whether other parameters, such as a new head, are allowed.
        both = {row.name for row in theirs.rows if prefix + row.name in state and row.name in plan}
        ours, saved = (replace(p, rows=tuple(row for row in p.rows if row.name in both)) for p in (plan, theirs))
        check_same_plan(ours, saved, "These weights belong")
    elif "version" in local_metadata and plan.init_applied:
        # Unlike these weights, copied dicts and torch.distributed.checkpoint have no metadata at all.
        raise MupError(
            "These weights have no plan because they were saved from a model that was not parametrized. Their scale does "
            f"not match the plan of this {type(module).__name__}. Parametrize a new model with init=False and load the "
            "weights into it."
        )
    # If no loaded parameter is rescaled, the weights are the same under every plan.
    elif (
        plan.init_applied
        and status is WeightsStatus.SCALED
        and any(row.init_mult != 1 and prefix + row.name in state for row in plan.rows)
    ):
        warnings.warn(
            "These weights have no metadata, so their plan is unknown. Plain dicts lose the metadata, but "
            "copy.deepcopy(state) keeps it. If the saved model was not parametrized, the scale of the weights does not "
            f"match this {type(module).__name__}. In this case, parametrize a new model with init=False and load the "
            "weights into it. If the saved model had this plan, ignore this warning, or call "
            "neuralop_mup.load_plan(model, file) before loading.",
            UserWarning,
            stacklevel=2,
        )
    setattr(module, _BEING_LOADED, (theirs, local_metadata.get(_MODES_KEY, {})))


def _after_load(module: nn.Module, incompatible: Any) -> None:
    theirs, modes = vars(module).pop(_BEING_LOADED, (None, {}))
    _restore_modes(module, modes)
    plan: Plan = getattr(module, ATTRIBUTE)
    if theirs is not None and theirs.init_applied:
        setattr(module, ATTRIBUTE, replace(plan, init_applied=True))
    if status_of(module) is not WeightsStatus.TRAINED and not any(p.is_meta for p in module.parameters()):
        is_whole = status_of(module) is not WeightsStatus.FRESH or not incompatible.missing_keys
        set_status(module, WeightsStatus.LOADED if is_whole else WeightsStatus.FRESH)
    attach_shapes(module)


def check_same_plan(ours: Plan, theirs: Plan, what: str) -> None:
    """Raise MupError with the differences if two plans scale a parameter differently.

    ``what`` is the subject and verb of the message, e.g. "These weights belong".
    """
    if lines := ours.differences(theirs):
        raise MupError(
            f"{what} to a plan that differs from the model's plan (model → saved: {listed(lines)}). Parametrize the model "
            "with the saved base and rule, or load the saved plan into a new model with neuralop_mup.load_plan(model, "
            "file)."
        )
