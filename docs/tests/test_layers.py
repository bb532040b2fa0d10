"""Imports point downward, as the table of docs/explain/house.md shows, and the files that this page names exist."""

import ast
import re
from functools import cache
from pathlib import Path

import neuralop_mup

ROOT = Path(neuralop_mup.__file__).parent
REPOSITORY = Path(__file__).parents[2]  # the package may be installed elsewhere
PAGE = (REPOSITORY / "docs" / "explain" / "house.md").read_text(encoding="utf-8")

# From the bottom. A part imports from lower lines only, never from another part on its own line.
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


@cache
def modules() -> dict[str, Path]:
    paths = (path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


@cache
def imports(path: Path) -> set[str]:
    """Return the modules of this package that a file imports anywhere; ``neuralop_mup`` stands for its public names.

    Imports for type checkers do not count.
    """
    tree = ast.parse(path.read_text())
    blocks = [n for n in ast.walk(tree) if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    nodes = set(ast.walk(tree)) - {node for block in blocks for node in ast.walk(block)}
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    found = set()
    for name in names:
        package, _, inner = name.partition(".")
        if package == "neuralop_mup":
            found.add(next((m for m in (inner, inner.rpartition(".")[0]) if m in modules()), package))
    return found


def part_of(module: str) -> str:
    return module.partition(".")[0]


def imported_parts() -> dict[str, set[str]]:
    """Return the other parts that each part imports."""
    parts: dict[str, set[str]] = {part: set() for part in LEVEL}
    for name, path in modules().items():
        parts[part_of(name)] |= {part_of(other) for other in imports(path)} - {part_of(name)}
    return parts


def test_imports_point_downward():
    upward = {part: [other for other in others if LEVEL[other] >= LEVEL[part]] for part, others in imported_parts().items()}
    assert {part: others for part, others in upward.items() if others} == {}


def test_imports_form_no_circle():
    """Also within a part: the modules have an order in which each imports only earlier ones."""
    needed = {name: imports(path) - {"neuralop_mup"} for name, path in modules().items()}
    done: set[str] = set()
    while ready := {name for name, needs in needed.items() if name not in done and needs <= done}:
        done |= ready
    assert {name: needs - done for name, needs in needed.items() if name not in done} == {}


def test_only_the_public_names_lead_to_instruments():
    words = ("instruments", "learned_mult", "LearnedRates")
    others = {name: path.read_text() for name, path in modules().items() if part_of(name) != "instruments"}
    assert [name for name, text in others.items() if any(word in text for word in words)] == []


def test_the_table_of_the_page_lists_all_imports():
    rows = re.findall(r"^\| `(\w+)/` \| .* \| (.*) \|$", PAGE, re.MULTILINE)
    listed = {folder: set(re.findall(r"`(\w+)`", cell)) for folder, cell in rows}
    shared = {*LAYERS[0], *LAYERS[1]}
    assert listed == {part: imported_parts()[part] - shared for parts in LAYERS[2:-2] for part in parts}


def test_files_that_the_page_names_exist():
    """Their paths start at the repository or at the package."""
    named = re.findall(r"`([\w./-]+(?:\.(?:py|md)|/))`", PAGE)
    assert len(named) > 30
    assert [name for name in named if not ((REPOSITORY / name).exists() or (ROOT / name).exists())] == []
