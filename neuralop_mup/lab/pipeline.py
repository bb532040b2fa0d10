"""``tune``: a model and data in; the learning rate, the trained target and a report out. Of the command, too."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neuralop_mup.core.rules import DEFAULT_RULE
from neuralop_mup.errors import MupError, nearest
from neuralop_mup.lab import report
from neuralop_mup.lab.engines import cuda_devices, make_engine
from neuralop_mup.lab.looking import SeenData, Sizes, not_coarser, not_shorter, operations
from neuralop_mup.lab.presets import EXTENDS
from neuralop_mup.lab.proxy import data_notes
from neuralop_mup.lab.records import Records
from neuralop_mup.lab.results import Results
from neuralop_mup.lab.run import run
from neuralop_mup.lab.savings import coarser, narrower, shorter
from neuralop_mup.lab.score import score_of
from neuralop_mup.lab.settings import OPTIMIZERS, Settings, optimizer_name
from neuralop_mup.lab.study import Study
from neuralop_mup.lab.sweeps import transfer_study
from neuralop_mup.lab.target import Tuned, lines_of_use, load_target, name_of, write_target
from neuralop_mup.lab.train import Training
from neuralop_mup.lab.with_optuna import Search
from neuralop_mup.validation import check_positive

__all__ = ["Tuning", "tune", "tuning"]

#: Settings of a run that may be given to :func:`tune`, or searched.
_SETTINGS = ("weight_decay", "beta2", "schedule", "clip_spectral", "aux_lr", "soap")
#: What the search and its place may be told besides.
_SEARCH = ("n_trials", "sampler")
#: Operations in whose time a step does what no size changes: calls, the optimizer's loop, loading.
_STEP = 2e8
_PLACE = ("storage", "engine", "executor")
_WHOLE = "sizes alone are compared"


@dataclass(frozen=True)
class Tuning:
    """Everything that is decided before the first run.

    Attributes
    ----------
    study : Study
    training : Training
    folder : Path
    title : str
    x_shape : tuple of int or None
        ``(channels, *grid)``; None off a grid.
    costs, parameters : mapping
        Size → cost of a run in floating-point operations, and parameters of the model.
    told : mapping
        What the report says of how the data was read.
    steps : mapping
        Size → optimizer steps of a run.
    """

    study: Study
    training: Training
    folder: Path
    title: str
    x_shape: tuple[int, ...] | None
    costs: Mapping[str, float]
    parameters: Mapping[str, int]
    told: Mapping[str, Any]
    steps: Mapping[str, int]

    def train(
        self, *, n_workers: int | None, devices: Sequence[str], progress: bool, engine: Any = None, executor: Any = None,
        storage: Any = None,
    ) -> Results:  # fmt: skip
        """Train what is missing."""
        made = make_engine(engine, executor, self.training, self.study.planned().total(), n_workers, devices)
        return run(
            self.study, self.training, folder=self.folder, engine=made, storage=storage, costs=self.costs, progress=progress
        )

    def run(self, *, command: str, **how: Any) -> tuple[Results, dict[str, Any] | None]:
        """Train what is missing, as :meth:`train` takes it, and write the report.

        Returns
        -------
        results : Results
        target : dict or None
            What says which run is the target; None where none completed.
        """
        results = self.train(**how)
        target = write_target(results, self.training, self.x_shape)
        use = "" if target is None else "\n".join(lines_of_use(self.folder, target))
        settings = {**self.told, **self.settings}
        report.write_report(results, command=command, title=self.title, settings=settings, use=use)
        return results, target

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that decides the result, flat."""
        study = self.study
        return {
            **{f"{which}.{name}": value for which, size in study.sizes.items() for name, value in size.items()},
            **{f"search.{name}": values for name, values in study.space.items()},
            "rules": study.rules,
            "seeds": study.seeds,
            "verify": bool(study.searched),
            "loss": self.training.told,
            **({"score": self.training.score.name} if self.training.score else {}),
            **study.fixed,
            **{f"under {rule}": more for rule, more in study.under.items()},
            **{f"at the {size}": more for size, more in study.at.items()},
        }


