"""Runs that are kept in a folder, each under the hash of everything that its result depends on.

Each run has a folder ``workspace/<id>`` with its content, its result, and its checkpoint or weights. A folder can contain
any number of studies.
"""

import hashlib
import json
import math
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from neuralop_mup.errors import MupError
from neuralop_mup.lab.files import put, remove_file, writing
from neuralop_mup.lab.fingerprint import fingerprint_or_new
from neuralop_mup.lab.outcome import KINDS, is_complete, is_final, releases
from neuralop_mup.lab.wording import counted

WEIGHTS, CHECKPOINT = "weights.pt", "checkpoint.pt"
#: The names of 0.3.0, which used signac. After ``signac init`` in the folder, signac lists the runs.
_CONTENT, _DOCUMENT = "signac_statepoint.json", "signac_job_document.json"
#: Seconds to wait for the lock: the workers of a killed command hold it until they close their files.
_INHERITED = 0.5
#: A file that marks our folders, and files of studies before release 0.3, which did not write it.
_OURS, _FORMER = ".neuralop_mup", ("journal.log", "config.json", "study.json", ".signac")


class Run:
    """One run: its content, its train function, and its labels in a study.

    Parameters
    ----------
    content : mapping
        Everything that its result depends on, except for :func:`~neuralop_mup.lab.outcome.releases`, which the run's key
        contains, too. :func:`described` makes it plain.
    config : mapping
        The argument of ``train``.
    keep : bool
        Whether to keep the weights.
    train : callable, optional
        ``train(config) -> float`` or a dict with ``"loss"``. If its attribute ``keeps_files`` is true, it is also called
        with ``place``, the folder of its checkpoint and weights, and ``keep``.
    labels
        Columns of a table: ``size``, ``rule``, ``params``, ``seed``.
    """

    def __init__(
        self,
        content: Mapping[str, Any],
        config: Mapping[str, Any],
        keep: bool = False,
        *,
        train: Callable[..., Any] | None = None,
        **labels: Any,
    ) -> None:
        self.content, self.config = described(content), dict(config)
        self.keep, self.train, self.labels = keep, train, labels
        self.id = content_hash({**self.content, "releases": releases()})


def content_hash(content: Mapping[str, Any]) -> str:
    """Return the md5 of plain content, in hex; the order of its keys does not count."""
    return hashlib.md5(json.dumps(content, sort_keys=True).encode(), usedforsecurity=False).hexdigest()


def described(value: Any) -> Any:
    """Return ``value`` as JSON that is the same in every process: the content of a run.

    1 and 1.0 differ, since code may treat them differently; tuples are lists, and dots in keys are slashes. Values that
    JSON does not have are replaced by their fingerprint (:func:`~neuralop_mup.lab.fingerprint.fingerprint_or_new`).
    """
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, Mapping):
        keys = [k if isinstance(k, str) else f"{type(k).__name__} {k}" for k in value]  # 1 and "1" differ
        return {key.replace(".", "/"): described(v) for key, v in zip(keys, value.values(), strict=True)}
    if isinstance(value, (list, tuple, range)):
        return [described(v) for v in value]
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return described(value.item())
    return fingerprint_or_new(value)


def params_key(params: Mapping[str, Any]) -> str:
    """Return a text that is equal for equal points: a tuple and a list, any order of keys."""
    return json.dumps(described(params), sort_keys=True)


