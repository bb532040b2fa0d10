"""What Optuna does for a study: it proposes the points of a search, and its storages show finished points to dashboards.

Nothing is read back from a storage.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from neuralop_mup.errors import MupError, nearest
from neuralop_mup.lab.outcome import is_complete, mean_loss, plain
from neuralop_mup.lab.space import is_distribution, is_number, params_key

__all__ = ["SAMPLERS", "Dashboard", "Search", "check_storage"]

#: Short names of Optuna's samplers.
SAMPLERS = {"tpe": "TPESampler", "random": "RandomSampler", "qmc": "QMCSampler", "gp": "GPSampler", "cmaes": "CmaEsSampler"}


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna's log is not shown meanwhile: the progress display says more."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(max(before, optuna.logging.WARNING))
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def _distributions(space: Mapping[str, Any]) -> dict[str, Any]:
    """The space as Optuna distributions: lists become categorical."""
    from optuna.distributions import CategoricalDistribution

    return {k: v if is_distribution(v) else CategoricalDistribution(tuple(v)) for k, v in space.items()}


def _told(ends: Sequence[Mapping[str, Any]]) -> tuple[Any, float | None]:
    """State and value that Optuna is told of a point that is done, by the records of its seeds.

    One of which a run did not complete is pruned: failed ones TPE ignores, and would come back to where training diverges.
    """
    from optuna.trial import TrialState

    done = all(map(is_complete, ends))
    return (TrialState.COMPLETE, mean_loss(ends)) if done else (TrialState.PRUNED, None)


class Search:
    """What proposes the points of a search.

    Parameters
    ----------
    space : mapping
        With a distribution among its values.
    sampler : str or optuna.samplers.BaseSampler, optional
        A key of :data:`SAMPLERS`, or a sampler, which is used as it is; default TPE.

    Raises
    ------
    MupError
        If there is no such sampler, or it needs a package that is not installed.
    """

    def __init__(self, space: Mapping[str, Any], n_trials: int, sampler: Any = None) -> None:
        self._space, self._sampler, self._study = space, "tpe" if sampler is None else sampler, None
        self._startup = min(10, max(1, n_trials // 3))
        self._trials: list[Any] = []
        self._open: set[int] = set()
        if isinstance(self._sampler, str):
            self._made(0)

    def _made(self, seed: int) -> Any:
        """The sampler, seeded."""
        import optuna

        if not isinstance(self._sampler, str):
            return self._sampler
        if self._sampler not in SAMPLERS:
            raise MupError(f"There is no sampler {self._sampler!r}; {nearest(self._sampler, SAMPLERS)}")
        own = {"tpe": {"n_startup_trials": self._startup, "constant_liar": True}, "qmc": {"scramble": True}}
        try:
            if self._sampler == "cmaes":
                import cmaes  # noqa: F401  (Optuna would ask for it in the middle of the search)
            return getattr(optuna.samplers, SAMPLERS[self._sampler])(seed=seed, **own.get(self._sampler, {}))
        except ImportError as error:
            raise MupError(
                f"The sampler {self._sampler} needs a package that is not installed: pip install {error.name or 'scipy'}."
            ) from error

    def next(self, asked: Sequence[Mapping[str, Any]], ends: Sequence[Sequence[Mapping[str, Any]] | None]) -> dict[str, Any]:
        """The point that the sampler proposes after these.

        Parameters
        ----------
        asked : sequence of mapping
            What was proposed before, here or by an earlier command.
        ends : sequence
            For each of them its records, or None while it is not done.
        """
        import optuna

        kinds = _distributions(self._space)
        with _quiet():
            if self._study is None:  # seeded by how many there are, so that one that was interrupted draws no point again
                self._study = optuna.create_study(sampler=self._made(len(asked)))
            for params in asked[len(self._trials) :]:
                self._study.enqueue_trial(dict(params))
                self._open.add(len(self._trials))
                self._trials.append(self._study.ask(kinds))
            for i in [i for i in self._open if ends[i] is not None]:
                state, value = _told(ends[i])
                self._study.tell(self._trials[i], value, state)
                self._open.discard(i)
            trial = self._study.ask(kinds)
        self._open.add(len(self._trials))
        self._trials.append(trial)
        return dict(trial.params)


def check_storage(storage: Any) -> None:
    """MupError for a path, which is no address of a storage."""
    if isinstance(storage, str) and "://" not in storage:
        raise MupError(
            f"The storage {storage!r} is no address: write sqlite:///{storage} for a file of that name, or "
            "postgresql+psycopg2://USER@HOST/DATABASE for a server."
        )


class Dashboard:
    """Where finished points are shown.

    Parameters
    ----------
    storage : str or Optuna storage
        A URL, such as ``postgresql+psycopg2://me@host/optuna``.
    name : str
        Of the study; a size under a rule is ``NAME/SIZE/RULE`` there.
    content : str
        What tells this study from others of that name, which goes behind it where the name is taken by another one.

    Raises
    ------
    MupError
        If the storage does not answer.
    """

    def __init__(self, storage: Any, name: str, content: str) -> None:
        check_storage(storage)
        self._name, self._content, self._studies, self._there = name, content, {}, set()
        self._shown = re.sub(r"(://[^:/@]+):[^@]*@", r"\1:…@", str(storage))
        with self._reached():
            import optuna

            self._storage = optuna.storages.get_storage(storage)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Turn a database that does not answer into a sentence, without its password."""
        try:
            with _quiet():
                yield
        except Exception as error:  # databases' errors share no base class
            why = " ".join(str(getattr(error, "orig", None) or error.__cause__ or error).split())[:300]
            check = (
                "that the folder of the file exists and can be written"
                if self._shown.startswith("sqlite")
                else "that its server runs, that the database exists and that its driver is installed (pip install "
                "psycopg2-binary, and postgresql+psycopg2://…)"
            )
            raise MupError(
                f"The storage {self._shown} cannot be reached ({type(error).__name__}: {why}). Check {check}; finished runs "
                "are kept and the same command goes on."
            ) from error

    def _study(self, name: str) -> Any:
        """The study of this name, or of a longer one where that is another experiment's."""
        import optuna

        for full in (name, f"{name} {self._content}"):
            study = optuna.create_study(storage=self._storage, study_name=full, load_if_exists=True)
            if study.user_attrs.get("content", self._content) == self._content:
                break
        study.set_user_attr("content", self._content)
        return study

    def show(self, size: Any, rule: Any, params: Mapping[str, Any], space: Mapping[str, Any], ends: Sequence[Any]) -> None:
        """Add a point that is done, unless it is there.

        Parameters
        ----------
        size, rule : str or None
        params : mapping
        space : mapping
            Of the study.
        ends : sequence of mapping
            Records of its seeds; they are the trial's reports, and their mean is its value.
        """
        import optuna

        with self._reached():
            name = "/".join([self._name, *filter(None, (size, rule))])
            if name not in self._studies:
                self._studies[name] = self._study(name)
                self._there |= {(name, t.user_attrs.get("point")) for t in self._studies[name].get_trials(deepcopy=False)}
            key = params_key(plain(params)) + json.dumps([(end["seed"], end["loss"]) for end in ends])
            if (name, key) in self._there:
                return
            state, value = _told(ends)
            values, kinds = _as_trial(params, space)
            trial = optuna.trial.create_trial(
                params=values,
                distributions=kinds,
                state=state,
                value=value,
                intermediate_values={i: end["loss"] for i, end in enumerate(ends) if is_complete(end)},
                user_attrs={"point": key, **{f"seed:{end['seed']}": plain(end) for end in ends}},
            )
            self._studies[name].add_trial(trial)
            self._there.add((name, key))


def _as_trial(params: Mapping[str, Any], space: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A point as Optuna's parameters and distributions.

    Numbers get a range (a range may grow when the grid does; categories may not); anything else is a category, as
    JSON text where Optuna has no type for it.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    values, kinds = dict(params), _distributions({k: v for k, v in space.items() if is_distribution(v)})
    for key in [key for key in params if key not in kinds]:
        choices = [*space[key], *([] if params[key] in space[key] else [params[key]])]
        if all(is_number(v) for v in choices):
            values[key] = float(params[key])
            kinds[key] = FloatDistribution(float(min(choices)), float(max(choices)), log=min(choices) > 0)
        else:
            known = all(v is None or isinstance(v, (bool, int, float, str)) for v in choices)
            values[key] = params[key] if known else json.dumps(plain(params[key]))
            kinds[key] = CategoricalDistribution(tuple(choices if known else (json.dumps(plain(v)) for v in choices)))
    return values, kinds