def tuning(
    build: Callable[..., nn.Module],
    source: Any,
    *,
    base: Mapping[str, Any] | None,
    target: Mapping[str, Any],
    folder: Path,
    space: Mapping[str, Any] | None,
    fixed: Mapping[str, Any],
    read: Mapping[str, Any] | None = None,
    loss: Any = "l2",
    score: Any = None,
    processor: Any = None,
    kernel_init: str = "default",
    under: Mapping[str, Any] | None = None,
    title: str | None = None,
    flag: str | None = None,
    notes: Sequence[str] = (),
    large: bool = False,
    look: bool = True,
    whole: bool = False,
    proxy_steps: int | None = None,
    proxy_stride: int | None = None,
    **asked: Any,
) -> Tuning:
    """Read the data, build both sizes, choose the proxy, and refuse before anything is trained what would fail in every run.

    Parameters
    ----------
    build, base, target, folder, read, loss, score, processor, proxy_steps, proxy_stride
        As for :func:`tune`.
    source : object
        Whose ``load()`` gives the data.
    space : mapping, optional
        What is searched; learning rates that follow from the optimizer and the proxy's steps where it has none.
    fixed : mapping
        Settings of every run.
    kernel_init : str
        Of every rule but "standard".
    under : mapping, optional
        Settings of every rule but "standard", besides.
    title : str, optional
        Of the report.
    flag : str, optional
        The option that sets the proxy's modes, where there is one.
    notes : sequence of str
        What is known already.
    large : bool
        Whether a base as large as the target is meant.
    look : bool
        Whether the data of a problem is made, too; that of files is read in any case.
    whole : bool
        Whether the proxy trains as long as the target and sees every point, as where sizes alone are to be compared.
    **asked
        Of :func:`transfer_study`.

    Raises
    ------
    MupError
    """
    chosen_by, own_base = score_of(score), base is None
    Records(folder)  # one that is no folder, or of an earlier version, is told before any data is made
    if own_base and isinstance(target, Mapping):
        base, why = narrower(target, None)
    sizes = Sizes.of(build, base, target, large)
    own_lrs = "lr" not in fixed and (space is None or (isinstance(space, Mapping) and "lr" not in space))
    lrs = OPTIMIZERS[fixed["optimizer"]].lrs
    under = {**(under or {}), **({} if kernel_init == "default" else {"kernel_init": kernel_init})}
    own_space = {"lr": lrs(1000), **(space or {})} if own_lrs else space
    study = _study(sizes, own_space, fixed, under, keeps=True, between=own_lrs, name=folder.resolve().name, **asked)
    data = SeenData.of(source, read, sizes.dtype)
    batch = max(study.space["batch_size"] if isinstance(study.space.get("batch_size"), list) else [fixed["batch_size"]])
    losses = data.losses(loss)
    data.check(batch, loss)
    _check_fit(sizes, data, loss, processor)
    own = {"processor": processor is not None, "loss": not isinstance(loss, str), "score": callable(score)}
    if look:
        data = data.load()
    if data.is_loaded:
        if own_base:
            base, why = narrower(target, data.energy)
            sizes = Sizes.of(build, base, target, large)
            study = replace(study, sizes={**study.sizes, "proxy": dict(base)})
        n_val, modes = data.data.counts()["val"], sizes.modes
        notes = [*notes, *data_notes(data.sample, n_val, modes["proxy"], modes["target"], flag, isinstance(loss, str))]
        processor = processor or data.processor()
    n_epochs, n_batches = fixed.get("epochs", 1), len(data.data.loaders(batch, 0)[0])
    length = shorter(n_epochs, n_batches, asked=proxy_steps, refused=_WHOLE if whole else not_shorter(fixed, study, data))
    stride, grid = coarser(
        data.grid,
        sizes.modes["proxy"],
        data.energy,
        asked=proxy_stride,
        takes=partial(sizes.takes, data.sample),
        refused=_WHOLE if whole else not_coarser(data, losses, own),
    )
    at = length.at
    if math.prod(stride) > 1:
        at["proxy"] = {**at.get("proxy", {}), "stride": stride}
    space = {**study.space, **({"lr": lrs(length.steps[0])} if own_lrs else {})}
    search = study.search and Search(space, study.n_trials, asked.get("sampler"))
    study = replace(study, notes=(*notes, *data.grid_notes()), at=at, space=space, search=search)
    training = Training(build, data.source, data.data, losses, processor, loss, chosen_by)
    if not data.is_made:
        training.values()  # what is wrong with the user's losses shows on a batch
    if data.is_loaded or isinstance(score, str):  # a rollout of a problem is refused without its data
        training.scored(base)
    steps = dict(zip(sizes.models, length.steps, strict=True))
    told = {**data.told, **({"proxy": why} if own_base else {}), "steps": length.why}
    return Tuning(
        study,
        training,
        folder,
        title or f"{name_of(build)} on {data.source.title}",
        tuple(data.sample["x"].shape[1:]) if data.on_grid else None,
        _costs(sizes, steps, batch, math.prod(data.grid), math.prod(stride)),
        sizes.parameters,
        {**told, **({"grid": grid} if data.on_grid else {})},
        steps,
    )


