"""What holds for every model of the table (cases.py): one walk, in which each case's models are built for all its checks."""

import math

import pytest
import torch
from neuralop.training import AdamW as NeuralopAdamW
from tltorch.factorized_tensors.core import FactorizedTensor

import neuralop_mup as nm
from neuralop_mup.core.rules import RULES
from neuralop_mup.diagnostics.update_stats import kernel_norm, kernels_of
from support.cases import CASES
from support.comparing import a_summary_has_every_parameter, assert_same, exact, learning_rates_are_mups, rates
from support.models import OTHER_ORDER, Wrapper, drawn


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence", "ignore:Attempting to update metadata")
def test_every_check_of_a_case(case, tmp_path):
    stock, base, model = case.build(), case.build_base(), case.build()
    random_state = torch.get_rng_state()
    assert nm.parametrize(model, base=case.base) is model
    assert torch.equal(torch.get_rng_state(), random_state), "building the base drew random numbers"
    nothing_changes_at_base(case, stock)
    standard_parametrization_is_the_stock_model(case, stock, base)
    every_form_of_base_gives_one_plan(case, base, model, tmp_path)
    a_summary_has_every_parameter(model)
    learning_rates_are_mups(model)
    a_wrapped_model_has_the_plan_that_it_has_by_itself(case, base, model)
    default_std_is_what_neuralop_draws(case, stock)
    every_kernel_is_found(stock)
    if not case.name.startswith("local_no"):  # neuralop cannot construct it on the meta device
        from_the_meta_device_it_is_the_same(case, model)
    the_first_step_moves_each_entry_by_its_learning_rate(case, model, stock)
    copies_and_checkpoints_keep_everything(case)


def nothing_changes_at_base(case, stock):
    """Bit for bit, under every rule."""
    for rule in RULES:
        model = nm.parametrize(case.build(), base=stock, rule=rule)
        assert type(model) is type(stock), rule
        assert_same(model, stock)
        groups = nm.param_groups(model, lr=3e-3, weight_decay=0.1)
        assert {(g["lr"], g["lr_mult"], g["weight_decay"]) for g in groups} == {(3e-3, 1, 0.1)}, rule
        # Kernels whose modes may grow have groups of their own, so that they can leave the others.
        assert len(groups) == 1 + len({g["name"] for g in groups if "mode_mult" in g}), rule


def standard_parametrization_is_the_stock_model(case, stock, base):
    """Away from base, too."""
    model = nm.parametrize(case.build(), base=base, rule="standard")
    assert_same(model, stock)
    (group,) = nm.param_groups(model, lr=3e-3)
    assert group["lr"] == 3e-3


def every_form_of_base_gives_one_plan(case, base, model, folder):
    """A model, a file and what the case has, which are overrides or a function; a file of ``model`` is that of its base."""
    ours, again = folder / "base.bsh", folder / "again.bsh"
    nm.save_base_shapes(base, ours)
    nm.save_base_shapes(model, again)
    assert again.read_text() == ours.read_text()
    for form in (base, ours):
        assert nm.summary(nm.parametrize(case.build(), base=form)) == nm.summary(model)


def a_wrapped_model_has_the_plan_that_it_has_by_itself(case, base, model):
    wrapped = nm.parametrize(Wrapper(Wrapper(case.build())), base=Wrapper(Wrapper(base)))
    numbers = ("role", "axes", "shape", "base_shape", "init_mult", "lr_mult", "sgd_lr_mult", "default_std")
    for mine, other in zip(nm.summary(wrapped).rows, nm.summary(model).rows, strict=True):
        assert mine.name == f"inner.net.inner.net.{other.name}"
        assert [getattr(mine, key) for key in numbers] == [getattr(other, key) for key in numbers]
    assert_same(wrapped.inner["net"].inner["net"], model)


def default_std_is_what_neuralop_draws(case, stock):
    """Root mean square of every random parameter over seeds, against the number that the plan corrects."""
    models = [dict(case.build(seed).named_parameters()) for seed in range(5)]
    for row in nm.summary(nm.parametrize(case.build(), base=stock)).rows:
        if row.default_std is not None:
            drawn = torch.stack([parameters[row.name].detach() for parameters in models])
            ratio = (drawn.abs().square().mean().sqrt() / row.default_std).item()
            assert ratio == pytest.approx(1, abs=0.03 + 4 / math.sqrt(2 * drawn.numel())), row.name


def every_kernel_is_found(stock):
    """As the update check reads them, with its axes; PhysicsNeMo's are plain parameters."""
    plain = sum("spconv_layers" in name for name, _ in stock.named_parameters())
    norms = [kernel_norm(read().detach(), axes) for read, axes in kernels_of(stock).values()]
    assert len(norms) == plain + sum(isinstance(m, FactorizedTensor) for m in stock.modules()) and all(norms)


def from_the_meta_device_it_is_the_same(case, usual):
    """With the seed of the usual path, bit for bit: weights, buffers, learning rates, plan."""
    model = drawn(case)
    if case.name not in OTHER_ORDER:
        assert_same(model, usual)
        for (name, p), q in zip(model.named_buffers(), usual.buffers(), strict=True):
            assert torch.equal(p, q), name
    assert nm.summary(model) == nm.summary(usual)
    optimizers = [nm.MuAdamW(m, lr=0.01, weight_decay=0.1) for m in (model, usual)]
    assert rates(optimizers[0], model) == rates(optimizers[1], usual)


def the_first_step_moves_each_entry_by_its_learning_rate(case, model, stock):
    """Adam's first update is lr · sign(gradient): on a kernel, torch moves Re and Im by lr, neuralop the modulus."""
    x, y = case.batch()
    output = case.output(model, x)
    assert output.shape == y.shape and model.state_dict().keys() == stock.state_dict().keys() - {"_metadata"}
    (output - y).abs().square().mean().backward()
    parameters = dict(model.named_parameters())
    before = {name: p.detach().clone() for name, p in parameters.items()}
    for name, optimizer in {
        "torch Adam": nm.MuAdam(model, lr=1e-2, eps=1e-30),
        "torch AdamW": nm.MuAdamW(model, lr=1e-2, weight_decay=0, eps=1e-30),
        "neuralop AdamW": nm.MuAdamW(model, impl=NeuralopAdamW, lr=1e-2, weight_decay=0, eps=1e-30),
    }.items():
        for key, p in parameters.items():
            p.data.copy_(before[key])
        optimizer.step()
        for row in nm.summary(model).rows:
            p = parameters[row.name]
            if p.grad is None:  # UQNO trains its residual model alone
                continue
            # Inactive modes have no gradient.
            moves = (torch.view_as_real(p.grad) != 0).all(-1) if p.is_complex() else p.grad != 0
            moved = (p.detach() - before[row.name])[moves].abs()
            per_entry = math.sqrt(2) if p.is_complex() and name != "neuralop AdamW" else 1
            expected = torch.full_like(moved, 1e-2 * row.lr_mult * per_entry)
            torch.testing.assert_close(moved, expected, rtol=1e-3, atol=0, msg=f"{name}: {row.name}")


def copies_and_checkpoints_keep_everything(case):
    """Training at base is the stock model's; loaded, copied and pickled models go on as the original, bit for bit."""
    differences = exact(case, steps=4)  # enough steps to see that base is not stock
    if case.name.startswith("sfno"):
        assert differences.pop("pickle") == "neuralop's class cannot be pickled: PicklingError"
    assert set(differences.values()) == {"0"}
