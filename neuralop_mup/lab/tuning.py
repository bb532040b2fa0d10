"""``tune``: a model and data in; the learning rate, the trained target and a report out. Of the command, too."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from neuralop_mup.core.rules import DEFAULT_RULE
from neuralop_mup.errors import MupError, nearest
from neuralop_mup.lab import report
from neuralop_mup.lab.engines import cuda_devices
from neuralop_mup.lab.plan import SEARCH, SETTINGS, Plan, make_plan
from neuralop_mup.lab.results import Results
from neuralop_mup.lab.tuned import Tuned, lines_of_use, load_target, name_of, write_target


def train_plan(plan: Plan, command: str, **how: Any) -> tuple[Results, dict[str, Any] | None]:
    """Train what is missing of a plan, as :meth:`Plan.train` takes it, and write the report.

    Returns
    -------
    results : Results
    target : dict or None
        What says which run is the target; None where none completed.
    """
    results = plan.train(**how)
    target = write_target(results, plan.training, plan.x_shape)
    use = "" if target is None else "\n".join(lines_of_use(plan.folder, target))
    report.write_report(results, command=command, title=plan.title, settings=plan.settings, use=use)
    return results, target


def tune(
    build: Callable[..., nn.Module],
    data: Any,
    *,
    target: Mapping[str, Any],
    folder: str | Path,
    base: Mapping[str, Any] | None = None,
    read: Mapping[str, Any] | None = None,
    loss: Any = "l2",
    score: Any = None,
    space: Mapping[str, Any] | None = None,
    rule: str = DEFAULT_RULE,
    compare: Sequence[str] = (),
    optimizer: Any = "soap",
    epochs: int = 50,
    batch_size: int = 20,
    seeds: Iterable[int] = (0,),
    proxy_steps: int | None = None,
    processor: Any = None,
    device: str = "auto",
    n_workers: int | None = None,
    progress: bool = True,
    **more: Any,
) -> Tuned:
    """Check the learning rate of a model on data at a cheap proxy, and train the large size with it.

    The proxy is narrower than the target; what was chosen is printed, with its reason.

    Parameters
    ----------
    build : callable
        ``build(**size)`` returns a fresh model as neuralop (or you) would initialise it. At module level, so that worker
        processes can import it.
    data : path, list, tuple, dict or callable
        A file, a folder, a pattern such as ``"runs/*.h5"``, or a list of them, joined (see
        :class:`~neuralop_mup.lab.problems.OwnData`); arrays ``(x, y)``, which are read, split and cast to float32 as a file
        is; ``(train, val)`` or ``(train, val, test)``, or a dict with these names, of files, loaders, data sets or
        ``(x, y)`` arrays of shape ``(n, channels, *grid)``; a problem of :mod:`neuralop_mup.lab.problems`; or a function
        that returns one of these, called in each process. Arrays are tensors or numpy's, those of splits cast to the model's
        precision.
        Batches are dicts with "x" and "y", or pairs.
    target : mapping
        Arguments of ``build`` for the large size, the one that is wanted.
    folder : str or Path
        Keeps every run by its content, the target's weights and normalisation, and the report; the same call resumes there,
        and :func:`load_tuned` reads the target. Another call in the same folder shares the runs that are the same.
    base : mapping, optional
        Arguments of ``build`` for the proxy; without them the target's with a quarter of its width (16 at least) and, where
        ``target`` says ``n_modes``, as many of them as hold 99.9 % of the targets' energy.
    read : mapping, optional
        How files or a pair of arrays are read: ``x`` and ``y`` (keys), ``channels``, ``time_step``, ``split``, ``shuffle``,
        ``crop``, ``in_memory``, as in :class:`~neuralop_mup.lab.problems.OwnData`. What was read and how is told and stands
        in the report.
    loss : str, callable or dict, default "l2"
        ``"l2"``, ``"h1"`` or ``"l2,h1"`` (relative errors); ``loss(y_pred, y, **batch)``, summed over the batch, as
        neuralop's Trainer takes it; or a dict of names to such functions or to (weight, function). The first one chooses,
        unless there is a score. A mean over the batch is refused.
    score : str or callable, optional
        What chooses instead of the validation error, the lower the better, 0 at least. ``"rollout:50"``: the relative
        error of fifty steps, each from the prediction before, on trajectories (``read={"time_step": 1}``), the geometric
        mean over the steps. ``score(model, data)``: ``model(x)`` predicts in the units of the data, and ``data`` is iterated
        in batches of them; ``data.states(i)`` is state ``i`` of each trajectory.
        Infinity, or NaN, is a model that loses.
    space : mapping, optional
        What is searched: ``lr``, and for example ``lr_mult.spectral``. Without it these are five learning rates in factors
        of 2 around what the law gives for the proxy's steps (:class:`neuralop_mup.MuSOAP`), or 1e-3 to 6.4e-2 under an
        optimizer that has no law; up to two more beyond an edge where the best lies, and between them a parabola.
    rule : str, default "operator-norm"
        The μP rule; see :func:`neuralop_mup.parametrize`.
    compare : sequence of str, default ()
        Rules under which the target is trained besides; ``()`` for none.
    optimizer : str, class or callable, default "soap"
        "soap", "adam", "adamw", "neuralop-adamw" or "sgd"; the names of the classes, such as "MuSOAP", and the
        classes themselves mean the same. Or your own: a function ``(model, lr, steps)`` that makes it for a model in μP, a
        class with such a ``from_plan``, or where it is found, ``"package.module.function"``.
    epochs, batch_size : int, default 50, 20
        Of the target. ``batch_size`` holds for data that does not come as loaders.
    seeds : iterable of int, default (0,)
        With each the proxy and the target are trained.
    proxy_steps : int, optional
        Optimizer steps of the proxy, as nearly as whole epochs allow, from which the rule for steps carries the learning
        rate; as many as the target's by default.
    processor : neuralop DataProcessor, optional
        Normalises batches, as a copy; by default fitted to the training data where that is arrays or a file, and none for
        loaders.
        With it ``Tuned.predict`` works in the units of the data; without it that is refused.
    device : str, default "auto"
        torch's name of it; ``"auto"``: each run a GPU of its own, or the CPU.
    n_workers : int, optional
        Runs at once, each in a process of its own; default one per GPU, or one per core.
    progress : bool, default True
        Show progress on stderr, and print what was chosen.
    **more
        Of a run: ``weight_decay``, ``beta2``, ``schedule``, ``clip_spectral``, ``aux_lr``, ``soap`` (its
        arguments), and ``kernel_init`` (default: small with ``soap``, neuralop's own with the others and in
        SP). Of a search: ``n_trials``, ``sampler``, ``engine``, ``executor``, as in :func:`neuralop_mup.sweep`.

    Returns
    -------
    Tuned
        With ``.lr``, ``.params``, ``.predict``, ``.model``, ``.processor``, ``.split``, ``.results`` and ``.report``.

    Raises
    ------
    MupError
        If the data or the sizes cannot work, if the base is not smaller than the target, or if no run completed.

    Examples
    --------
    >>> import torch
    >>> from neuralop.models import FNO
    >>> import neuralop_mup as nm
    >>> def build(**size):
    ...     return FNO(in_channels=1, out_channels=1, **size)
    >>> x, target = torch.randn(120, 1, 16), {"hidden_channels": 32, "n_modes": (8,)}
    >>> how = {"space": {"lr": [0.02, 0.04]}, "epochs": 2, "n_workers": 1, "progress": False}
    >>> tuned = nm.tune(build, (x, x.roll(1, -1)), target=target, folder="runs", **how)
    >>> tuned.predict(x[:2]).shape, tuned.report.name
    (torch.Size([2, 1, 16]), 'report.md')
    """
    if not isinstance(folder, (str, Path)):
        raise MupError(f"folder={folder!r} must be the path of a folder for the runs.")
    if isinstance(compare, str):
        raise MupError(f"compare={compare!r} must be a sequence of rules, such as ({compare!r},).")
    place = {name: more.pop(name) for name in ("engine", "executor") if name in more}
    known = (*SETTINGS, *SEARCH)
    if wrong := [name for name in more if name not in known]:
        every = [*tune.__kwdefaults__, *known, "engine", "executor"]
        hint = "space={'lr': […]} gives the values that it tries." if wrong[0] == "lr" else nearest(wrong[0], every)
        raise MupError(f"tune has no argument {wrong[0]!r}; {hint}")
    plan = make_plan(
        build,
        data,
        target=target,
        folder=folder,
        base=base,
        read=read,
        loss=loss,
        score=score,
        space=space,
        rule=rule,
        compare=compare,
        optimizer=optimizer,
        epochs=epochs,
        batch_size=batch_size,
        seeds=seeds,
        proxy_steps=proxy_steps,
        processor=processor,
        device=device,
        **more,
    )
    if progress:
        for what, text in plan.told.items():
            print(f"{what:<8} {text}")
    for note in plan.study.notes:
        warnings.warn(note, stacklevel=2)
    if n_workers is None and getattr(build, "__name__", "") == "<lambda>":
        n_workers = 1  # it cannot be sent to other processes
    command = f"neuralop_mup.tune({name_of(build)}, …, folder={str(folder)!r})"
    how = {"n_workers": n_workers, "devices": cuda_devices(device), "progress": progress, **place}
    results, made = train_plan(plan, command, **how)
    return load_target(results, made, build, processor)
