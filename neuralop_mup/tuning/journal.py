"""The study folder: its lock, and the Optuna journal in which every trial is kept."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neuralop_mup.errors import MupError
from neuralop_mup.tuning.records import DIVERGED, Record, raised
from neuralop_mup.tuning.space import distributions, params_key, point_distributions

__all__ = ["Journal", "StudyLog", "TrialHandle", "locked_folder", "writing"]


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn a failed write (no permission, full disk) into a sentence that names the folder."""
    try:
        yield
    except OSError as error:
        raise MupError(
            f"Cannot write to the study folder {folder}: {error.strerror or error}. Free space there or choose "
            "another folder; finished trials are kept and the same command resumes."
        ) from error


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Make the folder and hold its lock; the system drops the lock when the process ends, however it ends."""
    try:
        import fcntl
    except ImportError:
        raise MupError("A study folder needs POSIX file locks, which this system lacks; run it on Linux or macOS.") from None

    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / "study.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        with writing(folder):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise
                raise MupError(
                    f"Another run is using the study folder {folder}; wait for it to end, or choose another folder."
                ) from None
        yield
    finally:
        os.close(lock)


def repair(path: Path) -> None:
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


@dataclass
class TrialHandle:
    """One Optuna trial that is running: a point, and the seeds that it is trained with."""

    log: StudyLog
    number: int
    params: dict[str, Any]
    seeds: tuple[int, ...]
    records: dict[int, Record] = field(default_factory=dict)

    def record(self, record: Record, traceback: str | None = None) -> None:
        """Keep the record of one seed; the trial is told to Optuna with the last of them."""
        self.records[record["seed"]] = record
        # First the record, then the state: killed in between, the next command finds the record and tells it.
        self.log.set_attr(self.number, f"record:{record['seed']}", record)
        if traceback:
            self.log.set_attr(self.number, f"traceback:{record['seed']}", traceback)
        if set(self.records) >= set(self.seeds):
            self.log.tell(self)

    def interrupt(self, why: str) -> None:
        """Mark the trial as interrupted: failed for Optuna, to be run again for us."""
        self.log.set_attr(self.number, "interrupted", why)
        self.log.fail(self.number)

    def restart(self, why: str) -> None:
        """Go on in a new trial with the finished seeds, and mark the old one as interrupted."""
        # The new trial first: killed in between, the old one is known to be replaced and no point is lost.
        successor = self.log.start(self.params, self.seeds, self.records, replaces=self.number)
        self.interrupt(why)
        self.number = successor.number


class StudyLog:
    """One Optuna study of the journal. Only this process writes to it."""

    def __init__(self, study: Any, folder: Path, space: Mapping[str, Any], search: bool) -> None:
        self.study, self.folder, self.space, self.search = study, folder, space, search
        self.to_repeat: dict[tuple, int] = {}  # trials of earlier commands that raised, by point and seeds

    def _trials(self) -> list[Any]:
        return self.study.get_trials(deepcopy=False)

    def set_attr(self, number: int, key: str, value: Any) -> None:
        with writing(self.folder):
            self.study._storage.set_trial_user_attr(self._trials()[number]._trial_id, key, value)

    def fail(self, number: int) -> None:
        from optuna.trial import TrialState

        with writing(self.folder):
            self.study.tell(number, state=TrialState.FAIL)

    def tell(self, handle: TrialHandle) -> None:
        from optuna.trial import TrialState

        records = [handle.records[seed] for seed in handle.seeds]
        failed = [r for r in records if r["state"] == "failed"]
        with writing(self.folder):
            if not failed:
                self.study.tell(handle.number, sum(r["loss"] for r in records) / len(records))
            elif self.search and all((r["error"] or "").startswith(DIVERGED) for r in failed):
                # TPE ignores failed trials and would come back to where training diverges; pruned ones it avoids.
                self.study.tell(handle.number, state=TrialState.PRUNED)
            else:
                self.study.tell(handle.number, state=TrialState.FAIL)

    def start(
        self,
        params: Mapping[str, Any],
        seeds: Sequence[int],
        records: Mapping[int, Record] | None = None,
        replaces: int | None = None,
    ) -> TrialHandle:
        """Write a running trial at a given point: one line of the journal, so never half a trial."""
        from optuna.trial import TrialState, create_trial

        records = dict(records or {})
        if self.search:
            values, kinds = dict(params), distributions(self.space)
        else:
            values, kinds = point_distributions(params, self.space)
        if replaces is None:
            replaces = self.to_repeat.get((params_key(params), tuple(seeds)))
        attrs = {"params": params, "seeds": list(seeds), **{f"record:{s}": r for s, r in records.items()}}
        if replaces is not None:
            attrs["replaces"] = replaces
        with writing(self.folder):
            self.study.add_trial(
                create_trial(state=TrialState.RUNNING, params=values, distributions=kinds, user_attrs=attrs)
            )
        return TrialHandle(self, len(self._trials()) - 1, dict(params), tuple(seeds), records)

    def ask(self, seeds: Sequence[int], n_trials: int) -> TrialHandle:
        """A running trial at the point that TPE proposes next."""
        from optuna.samplers import TPESampler

        # A fresh sampler, seeded by how many points there are: a resumed search goes on as if never interrupted.
        self.study.sampler = TPESampler(
            seed=self.n_points(), n_startup_trials=min(10, max(1, n_trials // 3)), constant_liar=True
        )
        with writing(self.folder):
            trial = self.study.ask(distributions(self.space))
        return TrialHandle(self, trial.number, dict(trial.params), tuple(seeds))

    def _live(self) -> list[Any]:
        trials = self._trials()
        replaced = {t.user_attrs.get("replaces") for t in trials}
        gone = replaced | set(self.to_repeat.values())
        return [t for t in trials if "interrupted" not in t.user_attrs and t.number not in gone]

    def n_points(self) -> int:
        """Trials asked for so far, without those that run again."""
        return len(self._live())

    def finished(self) -> dict[tuple[str, int], Record]:
        """Records by (point, seed). Trials that run again handed theirs on, or have none."""
        return {
            (params_key(record["params"]), record["seed"]): record
            for trial in self._live()
            for key, record in trial.user_attrs.items()
            if key.startswith("record:")
        }

    def recover(self, seeds: Sequence[int]) -> list[TrialHandle]:
        """Settle the trials that were running when the last command was killed, and take back those that raised.

        A grid starts the latter again by itself once they count no more; nothing is written before. In a search, a new
        trial goes on with the seeds that did not raise.

        Returns
        -------
        list of TrialHandle
            In a search, the points to go on with. In a grid nothing: the plan itself knows what is missing.
        """
        from optuna.trial import TrialState

        again = []
        live = {t.number for t in self._live()}
        for trial in [t for t in self._trials() if t.state == TrialState.RUNNING]:
            attrs = trial.user_attrs
            params = attrs.get("params", trial.params)
            records = {r["seed"]: r for k, r in attrs.items() if k.startswith("record:") and not raised(r)}
            handle = TrialHandle(self, trial.number, params, tuple(attrs.get("seeds", seeds)), records)
            if trial.number in live and set(records) >= set(handle.seeds):
                self.tell(handle)
                continue
            why = "the command was killed while this trial was running"
            if self.search and trial.number in live and set(params) == set(self.space):
                handle.restart(why)
                again.append(handle)
            else:
                handle.interrupt(why)
        for trial in self._live():
            records = {r["seed"]: r for k, r in trial.user_attrs.items() if k.startswith("record:")}
            if not any(map(raised, records.values())):
                continue
            params = trial.user_attrs.get("params", trial.params)
            of_trial = tuple(trial.user_attrs.get("seeds", seeds))
            self.to_repeat[params_key(params), of_trial] = trial.number
            if self.search:
                again.append(self.start(params, of_trial, {s: r for s, r in records.items() if not raised(r)}))
        return again


class Journal:
    """The journal file of a locked folder."""

    def __init__(self, folder: Path) -> None:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        self.folder = folder
        path = folder.resolve() / "journal.log"
        with writing(folder):
            repair(path)
            # Optuna's own lock survives a kill; ours is held, so whoever left it is gone.
            Path(f"{path}.lock").unlink(missing_ok=True)
            try:
                self.storage = JournalStorage(JournalFileBackend(str(path)))
            except (ValueError, KeyError, TypeError) as error:
                raise MupError(
                    f"{path} is damaged before its last line ({error}), so its trials cannot be read; restore it from "
                    "a copy or choose another folder."
                ) from error
        self._optuna = optuna

    def study(self, name: str, space: Mapping[str, Any], search: bool = False) -> StudyLog:
        """The study of this name, made if new."""
        with writing(self.folder):
            study = self._optuna.create_study(storage=self.storage, study_name=name, load_if_exists=True)
        return StudyLog(study, self.folder, space, search)

    def study_names(self) -> list[str]:
        return [s.study_name for s in self.storage.get_all_studies()]


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Optuna without its line per trial, which the progress display replaces; warnings stay."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(max(before, optuna.logging.WARNING))
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
