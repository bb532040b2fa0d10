"""The package as it is installed: what importing it loads."""

import json
import subprocess
import sys
from pathlib import Path

IMPORT = """
import json, re, sys, time
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from neuralop.models import FNO
from torch.optim.optimizer import _global_optimizer_pre_hooks as hooks
before, start = set(sys.modules), time.process_time()
import neuralop_mup as nm
found = {"seconds": time.process_time() - start, "modules": sorted(sys.modules.keys() - before), "hooks": [len(hooks)]}
for _ in range(2):
    nm.parametrize(FNO((8,), 1, 1, 8))
    found["hooks"].append(len(hooks))
lab = re.search(r"^lab = \\[(.*?)^\\]", Path(sys.argv[1]).read_text(), re.MULTILINE | re.DOTALL)[1]
blocked = dict.fromkeys(re.findall(r'^ +"(\\w+)', lab, re.MULTILINE))
before = {name: sys.modules.pop(name) for name in {*blocked} & {*sys.modules}}
sys.modules.update(blocked)
try:
    nm.tune
except nm.MupError as error:
    found["error"] = str(error)
from neuralop_mup.__main__ import main
with redirect_stderr(StringIO()) as told:
    found["command"] = [main(), told.getvalue()]
for name in [*blocked, *(name for name in sys.modules if name.startswith("neuralop_mup.lab"))]:
    sys.modules.pop(name, None)
sys.modules.update(before)
import neuralop_mup.lab
found["lab"] = sorted(sys.modules)
print(json.dumps(found))
"""
HEAVY = {
    "torch._dynamo": "torch's compiler, 2 s",
    "torch._inductor": "torch's compiler",
    "sympy": "comes with torch's compiler",
    "matplotlib": "figures",
    "pandas": "comes with seaborn",
    "seaborn": "mup's figures",
    "physicsnemo": "its models are known by name",
    "torchvision": "a requirement of mup's examples",
    "neuralop_mup.lab": "sweeps",
    "neuralop_mup.lab.problems": "data",
    "neuralop_mup.lab.plots": "figures",
    "neuralop_mup.lab.cli": "the command line",
}


def _imported() -> dict:
    command = [sys.executable, "-c", IMPORT, Path(__file__).parents[1] / "pyproject.toml"]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(out.stdout)


def test_in_a_process_of_its_own():
    """What ``import neuralop_mup`` loads beyond ``import neuralop``: nothing that training a model does not need.

    It adds at most 0.3 s (of the processor, which other work on the machine does not stretch as much), once in three times.
    Other optimizers of the process are left alone until a model has a plan, and without the packages of the laboratory a
    sentence says what is missing, in Python and on the command line. The laboratory loads what draws, keeps and sends runs
    when it is used.
    """
    first = _imported()
    assert first["hooks"] == [0, 1, 1]
    assert "neuralop_mup.tune needs" in first["error"] and 'pip install ".[lab]"' in first["error"]
    code, told = first["command"]
    assert code == 2 and told.endswith('pip install ".[lab]".\n') and told.count("\n") == 1
    assert not {"matplotlib", "signac", "ray"} & {*first["lab"]}
    loaded = set(first["modules"])
    assert "neuralop_mup.core.parametrize" in loaded
    assert {module: why for module, why in HEAVY.items() if module in loaded} == {}
    assert first["seconds"] < 0.3 or any(_imported()["seconds"] < 0.3 for _ in range(2))
