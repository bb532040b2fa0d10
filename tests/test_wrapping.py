"""Wrapped, copied and distributed models have the learning rates, the weights and the next steps of the plain run."""

import copy
import io
import warnings
from functools import partial

import mup
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

import neuralop_mup as nm
from support.cases import Case
from support.comparing import assert_same, rates
from support.errors import refused
from support.models import parametrized, small_fno
from support.processes import in_processes

CASE = Case("small", (8,), (4,), {"n_layers": 1}, width=8, base_width=4)
LR, STEPS = 5e-3, 3


def adam(model):
    return nm.MuAdamW(model, lr=LR, weight_decay=1e-2)


def backward(model, seed, part=slice(None), weight=1.0):
    """Compute gradients that are large enough to be clipped, on a part of a batch."""
    x, y = CASE.batch(seed=seed, size=4)
    ((model(x[part]) - y[part]).square().mean() * (4096 * weight)).backward()


def update(model, optimizer):
    nm.clip_spectral_grad_value_(model, 0.01)
    optimizer.step()
    optimizer.zero_grad()


def train(model, optimizer):
    for seed in range(STEPS):
        backward(model, seed)
        update(model, optimizer)


@pytest.fixture(scope="module")
def plain():
    """The plain run: learning rates before, and the model after its steps."""
    model = parametrized(CASE)
    optimizer = adam(model)
    before = rates(optimizer, model)
    train(model, optimizer)
    return before, model


def _saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


def _compiled(model):
    return torch.compile(model, backend="eager")


WRAPPERS = {
    "torch.save": _saved,
    "compile": _compiled,
    "compile in place": lambda model: model.compile(backend="eager") or model,
    "compile a part in place": lambda model: model.fno_blocks.compile(backend="eager") or model,
    "DataParallel": DataParallel,
    "DataParallel of compile": lambda model: DataParallel(_compiled(model)),
    "AveragedModel of DataParallel": lambda model: AveragedModel(DataParallel(model)),
    "deepcopy of a copy": lambda model: copy.deepcopy(AveragedModel(copy.deepcopy(model))),
}


@pytest.mark.filterwarnings("ignore:.*torch.compile", "ignore:.*dynamo")
@pytest.mark.parametrize(
    ("name", "late"), [*((name, False) for name in WRAPPERS), ("compile", True), ("DataParallel", True)]
)
def test_a_wrapped_run_is_the_plain_run(name, late, plain):
    """Also where the optimizer is built before the model is wrapped."""
    bare = parametrized(CASE)
    optimizer = adam(bare) if late else None
    model = WRAPPERS[name](bare)
    assert nm.is_parametrized(model) and nm.summary(model) == nm.summary(plain[1])
    optimizer = optimizer or adam(model)
    assert rates(optimizer, model) == plain[0]
    nm.check_optimizer(model, optimizer)
    train(model, optimizer)
    assert_same(model, plain[1])
    # mup's optimizer reads infshapes. Copied parameters lose them, and get_plan restores them.
    assert rates(mup.MuAdamW(model.parameters(), lr=LR, weight_decay=1e-2), model) == plain[0]


@pytest.mark.parametrize("name", ["DataParallel of compile", "compile in place"])
def test_parametrize_after_wrapping(name, plain):
    model = WRAPPERS[name](CASE.build())
    assert nm.parametrize(model, base=DataParallel(CASE.build_base())) is model
    train(model, adam(model))
    assert_same(model, plain[1])
    nm.unparametrize(model)
    assert not nm.is_parametrized(nm.unwrap(model))


def test_an_average_has_the_plan_of_its_model():
    model = parametrized(CASE)
    average, again = AveragedModel(model), AveragedModel(parametrized(CASE, seed=1))
    train(model, adam(model))
    average.update_parameters(model)
    assert nm.summary(average) == nm.summary(model)
    again.load_state_dict(average.state_dict())
    assert_same(again, model)


# ---------------------------------------------------------------------------------------------------- refused


def _part_compiled(model):
    model.fno_blocks = torch.compile(model.fno_blocks, backend="eager")
    return model


_FSDP1 = type(
    "FullyShardedDataParallel", (nn.Sequential,), {"__module__": "torch.distributed.fsdp.fully_sharded_data_parallel"}
)
_parametrize = partial(nm.parametrize, base=CASE.base)


@pytest.mark.parametrize(
    ("call", "model", "names"),
    [
        (_parametrize, lambda: AveragedModel(CASE.build()), "AveragedModel"),
        (_parametrize, lambda: _FSDP1(CASE.build()), "FullyShardedDataParallel"),
        (_parametrize, lambda: _part_compiled(CASE.build()), "'fno_blocks' OptimizedModule model.fno_blocks.compile()"),
        *((call, lambda: _part_compiled(parametrized(CASE)), "'fno_blocks'") for call in (nm.is_parametrized, adam)),
        (nm.shard, lambda: DataParallel(parametrized(CASE)), "DataParallel"),
        (nm.shard, lambda: "model", "str"),
    ],
)
def test_models_that_are_refused(call, model, names):
    model = model()
    with refused(names):
        call(model)
    assert call is not _parametrize or not any(hasattr(p, "infshape") for p in model.parameters())


