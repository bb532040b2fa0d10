"""What must hold for each case of the table. One pass runs all checks, since parametrizing takes most of the time."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from neuralop.training import AdamW as NeuralopAdamW
from tltorch.factorized_tensors.core import FactorizedTensor
from torch import nn

import neuralop_mup as nm
from neuralop_mup.diagnostics.update_stats import kernel_norm, kernels_of
from support.cases import Case
from support.comparing import assert_same, exact, learning_rates_are_mups, rates
from support.models import Wrapper, drawn, draws_in_other_order


def check_case(case: Case, folder: Path) -> None:
    stock, base, model = case.build(), case.build_base(), case.build()
    random_state = torch.get_rng_state()
    assert nm.parametrize(model, base=case.base) is model
    assert torch.equal(torch.get_rng_state(), random_state), "building the base drew random numbers"
    _a_base_shape_file_gives_the_same_plan(case, base, model, folder)
    _a_wrapped_model_has_the_same_plan(case, base, model)
    learning_rates_are_mups(model)
    _default_std_is_that_of_neuralop(case, stock, model)
    _every_kernel_is_found(stock)
    if not case.name.startswith("local_no"):  # neuralop cannot construct it on the meta device
        _initialization_after_the_meta_device_is_the_same(case, model)
    _first_step_moves_each_entry_by_its_learning_rate(case, model, stock)
    _copies_and_checkpoints_are_exact(case, model)


def _a_base_shape_file_gives_the_same_plan(case: Case, base: nn.Module, model: nn.Module, folder: Path) -> None:
    nm.save_base_shapes(base, folder / "base.bsh")
    assert nm.summary(nm.parametrize(case.build(), base=folder / "base.bsh")) == nm.summary(model)


def _a_wrapped_model_has_the_same_plan(case: Case, base: nn.Module, model: nn.Module) -> None:
    wrapped = nm.parametrize(Wrapper(Wrapper(case.build())), base=Wrapper(Wrapper(base)))
    numbers = ("role", "axes", "shape", "base_shape", "init_mult", "lr_mult", "sgd_lr_mult", "default_std")
    for mine, other in zip(nm.summary(wrapped).rows, nm.summary(model).rows, strict=True):
        assert mine.name == f"inner.net.inner.net.{other.name}"
        assert [getattr(mine, key) for key in numbers] == [getattr(other, key) for key in numbers]
    assert_same(wrapped.inner["net"].inner["net"], model)


def _default_std_is_that_of_neuralop(case: Case, stock: nn.Module, model: nn.Module) -> None:
    """Root mean square of every random parameter over seeds, against the number that the plan corrects."""
    models = [dict(m.named_parameters()) for m in (stock, case.build(1), case.build(2))]
    for row in nm.summary(model).rows:
        if row.default_std is not None:
            values = torch.stack([parameters[row.name].detach() for parameters in models])
            ratio = (values.abs().square().mean().sqrt() / row.default_std).item()
            assert ratio == pytest.approx(1, abs=0.03 + 4 / math.sqrt(2 * values.numel())), row.name


def _every_kernel_is_found(stock: nn.Module) -> None:
    """As the update check reads them, with their axes. PhysicsNeMo's kernels are plain parameters."""
    plain = sum("spconv_layers" in name for name, _ in stock.named_parameters())
    norms = [kernel_norm(read().detach(), axes) for read, axes in kernels_of(stock).values()]
    assert len(norms) == plain + sum(isinstance(m, FactorizedTensor) for m in stock.modules()) and all(norms)


def _initialization_after_the_meta_device_is_the_same(case: Case, usual: nn.Module) -> None:
    """With the same seed, bit for bit: weights, buffers, learning rates, plan."""
    model = drawn(case)
    if not draws_in_other_order(case):
        assert_same(model, usual)
        for (name, p), q in zip(model.named_buffers(), usual.buffers(), strict=True):
            assert torch.equal(p, q), name
    assert nm.summary(model) == nm.summary(usual)
    ours, theirs = (rates(nm.MuAdamW(m, lr=0.01, weight_decay=0.1), m) for m in (model, usual))
    assert ours == theirs


def _first_step_moves_each_entry_by_its_learning_rate(case: Case, model: nn.Module, stock: nn.Module) -> None:
    """Adam's first update is lr · sign(gradient): on a kernel, torch moves Re and Im by lr, neuralop the modulus."""
    x, y = case.batch()
    output = case.output(model, x)
    assert output.shape == y.shape and model.state_dict().keys() == stock.state_dict().keys() - {"_metadata"}
    (output - y).abs().square().mean().backward()
    plan, before = nm.summary(model), {name: p.detach().clone() for name, p in model.named_parameters()}
    for impl in (torch.optim.AdamW, NeuralopAdamW):
        for name, p in model.named_parameters():
            p.data.copy_(before[name])
        nm.MuAdamW(model, impl=impl, lr=1e-2, weight_decay=0, eps=1e-30).step()
        for name, p in model.named_parameters():
            if p.grad is None:  # UQNO only trains its residual model
                continue
            # Inactive modes have no gradient.
            moves = (torch.view_as_real(p.grad) != 0).all(-1) if p.is_complex() else p.grad != 0
            moved = (p.detach() - before[name])[moves].abs()
            per_entry = math.sqrt(2) if p.is_complex() and impl is torch.optim.AdamW else 1
            expected = torch.full_like(moved, 1e-2 * plan[name].lr_mult * per_entry)
            torch.testing.assert_close(moved, expected, rtol=1e-3, atol=0, msg=f"{impl}: {name}")


def _copies_and_checkpoints_are_exact(case: Case, model: nn.Module) -> None:
    """Training at base equals that of the stock model. Loaded, copied and pickled models continue bit for bit."""
    differences = exact(case, 2, model)
    if "cannot be pickled" in differences["pickle"]:  # which is up to neuralop or PhysicsNeMo
        del differences["pickle"]
    assert set(differences.values()) == {"0"}, differences
