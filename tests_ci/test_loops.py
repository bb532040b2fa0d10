"""The two lines in the loops of the field: trained, stopped, gone on with in a fresh process, to the last bit."""

import subprocess
import sys

import loops
import pytest
import torch

OF_TORCH = [name for name in loops.LOOPS if not name.startswith(("lightning", "accelerate"))]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # the frameworks' own
@pytest.mark.parametrize("framework", ["torch", "lightning", "accelerate"])
def test_a_run_that_is_stopped_ends_as_one_that_is_not(framework, tmp_path):
    # Not only where it is missing: Lightning's torchmetrics imports a torchvision, which may not fit torch.
    pytest.importorskip(framework, exc_type=Exception)
    names = OF_TORCH if framework == "torch" else [name for name in loops.LOOPS if name.startswith(framework)]
    whole = {}
    for name in names:
        half = tmp_path / name
        for folder in (tmp_path / "whole" / name, half):
            folder.mkdir(parents=True)
        whole[name] = loops.LOOPS[name](tmp_path / "whole" / name, loops.EPOCHS, False, 0)
        loops.LOOPS[name](half, loops.UNTIL, False, 0)
    # One process for all of them: most of its time is importing.
    subprocess.run([sys.executable, loops.__file__, tmp_path, *names], check=True, capture_output=True, timeout=600)
    for name in names:
        resumed = torch.load(tmp_path / name / "weights.pt")
        assert all(map(torch.equal, whole[name], resumed)) and len(whole[name]) == len(resumed), name
        assert not all(map(torch.equal, whole[name], loops.model_of(0).parameters())), name
