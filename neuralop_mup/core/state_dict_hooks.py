"""Store the plan with the weights, in the metadata of ``state_dict``.

``state_dict()`` returns an OrderedDict with an attribute ``_metadata``, a dict for each module. ``torch.save`` keeps it and
``load_state_dict`` receives it. The plan is stored there as JSON. So neuralop's ``save_checkpoint`` and
``Trainer(save_every=…)``, DistributedDataParallel and ``torch.save`` keep it. Loading weights of another plan raises an
error before any weight is copied. Active modes are also stored and restored if modes may grow in training.

neuralop adds an entry ``"_metadata"`` to the dict itself: the constructor arguments. neuralop reads only a version number
from it. Because it is no tensor, safetensors cannot write the ``state_dict``, ``torch.load`` refuses it, and a module around
the model (Lightning, DistributedDataParallel, torch.compile) cannot load it. So parametrized models omit it, also inside
other modules.
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
    """Wrap ``BaseModel.state_dict``, which adds constructor arguments after all hooks. Other models keep them."""
    stock = BaseModel.state_dict

    @wraps(stock)
    def state_dict(self: BaseModel, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        state = stock(self, destination=destination, prefix=prefix, keep_vars=keep_vars)
        if hasattr(self, ATTRIBUTE):
            _drop_arguments(state)
        return state

    BaseModel.state_dict = state_dict


def _drop_arguments(state: Any) -> None:
    """Remove the constructor arguments that neuralop's models add to the tensors."""
    if not isinstance(state.get("_metadata", 0), (torch.Tensor, int)):
        del state["_metadata"]


# Functions to call when the first model of a process receives a plan. Modules outside this folder add theirs.
on_first_plan: list[Callable[[], Any]] = [_omit_constructor_arguments]


def attach_hooks(model: nn.Module) -> None:
    """Register the hooks that store and compare the plan. A second call has no effect."""
    detach_hooks(model)
    model.register_state_dict_post_hook(_write)
    model.register_load_state_dict_pre_hook(_compare)
    model.register_load_state_dict_post_hook(_after_load)


def detach_hooks(model: nn.Module) -> None:
    """Undo :func:`attach_hooks`."""
    remove_hooks(model, (_write, _compare, _after_load))


def attach_shapes(model: nn.Module) -> None:
    """Set mup's ``infshape`` of each parameter, unless the weights are not drawn yet.

    Loading with ``assign=True``, sharding and ``to_empty`` keep the plan, but create parameters without ``infshape``.
    """
    plan: Plan = getattr(model, ATTRIBUTE)
    if status_of(model) is WeightsStatus.FRESH:
        return  # mup's optimizers then also refuse the model
    # With fresh weights, the optimizer of a part is compared with the plan. With others, a part may be fine-tuned.
    of = 1 if status_of(model) is WeightsStatus.SCALED else sum(not row.frozen for row in plan.rows)
    for name, parameter in model.named_parameters():
        if name in plan and getattr(getattr(parameter, "infshape", None), "of", 0) != of:
            parameter.infshape = plan[name].mup_shape(of)  # type: ignore[attr-defined]


