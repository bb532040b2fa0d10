"""``kernel_init`` and ``init_mult["kernel"]``: the size at which Fourier kernels start."""

from unittest import mock

import pytest
import torch
from neuralop.models import FNO

import neuralop_mup as nm
from neuralop_mup.errors import MupError
from support import training_of

BASE = {"hidden_channels": 8}
LAYOUTS = (None, "Tucker", "CP", "TT")


def built(factorization=None, **kwargs):
    torch.manual_seed(0)
    model = FNO((6, 6), 1, 1, 16, n_layers=2, factorization=factorization, rank=0.5)
    return nm.parametrize(model, base=BASE, **kwargs)


def kernel(model):
    weight = model.fno_blocks.convs[0].weight
    return (weight.to_tensor() if hasattr(weight, "to_tensor") else weight).detach()


@pytest.mark.parametrize("rule", ("none", "log-modes", "standard"))
@pytest.mark.parametrize("factorization", LAYOUTS)
def test_a_small_kernel_is_a_tenth_of_the_default_one_as_a_whole(factorization, rule):
    default, small = built(factorization, rule=rule), built(factorization, rule=rule, kernel_init="small")
    torch.testing.assert_close(kernel(small), kernel(default) * 0.1)
    changed = [n for (n, a), b in zip(default.named_parameters(), small.parameters(), strict=True) if not torch.equal(a, b)]
    assert len(changed) == 2, changed  # one tensor of each of the two layers


@pytest.mark.parametrize("optimizer", (nm.MuAdam, nm.MuMuon))
def test_learning_rates_do_not_follow(optimizer):
    groups = [[g["lr"] for g in optimizer(m, lr=0.01).param_groups] for m in (built(), built(kernel_init="small"))]
    assert groups[0] == groups[1]


def test_the_name_is_the_multiplier_and_comes_on_top_of_the_roles_own():
    assert torch.equal(kernel(built(kernel_init="small")), kernel(built(init_mult={"kernel": 0.1})))
    both = built(init_mult={"kernel": 0.1, "spectral": 0.5})
    torch.testing.assert_close(kernel(both), kernel(built()) * 0.05)


def test_the_plan_knows_it_and_a_file_keeps_it(tmp_path):
    model = built(kernel_init="small")
    assert nm.summary(model).init_mult == {"kernel": 0.1}
    assert "init_mult 0.1" in str(nm.summary(model))
    state = model.state_dict()
    again = built(kernel_init="small")
    again.load_state_dict(state)
    assert torch.equal(kernel(again), kernel(model))


def test_on_the_meta_device_it_is_drawn_small():
    with torch.device("meta"):
        model = FNO((16,), 1, 1, 64, n_layers=1)
    nm.parametrize(model, base=BASE, rule="none", kernel_init="small")
    torch.manual_seed(0)
    nm.initialize(model.to_empty(device="cpu"))
    # neuralop draws √(2/(in+out)) = 1/8 at 64 channels, which is what the width rule wants; a tenth of it.
    assert kernel(model).abs().square().mean().sqrt().item() == pytest.approx(0.1 / 8, rel=0.03)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"kernel_init": "smal"}, "kernel_init is 'smal'.*small"),
        ({"kernel_init": "small", "init_mult": {"kernel": 0.3}}, "both say how large"),
        ({"init_mult": {"kernels": 0.3}}, "no role 'kernels'.*kernel"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_changes(kwargs, message):
    torch.manual_seed(0)
    model = FNO((6,), 1, 1, 16, n_layers=1)
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(MupError, match=message):
        nm.parametrize(model, base=BASE, **kwargs)
    assert not nm.is_parametrized(model)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


def test_learning_rate_multipliers_have_no_kernel():
    with pytest.raises(MupError, match="no role 'kernel'"):
        nm.MuAdam(built(), lr=0.01, lr_mult={"kernel": 2.0})


# ------------------------------------------------------------------------------------------------------ in searches


def study_of(*argv):
    from neuralop_mup.cli import transfer

    captured = []
    with mock.patch.object(transfer, "plan_text", lambda plan: captured.append(plan.study) or ""):
        transfer.run(["burgers", "--problem.n_train", "40", *argv])
    return captured[0]


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("--optimizer", "soap"), "small"),
        (("--optimizer", "muon"), "small"),
        (("--optimizer", "soap", "--kernel_init", "default"), None),
        ((), "small"),
        (("--optimizer", "adam"), None),
        (("--optimizer", "adam", "--kernel_init", "small"), "small"),
    ],
)
def test_searches_start_small_with_kernel_optimizers_and_sp_never_does(argv, expected, tmp_path):
    study = study_of(*argv, "--output", str(tmp_path / "out"), "--dry-run")
    own = study.under.get(study.rules[0], {}).get("kernel_init")
    assert own == expected
    assert "standard" not in study.under


def test_a_run_starts_as_its_configuration_says():
    training, kernels = training_of("burgers", n_train=8), []
    for name in ("default", "small"):
        model = {"n_modes": (8,), "hidden_channels": 8}
        config = {"model": model, "base": model, "rule": "none", "kernel_init": name, "lr": 0.01, "epochs": 1, "seed": 0}
        kernels.append(kernel(training.model(config)))
    torch.testing.assert_close(kernels[1], kernels[0] * 0.1)
