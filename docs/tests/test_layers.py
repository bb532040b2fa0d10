"""Imports point downward: the theory, then optimizers, then what looks at and tunes models, then the command line."""

import ast
from pathlib import Path

import neuralop_mup

ROOT = Path(neuralop_mup.__file__).parent

# From the bottom: a part imports from itself and from the lines above it here, and from none on its own line.
LAYERS = (
    ("errors", "torch_private", "_version"),
    ("files", "validation"),
    ("core",),
    ("optim",),
    ("losses", "diagnostics", "integrations"),
    ("instruments",),
    ("lab",),  # with the command line
    ("neuralop_mup",),  # the public names
    ("__main__",),
)
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}


def test_imports_point_downward():
    upward = []
    for name, path in modules().items():
        own = name.partition(".")[0]
        for other in imports(path, anywhere=True):
            part = other.partition(".")[0]
            if part != own and LEVEL[part] >= LEVEL[own]:
                upward.append(f"{name} imports {other}")
    assert upward == []


def test_no_circle():
    """Within a part, too: the modules can be put in an order in which each imports only earlier ones, at whatever time."""
    needed = {name: imports(path, anywhere=True) - {"neuralop_mup"} for name, path in modules().items()}
    done: set[str] = set()
    while ready := {name for name, needs in needed.items() if name not in done and needs <= done}:
        done |= ready
    assert {name: needs - done for name, needs in needed.items() if name not in done} == {}


def modules() -> dict[str, Path]:
    paths = (path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


def imports(path: Path, anywhere: bool) -> set[str]:
    """Modules of this package that a file imports, but for type checkers; ``neuralop_mup`` for its public names."""
    tree, known = ast.parse(path.read_text()), modules()
    blocks = [n for n in ast.walk(tree) if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    typing = {node for block in blocks for node in ast.walk(block)}
    nodes = set(ast.walk(tree) if anywhere else tree.body) - typing
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    found = set()
    for name in names:
        if name.partition(".")[0] == "neuralop_mup":
            inner = name.partition(".")[2]
            found.add(next((m for m in (inner, inner.rpartition(".")[0]) if m in known), "neuralop_mup"))
    return found


def test_nothing_knows_the_instruments():
    """They stand apart: the public names alone lead to them, when they are asked for."""
    knows = {
        name
        for name, path in modules().items()
        if not name.startswith("instruments")
        and any(word in path.read_text() for word in ("instruments", "learned_mult", "LearnedRates"))
    }
    assert knows == set()
