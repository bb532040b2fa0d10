"""Mutation tests: change one operator, number or statement of a module, and see whether a test fails.

    pytest --cov=neuralop_mup --cov-context=test --junitxml=build/mutants/durations.xml   # which test runs which line
    python tests_ci/mutants.py rules plan groups schedule                                  # an hour on two cores

Runs the tests that execute the changed line, unit tests first, until one fails or ``--budget`` seconds of tests are spent.
Survivors are printed with their line and written to ``build/mutants/survivors.txt``.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

ROOT, OUTPUT = Path.cwd(), Path("build/mutants")
#: Name of a target → its modules, and the tests that are tried first.
TARGETS = {
    "rules": (["core/rules.py"], ["test_rules", "test_rule_functions"]),
    "norms": (["core/block_norms.py"], ["test_block_norms"]),
    "plan": (
        ["core/plan.py", "core/make_plan.py"],
        ["test_plan_contents", "test_parametrize", "test_layouts", "test_sizes"],
    ),
    "groups": (["optim/groups.py", "optim/musoap/matrix_groups.py"], ["test_groups", "test_musoap", "test_states"]),
    "schedule": (["optim/schedule.py"], ["test_schedule"]),
    "musoap": (
        ["optim/musoap/update.py", "optim/musoap/eigenbases.py", "optim/musoap/precision.py"],
        ["test_musoap", "test_musoap_gradients", "test_musoap_reference"],
    ),
    "key": (["lab/fingerprint.py", "lab/records.py"], ["test_fingerprint", "test_records"]),
    "readers": (
        ["lab/data/readers.py", "lab/data/formats.py", "lab/data/axes.py", "lab/data/interpretations.py"],
        ["test_readers", "test_formats", "test_own_data", "test_splits"],
    ),
}
#: Imported once. Each mutant runs in a fork of this process, and only the fork imports the package.
PRELOADED = ("torch._dynamo", "neuralop.models", "mup", "scipy.stats", "hypothesis", "h5py", "xarray", "matplotlib.pyplot")
SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.MatMult: ast.Add, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
    ast.And: ast.Or, ast.Or: ast.And, ast.USub: ast.UAdd,
}  # fmt: skip
BLOCKS = ("body", "orelse")


@dataclass
class Mutant:
    """A changed module: its path in the package, the line, what was changed, and its text."""

    file: str
    line: int
    change: str
    source: str
    survives: bool | None = None  # not known yet

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.change}"


def changes(node: ast.AST) -> Iterator[tuple[str, Any, ast.AST]]:
    """Each way to change one node: the field, its new value, and the node that a report shows."""
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            yield "ops", [*node.ops[:i], SWAPS[type(op)](), *node.ops[i + 1 :]], node
    elif type(getattr(node, "op", None)) in SWAPS:
        yield "op", SWAPS[type(node.op)](), node
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "value", not node.value, node
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        yield "value", node.value + 1, node
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        yield "test", ast.UnaryOp(ast.Not(), node.test), node
    if isinstance(node, ast.comprehension) and node.ifs:
        yield "ifs", [], node
    if isinstance(node, ast.Return) and node.value is not None:
        yield "value", None, node
    for field in BLOCKS:
        statements = getattr(node, field, None)
        for i, statement in enumerate(statements if isinstance(statements, list) else []):
            is_call = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
            if is_call or isinstance(statement, (ast.Raise, ast.AugAssign)):
                yield field, [*statements[:i], ast.Pass(), *statements[i + 1 :]], statement


def is_text(node: ast.AST) -> bool:
    """Return whether it is a message, or ``strict=True`` of a zip, whose change no test should notice."""
    function = getattr(node, "func", None)
    name = getattr(function, "id", None) or getattr(function, "attr", None)
    return (
        isinstance(node, ast.JoinedStr) or getattr(node, "arg", None) == "strict" or name in ("MupError", "warn", "TypeVar")
    )


def nodes_of(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that may be changed: all but messages, annotations and decorators."""
    yield tree
    for name, value in ast.iter_fields(tree):
        if name not in ("annotation", "returns", "decorator_list"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not is_text(child):
                    yield from nodes_of(child)


def mutants_of(file: str, text: str) -> list[Mutant]:
    """Every mutant of a module, in the order of its lines."""
    tree, result = ast.parse(text), []
    plain = ast.unparse(tree)
    for node in list(nodes_of(tree)):
        for field, new, shown in changes(node):
            old, before = getattr(node, field), _short(shown)
            setattr(node, field, new)
            after = "removed" if field in BLOCKS else _short(node)
            source = ast.unparse(ast.fix_missing_locations(tree))
            setattr(node, field, old)
            if source != plain and hasattr(shown, "lineno"):
                result.append(Mutant(file, shown.lineno, f"{before} → {after}", source))
    return sorted(result, key=lambda mutant: mutant.line)


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) < 70 else text[:67] + "…"


