"""Sweeps under faults: no finished trial lost, none run twice, the final table as if nothing had happened.

    python benchmarks/faults.py [--rounds 50] [--seed 0] [--write]

Each round takes one study (a grid and a transfer with two workers, a search in one process) through commands that end
badly, then through one that is left alone, and compares what the folder holds with an undisturbed study. The faults:

- workers: worker processes are killed (SIGKILL) at random points, in the end the main process too;
- cut: the main process is killed and the journal cut in the middle of one of its last lines;
- disk: a file-size limit stops a write half-way, as a full disk does;
- two: two commands on one folder at once; the second takes over the moment the first is killed;
- clock: time.time, Optuna's datetime and the files' times jump by years; the main process is killed.

Trials are milliseconds of sleep. A trial that was running when it was killed may start again; one whose record is in the
journal may not, unless it raised: each trial looks for its own record when it starts. Linux only (/proc). ``--write``
keeps the figures in benchmarks/results/faults.txt.
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

# First: it keeps torch out of the processes here.
from fault_studies import Study, journaled, limit_files, table

from neuralop_mup.errors import MupError

HERE = Path(__file__).resolve().parent
PAIRS = tuple(itertools.combinations(("cut", "disk", "two", "clock"), 2))
DONE, IN_USE, NO_SPACE, BROKEN, HANGS = 0, 3, 4, 5, 6
MEANING = {DONE: "done", IN_USE: "folder in use", NO_SPACE: "no space", BROKEN: "broken", HANGS: "hangs"}
YEAR = 365 * 86400.0


# ----------------------------------------------------------------------------------------- the commands


class Command:
    """The study's command in a process of its own, forked so that Optuna is loaded once for all of them."""

    def __init__(self, study: Study, before: Callable[[], None] = lambda: None) -> None:
        self.study, self.code = study, None
        self.pid = os.fork()
        if self.pid == 0:
            # A killed command leaves its semaphores to its resource tracker, which would print a warning each time.
            os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"
            os._exit(self._run(before))

    def _run(self, before: Callable[[], None]) -> int:
        code = BROKEN
        faulthandler.register(signal.SIGUSR1)
        try:
            before()
            records = self.study.command()
            limit_files(None)
            self.study.keep(records)
            return DONE
        except MupError as error:
            text = str(error)
            code = IN_USE if "Another run is using" in text else NO_SPACE if "Cannot write" in text else BROKEN
        except BaseException:
            text = traceback.format_exc()
        limit_files(None)
        if code == BROKEN:
            with open(self.study.log, "a", encoding="utf-8") as file:
                file.write(text + "\n")
        return code

    def ended(self) -> bool:
        """Whether the process has ended; its exit code is then in ``code`` (negative: the signal)."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None

    def wait(self, limit: float = 120.0) -> int:
        """Wait for the end; a command that hangs is broken."""
        end = time.monotonic() + limit
        while not self.ended():
            if time.monotonic() > end:
                os.kill(self.pid, signal.SIGUSR1)  # shows where it hangs
                time.sleep(1)
                self.kill()
                return HANGS
            time.sleep(0.005)
        return self.code

    def kill(self) -> bool:
        """SIGKILL; False if the process had ended by itself."""
        if self.ended():
            return False
        os.kill(self.pid, signal.SIGKILL)
        while not self.ended():
            time.sleep(0.001)
        return self.code == -signal.SIGKILL

    def workers(self) -> list[int]:
        """Process ids of the command's workers."""
        try:
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        except OSError:
            return []
        return [int(pid) for pid in children if b"spawn_main" in _command_line(pid)]


