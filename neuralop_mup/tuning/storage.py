"""Where a study's runs are kept: any Optuna storage, through Optuna's public interfaces only.

A cell (a size under a rule) is an Optuna study, a point is one trial of it, a seed is a report of that trial, and what the
seed's run gave is a user attribute. One process writes: it holds a lock on the folder, and on the database if there is one.
"""

from __future__ import annotations

import json
import os
import re
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from neuralop_mup.errors import MupError
from neuralop_mup.files import whole_file
from neuralop_mup.tuning.outcome import Record, is_complete, is_final, mean_and_std
from neuralop_mup.tuning.space import distributions, optuna_point, params_key
from neuralop_mup.tuning.study import Study, refuse_other_settings, with_former_rules

__all__ = ["Cell", "Store", "open_store", "writing"]

#: Seconds. A command that is killed while it starts a worker leaves its locks to that child until the child closes its
#: inherited files: up to 40 ms were seen on a busy machine.
_INHERITED = 0.5


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn a failed write (no permission, full disk) into a sentence that names the folder."""
    try:
        yield
    except OSError as error:
        raise MupError(
            f"Cannot write to the study folder {folder}: {error.strerror or error}. Free space there or choose "
            "another folder; finished runs are kept and the same command resumes."
        ) from error


def to_jsonl(records: Sequence[Mapping[str, Any]]) -> str:
    """One line of JSON a record."""
    return "".join(json.dumps(r, allow_nan=False) + "\n" for r in records)


@contextmanager
def _locked(path: Path, what: str) -> Iterator[None]:
    """Hold a lock file; the system drops it when the process ends, however it ends."""
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        lock.acquire(timeout=_INHERITED)
    except Timeout:
        raise MupError(f"Another run is using {what}; wait for it to end, or choose another.") from None
    except OSError as error:
        raise MupError(f"Cannot write to {what}: {error.strerror or error}; choose another.") from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _locked_database(url: str, name: str) -> Iterator[None]:
    """Hold the server's own lock on a name; the server drops it when the connection ends. SQLite locks a file beside it."""
    import sqlalchemy

    what = f"the study {name!r} in {_shown(url)}"
    kind = sqlalchemy.engine.make_url(url)
    if kind.get_backend_name() == "sqlite":
        with _locked(Path(f"{kind.database}.{zlib.crc32(name.encode()):08x}.lock"), what):
            yield
        return
    key = zlib.crc32(f"neuralop_mup {name}".encode())
    statement = {"postgresql": "SELECT pg_try_advisory_lock(:key)", "mysql": "SELECT GET_LOCK(:key, 0)"}
    ask = statement.get(kind.get_backend_name())
    if ask is None:
        raise MupError(f"{_shown(url)} is no storage that can be locked; use PostgreSQL, MySQL, SQLite or a journal file.")
    engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        end = time.monotonic() + _INHERITED
        while not connection.execute(sqlalchemy.text(ask), {"key": key}).scalar():
            if time.monotonic() > end:
                raise MupError(f"Another run is using {what}; wait for it to end, or choose another.")
            time.sleep(0.05)
        yield
    engine.dispose()


def _shown(url: str) -> str:
    """The URL without its password."""
    return re.sub(r"(://[^:/@]+):[^@]*@", r"\1:…@", url)


def _repair(path: Path) -> None:
    """Cut a last line that was not written to its end, which Optuna would refuse to append to."""
    if not path.exists():
        return
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    if end:
        start = data.rfind(b"\n", 0, end - 1) + 1
        try:
            json.loads(data[start:end])
        except ValueError:
            end = start
    if end < len(data):
        with open(path, "r+b") as file:
            file.truncate(end)
            os.fsync(file.fileno())


def _open_journal(folder: Path) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    path = folder.resolve() / "journal.log"
    with writing(folder):
        _repair(path)
        # Optuna's own lock survives a kill; ours is held, so whoever left it is gone.
        Path(f"{path}.lock").unlink(missing_ok=True)
        try:
            return JournalStorage(JournalFileBackend(str(path)))
        except (ValueError, KeyError, TypeError) as error:
            raise MupError(
                f"{path} is damaged before its last line ({error}), so its runs cannot be read; restore it from "
                "a copy or choose another folder."
            ) from error


