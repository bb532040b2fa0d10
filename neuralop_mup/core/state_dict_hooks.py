"""A plan that travels with the weights: in what ``state_dict`` says about itself, under no key of its own.

``state_dict()`` returns an OrderedDict whose attribute ``_metadata`` has a dict for each module; torch keeps it through
``torch.save`` and hands it back in ``load_state_dict``. The plan goes there, as JSON. So neuralop's ``save_checkpoint``
and ``Trainer(save_every=…)``, DistributedDataParallel and plain ``torch.save`` keep it without knowing, and weights of
another plan are refused when they are loaded, before one of the model's is copied. Where modes may grow in training, those
that are active go there, too, and are set again when the weights are loaded.

neuralop's own entry ``"_metadata"`` in the dict, the constructor's arguments, is another thing. No one reads it but for a
number of its version, and with it a ``state_dict`` is no longer one of tensors: safetensors cannot write it, ``torch.load``
refuses it, and a module around the model (Lightning's, DistributedDataParallel, torch.compile) cannot load it. So a model
with a plan writes none, nor does one inside another module.
"""

import warnings
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, ClassVar

import torch
from neuralop.models.base_model import BaseModel
from torch import nn

from neuralop_mup.core.plan import Plan
from neuralop_mup.core.weights_status import WeightsStatus, set_status, status_of
from neuralop_mup.errors import MupError
from neuralop_mup.torch_private import mark_public, remove_hooks

ATTRIBUTE = "_neuralop_mup_plan"
KEY = "neuralop_mup_plan"
_MODES_KEY = "neuralop_mup_n_modes"
_BEING_LOADED = "_neuralop_mup_being_loaded"