def _command_line(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _jump_clock(seed: int) -> Callable[[], None]:
    """Make the command's clock jump by up to ten years at each look."""

    def patch() -> None:
        rng, now = random.Random(seed), time.time

        class Jumping(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> datetime:
                return datetime.now(tz) + timedelta(seconds=rng.uniform(-10, 10) * YEAR)

        time.time = lambda: now() + rng.uniform(-10, 10) * YEAR
        for name, module in list(sys.modules.items()):
            if name.startswith("optuna") and getattr(module, "datetime", None) is datetime:
                module.datetime = Jumping

    return patch


# ------------------------------------------------------------------------------------------- the faults


class Round:
    """One study under its faults; figures are added to ``figures``, and what must not happen is printed as well."""

    def __init__(self, name: str, study: Study, rng: random.Random, figures: Counter) -> None:
        self.name, self.study, self.rng, self.figures = name, study, rng, figures
        self.commands: list[str] = []
        self.safe: dict[str, dict] = {}  # journaled records that no fault has cut away

    def fault(self, name: str, share: int) -> None:
        """Run one command into the fault, within ``share`` more marks; then see that nothing is gone."""
        self.figures["commands that met a fault"] += 1
        self.commands.append(name)
        start = len(self.study.marked())
        getattr(self, f"_{name}")(start, start + self.rng.randint(0, share))
        self.safe = self._compare()

    def _wrong(self, what: str, found: Sequence[str]) -> None:
        """Count what must not happen, and say where it did."""
        self.figures[what] += len(found)
        for text in found:
            print(f"{self.name}, commands {', '.join(self.commands)}: {what}: {text}", file=sys.stderr)

    def _compare(self) -> dict[str, dict]:
        """The journal's records; those that were there before must still be."""
        now = journaled(self.study.folder)
        changed = [key for key, record in self.safe.items() if now.get(key) != record]
        self._wrong("finished trials lost", [f"{self.safe[key]} is now {now.get(key)}" for key in changed])
        return now

    def finish(self, undisturbed: list[dict]) -> None:
        """Run the command once more, undisturbed, and compare."""
        self.commands.append("undisturbed")
        time.sleep(0.5)  # a worker of the last killed command may just have begun what it was given
        before = len(self.study.marked())
        command = Command(self.study)
        code = command.wait()
        self._expect(code, DONE)
        records = self.study.records() if code == DONE else []
        marks = self.study.marked()
        starts, last = (Counter(key for what, key, _ in m if what != "end") for m in (marks, marks[before:]))
        self.figures["finished before the last command"] += len(self.safe)
        self._compare()
        again = [f"{mark} among {marks}" for mark in marks if mark[0] == "again"]
        again += [f"{key}, {n} times, among {marks[before:]}" for key, n in last.items() for _ in range(n - 1)]
        # A start that finds its record there, or a second start in the last command.
        self._wrong("finished trials run again", again)
        self.figures["running when killed, started again"] += sum(n - 1 for n in starts.values())
        self.figures["trials"] += len(undisturbed)
        self.figures["rounds"] += 1
        equal = table(records) == table(undisturbed) and self.study.written() == records
        self.figures["tables equal to the undisturbed"] += equal
        if not equal:
            print(f"{self.name}: {records} for {undisturbed}; written: {self.study.written()}", file=sys.stderr)

    def _expect(self, code: int, *codes: int) -> None:
        """A command ends well, or with the sentence that its fault deserves; a traceback is neither."""
        if code not in codes:
            ends = [MEANING.get(c, f"signal {-c}") for c in (code, *codes)]
            self._wrong("commands that ended otherwise", [f"{ends[0]}, not {' or '.join(ends[1:])}"])

    def _kill_main(self, command: Command) -> None:
        self.figures["main processes killed"] += command.kill()
        self._expect(command.code, DONE, -signal.SIGKILL)

    def _until(self, command: Command, marks: int) -> Iterator[list[list]]:
        """The marks, again and again, until there are so many of them or the command has ended."""
        while not command.ended() and len(marked := self.study.marked()) < marks:
            yield marked
            time.sleep(0.002)
        time.sleep(self.rng.uniform(0, 0.02))

    def _workers(self, start: int, stop: int) -> None:
        command, killed = Command(self.study), []
        at = sorted(self.rng.randint(start, stop) for _ in range(4))
        between = self.rng.random() < 0.3  # whether a worker that starts or is idle may be first to go
        for marked in self._until(command, stop + 4):
            workers = command.workers()
            if not workers or not at or len(marked) < at[0]:
                continue
            time.sleep(self.rng.uniform(0, 0.01))
            victim = self.rng.choice(workers)
            last = [(what, key) for what, key, pid in self.study.marked() if pid == victim][-1:]
            trial = last[0][1] if last and last[0][0] != "end" else None
            # A trial whose worker dies twice in one command counts as failed, so none is killed twice here; a worker
            # caught between trials may just have been given any of them, so after it no other is killed.
            if trial in killed or None in killed or (trial is None and not (between or len(at) == 1)):
                continue
            os.kill(victim, signal.SIGKILL)
            self.figures["workers killed"] += 1
            self.figures["of these between trials"] += trial is None
            killed.append(trial)
            at.pop(0)
        self._kill_main(command)

    def _cut(self, start: int, stop: int) -> None:
        command = Command(self.study)
        for _ in self._until(command, stop):
            pass
        self._kill_main(command)
        path = self.study.folder / "journal.log"
        if not self.study.journal_size():
            return
        before = journaled(self.study.folder)
        lines = path.read_bytes().splitlines(keepends=True)
        line = self.rng.randint(max(0, len(lines) - 4), len(lines) - 1)
        path.write_bytes(b"".join(lines[:line]) + lines[line][: self.rng.randint(1, len(lines[line]) - 1)])
        kept = journaled(self.study.folder)
        self.figures["journals cut in a line"] += 1
        self.figures["records that the cuts took"] += len(before) - len(kept)
        self.safe = {key: record for key, record in self.safe.items() if key in kept}

    def _disk(self, start: int, stop: int) -> None:
        # Above 4 kB, so that the marks of a study in one process still fit.
        limit = max(4096, self.study.journal_size()) + self.rng.randint(0, 6000)
        code = Command(self.study, lambda: limit_files(limit)).wait()
        self.figures["disks full"] += code == NO_SPACE
        self._expect(code, DONE, NO_SPACE)

    def _two(self, start: int, stop: int) -> None:
        commands = [Command(self.study), Command(self.study)]
        while not any(command.ended() for command in commands):
            time.sleep(0.002)
        refused, holder = sorted(commands, key=lambda command: not command.ended())
        for _ in self._until(holder, stop):
            refused = self._again(refused)
        self._kill_main(holder)
        # The workers of the killed one may still be at their trials when the other takes over.
        while refused.wait() == IN_USE:
            refused = self._again(refused)
        self._expect(refused.code, DONE)

    def _again(self, command: Command) -> Command:
        if not (command.ended() and command.code == IN_USE):
            return command
        self.figures["second commands refused"] += 1
        return Command(self.study)

    def _clock(self, start: int, stop: int) -> None:
        for path in self.study.folder.glob("*"):
            then = time.time() + self.rng.uniform(-10, 10) * YEAR
            os.utime(path, (then, then))
        command = Command(self.study, _jump_clock(self.rng.randrange(1000)))
        for _ in self._until(command, stop):
            pass
        self.figures["clocks jumping"] += 1
        self._kill_main(command)


ORDER = (
    *(
        "rounds",
        "commands that met a fault",
        "workers killed",
        "of these between trials",
        "main processes killed",
        "journals cut in a line",
    ),
    *("disks full", "second commands refused", "clocks jumping", "trials", "finished before the last command"),
    *("records that the cuts took", "running when killed, started again", "finished trials lost"),
    *("finished trials run again", "commands that ended otherwise", "tables equal to the undisturbed"),
)


def run(rounds: int, seed: int, root: Path) -> dict[str, int]:
    """Every round, each with its own study and faults drawn from ``seed``.

    Returns
    -------
    dict of str to int
        The figures, by what they count.
    """
    import optuna.samplers
    import optuna.storages.journal  # noqa: F401
    from tqdm import trange

    undisturbed, figures = {}, Counter()
    for kind in Study.KINDS[:rounds]:
        study = Study(kind, root / f"undisturbed-{kind}")
        if Command(study).wait() != DONE:
            raise RuntimeError(f"The undisturbed {kind} broke: {study.log.read_text()}")
        undisturbed[kind] = study.records()
    for i in trange(rounds, desc="rounds", file=sys.stderr, disable=not sys.stderr.isatty()):
        rng = random.Random(f"{seed} {i}")
        kind = Study.KINDS[i % len(Study.KINDS)]
        round_ = Round(f"round {i} ({kind})", Study(kind, root / str(i)), rng, figures)
        pair = list(PAIRS[(i + i // len(PAIRS)) % len(PAIRS)])  # each kind of study meets each pair
        rng.shuffle(pair)
        for name in (*(("workers",) if kind != "search" else ()), *pair):
            round_.fault(name, share=len(undisturbed[kind]) * 2 // 3)
        round_.finish(undisturbed[kind])
        if round_.study.log.exists():
            print(f"{round_.name}: {round_.study.log.read_text()}", file=sys.stderr)
    return {name: figures[name] for name in ORDER}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="keep the figures in benchmarks/results/faults.txt")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="faults-") as root:
        figures = run(args.rounds, args.seed, Path(root))
    command = f"python benchmarks/faults.py --rounds {args.rounds} --seed {args.seed}"
    text = "\n".join([command, *(f"{count:6d}  {name}" for name, count in figures.items())]) + "\n"
    print(json.dumps(figures) if args.json else text)
    if args.write:
        (HERE / "results").mkdir(exist_ok=True)
        (HERE / "results" / "faults.txt").write_text(text)


if __name__ == "__main__":
    main()
