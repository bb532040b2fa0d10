"""Importing the package: it loads only what training a model needs."""

import json
import subprocess
import sys

IMPORT = """
import json, sys, time
from contextlib import redirect_stderr
from io import StringIO
times = [time.process_time()]
from neuralop.models import FNO
times.append(time.process_time())
from torch.optim.optimizer import _global_optimizer_pre_hooks as hooks
before = set(sys.modules)
import neuralop_mup as nm
times.append(time.process_time())
found = {"times": times, "modules": sorted(sys.modules.keys() - before), "hooks": [len(hooks)]}
for _ in range(2):
    nm.parametrize(FNO((4,), 1, 1, 8, n_layers=1))
    found["hooks"].append(len(hooks))
present = {name: sys.modules.pop(name, None) for name in sys.argv[1:]}
sys.modules.update(dict.fromkeys(sys.argv[1:]))
try:
    nm.tune
except nm.MupError as error:
    found["error"] = str(error)
from neuralop_mup.__main__ import main
with redirect_stderr(StringIO()) as printed:
    found["command"] = [main(), printed.getvalue()]
for name in [*present, *(name for name in sys.modules if name.startswith("neuralop_mup.lab"))]:
    del sys.modules[name]
sys.modules.update({name: module for name, module in present.items() if module})
import neuralop_mup.lab
found["lab"] = sorted(sys.modules)
print(json.dumps(found))
"""
LAB = ("jsonargparse", "tqdm", "matplotlib", "filelock", "safetensors", "h5py")  # packages of the extra [lab]
HEAVY = {
    "torch._dynamo", "torch._inductor", "sympy", "pandas", "seaborn", "torchvision", "physicsnemo", "matplotlib",
    "neuralop_mup.lab", "neuralop_mup.lab.problems", "neuralop_mup.lab.plots", "neuralop_mup.lab.cli",
}  # fmt: skip


def test_an_import_is_light():
    """It takes a tenth of the time of neuralop's import, and changes no other optimizer before a model has a plan.

    Without the packages of the laboratory an error says what to install, in Python and on the command line.
    """
    out = subprocess.run([sys.executable, "-c", IMPORT, *LAB], capture_output=True, text=True, check=True)
    found = json.loads(out.stdout)
    assert found["hooks"] == [0, 1, 1]
    assert "neuralop_mup.tune" in found["error"] and 'pip install ".[lab]"' in found["error"]
    code, printed = found["command"]
    assert code == 2 and 'pip install ".[lab]"' in printed and printed.count("\n") == 1
    assert not {"matplotlib", "ray"} & {*found["lab"]}
    assert "neuralop_mup.core.parametrize" in found["modules"] and not HEAVY & {*found["modules"]}
    start, theirs, ours = found["times"]
    assert ours - theirs < 0.1 * (theirs - start)  # 0.01 on an idle machine
