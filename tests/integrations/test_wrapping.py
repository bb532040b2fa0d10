"""Whatever a training script wraps a model in, learning rates, weights and next steps are those of the plain run."""

import copy
import io
import pickle
import warnings
from functools import partial

import mup
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.utils import prune
from torch.optim.swa_utils import AveragedModel

import neuralop_mup as nm
from support.cases import BY_NAME
from support.comparing import assert_same, rates
from support.models import parametrized, small_fno
from support.processes import in_processes

CASE = BY_NAME["1d"]
LR, STEPS = 5e-3, 10


def adam(model):
    return nm.MuAdamW(model, lr=LR, weight_decay=1e-2)


def step(model, optimizer, seed, part=slice(None), weight=1.0):
    x, y = (part.to(next(model.parameters()).dtype) for part in CASE.batch(seed=seed, size=4))
    # 4096 makes gradients that the clip cuts
    ((model(x[part]) - y[part]).abs().square().mean() * (4096 * weight)).backward()
    if optimizer is not None:
        nm.clip_spectral_grad_value_(model, 0.01)
        optimizer.step()
        optimizer.zero_grad()


def train(model, optimizer, steps=STEPS):
    for seed in range(steps):
        step(model, optimizer, seed)


@pytest.fixture(scope="module")
def plain():
    """The plain run: learning rates before, and the model after ten steps."""
    model = parametrized(CASE)
    optimizer = adam(model)
    before = rates(optimizer, model)
    train(model, optimizer)
    return before, model


def _saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def _compiled(model):
    return torch.compile(model, backend="eager")


WRAPPERS = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save": _saved,
    "compile": _compiled,
    "compile in place": lambda model: model.compile(backend="eager") or model,
    "compile a part in place": lambda model: model.fno_blocks.compile(backend="eager") or model,
    "DataParallel": DataParallel,
    "DataParallel of compile": lambda model: DataParallel(_compiled(model)),
    "AveragedModel": AveragedModel,
    "AveragedModel of DataParallel": lambda model: AveragedModel(DataParallel(model)),
    "deepcopy of a copy": lambda model: copy.deepcopy(AveragedModel(copy.deepcopy(model))),
}


@pytest.mark.filterwarnings("ignore:.*torch.compile", "ignore:.*dynamo")
@pytest.mark.parametrize(
    ("name", "late"), [*((name, False) for name in WRAPPERS), ("compile", True), ("DataParallel", True)]
)
def test_wrapped_run_is_the_plain_run(name, late, plain):
    """Also where the optimizer was built before."""
    bare = parametrized(CASE)
    optimizer = adam(bare) if late else None
    model = WRAPPERS[name](bare)
    assert nm.is_parametrized(model)
    assert nm.summary(model) == nm.summary(plain[1])
    optimizer = optimizer or adam(model)
    assert rates(optimizer, model) == plain[0]
    nm.check_optimizer(model, optimizer)
    train(model, optimizer)
    assert_same(model, plain[1])
    # mup's optimizer reads infshapes, which copies of parameters lose and get_plan gives back
    theirs = mup.MuAdamW(model.parameters(), lr=LR, weight_decay=1e-2)
    assert rates(theirs, model) == plain[0]


@pytest.mark.parametrize("name", ["compile", "DataParallel", "DataParallel of compile", "compile in place"])
def test_parametrize_after_wrapping(name, plain):
    model = WRAPPERS[name](CASE.build())
    assert nm.parametrize(model, base=DataParallel(CASE.build_base())) is model
    assert nm.summary(model) == nm.summary(plain[1])
    optimizer = adam(model)
    train(model, optimizer)
    assert_same(model, plain[1])
    nm.unparametrize(model)
    assert not nm.is_parametrized(nm.unwrap(model))


