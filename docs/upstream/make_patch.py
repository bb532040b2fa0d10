"""The optimizer, its tests and its example as one patch: ``python make_patch.py | git -C NEURALOPERATOR apply``."""

from pathlib import Path

HERE = Path(__file__).parent
#: File of this folder → where it goes.
FILES = {
    "musoap.py": "neuralop/training/musoap.py",
    "test_musoap.py": "neuralop/training/tests/test_musoap.py",
    "plot_musoap_fno_darcy.py": "examples/training/plot_musoap_fno_darcy.py",
}


def patch() -> str:
    """A new file each, as git writes it."""
    parts = []
    for name, place in FILES.items():
        lines = HERE.joinpath(name).read_text(encoding="utf-8").splitlines()
        parts += [f"diff --git a/{place} b/{place}", "new file mode 100644", "--- /dev/null", f"+++ b/{place}"]
        parts += [f"@@ -0,0 +1,{len(lines)} @@", *(f"+{line}" for line in lines)]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    print(patch(), end="")
