"""Mutation tests: change one operator, number or statement of a module, and see whether a test fails.

    pytest --cov=neuralop_mup --cov-context=test --junitxml=build/mutants/durations.xml   # which test runs which line
    python tests_ci/mutants.py rules plan groups schedule                                  # half an hour on two cores

Every mutant is run against the tests that execute its line, the quickest first, until one fails or they have taken
``--budget`` seconds in the coverage run. Survivors are printed with their line and written to ``build/mutants/survivors.txt``.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path.cwd()
OUTPUT = Path("build/mutants")
#: What is mutated, by the name that the command takes.
TARGETS = {
    "rules": ["core/rules.py", "core/block_norms.py"],
    "plan": ["core/plan.py", "core/planning.py"],
    "groups": ["optim/groups.py", "optim/musoap/groups.py"],
    "schedule": ["optim/musoap/length.py"],
    "musoap": ["optim/musoap/direction.py", "optim/musoap/bases.py", "optim/musoap/precision.py"],
    "key": ["lab/fingerprint.py", "lab/records.py"],
    "readers": ["lab/problems/readers.py", "lab/problems/formats.py", "lab/problems/fields.py"],
}
#: Imported once, before each mutant forks from this process. The package itself is not among them.
PRELOADED = (
    "torch",
    "torch._dynamo",
    "neuralop.models",
    "mup",
    "scipy.stats",
    "hypothesis",
    "pytest",
    "h5py",
    "xarray",
    "matplotlib.pyplot",
)
SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.MatMult: ast.Add, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
    ast.And: ast.Or, ast.Or: ast.And, ast.USub: ast.UAdd,
}  # fmt: skip


@dataclass
class Mutant:
    file: str
    line: int
    change: str
    source: str
    outcome: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.change}"


# Making mutants


def replacements(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """(field of the node, new value) for each way to change this one node."""
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            if type(op) in SWAPS:
                yield "ops", [*node.ops[:i], SWAPS[type(op)](), *node.ops[i + 1 :]]
    elif isinstance(node, (ast.BinOp, ast.AugAssign, ast.BoolOp, ast.UnaryOp)) and type(node.op) in SWAPS:
        yield "op", SWAPS[type(node.op)]()
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "value", not node.value
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        yield "value", node.value + 1
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        yield "test", ast.UnaryOp(ast.Not(), node.test)
    if isinstance(node, ast.comprehension) and node.ifs:
        yield "ifs", []
    if isinstance(node, ast.Return) and node.value is not None:
        yield "value", None
    for field in ("body", "orelse"):
        statements = getattr(node, field, None)
        for i, statement in enumerate(statements if isinstance(statements, list) else []):
            if isinstance(statement, (ast.Raise, ast.AugAssign)) or _is_call(statement):
                yield field, [*statements[:i], ast.copy_location(ast.Pass(), statement), *statements[i + 1 :]]


def _is_call(statement: ast.AST) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)


def is_text(node: ast.AST) -> bool:
    """Messages, annotations and ``__all__``: no test should fail when these change."""
    if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
        return (getattr(node.func, "id", None) or getattr(node.func, "attr", None)) in ("MupError", "warn", "TypeVar")
    return isinstance(node, ast.JoinedStr)


def nodes_of(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that may be mutated."""
    yield tree
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not is_text(child):
                yield from nodes_of(child)


def mutants_of(file: str, text: str) -> list[Mutant]:
    """Every mutant of a module, in the order of its lines."""
    tree, result = ast.parse(text), []
    plain = ast.unparse(tree)
    for node in list(nodes_of(tree)):
        for field, new in replacements(node):
            old = getattr(node, field)
            line = getattr(node, "lineno", 0)
            if field in ("body", "orelse"):
                line = next(b.lineno for a, b in zip(old, new, strict=True) if a is not b)
            before = _short(
                node if field not in ("body", "orelse") else next(a for a, b in zip(old, new, strict=True) if a is not b)
            )
            setattr(node, field, new)
            after = "removed" if field in ("body", "orelse") else _short(node)
            source = ast.unparse(ast.fix_missing_locations(tree))
            setattr(node, field, old)
            if source != plain and line:
                result.append(Mutant(file, line, f"{before} → {after}", source))
    return sorted(result, key=lambda mutant: mutant.line)


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) < 70 else text[:67] + "…"


# Which tests run a line