def test_an_average_has_the_plan_of_its_model():
    model = parametrized(CASE)
    average, again = AveragedModel(model), AveragedModel(parametrized(CASE, seed=1))
    step(model, adam(model), 0)
    average.update_parameters(model)
    assert nm.summary(average) == nm.summary(model)
    state = average.state_dict()
    again.load_state_dict(state)
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
    ("call", "model", "message"),
    [
        (_parametrize, lambda: AveragedModel(CASE.build()), "parametrize that model before averaging it"),
        (_parametrize, lambda: _FSDP1(CASE.build()), "FullyShardedDataParallel flattens parameters"),
        (
            _parametrize,
            lambda: _part_compiled(CASE.build()),
            r"'fno_blocks' of this FNO is wrapped by OptimizedModule.*model.fno_blocks.compile\(\)",
        ),
        *((call, lambda: _part_compiled(parametrized(CASE)), "wrap the whole model")
          for call in (nm.summary, adam, nm.is_parametrized, nm.unparametrize)),
        (nm.shard, lambda: DataParallel(parametrized(CASE)), "takes the bare model"),
        (nm.shard, lambda: "model", "takes the bare model"),
    ],
)  # fmt: skip
def test_refused(call, model, message):
    model = model()
    with pytest.raises(nm.MupError, match=message):
        call(model)
    assert call is not _parametrize or not any(hasattr(p, "infshape") for p in model.parameters())


# ------------------------------------------------------------------------------------- two processes, one spawn


