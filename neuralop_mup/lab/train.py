"""One training run: a configuration in, a record out, through neuralop's ``Trainer``."""

from __future__ import annotations

import copy
import hashlib
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from neuralop.losses import H1Loss, LpLoss, WeightedSumLoss
from neuralop.training import Trainer
from torch import nn

from neuralop_mup.core.parametrize import WIDER, parametrize
from neuralop_mup.core.rules import RULE_VERSION
from neuralop_mup.errors import Diverged, MupError, nearest
from neuralop_mup.lab.checkpoint import Checkpoint, keep_weights
from neuralop_mup.lab.engines import Engine
from neuralop_mup.lab.fingerprint import fingerprint
from neuralop_mup.lab.outcome import begins_alike, is_complete
from neuralop_mup.lab.problems import cache
from neuralop_mup.lab.problems.base import Problem
from neuralop_mup.lab.problems.data import SPLITS, ProblemData
from neuralop_mup.lab.records import CHECKPOINT, WEIGHTS, Records, described, without_addresses
from neuralop_mup.lab.score import Score
from neuralop_mup.lab.settings import Settings, build_optimizer, build_scheduler, init_multipliers, optimizer_arguments
from neuralop_mup.lab.search import params_key
from neuralop_mup.lab.study import Study

__all__ = ["Training", "losses_of", "n_params", "quiet"]

Losses = Mapping[str, tuple[float, Callable[..., torch.Tensor]]]
#: Raise it whenever the same configuration gives other numbers.
VERSION = 1


def n_params(model: nn.Module) -> int:
    """Numbers that are trained; complex ones count as two."""
    return sum(p.numel() * (2 if p.is_complex() else 1) for p in model.parameters())


def losses_of(loss: Any, n_dim: int, own: Losses | None = None) -> Losses:
    """What a run minimises, by name: weight and function; by the first one, "data", runs are compared.

    Parameters
    ----------
    loss : str, callable or mapping
        ``"l2"``, ``"h1"``, or both with a comma, added up; a function; or names with functions or (weight, function).
    n_dim : int
        Dimensions of the grid.
    own : mapping, optional
        A problem's losses, in which the named ones are "data"; without them the data counts once.

    Raises
    ------
    MupError
        For a loss that does not exist.
    """
    if callable(loss):
        return {"data": (1.0, loss)}
    if isinstance(loss, Mapping) and loss:
        named = [(k, v if isinstance(v, tuple) else (1.0, v)) for k, v in loss.items()]
        return {"data" if i == 0 else k: v for i, (k, v) in enumerate(named)}
    if not isinstance(loss, str):
        raise MupError(f"loss={loss!r} must be 'l2', 'h1', 'l2,h1', a function loss(y_pred, y, **batch), or a dict of such.")
    known = {"l2": lambda: LpLoss(d=n_dim, p=2), "h1": lambda: H1Loss(d=n_dim)}
    chosen = [name.strip().lower() for name in loss.split(",")]
    for name in chosen:
        if name not in known:
            raise MupError(f"There is no loss {name!r}; {nearest(name, known)}")
    if len(set(chosen)) < len(chosen):
        raise MupError(f"loss = {loss!r} names a loss twice; name each once.")
    own = own or {"data": (1.0, known["l2"]())}
    if chosen == ["l2"]:
        return own
    weight, first = own["data"][0], chosen[0]
    return {**own, "data": (weight, known[first]()), **{name: (weight, known[name]()) for name in chosen[1:]}}


@contextmanager
def quiet() -> Iterator[None]:
    """neuralop's Trainer hands the whole batch to the model and to the loss, and both warn about what they ignore."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*received unexpected keyword arguments")
        warnings.filterwarnings("ignore", message=WIDER)  # the commands refuse a proxy that is too large, unless it is meant
        yield


class _Trainer(Trainer):
    """neuralop's, which stops when the loss is no number any more and keeps its state between epochs."""

    checkpoint: Checkpoint | None = None
    spent = began = 0.0  # seconds of this run before it was interrupted, and the clock when it went on

    @property
    def seconds(self) -> float:
        return self.spent + time.perf_counter() - self.began

    def on_epoch_start(self, epoch: int) -> None:
        super().on_epoch_start(epoch)
        if self.checkpoint is not None and epoch > self.start_epoch:
            self.checkpoint.save_if_due(epoch, self.seconds)

    def train_one_batch(self, idx: int, sample: dict, training_loss: Any) -> torch.Tensor:
        loss = super().train_one_batch(idx, sample, training_loss)
        if not torch.isfinite(loss):
            lr = max(group["lr"] for group in self.optimizer.param_groups)
            raise Diverged(
                f"Training diverged: the loss is {loss.item()} at step {idx + 1} of epoch {self.epoch + 1}, where the "
                f"largest learning rate is {lr:.3g}: lower lr."
            )
        return loss