def _write_tensors_alone() -> None:
    """Have parametrized models of neuralop leave their constructor's arguments out, which nothing could load.

    ``BaseModel.state_dict`` adds them after every hook, so the method itself is wrapped. Other models keep them.
    """
    stock = BaseModel.state_dict

    @wraps(stock)
    def state_dict(self: BaseModel, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        state = stock(self, destination=destination, prefix=prefix, keep_vars=keep_vars)
        if hasattr(self, ATTRIBUTE):
            _drop_arguments(state)
        return state

    BaseModel.state_dict = state_dict


def _drop_arguments(state: Any) -> None:
    """Remove what neuralop's models write beside the tensors: the constructor's arguments."""
    if not isinstance(state.get("_metadata", 0), (torch.Tensor, int)):
        del state["_metadata"]


# What is called when the first model of a process is given a plan; those above this folder whose work begins then add to it.
on_first_plan: list[Callable[[], Any]] = [_write_tensors_alone]


def attach_hooks(model: nn.Module) -> None:
    """Have ``state_dict`` and ``load_state_dict`` of ``model`` carry and compare its plan; twice is once."""
    detach_hooks(model)
    model.register_state_dict_post_hook(_write)
    model.register_load_state_dict_pre_hook(_compare)
    model.register_load_state_dict_post_hook(_after_load)


def detach_hooks(model: nn.Module) -> None:
    """Undo :func:`attach_hooks`."""
    remove_hooks(model, (_write, _compare, _after_load))


def attach_shapes(model: nn.Module) -> None:
    """Give each parameter the ``infshape`` that mup reads, unless it has it or has no weights yet.

    Loading with ``assign=True``, sharding and ``to_empty`` keep the plan, but make parameters that have none.
    """
    plan: Plan = getattr(model, ATTRIBUTE)
    if status_of(model) is WeightsStatus.FRESH:
        return  # mup's optimizers then refuse the model, too
    # An optimizer of a part of fresh weights is compared with the plan. Of other weights a part may be fine-tuned.
    of = 1 if status_of(model) is WeightsStatus.SCALED else sum(not row.frozen for row in plan.rows)
    for name, parameter in model.named_parameters():
        if name in plan and getattr(getattr(parameter, "infshape", None), "of", 0) != of:
            parameter.infshape = plan[name].mup_shape(of)  # type: ignore[attr-defined]


class CopiesShapes:
    """Gives the parameters of a deep copy the ``infshape`` of those of ``model``, which holds this.

    torch copies parameters without their attributes; a pickle keeps them. This is copied and pickled with the model.

    Parameters
    ----------
    model : torch.nn.Module or None
        The bare model; None where something else was copied with this.

    Attributes
    ----------
    made : int
        How often a model of this process was given a plan: whoever asks again sees whether there is another one since.
    """

    made: ClassVar[int] = 0

    def __init__(self, model: nn.Module | None) -> None:
        self._model = (lambda: None) if model is None else weakref.ref(model)
        CopiesShapes.made += 1
        while on_first_plan:
            on_first_plan.pop()()

    def __deepcopy__(self, memo: dict[int, Any]) -> "CopiesShapes":
        # The memo has the new model, and the new parameters, which a module holds before what was put into it later.
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
    """``n_modes`` of each module that sets it, by name; nothing where all have all that they hold."""
    own = {name: m for name, m in model.named_modules() if getattr(getattr(type(m), "n_modes", None), "fset", None)}
    own = {name: m for name, m in own.items() if isinstance(m.n_modes, (list, tuple))}
    # Blocks keep None unless modes may grow, and convolutions what they hold.
    may_grow = any((most := getattr(m, "max_n_modes", None)) is not None and [*most] != [*m.n_modes] for m in own.values())
    declared = any(hasattr(m, "convs") and getattr(m, "max_n_modes", None) is not None for m in own.values())
    return {name: [*map(int, m.n_modes)] for name, m in own.items()} if may_grow or declared else {}


def _restore_modes(model: nn.Module, modes: Mapping[str, Sequence[int]]) -> None:
    """Set the modes that were active when weights were saved: a model first, then what is in it."""
    before = _active_modes(model)
    both = [name for name in before if name in modes]
    for name in both:
        module: Any = model.get_submodule(name)
        given = [*modes[name]]
        if [*module.n_modes] == given:
            continue
        # A convolution of real fields says n // 2 + 1 of the last axis, and is told n.
        if hasattr(module, "weight") and not getattr(module, "complex_data", False):
            given[-1] = 2 * (given[-1] - 1)
        module.n_modes = tuple(given)
    if lower := [name for name in both if any(n > m for n, m in zip(before[name], modes[name], strict=False))]:
        warnings.warn(
            f"These weights were saved with n_modes {tuple(modes[lower[0]])}, which the model has now instead of "
            f"{tuple(before[lower[0]])}: to train more modes set n_modes after loading.",
            UserWarning,
            stacklevel=2,
        )


def _compare(module: nn.Module, state: Any, prefix: str, local_metadata: Mapping, *_: Any) -> None:
    plan: Plan = getattr(module, ATTRIBUTE)
    _drop_arguments(state)  # a class that holds one of neuralop's models would refuse them
    for wrapper in ("_orig_mod.", "module."):
        if state and not hasattr(module, wrapper[:-1]) and all(key.startswith(prefix + wrapper) for key in state):
            raise MupError(
                f"The names of these weights begin with {wrapper!r}: they were saved from a compiled or wrapped model, and "
                f"this {type(module).__name__} is the bare one. Take the wrapper's name off with torch.nn.modules.utils."
                f"consume_prefix_in_state_dict_if_present(state, {wrapper!r}), or save nm.unwrap(model).state_dict()."
            )
    status = status_of(module)
    if status is WeightsStatus.FRESH and any(prefix + row.name not in state for row in plan.rows):
        raise MupError(
            "These weights are not all that the model has, and its own are still to be drawn, which would draw all: call "
            "neuralop_mup.initialize(model) first, then load what there is with strict=False."
        )
    text = local_metadata.get(KEY)
    theirs = None
    if text is not None:
        theirs = plan if text == plan.text else Plan.from_json(text)
        # What only one of them has, such as a head that is to be learned anew, is for torch's strict to allow.
        both = {row.name for row in theirs.rows if prefix + row.name in state} & {row.name for row in plan.rows}
        check_same_plan(_of(plan, both), _of(theirs, both), "These weights belong")
    elif "version" in local_metadata and plan.init_applied:
        # Without metadata (a copied dict, torch.distributed.checkpoint) nothing is known; with it, this is.
        raise MupError(
            "These weights carry no plan: they were saved from a model that was not parametrized, so they are not scaled as "
            f"this {type(module).__name__} says. To train on from them, parametrize a model with init=False and load them "
            "there."
        )
    # Weights that the plan would not have scaled are alike under every plan.
    elif (
        plan.init_applied
        and status is WeightsStatus.SCALED
        and any(row.init_mult != 1 and prefix + row.name in state for row in plan.rows)
    ):
        warnings.warn(
            "These weights say nothing of a plan: copied into a plain dict, they lost what state_dict() knows of itself. If "
            f"they are of a model as neuralop builds it, they are not scaled as this {type(module).__name__} says: "
            "parametrize a model with init=False and load them there. If they are of a model with this plan, all is well; "
            "neuralop_mup.load_plan(model, file) says so beforehand. copy.deepcopy(state) keeps the plan, and so does "
            "torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(state, 'module.'). (Said once for each model.)",
            UserWarning,
            stacklevel=2,
        )
    setattr(module, _BEING_LOADED, (theirs, local_metadata.get(_MODES_KEY, {})))


def _of(plan: Plan, names: Collection[str]) -> Plan:
    return replace(plan, rows=tuple(row for row in plan.rows if row.name in names))


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
    """Refuse a plan that scales a parameter differently.

    Raises
    ------
    MupError
        With what differs, the model's own plan first. ``what`` is subject and verb: "These weights belong".
    """
    if lines := ours.differences(theirs):
        raise MupError(
            f"{what} to another plan than the model's (the model's → the saved one's: {listed(lines)}): parametrize the "
            "model with the base and the rule that they were saved with, or build a new model and take their plan with "
            "neuralop_mup.load_plan."
        )


def listed(lines: Sequence[str]) -> str:
    """The first four of some lines, and how many more there are."""
    return "; ".join([*lines[:4], *([f"… {len(lines) - 4} more"] if len(lines) > 4 else [])])