class CopiesShapes:
    """Attribute of a model that sets ``infshape`` of the parameters of its deep copies.

    torch's deep copies omit attributes of parameters. Pickles keep them.

    Parameters
    ----------
    model : torch.nn.Module or None
        The bare model, or None if only this object was copied.

    Attributes
    ----------
    made : int
        Number of plans attached in this process, to notice new ones.
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
    _drop_arguments(state)  # of models inside
    if status_of(module) is not WeightsStatus.FRESH:
        local_metadata[KEY] = plan.text
        if modes := _active_modes(module):
            local_metadata[_MODES_KEY] = modes


def _active_modes(model: nn.Module) -> dict[str, list[int]]:
    """Return ``n_modes`` of each module that can set it, by name; empty if all modes are active and none may grow."""
    own = {name: m for name, m in model.named_modules() if getattr(getattr(type(m), "n_modes", None), "fset", None)}
    own = {name: m for name, m in own.items() if isinstance(m.n_modes, (list, tuple))}
    limited = [m for m in own.values() if getattr(m, "max_n_modes", None) is not None]
    # max_n_modes of blocks is None unless modes may grow. That of convolutions is the number of stored modes.
    may_grow = any(hasattr(m, "convs") or [*m.max_n_modes] != [*m.n_modes] for m in limited)
    return {name: [*map(int, m.n_modes)] for name, m in own.items()} if may_grow else {}


def _restore_modes(model: nn.Module, modes: Mapping[str, Sequence[int]]) -> None:
    """Set the modes that were active in the saved weights, of a model before those of its children."""
    before = _active_modes(model)
    both = [name for name in before if name in modes]
    for name in both:
        module: Any = model.get_submodule(name)
        saved = [*modes[name]]
        if [*module.n_modes] == saved:
            continue
        # The n_modes of a convolution of real fields returns n // 2 + 1 on the last axis, but its setter expects n.
        if hasattr(module, "weight") and not getattr(module, "complex_data", False):
            saved[-1] = 2 * (saved[-1] - 1)
        module.n_modes = tuple(saved)
    if lower := [name for name in both if any(n > m for n, m in zip(before[name], modes[name], strict=False))]:
        warnings.warn(
            f"These weights were saved with n_modes {tuple(modes[lower[0]])}, so loading lowered the model's n_modes from "
            f"{tuple(before[lower[0]])}. To train more modes, set n_modes after loading.",
            UserWarning,
            stacklevel=2,
        )


def _compare(module: nn.Module, state: Any, prefix: str, local_metadata: Mapping, *_: Any) -> None:
    plan: Plan = getattr(module, ATTRIBUTE)
    _drop_arguments(state)  # a class with a model of neuralop inside cannot load them
    for wrapper in ("_orig_mod.", "module."):
        if state and not hasattr(module, wrapper[:-1]) and all(key.startswith(prefix + wrapper) for key in state):
            raise MupError(
                f"The names of these weights begin with {wrapper!r}, because a compiled or wrapped model saved them. This "
                f"{type(module).__name__} is not wrapped. Save nm.unwrap(model).state_dict(), or call "
                f"torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(state, {wrapper!r})."
            )
    status = status_of(module)
    if status is WeightsStatus.FRESH and any(prefix + row.name not in state for row in plan.rows):
        raise MupError(
            "These weights cover only a part of the model, and initializing the rest later would replace them. Call "
            "neuralop_mup.initialize(model) first, then load_state_dict(state, strict=False)."
        )
    theirs = None
    if KEY in local_metadata:
        text = local_metadata[KEY]
        theirs = plan if text == plan.text else Plan.from_json(text)
        # torch's strict decides about other parameters, such as a new head.
        both = {row.name for row in theirs.rows if prefix + row.name in state and row.name in plan}
        ours, saved = (replace(p, rows=tuple(row for row in p.rows if row.name in both)) for p in (plan, theirs))
        check_same_plan(ours, saved, "These weights belong")
    elif "version" in local_metadata and plan.init_applied:
        # Copied dicts and torch.distributed.checkpoint have no metadata.
        raise MupError(
            "These weights have no plan: the model that saved them was not parametrized. So their scale does not fit the "
            f"plan of this {type(module).__name__}. Parametrize a model with init=False and load them there."
        )
    # Other weights are equal under every plan.
    elif (
        plan.init_applied
        and status is WeightsStatus.SCALED
        and any(row.init_mult != 1 and prefix + row.name in state for row in plan.rows)
    ):
        warnings.warn(
            "These weights have no metadata, so their plan is unknown. Plain dicts lose it; copy.deepcopy(state) keeps it. "
            "If the model of the weights was not parametrized, their scale does not fit this "
            f"{type(module).__name__}: parametrize a model with init=False and load them there. If it had this plan, ignore "
            "this warning, or call neuralop_mup.load_plan(model, file) before loading.",
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

    ``what`` is subject and verb of the message: "These weights belong".
    """
    if lines := ours.differences(theirs):
        raise MupError(
            f"{what} to another plan than the model's (model → saved: {listed(lines)}). Parametrize the model with the "
            "saved base and rule, or load the saved plan into a new model with neuralop_mup.load_plan(model, file)."
        )