def _study(
    sizes: Sizes, space: Mapping[str, Any] | None, fixed: Mapping[str, Any], under: Mapping[str, Any], **asked: Any
) -> Study:
    """What is asked, with all that a run would refuse of it refused."""
    fixed = {k: v for k, v in fixed.items() if k not in (space or ())}
    study = transfer_study(proxy=sizes.base, target=sizes.target, space=space, fixed=fixed, **asked)
    study = replace(study, under={rule: under for rule in study.rules if rule != "standard" and under})
    for rule in study.rules:
        sizes.check_rule(rule)
        _check_settings(study, rule)
    return study


def _check_settings(study: Study, rule: str | None) -> None:
    """MupError for a setting, or for a value of the space, that a run would refuse."""
    grids = {name: values for name, values in study.space.items() if isinstance(values, (list, tuple))}
    for params in [{}, *({name: value} for name, values in grids.items() for value in values)]:
        settings = Settings.of(study.config(study.point("target", rule, {**study.example, **params}), study.seeds[0]))
        check_positive("lr", settings.lr)  # a run of rate zero is one, but none that could be chosen


def _check_fit(sizes: Sizes, data: SeenData, loss: Any, processor: Any) -> None:
    """MupError for models that do not take the data, and for a processor that is none."""
    first = {k: v[:2] if data.on_grid and torch.is_tensor(v) else v for k, v in data.sample.items()}
    if processor is None:  # a user's may change the shapes
        sizes.check_batch(first, compare=isinstance(loss, str))
    elif not all(hasattr(processor, name) for name in ("preprocess", "postprocess", "to")):
        raise MupError(f"processor={processor!r} must be one of neuralop's data processors, or one derived from them.")
    if data.on_grid:
        sizes.check_grid(data.grid)