class Records:
    """The runs of a folder, as one command sees them. Only one command can hold a folder (:meth:`held`) and write to it.

    Parameters
    ----------
    folder : str or Path
    known : object, optional
        Further records, read-only: ``known.get(run)`` returns the record of a run, or None.

    Raises
    ------
    MupError
        If the folder is a file, or contains a study of release 0.2 or before.
    """

    def __init__(self, folder: str | Path, known: Any = None) -> None:
        self.folder = Path(folder)
        self._lock = FileLock(self.folder / ".lock")
        self.known = known
        self.notes: list[str] = []  # on damaged records
        self._read: dict[str, dict[str, Any] | None] = {}
        self._given_up: set[str] = set()
        self.ended: dict[tuple, list[dict[str, Any]]] = {}  # a study's cache: runs of a finished point → records
        self._written: set[str] = set()  # by this command, which does not repeat a run because of its weights
        if self.folder.exists() and not self.folder.is_dir():
            raise MupError(f"{self.folder} is a file. Results need a folder: choose another name.")
        former = [name for name in _FORMER if (self.folder / name).exists()]
        if former and not (self.folder / _OURS).exists():
            raise MupError(
                f"{self.folder} contains a study of neuralop_mup 0.2.0 or before ({', '.join(former)}). Its results cannot "
                "be reused. Read it with that release, or choose another folder."
            )

    @contextmanager
    def held(self) -> Iterator["Records"]:
        """Create the folder and hold its lock, which the system releases when the process ends, however it ends.

        The same records may hold it several times.

        Raises
        ------
        MupError
            If another command holds the folder, or it cannot be written.
        """
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire(timeout=_INHERITED)
            except Timeout:
                raise MupError(
                    f"Another command is using the folder {self.folder}. Wait until it ends, or choose another folder."
                ) from None
        try:
            with writing(self.folder):
                (self.folder / _OURS).touch()
            yield self
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"Stopped. Finished runs are in {self.folder}; the same command resumes there. A run in progress continues "
                "from its last checkpoint. There is one every five minutes; a shorter run begins again."
            ) from None
        finally:
            self._lock.release()

    def place(self, run: Run, make: bool = False) -> Path:
        """Return the folder of a run's files; ``make``: create it, with the content of the run."""
        place = self.folder / "workspace" / run.id
        if make:
            with writing(self.folder):
                place.mkdir(parents=True, exist_ok=True)
            put(self.folder, place / _CONTENT, json.dumps({**run.content, "releases": releases()}))
        return place

    def of_other_releases(self, runs: Iterable[Run]) -> str:
        """Describe the kept runs that other releases trained and these runs do not reuse; empty if there are none.

        Runs of release 0.3 or before count whatever their content is: their keys are not comparable.
        """
        wanted, found = {content_hash(run.content) for run in runs}, Counter[str]()
        for path in self.folder.glob(f"workspace/*/{_CONTENT}") if wanted else ():
            with suppress(OSError, ValueError):  # a damaged file is no run that could be reused
                content = json.loads(path.read_text(encoding="utf-8"))
                made = content.pop("releases", None)
                if made is None or (made != releases() and content_hash(content) in wanted):
                    found[_text(made) if made else "neuralop-mup 0.3 or before"] += path.with_name(_DOCUMENT).exists()
        return "; ".join(
            f"{counted(count, 'kept run')} of {made} cannot be reused by {_text(releases())}, whose results may differ"
            for made, count in found.items()
            if count
        )

    def get(self, run: Run) -> dict[str, Any] | None:
        """Return the record of a run that needs no training: it would end in the same way, or this command gave it up.

        Return None for a complete run whose weights are needed, and are missing or damaged.
        """
        record = self.read(run)
        if record is None or (not is_final(record) and run.id not in self._given_up):
            return None if self.known is None else self.known.get(run)
        if run.keep and is_complete(record) and run.id not in self._written:
            return record if zipfile.is_zipfile(self.place(run) / WEIGHTS) else None  # as torch writes them
        return record

    def read(self, run: Run) -> dict[str, Any] | None:
        """Return the last record of a run, however it ended."""
        if run.id not in self._read:
            path = self.place(run) / _DOCUMENT
            try:
                self._read[run.id] = _checked(json.loads(path.read_text(encoding="utf-8")))
            except FileNotFoundError:
                self._read[run.id] = None
            except (ValueError, KeyError, TypeError) as error:
                self.notes.append(f"{path} is damaged ({type(error).__name__}), so its run is trained again")
                self._read[run.id] = None
        return self._read[run.id]

    def write(self, run: Run, record: Mapping[str, Any]) -> None:
        """Write the record of a run. A kill here leaves the former record or the new one.

        The checkpoint of a run that would end in the same way is removed: its weights are complete by now.
        """
        place = self.place(run, make=True)
        put(self.folder, place / _DOCUMENT, json.dumps(record, allow_nan=False))
        self._read[run.id] = dict(record)
        self._written.add(run.id)
        if is_final(record):
            remove_file(place / CHECKPOINT)

    def give_up(self, run: Run) -> None:
        """Accept the last failure of a run as its result, for this command."""
        self._given_up.add(run.id)


def _text(made: Mapping[str, str]) -> str:
    return " and ".join(f"{name} {version}" for name, version in made.items())


def _checked(record: Any) -> dict[str, Any]:
    """Return the record of a file; raise ValueError, KeyError or TypeError if the file was changed or truncated."""
    whole = record["outcome"] in KINDS and isinstance(record["metrics"], dict) and {"error", "seconds"} <= record.keys()
    if not whole or (is_complete(record) and not math.isfinite(record["loss"])):
        raise ValueError("it is not a record of a run")
    return record