class Training:
    """The train function of :func:`neuralop_mup.tune` and of the commands: a model on data, run by run.

    Parameters
    ----------
    build : callable
        ``build(**arguments)`` returns a fresh model.
    source : object
        Whose ``load()`` gives the data; it goes to other processes.
    data : ProblemData or Loaders
        What it gives here.
    losses : mapping
        Name → (weight, function); see :func:`losses_of`.
    processor : neuralop DataProcessor or None
    told : str
        What the losses are called among the runs.
    score : Score, optional
        What learning rates are chosen by, instead of the validation error.
    """

    keeps_files = True

    def __init__(
        self,
        build: Callable[..., nn.Module],
        source: Any,
        data: Any,
        losses: Losses,
        processor: Any,
        told: Any = "l2",
        score: Score | None = None,
    ) -> None:
        self.build, self.source, self.losses, self.processor, self.told = build, source, losses, processor, told
        self.score, self._scores = score, {}
        self._data, self._fixed, self._shapes, self._sent = data, None, {}, None
        self._seen: dict[tuple[int, ...], Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_data": None, "_seen": {}, "source": self._sent or self.source}  # each process loads it

    @property
    def data(self) -> Any:
        """The data, loaded once in a process."""
        if self._data is None:
            self._data = self.source.load()
        return self._data

    @property
    def parts(self) -> tuple:
        """What must be fit to be sent to another process."""
        return self.build, self.losses, self.processor, self.score

    def split(self) -> dict[str, list[int]]:
        """Which samples are in which split; nothing of data that comes batch by batch."""
        counted = self.data.counts() if isinstance(self.data, ProblemData) else {}
        numbers = getattr(self.source, "split_indices", {name: range(n) for name, n in counted.items()})
        return {name: list(map(int, found)) for name, found in numbers.items()}

    def model(self, config: Mapping[str, Any], s: Settings | None = None) -> nn.Module:
        """A fresh parametrized model, drawn by the run's seed."""
        s = s or Settings.of(config)
        torch.manual_seed(s.seed)
        with quiet():
            return parametrize(
                self.build(**config["model"]),
                base=lambda: self.build(**config["base"]),
                rule=s.rule,
                init_mult=init_multipliers(s.init_mult, s.kernel_init),
            )

    def data_of(self, s: Settings) -> Any:
        """The data as a run sees it: at every point of the grid, or at some."""
        key = tuple(s.stride)
        if key not in self._seen:
            self._seen[key] = _coarser(self.data, key) if math.prod(key) > 1 else self.data
        return self._seen[key]

    # What a run is

    def content(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Everything that the result of a run depends on, but for rounding; its device is not among it."""
        s = Settings.of({k: v for k, v in config.items() if k != "device"})
        settings = {k: v for k, v in asdict(s).items() if k not in ("model", "base", "device", "arguments")}
        return {
            "train": "neuralop_mup",
            "version": {"training": VERSION, "rules": RULE_VERSION},
            **self._what(),
            **self.scored(config["base"]),
            "model": self._size(config["model"]),
            "base": self._size(config["base"]),
            **settings,
            "optimizer_arguments": optimizer_arguments(s),
        }

    def _what(self) -> dict[str, Any]:
        """Data, losses and processor, told apart by their content and by what they give on a fixed batch."""
        if self._fixed is None:
            source = self.source
            data = source.content() if isinstance(source, Problem) else {"digest": fingerprint(self.data)}
            # Described once: what a function or an object holds may change while runs are trained.
            named = {"build": getattr(self.build, "name", described(self.build)), "loss": described(self.told)}
            self._fixed = {"data": {**data, "samples": self.data.counts()}, **named, **self.values()}
        return self._fixed

    def scored(self, base: Mapping[str, Any]) -> dict[str, Any]:
        """What a run's content says of the score, if there is one; MupError where it cannot score the untrained base."""
        key = params_key(described(base))
        if self.score is not None and key not in self._scores:
            with quiet():
                self._scores[key] = {"score": self.score.content(lambda: self.build(**base), self.processor, self.data)}
        return self._scores.get(key, {})

    def values(self) -> dict[str, Any]:
        """What each loss gives for a fixed prediction of a fixed batch, and how large its fields are once the processor has
        prepared it; to four digits, which rounding does not reach.

        Raises
        ------
        MupError
            If a loss fails, gives no number, or another one for the same arguments.
        """
        found = []
        for _ in range(2):
            with self._first_batch(self.data) as (sample, after):
                like = sample["y"]
                fixed = torch.randn(like.shape, generator=torch.Generator().manual_seed(0)).to(like.dtype)
                prediction, sample = after(fixed, sample)
                found.append({name: _value(name, term, prediction, sample) for name, (_, term) in self.losses.items()})
        for name, value in found[0].items():
            if value != found[1][name] and not math.isnan(value):
                what = "The loss" if name == "data" else f"The loss {name!r}"
                raise MupError(
                    f"{what} gives {value:.6g} and then {found[1][name]:.6g} for the same prediction and batch: it draws "
                    "random numbers that are not torch's, so that no run could be repeated. Draw them by torch, which is "
                    "seeded here."
                )
        sizes = {k: float(v.abs().double().mean()) for k, v in sample.items() if torch.is_tensor(v)}
        weights = {name: weight for name, (weight, _) in self.losses.items()}
        named = None if self.processor is None else type(self.processor).__name__
        return {"loss_weights": weights, "loss_values": _digits(found[0]), "processor": named, "prepared": _digits(sizes)}

    @contextmanager
    def _first_batch(self, data: Any) -> Iterator[tuple[dict[str, Any], Callable[..., Any]]]:
        """The first batch as the model gets it in training, and what makes of a prediction and it what losses get.

        No random number is used up, nor a place in the order of the samples.
        """
        loader, processor = data.loaders(8, 0)[0], copy.deepcopy(self.processor)
        order = getattr(loader, "generator", None)
        before = order and order.get_state()
        with torch.random.fork_rng(devices=[]), torch.no_grad(), quiet():
            torch.manual_seed(0)
            sample = dict(next(iter(loader)))
            if order is not None:
                order.set_state(before)
            if processor is None:
                yield sample, lambda prediction, sample: (prediction, sample)
                return
            processor.to("cpu")
            processor.train()
            yield processor.preprocess(sample), processor.postprocess

    def first_loss(self, model: nn.Module, s: Settings) -> float:
        """Loss of a batch before training: runs that began alike are known by it."""
        with self._first_batch(self.data_of(s)) as (sample, after):
            prediction, sample = after(model.eval()(**sample), sample)
            loss = sum(weight * float(term(prediction, **sample)) for weight, term in self.losses.values())
        model.train()
        return loss

    def _size(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """A model's arguments, and the sha256 of its text with the names, shapes and types of its parameters."""
        key = params_key(described(arguments))
        if key not in self._shapes:
            with torch.random.fork_rng(devices=[]), quiet():
                model = self.build(**arguments)
            named = [(n, tuple(p.shape), str(p.dtype)) for n, p in model.named_parameters()]
            text = without_addresses(f"{named} {model}")  # dropout, for one, stands in the latter alone
            self._shapes[key] = hashlib.sha256(text.encode()).hexdigest()
        return {"arguments": arguments, "parameters": self._shapes[key]}

    def prepare(self, study: Study, records: Records, engine: Engine) -> None:
        """Before anything is trained: that a kept run would begin as it did, and the data where other processes see it.

        Raises
        ------
        MupError
            If a run that is kept would begin otherwise now, so that new ones could not be compared with it.
        """
        for point in study.extended(records).tuning(records):
            run = study.runs(point)[0]
            record = records.read(run)
            before = record["metrics"].get("first_loss") if record is not None and is_complete(record) else None
            if before is not None:
                with torch.random.fork_rng(devices=[]):
                    now = self.first_loss(self.model(run.config), Settings.of(run.config))
                if not begins_alike(before, now):
                    raise MupError(
                        f"The runs in {records.folder} began with the loss {before:.6g}, and with the same model, data and "
                        f"settings a run begins with {now:.6g} now: code or surroundings have changed since, so new runs "
                        "cannot be mixed with those. Choose another folder, or go back to what it was."
                    )
                break
        in_memory = isinstance(self.data, ProblemData) and isinstance(self.data.train[0], torch.Tensor)
        if getattr(engine, "here", False) and in_memory and not isinstance(self.source, Problem):
            digest = self._what()["data"]["digest"]
            self._sent = Stored.of(self.data, digest, records.folder / "data", self.source.title)

    def close(self) -> None:
        """Remove what :meth:`prepare` left for other processes."""
        if self._sent is not None:
            self._sent.path.unlink(missing_ok=True)

    # A run

    def __call__(self, config: Mapping[str, Any], place: str | None = None, keep: bool = False) -> dict[str, Any]:
        """Train one model and measure its errors.

        Parameters
        ----------
        config : mapping
            ``model`` and ``base``, arguments of ``build``; fields of :class:`Settings`, and ``lr_mult.ROLE`` and
            ``init_mult.ROLE``.
        place : path, optional
            Folder of the run's own: the same run goes on from the checkpoint there after a kill, bit for bit on a CPU.
        keep : bool
            Whether the weights are wanted; where there is no such folder on this machine, they are returned.

        Returns
        -------
        dict
            ``loss``: error on the validation data, by which hyperparameters are chosen; ``test_loss``; ``train_loss``: mean
            training loss of the last epoch (of normalised fields, unless there is an equation); ``first_loss``;
            ``seconds``; ``n_params`` (complex numbers count as two); ``steps``; ``mean_loss``: the validation error of
            predicting the mean. Further losses by name, as ``equation_loss`` and ``test_equation_loss``. With a
            score ``loss`` is that, ``score`` its name and ``validation_error`` the error.

        Raises
        ------
        Diverged
            If a loss is not finite.
        MupError
            If the configuration has an unknown key or value.
        """
        s, notes = Settings.of(config), []
        model = self.model(config, s)
        data, begins = self.data_of(s), self.first_loss(model, s)
        train, evals = data.loaders(s.batch_size, s.seed)
        train = train if s.batches is None else _Some(train, s.batches)
        trainer = _Trainer(model=model.to(s.device), n_epochs=s.epochs, data_processor=self.processor, device=s.device)
        trainer.optimizer = build_optimizer(model, s)
        trainer.scheduler = build_scheduler(trainer.optimizer, s)
        folder = Path(place) if place is not None and Path(place).is_dir() else None
        if folder is not None:
            state = {"model": model, "optimizer": trainer.optimizer, "scheduler": trainer.scheduler}
            trainer.checkpoint = Checkpoint(folder / CHECKPOINT, train, begins, notes.append, **state)
            trainer.start_epoch, trainer.spent = trainer.checkpoint.restore()
        trainer.began = time.perf_counter()
        with quiet():
            metrics = trainer.train(
                train_loader=train,
                test_loaders={},  # errors are measured once, below
                optimizer=trainer.optimizer,
                scheduler=trainer.scheduler,
                training_loss=WeightedSumLoss(*zip(*((term, weight) for weight, term in self.losses.values()), strict=True)),
            )
        measured = self._measured(trainer, evals)
        data.check_unchanged()
        for name, value in {"training loss": metrics["avg_loss"], "validation error": measured["loss"]}.items():
            if not math.isfinite(value):
                raise Diverged(f"Training diverged: the {name} is {value} at lr {s.lr:g}: lower lr.")
        if self.score is not None:
            with quiet():
                measured |= self.score.measured(model, self.processor, data, measured["loss"])
        more = {"train_loss": float(metrics["avg_loss"]), "first_loss": begins, "seconds": trainer.seconds, "notes": notes}
        if keep:
            x = data.sample()["x"]
            like = x[:1] if torch.is_tensor(x) and x.ndim > 2 else None
            more["weights"] = keep_weights(model, self.processor, folder and folder / WEIGHTS, like)
        return {**measured, **more, "n_params": n_params(model), "steps": len(train) * s.epochs}

    def _measured(self, trainer: _Trainer, evals: Mapping[str, Any]) -> dict[str, Any]:
        """Errors of a trained model on what it was not trained on."""
        terms = {name: term for name, (_, term) in self.losses.items()}
        with quiet():
            measured = _against_the_mean(terms["data"], evals["val"])
            for split, loader in evals.items():
                errors = trainer.evaluate(terms, loader, log_prefix=split)
                for name in terms:
                    key = "loss" if name == "data" else f"{name}_loss"
                    measured[key if split == "val" else f"{split}_{key}"] = float(errors[f"{split}_{name}"])
        return measured


@dataclass(frozen=True)
class Stored:
    """Tensors in a file of :mod:`cache`, mapped when they are read, so that processes that read them share its memory."""

    path: Path
    digest: str
    title: str = "the data given"
    trajectory: int = 0

    @classmethod
    def of(cls, data: ProblemData, digest: str, folder: Path, title: str) -> Stored:
        """Write the tensors, unless they are there."""
        path = folder / f"{digest[:32]}.safetensors"
        if not path.exists():
            pairs = {name: getattr(data, name) for name in data.counts()}
            cache.store(
                path, digest, {f"{name}_{k}": v for name, xy in pairs.items() for k, v in zip("xy", xy, strict=True)}
            )
        return cls(path, digest, title, data.trajectory)

    def load(self) -> ProblemData:
        """The tensors.

        Raises
        ------
        FileNotFoundError
            Where the folder cannot be seen, or the file was removed.
        """
        tensors = cache.read(self.path, self.digest)
        if tensors is None:
            raise FileNotFoundError(f"the data of the study, {self.path}, is not there")
        pairs = {name: (tensors[f"{name}_x"], tensors[f"{name}_y"]) for name in SPLITS if f"{name}_x" in tensors}
        return ProblemData(**pairs, trajectory=self.trajectory)


def _coarser(data: ProblemData, stride: tuple[int, ...]) -> ProblemData:
    """The same at every so manieth point of each axis."""
    cut = (slice(None), slice(None), *(slice(None, None, step) for step in stride))
    return replace(data, **{name: tuple(values[cut] for values in getattr(data, name)) for name in data.counts()})


class _Some:
    """The first so many batches of a loader, in each epoch those of a new order."""

    def __init__(self, loader: Any, batches: int) -> None:
        self.loader, self.batches = loader, batches
        self.batch_size, self.dataset, self.generator = loader.batch_size, loader.dataset, loader.generator

    def __len__(self) -> int:
        return min(self.batches, len(self.loader))

    def __iter__(self) -> Iterator[Any]:
        return islice(self.loader, self.batches)


def _value(name: str, term: Callable[..., Any], prediction: torch.Tensor, sample: Mapping[str, Any]) -> float:
    """What a loss gives; MupError in the user's words where that is no number."""
    what = "The loss" if name == "data" else f"The loss {name!r}"
    try:
        value = term(prediction, **sample)
    except Exception as error:  # the function is the user's
        raise MupError(
            f"{what} fails on a batch with {', '.join(sample)}: {type(error).__name__}: {error}. It is called as "
            "loss(y_pred, **batch), so take y and **batch."
        ) from error
    if not torch.is_tensor(value) or value.numel() != 1:
        kind = f"a tensor of shape {tuple(value.shape)}" if torch.is_tensor(value) else f"{value!r}"
        raise MupError(f"{what} gives {kind}; it must return a tensor of one number, summed over the batch.")
    return float(value)


def _digits(values: Mapping[str, float]) -> dict[str, float | None]:
    return {k: float(f"{v:.4g}") if math.isfinite(v) else None for k, v in values.items()}


def _against_the_mean(term: Callable[..., torch.Tensor], loader: Any) -> dict[str, float]:
    """``mean_loss``: the validation error of the mean target, which knows nothing of the input; none off a grid."""
    total, count, shape = 0.0, 0, None
    for batch in loader:
        y = batch["y"]
        if not isinstance(y, torch.Tensor) or shape not in (None, y.shape[1:]):
            return {}
        total, count, shape = total + y.sum(0, keepdim=True), count + len(y), y.shape[1:]
    with torch.no_grad():
        mean = total / count
        error = sum(float(term(mean.expand_as(batch["y"]), **batch)) for batch in loader)
    return {"mean_loss": error / count}