def _whole(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def _state(model):
    return {name: _whole(p) for name, p in nm.unwrap(model).named_parameters()}


def _run(model, optimizer, *ranks):
    """Gradients of the first step, whole, weights after the last and learning rates, with a part of the batch for each."""
    gradients = {}
    for seed in range(STEPS):
        for rank in ranks:
            step(model, None, seed, slice(2 * rank, 2 * rank + 2), weight=1 / len(ranks))
        gradients = gradients or {n: _whole(p.grad) for n, p in nm.unwrap(model).named_parameters()}
        nm.clip_spectral_grad_value_(model, 0.01)
        optimizer.step()
        optimizer.zero_grad()
    return gradients, _state(model), rates(optimizer, model)


def _weights(model):
    return {name: p for name, p in model.state_dict().items() if name != "_metadata"}


def _sharded(rank, folder):
    """A run of sharded weights, a sharded checkpoint of it, and the next steps, uninterrupted and resumed."""
    import torch.distributed.checkpoint as dcp

    model = nm.shard(parametrized(CASE))
    for p, whole in zip(model.parameters(), CASE.build().parameters(), strict=True):
        assert p.to_local().shape[0] <= -(-whole.shape[0] // 2)
        assert hasattr(p, "infshape")  # a plain optimizer is known by it
    optimizer = adam(model)
    nm.check_optimizer(model, optimizer)
    result = {"shard": _run(model, optimizer, rank)}
    assert nm.summary(model) == nm.summary(parametrized(CASE))

    dcp.save({"model": _weights(model), "optimizer": optimizer.state_dict()}, checkpoint_id=f"{folder}/dcp")
    if rank == 0:
        nm.save_plan(model, f"{folder}/plan.json")
    dist.barrier()
    result["uninterrupted"] = _run(model, optimizer, rank)
    again = nm.load_plan(nm.shard(CASE.build(seed=1)), f"{folder}/plan.json")
    optimizer = adam(again)
    step(again, optimizer, 0, slice(2 * rank, 2 * rank + 2))  # so that there are states to load into
    parts = {"model": _weights(again), "optimizer": optimizer.state_dict()}
    dcp.load(parts, checkpoint_id=f"{folder}/dcp")
    again.load_state_dict(parts["model"])
    optimizer.load_state_dict(parts["optimizer"])
    result["resumed"] = _run(again, optimizer, rank)
    return result


def _from_meta(rank):
    """Parametrize, shard, give memory, draw. Each process has its own seed, rank 0's counts."""
    with torch.device("meta"):
        model = CASE.build()
    model = nm.shard(nm.parametrize(model, base=CASE.base))
    model.to_empty(device="cpu")
    torch.manual_seed(rank)
    nm.initialize(model)
    usual = _state(parametrized(CASE))
    assert all(torch.equal(p, usual[name]) for name, p in _state(model).items())
    return _run(model, adam(model), rank)


def _refused_on_shards(folder):
    model, early = nm.shard(parametrized(CASE)), parametrized(CASE)
    optimizer = adam(early)
    nm.shard(early)
    for call, message in (
        (lambda: nm.parametrize(nm.shard(CASE.build()), base=CASE.base), "parametrize first"),
        (lambda: nm.shard(model), "are sharded already"),
        (lambda: nm.load_checkpoint(folder, model), "load_checkpoint"),
        (lambda: nm.check_optimizer(early, optimizer), "does not hold"),
        (optimizer.step, "build it after shard"),
    ):
        with pytest.raises(nm.MupError, match=message):
            call()


def _runs(rank, folder):
    warnings.simplefilter("ignore")
    _refused_on_shards(folder)
    model, early = DistributedDataParallel(parametrized(CASE)), parametrized(CASE)
    optimizer = adam(early)
    late = nm.parametrize(DistributedDataParallel(CASE.build()), base=CASE.base)
    return {
        "ddp": _run(model, adam(model), rank),
        "ddp after the optimizer": _run(DistributedDataParallel(early), optimizer, rank),
        "parametrize after ddp": _run(late, adam(late), rank),
        "meta and shard": _from_meta(rank),
        **_sharded(rank, folder),
    }


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What each of two processes measured."""
    return in_processes(2, _runs, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def one():
    """The plain run in one process; halves of a batch are added up as two processes do (½ is exact, so to the last bit)."""
    model = parametrized(CASE)
    result = _run(model, adam(model), 0, 1)
    # A lost imaginary part would show, and so would a clip that did nothing.
    assert all(g.imag.abs().max() > 0.02 for g in result[0].values() if g.is_complex())
    return result


_assert_equal = partial(torch.testing.assert_close, rtol=0, atol=0)  # gradients, weights and learning rates


@pytest.mark.parametrize("name", ["ddp", "ddp after the optimizer", "parametrize after ddp", "shard", "meta and shard"])
def test_two_processes_are_one(name, two, one):
    for result in two:
        _assert_equal(result[name], one)


def test_sharded_run_resumes(two):
    for result in two:
        _assert_equal(result["resumed"], result["uninterrupted"])


@pytest.mark.parametrize(
    ("method", "params"),
    [
        (nm.MuAdamW, lambda part: list(part.parameters())),
        (nm.MuSOAP, lambda part: list(part.named_parameters())),
    ],
    ids=["AdamW", "SOAP"],
)
def test_a_part_that_is_added_later(method, params):
    """A head for other data, as docs/howto/fine_tuning.md has it: whatever looks at model and optimizer goes on."""
    model = small_fno(width=4)
    optimizer = method(model, lr=0.01)
    model.head = torch.nn.Conv1d(3, 3, 1)
    with pytest.raises(nm.MupError, match="'head.bias' was added.*optimizer.add_param_group"):
        nm.check_optimizer(model, optimizer)
    optimizer.add_param_group({"params": params(model.head), "lr": 1e-3})
    nm.check_optimizer(model, optimizer)
    nm.follow_plan(model, optimizer)
    model, optimizer = copy.deepcopy((model, optimizer))
    nm.follow_plan(model, optimizer)
    before = model.head.weight.clone()
    model.head(model(torch.randn(2, 2, 16))).square().mean().backward()
    optimizer.step()
    assert not torch.equal(before, model.head.weight)


@pytest.mark.parametrize("method", [nm.MuAdamW, nm.MuSOAP], ids=["AdamW", "SOAP"])
def test_tensors_that_are_put_in_place_of_those_of_the_optimizer_are_told(method):
    model = small_fno(width=4)
    optimizer = method(model, lr=0.01)
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    with pytest.raises(nm.MupError, match=r"other tensors than those that this optimizer holds \(load_state_dict\(assign="):
        optimizer.step()
    method(model, lr=0.01).step()


def test_a_layer_that_is_changed_after_the_optimizer_was_built_stops_nothing():
    model = small_fno(width=4)
    optimizer = nm.MuAdamW(model, lr=0.01)
    name, _ = next(model.named_parameters())
    layer = model.get_submodule(name.rpartition(".")[0])
    prune.l1_unstructured(layer, name.rpartition(".")[2], amount=0.5)
    before = model.projection.fcs[0].weight.clone()
    model(torch.randn(2, 2, 16)).square().mean().backward()
    optimizer.step()
    assert not torch.equal(before, model.projection.fcs[0].weight)
