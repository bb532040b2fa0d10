"""The two lines in the loops of the field: trained, stopped, gone on with in a fresh process, to the last bit."""

import subprocess
import sys

import pytest
import torch

import loops


@pytest.mark.filterwarnings("ignore")  # the frameworks' own
@pytest.mark.parametrize("name", loops.LOOPS)
def test_a_run_that_is_stopped_ends_as_one_that_is_not(name, tmp_path):
    framework = name.partition("_")[0]
    if framework in ("lightning", "accelerate"):
        # Not only where it is missing: Lightning's torchmetrics imports a torchvision, which may not fit torch.
        pytest.importorskip(framework, exc_type=Exception)
    loop = loops.LOOPS[name]
    for folder in ("whole", "half"):
        (tmp_path / folder).mkdir()
    whole = loop(tmp_path / "whole", loops.EPOCHS, False, 0)
    loop(tmp_path / "half", loops.UNTIL, False, 0)
    subprocess.run([sys.executable, loops.__file__, name, tmp_path / "half"], check=True, capture_output=True, timeout=600)
    resumed = torch.load(tmp_path / "half" / "weights.pt")
    assert all(map(torch.equal, whole, resumed)) and len(whole) == len(resumed)
    assert not all(map(torch.equal, whole, loops.model_of(0).parameters()))
