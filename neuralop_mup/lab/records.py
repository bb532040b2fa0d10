"""Runs that are kept in a folder: each by the hash of everything that its result depends on.

The folder is a signac project: a run is a job, its content the state point, what it gave the document, and weights and
checkpoints lie beside these. So nothing is compared, a folder holds any number of studies, and ``signac`` shows them.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from neuralop_mup.errors import MupError
from neuralop_mup.files import whole_file
from neuralop_mup.lab.files import remove_file
from neuralop_mup.lab.outcome import is_complete, is_final
from neuralop_mup.lab.space import is_distribution

__all__ = ["CHECKPOINT", "WEIGHTS", "Records", "Run", "described", "put"]

WEIGHTS, CHECKPOINT = "weights.pt", "checkpoint.pt"
#: Seconds to wait for the lock: a command that is killed leaves it to its workers until they close their files.
_INHERITED = 0.5
#: Files that earlier versions left in the folder of a study.
_FORMER = ("journal.log", "config.json")


class Run:
    """One run: what it is, and what the study that wants it calls it.

    Parameters
    ----------
    content : mapping
        Everything that its result depends on, as plain values; :func:`described` makes them so.
    config : mapping
        What ``train`` is given.
    keep : bool
        Whether the weights are wanted.
    labels
        What a table calls it: ``size``, ``rule``, ``params``, ``seed``.
    """

    def __init__(self, content: Mapping[str, Any], config: Mapping[str, Any], keep: bool = False, **labels: Any) -> None:
        from signac.job import calc_id

        self.content, self.config, self.keep, self.labels = described(content), dict(config), keep, labels
        self.id = calc_id(self.content)


def described(value: Any) -> Any:
    """``value`` as JSON that is the same in every process: what is a run's content, and may be a signac state point.

    Numbers that are equal are the same, 1 and 1.0; keys have no dots. A function is its qualified name, without the module,
    which is __main__ for a script that runs, and the plain values that it closes over; an object without a text of its own
    is its class and its plain attributes. What may change while runs are trained, such as a list, is only named.
    """
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(k).replace(".", "/"): described(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [described(v) for v in value]
    if isinstance(value, functools.partial):
        return [described(value.func), described(value.args), described(value.keywords)]
    if is_distribution(value):
        from optuna.distributions import distribution_to_json

        return distribution_to_json(value)
    if hasattr(value, "__qualname__"):
        held = _closed_over(value)
        return [value.__qualname__, held] if held else value.__qualname__
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        return described(value.item())
    if type(value).__repr__ is object.__repr__ and (held := _plain_ones(getattr(value, "__dict__", {}))):
        return [type(value).__qualname__, held]
    return without_addresses(repr(value))


def without_addresses(text: str) -> str:
    """A text of Python's that is the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def _closed_over(function: Any) -> dict[str, Any]:
    """The plain values that a function takes from where it was made, and those of the object that it is a method of."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells = {}
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=False):
        with suppress(ValueError):  # one that is not filled yet
            cells[name] = cell.cell_contents
    cells.pop(function.__qualname__.rpartition(".")[2], None)  # a function that calls itself
    return _plain_ones(cells) | _plain_ones(getattr(getattr(function, "__self__", None), "__dict__", {}))


def _plain_ones(values: Mapping[str, Any]) -> dict[str, Any]:
    kinds = (bool, int, float, complex, str, bytes, type(None), tuple, frozenset, Path, functools.partial)
    plain = {k: v for k, v in values.items() if isinstance(v, kinds) or inspect.isroutine(v)}
    return {k: described(v) for k, v in sorted(plain.items())}


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn a failed write (no permission, full disk) into a sentence that names the folder.

    Raises
    ------
    MupError
    """
    try:
        yield
    except OSError as error:
        raise MupError(
            f"Cannot write to the study folder {folder}: {error.strerror or error}. Free space there or choose another "
            "folder; finished runs are kept and the same command resumes."
        ) from error


def put(folder: Path, path: str | Path, content: str | bytes) -> None:
    """Write a file of the study folder as a whole."""
    with writing(folder), whole_file(path) as part:
        part.write_bytes(content) if isinstance(content, bytes) else part.write_text(content, encoding="utf-8")


