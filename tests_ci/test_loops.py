"""Loops of torch, Lightning and accelerate: a run that resumes in another process ends with the same bits."""

import subprocess
import sys

import loops
import pytest
import torch

BY_FRAMEWORK = {
    "torch": ["plain", "compiled", "bf16"],
    "lightning": ["lightning", "lightning_whole", "lightning_bf16"],
    "accelerate": ["accelerate", "accelerate_bf16"],
}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # the frameworks' own
@pytest.mark.parametrize("framework", BY_FRAMEWORK)
def test_a_resumed_run_ends_as_one_that_was_not_stopped(framework, tmp_path):
    # Skipped also where it cannot be imported: Lightning's torchmetrics needs a torchvision that matches torch.
    pytest.importorskip(framework, exc_type=Exception)
    names, whole = BY_FRAMEWORK[framework], {}
    for name in names:
        for place in ("whole", "half"):
            (tmp_path / place / name).mkdir(parents=True)
        whole[name] = loops.LOOPS[name](tmp_path / "whole" / name, loops.EPOCHS, False, 0)
        loops.LOOPS[name](tmp_path / "half" / name, loops.UNTIL, False, 0)
    # One process for all of them: most of its time is spent on imports.
    subprocess.run([sys.executable, loops.__file__, tmp_path / "half", *names], check=True, capture_output=True, timeout=600)
    for name in names:
        resumed = torch.load(tmp_path / "half" / name / "weights.pt")
        torch.testing.assert_close(resumed, [p.detach() for p in whole[name]], rtol=0, atol=0, msg=name)
        assert not all(map(torch.equal, whole[name], loops.model_of(0).parameters())), name
