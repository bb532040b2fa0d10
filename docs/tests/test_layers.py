"""Imports point downward, as the table of CONTRIBUTING.md shows, and the files that this page names exist."""

import ast
import re
from pathlib import Path

import neuralop_mup

ROOT = Path(neuralop_mup.__file__).parent
REPOSITORY = Path(__file__).parents[2]  # the package may be installed elsewhere
PAGE = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")

# Every folder may import these.
SHARED = {"errors", "files", "validation", "torch_private", "_version"}
# The folders from top to bottom, and the other folders that each imports.
TABLE = {
    folder: set(re.findall(r"`(\w+)`", cell))
    for folder, cell in re.findall(r"^\| `(\w+)/?` \| .* \| (.*) \|$", PAGE, re.MULTILINE)
}
PATHS = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in ROOT.rglob("*.py")
    if path != ROOT / "__init__.py"
}


def imports(path: Path) -> set[str]:
    """Return the modules of this package that a file imports anywhere; ``neuralop_mup`` stands for its public names.

    Imports for type checkers do not count.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
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
            found.add(next((m for m in (inner, inner.rpartition(".")[0]) if m in PATHS), package))
    return found


IMPORTS = {name: imports(path) for name, path in PATHS.items()}


def test_folders_import_what_the_table_lists():
    found = {folder: set() for folder in TABLE}
    for name, others in IMPORTS.items():
        folder = name.partition(".")[0]
        if folder in TABLE:
            found[folder] |= {other.partition(".")[0] for other in others} - SHARED - {folder}
    assert found == TABLE


def test_imports_point_downward():
    """Rows of the table only import lower rows, and shared modules import no row. Within a folder imports form no cycle."""
    order = list(TABLE)
    assert [folder for i, folder in enumerate(order) if not TABLE[folder] <= set(order[i + 1 :])] == []
    assert [name for name in SHARED if not IMPORTS[name] <= SHARED] == []
    needed = {name: others - {"neuralop_mup"} for name, others in IMPORTS.items()}
    done = set()
    while ready := {name for name, needs in needed.items() if name not in done and needs <= done}:
        done |= ready
    assert {name: needs - done for name, needs in needed.items() if name not in done} == {}


def test_files_that_the_page_names_exist():
    """Their paths start at the repository or at the package."""
    named = re.findall(r"`([\w./-]+(?:\.(?:py|md)|/))`", PAGE)
    assert len(named) > 20
    assert [name for name in named if not ((REPOSITORY / name).exists() or (ROOT / name).exists())] == []