def _costs(sizes: Sizes, steps: Mapping[str, int], batch: int, points: int, fewer: int) -> dict[str, float]:
    """Operations of a run of each size; the proxy sees one point in ``fewer``."""
    seen = {"proxy": points // fewer, "target": points}
    return {which: (operations(sizes.models[which], seen[which]) * batch + _STEP) * n for which, n in steps.items()}


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
    verify: bool = False,
    optimizer: Any = "soap",
    epochs: int = 50,
    batch_size: int = 20,
    seeds: Iterable[int] = (0,),
    proxy_steps: int | None = None,
    proxy_stride: int | None = None,
    processor: Any = None,
    device: str = "auto",
    n_workers: int | None = None,
    progress: bool = True,
    **more: Any,
) -> Tuned:
    """Check the learning rate of a model on data at a cheap proxy, and train the large size with it.

    The proxy is narrower than the target, trains for an eighth of its steps and sees every 2nd or 4th point of its grid, as
    far as the data and the target allow it; what was chosen is printed, with its reason.

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
        that returns one of these, called in each process. Arrays are tensors or numpy's, those of splits cast to the model's precision.
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
        unless there is a score.
    score : str or callable, optional
        What chooses instead of the validation error, the lower the better, 0 at least. ``"rollout:50"``: the relative
        error of fifty steps, each from the prediction before, on trajectories (``read={"time_step": 1}``), the geometric
        mean over the steps. ``score(predictions, targets)``: a function of the validation data as two tensors in the units
        of the data, on the CPU. ``score(model, data)``: ``model(x)`` predicts in these units, and ``data`` is iterated in
        batches of them; ``data.states(i)`` is state ``i`` of each trajectory. It is known by the names of its arguments.
        Infinity, or NaN, is a model that loses.
    space : mapping, optional
        What is searched: ``lr``, and for example ``lr_mult.spectral``. Without it these are five learning rates in factors
        of 2 around what the law gives for the proxy's steps (:class:`neuralop_mup.MuSOAP`), or 1e-3 to 6.4e-2 under an
        optimizer that has no law; up to two more beyond an edge where the best lies, and between them a parabola.
    rule : str, default "operator-norm"
        The μP rule; see :func:`neuralop_mup.parametrize`.
    compare : sequence of str, default ()
        Rules under which the target is trained besides; ``()`` for none.
    verify : bool, default False
        Search at the target, too, to measure what carrying missed.
    optimizer : str or class, default "soap"
        "soap", "adam", "adamw", "neuralop-adamw" or "sgd"; the names of the classes, such as "MuSOAP", and the
        classes themselves mean the same.
    epochs, batch_size : int, default 50, 20
        Of the target. ``batch_size`` holds for data that does not come as loaders.
    seeds : iterable of int, default (0,)
        With each the proxy and the target are trained.
    proxy_steps, proxy_stride : int, optional
        Optimizer steps of the proxy, and 1 for every point of the grid, 2 for every 2nd; chosen by default.
    processor : neuralop DataProcessor, optional
        Normalises batches; by default fitted to the training data where that is arrays or a file, and none for loaders.
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
        SP). Of a search: ``n_trials``, ``sampler``, ``storage``, ``engine``, ``executor``, as in :func:`neuralop_mup.sweep`.

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
    settings, search, place = ({k: more.pop(k) for k in names if k in more} for names in (_SETTINGS, _SEARCH, _PLACE))
    choice = OPTIMIZERS[optimizer_name(optimizer)]
    kernel_init = more.pop("kernel_init", choice.kernel_init)
    if more:
        name, known = next(iter(more)), [*tune.__kwdefaults__, "kernel_init", *_SETTINGS, *_SEARCH, *_PLACE]
        hint = "space={'lr': […]} gives the values that it tries." if name == "lr" else nearest(name, known)
        raise MupError(f"tune has no argument {name!r}; {hint}")
    fixed = {
        "optimizer": optimizer_name(optimizer),
        "epochs": epochs,
        "batch_size": batch_size,
        "device": device,
        **settings,
    }
    plan = tuning(
        build,
        data,
        base=base,
        target=target,
        folder=Path(folder),
        read=read,
        space=space,
        fixed=fixed,
        loss=loss,
        score=score,
        processor=processor,
        kernel_init=kernel_init,
        rule=rule,
        rules=[rule, *compare],
        naive="standard" in compare,
        verify=verify,
        seeds=seeds,
        extends={} if space else {"lr": EXTENDS},  # a grid that nobody gave
        proxy_steps=proxy_steps,
        proxy_stride=proxy_stride,
        **search,
    )
    if progress:
        for what, text in plan.told.items():
            print(f"{what:<8} {text}")
    for note in plan.study.notes:
        warnings.warn(note, stacklevel=2)
    if n_workers is None and getattr(build, "__name__", "") == "<lambda>":
        n_workers = 1  # it cannot be sent to other processes
    command = f"neuralop_mup.tune({name_of(build)}, …, folder={str(folder)!r})"
    results, made = plan.run(n_workers=n_workers, devices=cuda_devices(device), command=command, progress=progress, **place)
    return load_target(results, made, build, processor)