class Coverage:
    """The tests that execute each line, and how long each took."""

    def __init__(self, database: Path, durations: Path) -> None:
        self.seconds = {test: float(seconds) for test, seconds in _durations(durations)}
        self._by_line: dict[tuple[str, int], set[str]] = defaultdict(set)
        self._by_file: dict[str, set[str]] = defaultdict(set)
        connection = sqlite3.connect(database)
        contexts = dict(connection.execute("select id, context from context"))
        files = {i: path.split("/neuralop_mup/", 1)[-1] for i, path in connection.execute("select id, path from file")}
        for file, context, bits in connection.execute("select file_id, context_id, numbits from line_bits"):
            test = contexts[context].partition("|")[0]
            if test not in self.seconds:
                continue
            self._by_file[files[file]].add(test)
            for byte, value in enumerate(bits):
                for bit in range(8):
                    if value >> bit & 1:
                        self._by_line[files[file], 8 * byte + bit].add(test)

    def tests(self, mutant: Mutant, budget: float) -> list[str]:
        """Quickest first; all tests of the module for a line that is executed at import."""
        found = self._by_line.get((mutant.file, mutant.line)) or self._by_file.get(mutant.file, set())
        result, total = [], 0.0
        for test in sorted(found, key=lambda test: (self.seconds[test], test)):
            total += self.seconds[test]
            if total > budget and result:
                break
            result.append(test)
        return result


def _durations(path: Path) -> Iterator[tuple[str, str]]:
    for case in ElementTree.parse(path).iter("testcase"):
        if case.find("skipped") is None and case.find("failure") is None:
            module, _, rest = case.get("classname").partition(".Test")
            yield (
                f"{module.replace('.', '/')}.py::{'Test' + rest + '::' if rest else ''}{case.get('name')}",
                case.get("time"),
            )


# Running them


def run(mutant: Mutant, tests: list[str], place: Path, limit: float) -> int:
    """Start a process that runs the tests on the mutated copy; its process id."""
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


def copy_checkout() -> Path:
    """A copy of the package and its tests, in which files are mutated."""
    place = Path(tempfile.mkdtemp(prefix="mutants-"))
    for name in ("neuralop_mup", "tests", "benchmarks", "docs", "examples"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
    shutil.copy(ROOT / "pyproject.toml", place)
    return place


def run_all(mutants: list[Mutant], coverage: Coverage, budget: float, jobs: int) -> None:
    """Set each mutant's outcome: killed, survived or not executed by any test."""
    for name in PRELOADED:
        importlib.import_module(name)
    assert "neuralop_mup" not in sys.modules, "the package must be imported after the fork"
    import torch

    torch.set_num_threads(1)
    free, running, waiting = [copy_checkout() for _ in range(jobs)], {}, list(reversed(mutants))
    started, done = time.time(), 0
    try:
        while waiting or running:
            while waiting and free:
                mutant = waiting.pop()
                tests = coverage.tests(mutant, budget)
                if not tests:
                    mutant.outcome, done = "not executed", done + 1
                    continue
                place = free.pop()
                limit = 20 + 4 * sum(coverage.seconds[test] for test in tests)
                running[run(mutant, tests, place, limit)] = mutant, place
            if running:
                child, status = os.wait()
                mutant, place = running.pop(child)
                with_group(child)
                mutant.outcome = "survived" if status == 0 else "killed"
                shutil.copy(ROOT / "neuralop_mup" / mutant.file, place / "neuralop_mup" / mutant.file)
                free.append(place)
                done += 1
            if done % 20 == 0 or mutant.outcome != "killed":
                left = (time.time() - started) / done * (len(mutants) - done) / 60
                alive = sum(m.outcome not in ("", "killed") for m in mutants)
                print(
                    f"{done}/{len(mutants)}, {alive} alive, {left:.0f} min left; last: {mutant.outcome}: {mutant}",
                    flush=True,
                )
    finally:
        for place in free:
            shutil.rmtree(place, ignore_errors=True)


def with_group(child: int) -> None:
    """End what a test left running."""
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", default=list(TARGETS), help=", ".join(TARGETS))
    parser.add_argument("--sample", type=int, help="at most so many mutants of each target, drawn with seed 0")
    parser.add_argument("--budget", type=float, default=20, help="seconds of tests for one mutant")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--coverage", type=Path, default=Path(".coverage"))
    parser.add_argument("--durations", type=Path, default=OUTPUT / "durations.xml")
    parser.add_argument("--output", type=Path, default=OUTPUT / "survivors.txt")
    arguments = parser.parse_args()
    coverage = Coverage(arguments.coverage, arguments.durations)
    mutants: dict[str, list[Mutant]] = {}
    for target in arguments.targets:
        found = [m for file in TARGETS[target] for m in mutants_of(file, (ROOT / "neuralop_mup" / file).read_text("utf-8"))]
        if arguments.sample and len(found) > arguments.sample:
            found = sorted(random.Random(0).sample(found, arguments.sample), key=lambda m: (m.file, m.line))
        mutants[target] = found
    run_all([m for found in mutants.values() for m in found], coverage, arguments.budget, arguments.jobs)
    lines = []
    for target, found in mutants.items():
        alive = [m for m in found if m.outcome != "killed"]
        print(f"{target}: {len(found) - len(alive)} of {len(found)} killed, {1 - len(alive) / max(1, len(found)):.1%}")
        lines += [f"{target}: {m.outcome}: {m}" for m in alive]
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"survivors: {arguments.output}")


if __name__ == "__main__":
    main()