class Records:
    """The runs of a folder, as one command sees them. It alone writes there, as long as it is :meth:`held`.

    Parameters
    ----------
    folder : str or Path
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.notes: list[str] = []  # what was found damaged
        self._known: dict[str, dict[str, Any] | None] = {}
        self._proposed: dict[str, list[dict[str, Any]]] = {}
        self._given_up: set[str] = set()
        self._written: set[str] = set()  # by this command, which trains no run twice for its weights
        if self.folder.exists() and not self.folder.is_dir():
            raise MupError(f"{self.folder} is a file, and not a folder for results: choose another.")
        former = [name for name in _FORMER if (self.folder / name).exists()]
        if former and not (self.folder / ".signac").exists():
            raise MupError(
                f"{self.folder} holds a study of an earlier version of neuralop_mup ({', '.join(former)}), which is left as "
                "it is: read it with that version, or choose another folder."
            )

    @contextmanager
    def held(self) -> Iterator[Records]:
        """Make the folder and hold its lock, which the system drops when the process ends, however it ends.

        Raises
        ------
        MupError
            If another command holds it, or it cannot be written.
        """
        import signac
        from filelock import FileLock, Timeout

        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.folder / ".lock")
            try:
                lock.acquire(timeout=_INHERITED)
            except Timeout:
                raise MupError(
                    f"Another run is using the study folder {self.folder}; wait for it to end, or choose another."
                ) from None
        try:
            with writing(self.folder):
                self._project = signac.init_project(str(self.folder))
            yield self
        finally:
            lock.release()

    def place(self, run: Run, make: bool = False) -> Path:
        """Folder of a run's files."""
        from signac.errors import JobsCorruptedError

        if make:
            job = self._project.open_job(run.content)
            with writing(self.folder):
                try:
                    job.init()
                except JobsCorruptedError:  # a kill may leave half of a state point
                    job.init(force=True)
        return Path(self._project.workspace) / run.id

    def get(self, run: Run) -> dict[str, Any] | None:
        """What a run gave, where nothing of it is left to do: it would end so again, or was given up in this command.

        A complete run whose weights are wanted, and are not here or damaged, is to be trained again.
        """
        record = self.read(run)
        if record is None or (not is_final(record) and run.id not in self._given_up):
            return None
        if run.keep and is_complete(record) and run.id not in self._written:
            return record if zipfile.is_zipfile(self.place(run) / WEIGHTS) else None  # as torch writes them
        return record

    def read(self, run: Run) -> dict[str, Any] | None:
        """What a run gave last, however it ended."""
        if run.id not in self._known:
            self._known[run.id] = self._read(self.place(run) / "signac_job_document.json")
        return self._known[run.id]

    def _read(self, path: Path) -> dict[str, Any] | None:
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            is_final(record)
            dict(record["metrics"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            self.notes.append(f"{path} is damaged ({type(error).__name__}), so its run is trained again")
            return None
        return record

    def write(self, run: Run, record: Mapping[str, Any]) -> None:
        """Keep what a run gave; whoever is killed here leaves the former record or the new one.

        A run that ended by itself has no use for its checkpoint any more, and its weights are safe by now.
        """
        place = self.place(run, make=True)
        put(self.folder, place / "signac_job_document.json", json.dumps(record, allow_nan=False))
        self._known[run.id] = dict(record)
        self._written.add(run.id)
        if is_final(record):
            remove_file(place / CHECKPOINT)

    def give_up(self, run: Run) -> None:
        """Take the last failure of a run for its result, as long as this command runs."""
        self._given_up.add(run.id)

    def proposals(self, search: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The points that a sampler proposed in a search, in their order."""
        name = self._named(search)
        if name not in self._proposed:
            path = Path(self._project.fn(name))
            try:
                self._proposed[name] = json.loads(path.read_text(encoding="utf-8"))["points"] if path.exists() else []
            except (ValueError, KeyError, TypeError) as error:
                raise MupError(
                    f"{path} is damaged ({type(error).__name__}), and it says which points the search has asked for: "
                    "restore it from a copy, or remove it to search anew; finished runs are kept."
                ) from error
        return self._proposed[name]

    def propose(self, search: Mapping[str, Any], points: Sequence[Mapping[str, Any]]) -> None:
        """Keep the proposals of a search."""
        name, kept = self._named(search), {"search": described(search), "points": list(points)}
        put(self.folder, self._project.fn(name), json.dumps(kept))
        self._proposed[name] = kept["points"]

    def _named(self, search: Mapping[str, Any]) -> str:
        return f"search-{Run(search, {}).id}.json"