class Coverage:
    """The tests that execute each line, from coverage's database, and how long each took, from pytest's XML file."""

    def __init__(self, database: Path, durations: Path) -> None:
        self.seconds = {}
        for case in ElementTree.parse(durations).iter("testcase"):
            if case.find("skipped") is None and case.find("failure") is None:
                name = f"{case.get('classname').replace('.', '/')}.py::{case.get('name')}"
                self.seconds[name] = float(case.get("time"))
        self._by_line: dict[tuple[str, int], set[str]] = defaultdict(set)
        self._by_file: dict[str, set[str]] = defaultdict(set)
        self._lines: dict[str, int] = defaultdict(int)  # how many of the package a test executes: few for a unit test
        rows = sqlite3.connect(database).execute(
            "select path, context, numbits from line_bits "
            "join file on file.id = file_id join context on context.id = context_id"
        )
        for path, context, bits in rows:
            file, test = path.rpartition("/neuralop_mup/")[2], context.partition("|")[0]
            if test in self.seconds:
                lines = [8 * i + bit for i, byte in enumerate(bits) for bit in range(8) if byte >> bit & 1]
                self._by_file[file].add(test)
                self._lines[test] += len(lines)
                for line in lines:
                    self._by_line[file, line].add(test)

    def tests(self, mutant: Mutant, first: list[str], budget: float) -> list[str]:
        """Return the tests to run: those of the files ``first``, then those that execute the least code.

        A line that is executed at import has all tests of the module.
        """
        found = self._by_line.get((mutant.file, mutant.line)) or self._by_file[mutant.file]
        result, total = [], 0.0
        for test in sorted(
            found, key=lambda test: (Path(test.partition("::")[0]).stem not in first, self._lines[test], test)
        ):
            total += self.seconds[test]
            if total > budget and result:
                break
            result.append(test)
        return result


def start(mutant: Mutant, tests: list[str], place: Path, limit: float) -> int:
    """Start a process that runs the tests on the changed copy, and return its id."""
    (place / "neuralop_mup" / mutant.file).write_text(mutant.source, encoding="utf-8")
    (place / "tests.txt").write_text("\n".join(tests), encoding="utf-8")
    child = os.fork()
    if child:
        return child
    os.setsid()
    os.chdir(place)
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    os.environ.update(PYTHONPATH=str(place), PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1")
    sys.path[:0] = [str(place)]
    sys.dont_write_bytecode = True
    signal.alarm(int(limit))
    import pytest

    code = 3
    try:
        code = pytest.main(["-x", "-n0", "-q", "-p", "no:cacheprovider", "-p", "no:pytest_cov", "@tests.txt"])
    finally:
        os._exit(int(code))


def run(work: list[tuple[Mutant, list[str]]], coverage: Coverage, jobs: int, folder: Path) -> None:
    """Find out which mutants survive their tests."""
    for name in PRELOADED:
        importlib.import_module(name)
    assert "neuralop_mup" not in sys.modules, "the package must be imported after the fork"
    waiting = work[::-1]
    running, free = {}, [folder / str(i) for i in range(jobs)]
    for place in free:
        shutil.copytree(ROOT, place, ignore=shutil.ignore_patterns("__pycache__", ".*", "build", "results", "runs"))
    with tqdm(total=len(waiting)) as bar, contextlib.ExitStack() as at_end:
        at_end.callback(lambda: [os.killpg(child, signal.SIGKILL) for child in running])
        while waiting or running:
            while waiting and free:
                (mutant, tests), place = waiting.pop(), free.pop()
                limit = 20 + 4 * sum(coverage.seconds[test] for test in tests)
                running[start(mutant, tests, place, limit)] = mutant, place
            child, status = os.wait()
            with contextlib.suppress(ProcessLookupError):  # what a test left running
                os.killpg(child, signal.SIGKILL)
            mutant, place = running.pop(child)
            shutil.copy(ROOT / "neuralop_mup" / mutant.file, place / "neuralop_mup" / mutant.file)
            free.append(place)
            code = os.waitstatus_to_exitcode(status)
            if code == 5:
                raise SystemExit(f"pytest found no tests for {mutant}: run the tests again with --cov")
            mutant.survives = code == 0
            bar.update()
            if mutant.survives:
                bar.write(f"survived: {mutant}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="+", choices=TARGETS)
    parser.add_argument("--sample", type=int, help="at most this many mutants of each target, drawn with seed 0")
    parser.add_argument("--budget", type=float, default=30, help="seconds of tests per mutant")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    given = parser.parse_args()
    if not Path(".coverage").is_file():
        parser.error("there is no file .coverage: run the tests first, by\n" + __doc__.splitlines()[2])
    mutants: dict[str, list[Mutant]] = {}
    for target in given.targets:
        files, _ = TARGETS[target]
        found = [m for file in files for m in mutants_of(file, (ROOT / "neuralop_mup" / file).read_text("utf-8"))]
        if given.sample and len(found) > given.sample:
            found = sorted(random.Random(0).sample(found, given.sample), key=lambda m: (m.file, m.line))
        mutants[target] = found
    coverage = Coverage(Path(".coverage"), OUTPUT / "durations.xml")
    work = []
    for target, found in mutants.items():
        for mutant in found:
            tests = coverage.tests(mutant, TARGETS[target][1], given.budget)
            mutant.survives = None if tests else True
            work += [(mutant, tests)] if tests else []
    place = tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True)
    with place as folder, contextlib.suppress(KeyboardInterrupt):
        run(work, coverage, given.jobs, Path(folder))
    for target, found in mutants.items():
        known = [m.survives for m in found if m.survives is not None]
        print(f"{target}: {sum(known)} of {len(known)} survive ({sum(known) / max(1, len(known)):.1%})")
    output = OUTPUT / "survivors.txt"
    output.write_text("".join(f"{m}\n" for found in mutants.values() for m in found if m.survives), "utf-8")
    print(f"survivors: {output}")


if __name__ == "__main__":
    main()
