"""Store runs in a folder. The name of a run is the hash of everything that its result depends on.

Each run has a subfolder ``workspace/<id>`` with its content, its result, and its checkpoint or weights. A folder can contain
any number of studies.
"""

import hashlib
import json
import logging
import math
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from neuralop_mup.errors import MupError
from neuralop_mup.lab.files import as_folder, put, remove_file, writing
from neuralop_mup.lab.fingerprint import fingerprint_or_new
from neuralop_mup.lab.outcome import KINDS, is_complete, is_final, releases
from neuralop_mup.lab.wording import counted

_LOG = logging.getLogger(__name__)

WEIGHTS, CHECKPOINT = "weights.pt", "checkpoint.pt"
#: File names from release 0.3.0, which used signac. After ``signac init`` in the folder, signac can list the runs.
_CONTENT, _DOCUMENT = "signac_statepoint.json", "signac_job_document.json"
#: Seconds to wait for the lock, since the workers of a killed command still hold it until they close their files.
_INHERITED = 0.5


class Run:
    """Describe one run: its content, its train function, and its labels in a study.

    Parameters
    ----------
    content : mapping
        Everything that the result depends on, except for :func:`~neuralop_mup.lab.outcome.releases`, which are also part of
        the key. :func:`described` converts it to plain values.
    config : mapping
        Argument of ``train``.
    keep : bool
        Whether to keep the weights.
    train : callable, optional
        ``train(config)`` returns a number, or a dict with ``"loss"``. If its attribute ``keeps_files`` is true, the function
        is also called with ``place``, the folder for the checkpoint and the weights, and with ``keep``.
    **labels
        Columns of the table of results: ``size``, ``rule``, ``params``, ``seed``.
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
    """Return the MD5 hash of plain content in hexadecimal. The order of the keys has no effect."""
    return hashlib.md5(json.dumps(content, sort_keys=True).encode(), usedforsecurity=False).hexdigest()


def described(value: Any) -> Any:
    """Return ``value`` in a JSON form that is the same in every process.

    1 and 1.0 are different, since code may treat them differently. Tuples become lists, and dots in keys become slashes. Any
    other value is replaced by its fingerprint (:func:`~neuralop_mup.lab.fingerprint.fingerprint_or_new`).
    """
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        keys = [k if isinstance(k, str) else f"{type(k).__name__} {k}" for k in value]  # distinguishes 1 from "1"
        return {key.replace(".", "/"): described(v) for key, v in zip(keys, value.values(), strict=True)}
    if isinstance(value, (list, tuple, range)):
        return [described(v) for v in value]
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return described(value.item())
    return fingerprint_or_new(value)


def params_key(params: Mapping[str, Any]) -> str:
    """Return a string that is equal for equal points. A tuple equals a list, and the order of the keys has no effect."""
    return json.dumps(described(params), sort_keys=True)


class Records:
    """Read and write the runs of a folder. Only one command at a time can lock a folder (:meth:`held`) and write to it.

    Parameters
    ----------
    folder : str or Path
        Folder for the runs, which need not exist.
    known : object, optional
        Additional read-only records: ``known.get(run)`` returns the record of a run, or None.

    Raises
    ------
    MupError
        If the folder is a file.
    """

    def __init__(self, folder: str | Path, known: Any = None) -> None:
        self.folder = as_folder(folder)
        self._lock = FileLock(self.folder / ".lock")
        self.known = known
        self._read: dict[str, dict[str, Any] | None] = {}
        self._settled: set[str] = set()  # runs of this command, which are not repeated if they failed or keep no weights

    @contextmanager
    def held(self) -> Iterator["Records"]:
        """Create the folder and lock it. The system releases the lock when the process ends, even if it is killed.

        The same object can acquire the lock several times.

        Raises
        ------
        MupError
            If another command has locked the folder, or if the folder cannot be written.
        """
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire(timeout=_INHERITED)
            except Timeout:
                raise MupError(
                    f"Another command is using the folder {self.folder}. Wait until it finishes, or choose another folder."
                ) from None
        try:
            yield self
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"Interrupted. Finished runs are in {self.folder}, and repeating the command resumes the study. Runs in "
                "progress continue from their last checkpoint. Checkpoints are written between epochs, at most once a "
                "minute. A run without one starts from the beginning."
            ) from None
        finally:
            self._lock.release()

    def place(self, run: Run, make: bool = False) -> Path:
        """Return the folder for a run's files. If ``make`` is true, also create it and write the content of the run."""
        place = self.folder / "workspace" / run.id
        if make:
            with writing(self.folder):
                place.mkdir(parents=True, exist_ok=True)
            put(self.folder, place / _CONTENT, json.dumps({**run.content, "releases": releases()}))
        return place

    def warn_of_other_releases(self, runs: Iterable[Run]) -> None:
        """Warn if the folder contains these runs from other releases, since they are not reused."""
        wanted, found = {content_hash(run.content) for run in runs}, list[str]()
        for path in self.folder.glob(f"workspace/*/{_CONTENT}") if wanted else ():
            with suppress(OSError, ValueError, KeyError):  # the file is damaged or from release 0.3
                content = json.loads(path.read_text(encoding="utf-8"))
                made = content.pop("releases")
                if made != releases() and content_hash(content) in wanted and path.with_name(_DOCUMENT).exists():
                    found.append(_text(made))
        if found:
            saved = f"{counted(len(found), 'saved run')} of {', or of '.join(sorted(set(found)))}"
            _LOG.warning(f"{saved} cannot be reused with {_text(releases())}, because the results may differ.")

    def get(self, run: Run) -> dict[str, Any] | None:
        """Return the record of a run, or None if the run must be trained.

        A run must be trained if it failed, or if its weights are to be kept but are missing or damaged. A run that this
        command has already trained is not trained again, unless it was written with ``repeat=True``.
        """
        record = self.read(run)
        if record is None or (not is_final(record) and run.id not in self._settled):
            return None if self.known is None else self.known.get(run)
        if run.keep and is_complete(record) and run.id not in self._settled:
            return record if zipfile.is_zipfile(self.place(run) / WEIGHTS) else None  # torch writes weights as zip files
        return record

    def read(self, run: Run) -> dict[str, Any] | None:
        """Return the last record of a run, regardless of its outcome."""
        if run.id not in self._read:
            path = self.place(run) / _DOCUMENT
            try:
                self._read[run.id] = _checked(json.loads(path.read_text(encoding="utf-8")))
            except FileNotFoundError:
                self._read[run.id] = None
            except (ValueError, KeyError, TypeError) as error:
                _LOG.warning(f"{path} is damaged ({type(error).__name__}), so its run will be repeated.")
                self._read[run.id] = None
        return self._read[run.id]

    def write(self, run: Run, record: Mapping[str, Any], repeat: bool = False) -> None:
        """Write the record of a run, and remove its checkpoint unless the run failed.

        By default, the record is final for this command. With ``repeat=True``, a failed run is trained again. If the process
        is killed while writing, the file contains either the previous record or the new one.
        """
        place = self.place(run, make=True)
        put(self.folder, place / _DOCUMENT, json.dumps(record, allow_nan=False))
        self._read[run.id] = dict(record)
        if not repeat:
            self._settled.add(run.id)
        if is_final(record):
            remove_file(place / CHECKPOINT)


def _text(made: Mapping[str, str]) -> str:
    return " and ".join(f"{name} {version}" for name, version in made.items())


def _checked(record: Any) -> dict[str, Any]:
    """Return the record if it is valid; raise ValueError, KeyError or TypeError if it was changed or truncated."""
    whole = record["outcome"] in KINDS and isinstance(record["metrics"], dict) and {"error", "seconds"} <= record.keys()
    if not whole or (is_complete(record) and not math.isfinite(record["loss"])):
        raise ValueError("it is not a record of a run")
    return record