@contextmanager
def _reaching(url: str) -> Iterator[None]:
    """Turn a database that does not answer into a sentence."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (SQLAlchemyError, StorageInternalError, ImportError) as error:
        why = " ".join(str(getattr(error, "orig", None) or error.__cause__ or error).split())[:300]
        raise MupError(
            f"The storage {_shown(url)} cannot be reached ({type(error).__name__}: {why}). Check that its server runs, that "
            "the database exists and that its driver is installed (pip install psycopg2-binary, and "
            "postgresql+psycopg2://…); finished runs are kept and the same command resumes."
        ) from error


@contextmanager
def open_store(folder: Path, storage: Any, study: Study, settings: Mapping[str, Any]) -> Iterator[Store]:
    """Lock the folder and the storage, check that they hold this study, and open them.

    Parameters
    ----------
    folder : Path
        Made if new.
    storage : str, Optuna storage or None
        None: the journal file in the folder. A URL: a database.
    study : Study
    settings : mapping
        What a resume is checked against.

    Raises
    ------
    MupError
        If another process holds the folder or the study, if the storage cannot be reached, read or written, or if it
        holds a study with other settings.
    """
    import optuna

    folder = Path(folder)
    verbosity = optuna.logging.get_verbosity()
    with ExitStack() as stack:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_locked(folder / "study.lock", f"the study folder {folder}"))
        optuna.logging.set_verbosity(max(verbosity, optuna.logging.WARNING))  # the progress display says more
        stack.callback(optuna.logging.set_verbosity, verbosity)
        prefix = "" if storage is None else f"{study.name}/"
        if storage is None:
            storage = _open_journal(folder)
        elif isinstance(storage, str):
            stack.enter_context(_reaching(storage))
            stack.enter_context(_locked_database(storage, study.name))
            storage = optuna.storages.RDBStorage(storage, engine_kwargs={"pool_pre_ping": True})
        stack.enter_context(writing(folder))
        yield Store(folder, storage, prefix, study, settings)


def _without_unfinished(storage: Any, held: list[str], prefix: str, settings: Mapping[str, Any]) -> list[str]:
    """Names of the studies in a storage, after those of a study with other settings are removed that finished no run.

    Parameters
    ----------
    held : list of str
    prefix : str
        Of this study's names; empty where the storage is its own.
    settings : mapping
        What is to be stored now.
    """
    import optuna
    from optuna.trial import TrialState

    mine = [optuna.load_study(storage=storage, study_name=name) for name in held if name.startswith(prefix)]
    kept = [study.user_attrs["settings"] for study in mine if "settings" in study.user_attrs]
    trials = [trial for study in mine for trial in study.get_trials(deepcopy=False)]
    runs = [value for trial in trials for name, value in trial.user_attrs.items() if name.startswith("seed:")]
    ended = any(map(is_final, runs)) or any(trial.state == TrialState.COMPLETE for trial in trials)
    # Studies without settings are of another program.
    if not kept or all(old == settings for old in kept) or ended:
        return held
    gone = {study.study_name for study in mine}
    for name in gone:
        optuna.delete_study(storage=storage, study_name=name)
    return [name for name in held if name not in gone]


class Store:
    """The cells of one study. Only this process writes to them."""

    def __init__(self, folder: Path, storage: Any, prefix: str, study: Study, settings: Mapping[str, Any]) -> None:
        import optuna

        self.folder = folder
        self.cells: dict[tuple, Cell] = {}
        self._settings = settings = json.loads(json.dumps(settings))
        names = {cell: prefix + ("/".join(map(str, filter(None, cell))) or study.name) for cell in study.cells()}
        held = optuna.get_all_study_names(storage)
        first = next(iter(names.values()))
        held = _without_unfinished(storage, held, prefix, settings)
        if held and not prefix and first not in held:
            raise MupError(f"{folder} already holds another study ({held[0]!r}), not {first!r}; choose another folder.")
        for cell, name in names.items():
            # A journal grows by a line even where create_study finds the study that it asks for.
            opened = (optuna.load_study if name in held else optuna.create_study)(storage=storage, study_name=name)
            if name == first and (old := opened.user_attrs.get("settings")) != settings:
                if old:
                    refuse_other_settings(old, settings, str(folder))
                if (held_now := with_former_rules(old or {}, settings)) != old:
                    opened.set_user_attr("settings", held_now)
            self.cells[cell] = Cell(opened, study.space, study.seeds, study.search and cell[0] == study.base)
        self._write_settings({})

    def _write_settings(self, more: Mapping[str, Any]) -> None:
        text = json.dumps({"version": 2, **self._settings, **more}, indent=2)
        self._replace("config.json", text + "\n")

    def grow(self, study: Study) -> None:
        """Take a study whose grid grew: what was asked stays as it is, and the values that came to it stand beside."""
        for cell in self.cells.values():
            cell.space = study.space
        asked = self._settings["grid"]
        extended = {name: [v for v in values if v not in asked[name]] for name, values in study.space.items()}
        self._write_settings({"extended": {name: values for name, values in extended.items() if values}})

    def records(self) -> list[Record]:
        """Every record, in the study's order: by cell, point and seed."""
        return [r for cell in self.cells.values() for r in cell.sorted_records()]

    def write_results(self, records: Sequence[Record]) -> None:
        """Rewrite ``results.jsonl`` as a whole."""
        self._replace("results.jsonl", to_jsonl(records))

    def _replace(self, name: str, text: str) -> None:
        with writing(self.folder), whole_file(self.folder / name) as part:
            part.write_text(text, encoding="utf-8")

    def append_result(self, record: Record) -> None:
        """Add a line to ``results.jsonl``."""
        with writing(self.folder), open(self.folder / "results.jsonl", "a", encoding="utf-8") as file:
            file.write(to_jsonl([record]))