# ------------------------------------------------------------------------------------- two processes, started once


def _whole(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def _state(model):
    return {name: _whole(p) for name, p in nm.unwrap(model).named_parameters()}


def _run(model, *ranks):
    """Train, each rank on its part of the batch. Return the first gradients, the last weights and the learning rates."""
    gradients, optimizer = {}, adam(model)
    for seed in range(STEPS):
        for rank in ranks:
            backward(model, seed, slice(2 * rank, 2 * rank + 2), weight=1 / len(ranks))
        gradients = gradients or {n: _whole(p.grad) for n, p in nm.unwrap(model).named_parameters()}
        update(model, optimizer)
    return (gradients, _state(model), rates(optimizer, model)), optimizer


def _weights(model):
    return {name: p for name, p in model.state_dict().items() if name != "_metadata"}


def _sharded(rank, folder):
    """Shard a model on the meta device, draw its weights, train, and resume from a sharded checkpoint."""
    import torch.distributed.checkpoint as dcp

    with torch.device("meta"):
        model = CASE.build()
    model = nm.shard(nm.parametrize(model, base=CASE.base))
    model.to_empty(device="cpu")
    torch.manual_seed(rank)  # only the seed of rank 0 counts
    nm.initialize(model)
    assert all(p.to_local().shape[0] <= -(-p.shape[0] // 2) for p in model.parameters())
    result, optimizer = _run(model, rank)
    nm.check_optimizer(model, optimizer)
    assert nm.summary(model) == nm.summary(parametrized(CASE))
    dcp.save({"model": _weights(model), "optimizer": optimizer.state_dict()}, checkpoint_id=f"{folder}/dcp")
    if rank == 0:
        nm.save_plan(model, f"{folder}/plan.json")
    dist.barrier()
    again = nm.load_plan(nm.shard(CASE.build(seed=1)), f"{folder}/plan.json")
    _, resumed = _run(again, rank)  # an optimizer has states to load into after a step
    parts = {"model": _weights(again), "optimizer": resumed.state_dict()}
    dcp.load(parts, checkpoint_id=f"{folder}/dcp")
    again.load_state_dict(parts["model"])
    resumed.load_state_dict(parts["optimizer"])
    for m, o in ((model, optimizer), (again, resumed)):
        backward(m, STEPS, slice(2 * rank, 2 * rank + 2))
        update(m, o)
    return result, _state(model), _state(again)


def _refused_on_shards(folder):
    model = parametrized(CASE)
    optimizer = adam(model)
    nm.shard(model)
    for call, names in (
        (lambda: nm.parametrize(nm.shard(CASE.build()), base=CASE.base), "parametrize"),
        (lambda: nm.shard(model), "shard"),
        (lambda: nm.load_checkpoint(folder, model), "load_checkpoint"),
        (lambda: nm.check_optimizer(model, optimizer), "optimizer"),
        (optimizer.step, "shard"),
    ):
        with refused(names):
            call()


def _runs(rank, folder):
    warnings.simplefilter("ignore")
    _refused_on_shards(folder)
    return _run(DistributedDataParallel(parametrized(CASE)), rank)[0], *_sharded(rank, folder)


def test_two_processes_are_one(tmp_path):
    """Bit for bit: gradients, weights and learning rates, and the next step of a resumed run."""
    expected, _ = _run(parametrized(CASE), 0, 1)
    # The clip cuts, and imaginary parts are not lost.
    assert all(g.imag.abs().max() > 0.02 for g in expected[0].values() if g.is_complex())
    equal = partial(torch.testing.assert_close, rtol=0, atol=0)
    for replicated, sharded, uninterrupted, resumed in in_processes(2, _runs, tmp_path):
        equal(replicated, expected)
        equal(sharded, expected)
        equal(resumed, uninterrupted)


# ------------------------------------------------------------------------------------- changes after the optimizer


@pytest.mark.parametrize(
    ("method", "params"),
    [(nm.MuAdamW, lambda part: list(part.parameters())), (nm.MuSOAP, lambda part: list(part.named_parameters()))],
    ids=["AdamW", "SOAP"],
)
def test_a_part_that_is_added_later(method, params):
    """A head for other data, as in docs/howto/checkpoints.md."""
    model = small_fno(width=4)
    optimizer = method(model, lr=0.01)
    model.head = torch.nn.Conv1d(3, 3, 1)
    with refused("'head.bias' optimizer.add_param_group"):
        nm.check_optimizer(model, optimizer)
    optimizer.add_param_group({"params": params(model.head), "lr": 1e-3})
    nm.check_optimizer(model, optimizer)
    model, optimizer = copy.deepcopy((model, optimizer))
    nm.follow_plan(model, optimizer)
    before = model.head.weight.clone()
    model.head(model(torch.randn(2, 2, 16))).square().mean().backward()
    optimizer.step()
    assert not torch.equal(before, model.head.weight)


@pytest.mark.parametrize("method", [nm.MuAdamW, nm.MuSOAP], ids=["AdamW", "SOAP"])
def test_parameters_that_were_replaced_are_refused(method):
    model = small_fno(width=4)
    optimizer = method(model, lr=0.01)
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    with refused("load_state_dict(assign="):
        optimizer.step()
    method(model, lr=0.01).step()
