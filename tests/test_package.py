"""The package as it is installed: what importing it loads."""

import json
import subprocess
import sys

IMPORT = """
import json, sys, time
from neuralop.models import FNO
from torch.optim.optimizer import _global_optimizer_pre_hooks as hooks
before, start = set(sys.modules), time.process_time()
import neuralop_mup as nm
found = {"seconds": time.process_time() - start, "modules": sorted(sys.modules.keys() - before), "hooks": [len(hooks)]}
for _ in range(2):
    nm.parametrize(FNO((8,), 1, 1, 8))
    found["hooks"].append(len(hooks))
sys.modules["safetensors"] = None
try:
    nm.tune
except nm.MupError as error:
    found["error"] = str(error)
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
    out = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
    return json.loads(out.stdout)


def test_in_a_process_of_its_own():
    """What ``import neuralop_mup`` loads beyond ``import neuralop``: nothing that training a model does not need.

    It adds at most 0.3 s (of the processor, which other work on the machine does not stretch as much), once in three times.
    Other optimizers of the process are left alone until a model has a plan, and without the packages of the laboratory a
    sentence says what is missing.
    """
    first = _imported()
    assert first["hooks"] == [0, 1, 1]
    assert "neuralop_mup.tune needs" in first["error"] and 'pip install "neuralop-mup[lab]"' in first["error"]
    loaded = set(first["modules"])
    assert "neuralop_mup.core.parametrize" in loaded
    assert {module: why for module, why in HEAVY.items() if module in loaded} == {}
    assert first["seconds"] < 0.3 or any(_imported()["seconds"] < 0.3 for _ in range(2))