class Cell:
    """One size under one rule: an Optuna study whose trials are points.

    Parameters
    ----------
    study : optuna.Study
    space : mapping
    seeds : sequence of int
        In their order; the first seed is report 0.
    search : bool
        Whether Optuna proposes the points.
    """

    def __init__(self, study: Any, space: Mapping[str, Any], seeds: Sequence[int], search: bool) -> None:
        from optuna.samplers import RandomSampler

        self.study, self.space, self.seeds, self.search = study, space, tuple(seeds), search
        if not search:
            self.study.sampler = RandomSampler()  # never asked
        self._seen: dict[str, dict[str, Any]] = {}  # key → params, in the order of the trials
        self._records: dict[tuple[str, int], Record] = {}
        self._settled: set[str] = set()  # pruned: no further seed will run
        self.n_points = 0  # of a search: trials asked for, without those that are run again
        self._proposed: list[Any] = []
        self.reports_a_seed = 1  # one at its end, and one at each rung before
        self._load()

    # What there is

    def _load(self) -> None:
        from optuna.trial import TrialState

        for trial in self.study.get_trials(deepcopy=False):
            params = trial.user_attrs.get("point")
            if params is None and self.search and set(trial.params) == set(self.space):
                params = dict(trial.params)
            if params is None:  # killed while it was asked for, or put there by the user
                if trial.state == TrialState.RUNNING:
                    self.study.tell(trial.number, state=TrialState.FAIL)
                continue
            key = params_key(params)
            self._seen.setdefault(key, params)
            self.n_points += "again" not in trial.user_attrs
            for name, record in trial.user_attrs.items():
                if name.startswith("seed:"):
                    self._records[key, record["seed"]] = record
            if trial.state == TrialState.RUNNING:  # its command was killed
                self._tell(trial.number, key)
            if trial.state == TrialState.PRUNED:
                self._settled.add(key)
        # A point that was written down and not begun: a grid starts it again by itself.
        while self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            trial = self.study.ask(distributions(self.space) if self.search else {})
            if "point" in trial.user_attrs or not self.search:
                self.study.tell(trial, state=TrialState.FAIL)
            else:
                self._proposed.append(trial)

    def point_records(self, params: Mapping[str, Any]) -> dict[int, Record]:
        """Records of a point by seed."""
        key = params_key(params)
        return {seed: self._records[key, seed] for seed in self.seeds if (key, seed) in self._records}

    def is_settled(self, params: Mapping[str, Any]) -> bool:
        """Whether nothing of a point would run any more."""
        return params_key(params) in self._settled or _ends(self.point_records(params), self.seeds)

    def unsettled(self) -> list[dict[str, Any]]:
        """Points of a search that an earlier command began and did not finish."""
        return [params for params in self._seen.values() if not self.is_settled(params)]

    def n_skipped(self) -> int:
        """Runs that will not be needed: further seeds of points that failed for good."""
        return sum(len(self.seeds) - len(self.point_records(p)) for p in self._seen.values() if self.is_settled(p))

    def sorted_records(self) -> list[Record]:
        """Every record, by point and seed."""
        rank = {seed: i for i, seed in enumerate(self.seeds)}
        known = [r for (_, seed), r in self._records.items() if seed in rank]
        return sorted(known, key=lambda r: (_order(r["params"]), rank[r["seed"]]))

    # Trials

    def start(self, params: Mapping[str, Any]) -> Any:
        """A running trial at this point, with the records that are kept from earlier ones."""
        values, kinds = (dict(params), distributions(self.space)) if self.search else optuna_point(params, self.space)
        key = params_key(params)
        kept = {f"seed:{s}": r for s, r in self.point_records(params).items() if is_final(r)}
        again = {"again": True} if key in self._seen else {}
        self._seen.setdefault(key, dict(params))
        self.study.enqueue_trial(values, user_attrs={"point": dict(params), **again, **kept})
        trial = self.study.ask(kinds)
        for seed, record in self.point_records(params).items():
            if is_complete(record):
                trial.report(record["loss"], self.step(seed))
        return trial

    def step(self, seed: int, rung: int = -1) -> int:
        """Number of a report: of a seed's end, or of one of its rungs."""
        return self.seeds.index(seed) * self.reports_a_seed + rung % self.reports_a_seed

    def propose(self, sampler: Any, n_trials: int) -> tuple[dict[str, Any], Any]:
        """The point that the sampler proposes next, and its running trial."""
        if sampler is None:
            from optuna.samplers import TPESampler

            # A fresh sampler, seeded by how many points there are: a resumed search goes on as if never interrupted.
            startup = min(10, max(1, n_trials // 3))
            sampler = TPESampler(seed=self.n_points, n_startup_trials=startup, constant_liar=True)
        self.study.sampler = sampler
        trial = self._proposed.pop(0) if self._proposed else self.study.ask(distributions(self.space))
        params = dict(trial.params)
        trial.set_user_attr("point", params)
        self.n_points += 1
        self._seen.setdefault(params_key(params), params)
        return params, trial

    def report(self, trial: Any, record: Record, traceback: str | None) -> None:
        """Keep the record of one seed."""
        if is_complete(record):
            trial.report(record["loss"], self.step(record["seed"]))
        if traceback:
            trial.set_user_attr(f"traceback:{record['seed']}", traceback)
        trial.set_user_attr(f"seed:{record['seed']}", record)
        self._records[params_key(record["params"]), record["seed"]] = record

    def close(self, trial: Any, params: Mapping[str, Any]) -> None:
        """Tell Optuna how the point ended."""
        self._tell(trial, params_key(params))

    def _tell(self, trial: Any, key: str) -> None:
        from optuna.trial import TrialState

        records = [self._records[key, seed] for seed in self.seeds if (key, seed) in self._records]
        if len(records) == len(self.seeds) and all(map(is_complete, records)):
            self.study.tell(trial, mean_and_std([r["loss"] for r in records])[0])
        elif any(is_final(r) and not is_complete(r) for r in records):
            # TPE ignores failed trials and would come back to where training diverges; pruned ones it avoids.
            self.study.tell(trial, state=TrialState.PRUNED)
            self._settled.add(key)
        else:
            self.study.tell(trial, state=TrialState.FAIL)

    def prune(self, trial: Any, params: Mapping[str, Any]) -> None:
        """End a point whose seeds so far are worse than others'."""
        from optuna.trial import TrialState

        self.study.tell(trial, state=TrialState.PRUNED)
        self._settled.add(params_key(params))


def _ends(records: Mapping[int, Record], seeds: Sequence[int]) -> bool:
    """Whether a point is done: every seed completed, or one failed for good."""
    return any(is_final(r) and not is_complete(r) for r in records.values()) or (
        len(records) == len(seeds) and all(map(is_complete, records.values()))
    )


def _order(params: Mapping[str, Any]) -> tuple:
    """Sorts points: numbers by size, anything else by its text."""
    return tuple(
        (k, (0, v, "") if isinstance(v, (int, float)) and not isinstance(v, bool) else (1, 0, params_key({"": v})))
        for k, v in sorted(params.items())
    )
