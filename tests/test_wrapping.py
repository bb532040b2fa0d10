"""Whatever a training script wraps a model in, learning rates, weights and next steps are those of the plain run."""

import copy
import io
import pickle

import mup
import pytest
import torch
import torch.distributed as dist
from cases import BY_NAME
from support import in_double
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import neuralop_mup as nm

CASE = BY_NAME["1d"]
LR, STEPS = 5e-3, 10
KERNEL_OPTIMIZERS = (nm.MuMuon, nm.MuSOAP)


def parametrized(case=CASE, seed=0):
    return nm.parametrize(case.build(seed), base=case.base)


def adam(model):
    return nm.MuAdamW(model, lr=LR, weight_decay=1e-2)


def rates(optimizer, model):
    """Learning rate and decay by name in the bare model."""
    names = {id(p): name for name, p in nm.unwrap(model).named_parameters()}
    return {names[id(p)]: (g["lr"], g["weight_decay"]) for g in optimizer.param_groups for p in g["params"]}


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


def assert_same(a, b):
    for (name, p), q in zip(nm.unwrap(a).named_parameters(), nm.unwrap(b).parameters(), strict=True):
        assert torch.equal(p, q), name


@pytest.fixture(scope="module")
def plain():
    """The plain run: learning rates before, and the model after ten steps."""
    model = parametrized()
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


def _compiled_in_place(model):
    model.compile(backend="eager")
    return model


def _parts_compiled_in_place(model):
    model.fno_blocks.compile(backend="eager")
    return model


WRAPPERS = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save": _saved,
    "compile": _compiled,
    "compile in place": _compiled_in_place,
    "compile a part in place": _parts_compiled_in_place,
    "DataParallel": DataParallel,
    "DataParallel of compile": lambda model: DataParallel(_compiled(model)),
    "AveragedModel": AveragedModel,
    "AveragedModel of DataParallel": lambda model: AveragedModel(DataParallel(model)),
    "deepcopy of a copy": lambda model: copy.deepcopy(AveragedModel(copy.deepcopy(model))),
}


@pytest.mark.filterwarnings("ignore:.*torch.compile", "ignore:.*dynamo")
@pytest.mark.parametrize("name", WRAPPERS)
def test_wrapped_run_is_the_plain_run(name, plain):
    model = WRAPPERS[name](parametrized())
    assert nm.is_parametrized(model)
    assert nm.summary(model) == nm.summary(plain[1])
    optimizer = adam(model)
    assert rates(optimizer, model) == plain[0]
    nm.check_optimizer(model, optimizer)
    train(model, optimizer)
    assert_same(model, plain[1])
    # mup's optimizer reads infshapes, which copies of parameters lose and get_plan gives back
    theirs = mup.MuAdamW(model.parameters(), lr=LR, weight_decay=1e-2)
    assert rates(theirs, model) == plain[0]


@pytest.mark.parametrize("name", ["compile", "DataParallel"])
def test_wrapped_after_the_optimizer_was_built(name, plain):
    bare = parametrized()
    optimizer = adam(bare)
    model = WRAPPERS[name](bare)
    nm.check_optimizer(model, optimizer)
    train(model, optimizer)
    assert_same(model, plain[1])


@pytest.mark.parametrize("name", ["compile", "DataParallel", "DataParallel of compile", "compile in place"])
def test_parametrize_after_wrapping(name, plain):
    model = WRAPPERS[name](CASE.build())
    assert nm.parametrize(model, base=CASE.base) is model
    optimizer = adam(model)
    assert rates(optimizer, model) == plain[0]
    train(model, optimizer)
    assert_same(model, plain[1])
    nm.unparametrize(model)
    assert not nm.is_parametrized(nm.unwrap(model))


def test_a_wrapped_base(plain):
    model = nm.parametrize(CASE.build(), base=DataParallel(CASE.build_base()))
    assert nm.summary(model) == nm.summary(plain[1])


def test_averages_follow_the_weights():
    """An exponential moving average by torch, complex kernels included, against the formula; its plan is the model's."""
    model = parametrized()
    optimizer, average = adam(model), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    expected = {name: p.detach().clone() for name, p in model.named_parameters()}
    for seed in range(4):
        step(model, optimizer, seed)
        average.update_parameters(model)
        for name, p in model.named_parameters():
            expected[name] = p.detach().clone() if seed == 0 else 0.9 * expected[name] + 0.1 * p.detach()
    for name, p in average.module.named_parameters():
        torch.testing.assert_close(p, expected[name], rtol=1e-5, atol=1e-7)
    assert nm.summary(average) == nm.summary(model)
    again = AveragedModel(parametrized(seed=1))
    state = average.state_dict()
    del state["_metadata"]  # neuralop's entry, which only its own load_state_dict takes
    again.load_state_dict(state)
    assert_same(again, average)


# ---------------------------------------------------------------------------------------------------- refused


class _FSDP1(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module


_FSDP1.__module__, _FSDP1.__qualname__ = (
    "torch.distributed.fsdp.fully_sharded_data_parallel",
    "FullyShardedDataParallel",
)


def _part_compiled(model):
    model.fno_blocks = torch.compile(model.fno_blocks, backend="eager")
    return model


@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (AveragedModel, "parametrize that model before averaging it"),
        (_FSDP1, "FullyShardedDataParallel flattens parameters"),
        (_part_compiled, r"'fno_blocks' of this FNO is wrapped by OptimizedModule.*model.fno_blocks.compile\(\)"),
    ],
)
def test_parametrize_refuses(wrap, message):
    model = CASE.build()
    before = [p.detach().clone() for p in model.parameters()]
    wrapped = wrap(model)
    with pytest.raises(nm.MupError, match=message):
        nm.parametrize(wrapped, base=CASE.base)
    assert all(map(torch.equal, model.parameters(), before))
    assert not any(hasattr(p, "infshape") for p in model.parameters())


def test_a_part_wrapped_later_is_refused():
    model = _part_compiled(parametrized())
    for call in (nm.summary, adam, nm.is_parametrized, nm.unparametrize):
        with pytest.raises(nm.MupError, match="wrap the whole model"):
            call(model)


def test_shard_refuses():
    for wrapped in (DataParallel(parametrized()), "model"):
        with pytest.raises(nm.MupError, match="takes the bare model"):
            nm.shard(wrapped)
    with pytest.raises(nm.MupError, match="init_process_group"):
        nm.shard(parametrized())


# ------------------------------------------------------------------------------------- two processes, one spawn


def _whole(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def _state(model):
    return {name: _whole(p) for name, p in nm.unwrap(model).named_parameters()}


def _run(model, optimizer, rank, result, name):
    """Gradients of the first step and weights after the last, whole."""
    mine = slice(2 * rank, 2 * rank + 2)
    for seed in range(STEPS):
        step(model, None, seed, mine)
        if seed == 0:
            result[f"{name} gradients"] = {n: _whole(p.grad) for n, p in nm.unwrap(model).named_parameters()}
        nm.clip_spectral_grad_value_(model, 0.01)
        optimizer.step()
        optimizer.zero_grad()
    result[name] = _state(model)
    result[f"{name} rates"] = rates(optimizer, model)


def _message(call):
    try:
        call()
    except nm.MupError as error:
        return str(error)
    return "no error"


def _worker(rank, world, folder):
    import warnings

    import torch.distributed.checkpoint as dcp

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    result = {}

    model = DistributedDataParallel(parametrized())
    _run(model, adam(model), rank, result, "ddp")
    model = parametrized()
    optimizer = adam(model)
    _run(DistributedDataParallel(model), optimizer, rank, result, "ddp after the optimizer")
    model = nm.parametrize(DistributedDataParallel(CASE.build()), base=CASE.base)
    _run(model, adam(model), rank, result, "parametrize after ddp")

    # In double precision: rounding turns basis vectors that are nearly degenerate, and depends on what is in a batch.
    for kind in KERNEL_OPTIMIZERS:
        for name, group in (("whole", None), ("shared", dist.group.WORLD)):
            model, moved = DistributedDataParallel(in_double(parametrized())), []
            optimizer = kind(model, lr=LR, process_group=group)
            update = optimizer.update
            optimizer.update = lambda blocks, *rest, m=moved, u=update: m.append(len(blocks)) or u(blocks, *rest)
            _run(model, optimizer, rank, result, f"{kind.__name__} {name}")
            result[f"{kind.__name__} {name} moved"] = sum(moved)
            result[f"{kind.__name__} {name} states"] = {
                (i, key): value.clone()
                for i, state in optimizer.state_dict()["state"].items()
                for key, value in state.items()
                if torch.is_tensor(value)
            }
        model = nm.shard(in_double(parametrized()))
        optimizer = kind(model, lr=LR)
        _run(model, optimizer, rank, result, f"{kind.__name__} shard")
        local = {key: tuple(v.to_local().shape) for p in model.parameters() if p.is_complex()
                 for key, v in optimizer.state[p].items() if hasattr(v, "to_local")}  # fmt: skip
        result[f"{kind.__name__} shard local"] = local
        p = next(iter(model.parameters()))
        p.grad = torch.zeros_like(p)
        if rank == 1:
            p.grad.to_local().fill_(torch.nan)
        result[f"{kind.__name__} shard nan"] = _message(optimizer.step)

    model = nm.shard(parametrized())
    result["shard infshapes at once"] = all(hasattr(p, "infshape") for p in model.parameters())
    optimizer = adam(model)
    result["kinds"] = {name: (type(p).__name__, tuple(p.to_local().shape)) for name, p in model.named_parameters()}
    nm.check_optimizer(model, optimizer)
    _run(model, optimizer, rank, result, "shard")
    result["shard plan"] = nm.summary(model)
    result["shard infshapes"] = all(hasattr(p, "infshape") for p in model.parameters())

    # A sharded checkpoint, and the next steps of a run resumed from it
    parts = {"model": {k: v for k, v in model.state_dict().items() if k != "_metadata"}, "optimizer": optimizer.state_dict()}
    dcp.save(parts, checkpoint_id=f"{folder}/dcp")
    if rank == 0:
        nm.save_plan(model, f"{folder}/plan.json")
    dist.barrier()
    _run(model, optimizer, rank, result, "shard, uninterrupted")
    again = nm.load_plan(nm.shard(CASE.build(seed=1)), f"{folder}/plan.json")
    optimizer = adam(again)
    step(again, None, 0, slice(2 * rank, 2 * rank + 2))
    optimizer.step()  # so that there are states to load into
    optimizer.zero_grad()
    parts = {"model": {k: v for k, v in again.state_dict().items() if k != "_metadata"}, "optimizer": optimizer.state_dict()}
    dcp.load(parts, checkpoint_id=f"{folder}/dcp")
    again.load_state_dict(parts["model"])
    optimizer.load_state_dict(parts["optimizer"])
    _run(again, optimizer, rank, result, "shard, resumed")

    # From the meta device: parametrize, shard, give memory, draw. Each process has its own seed, rank 0's counts.
    with torch.device("meta"):
        model = CASE.build()
    model = nm.shard(nm.parametrize(model, base=CASE.base))
    model.to_empty(device="cpu")
    torch.manual_seed(rank)
    nm.initialize(model)
    result["meta and shard start"] = _state(model)
    _run(model, adam(model), rank, result, "meta and shard")

    result["parametrize after shard"] = _message(lambda: nm.parametrize(nm.shard(CASE.build()), base=CASE.base))
    result["shard twice"] = _message(lambda: nm.shard(model))
    result["load into shards"] = _message(lambda: nm.load_checkpoint(folder, model))
    early = parametrized()
    optimizer = adam(early)
    nm.shard(early)
    result["optimizer before shard"] = _message(lambda: nm.check_optimizer(early, optimizer))
    torch.save(result, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What each of two processes measured."""
    folder = str(tmp_path_factory.mktemp("two"))
    torch.multiprocessing.spawn(_worker, (2, folder), nprocs=2)
    return [torch.load(f"{folder}/{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.fixture(scope="module")
def one():
    """The plain run in one process; halves of a batch are added up as two processes do (½ is exact, so to the last bit)."""
    model = parametrized()
    optimizer, gradients = adam(model), None
    for seed in range(STEPS):
        for rank in range(2):
            step(model, None, seed, slice(2 * rank, 2 * rank + 2), weight=0.5)
        gradients = gradients or {name: p.grad.clone() for name, p in model.named_parameters()}
        nm.clip_spectral_grad_value_(model, 0.01)
        optimizer.step()
        optimizer.zero_grad()
    return gradients, _state(model), rates(optimizer, model)


RUNS = ["ddp", "ddp after the optimizer", "parametrize after ddp", "shard", "meta and shard"]


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_are_one(name, two, one):
    gradients, weights, learning_rates = one
    for result in two:
        assert result[f"{name} rates"] == learning_rates
        for key, gradient in gradients.items():
            assert torch.equal(result[f"{name} gradients"][key], gradient), key
            assert torch.equal(result[name][key], weights[key]), key
    kernels = [g for g in gradients.values() if g.is_complex()]
    # a lost imaginary part would show, and so would a clip that did nothing
    assert kernels and all(g.imag.abs().max() > 0.02 for g in kernels)


def test_gradients_are_those_of_the_whole_batch(two):
    """Against one backward pass over all four samples, in float arithmetic of another order."""
    model = parametrized()
    step(model, None, 0)
    for name, p in model.named_parameters():
        scale = p.grad.abs().max().item()
        torch.testing.assert_close(two[0]["ddp gradients"][name], p.grad, rtol=0, atol=1e-5 * scale)


@pytest.mark.parametrize("kind", KERNEL_OPTIMIZERS)
def test_processes_share_the_work(kind, two):
    """Some parameters on each process; one result and one state, which are those of doing everything everywhere."""
    whole, shared = (f"{kind.__name__} {name}" for name in ("whole", "shared"))
    everything = two[0][f"{whole} moved"]
    shares = [result[f"{shared} moved"] for result in two]
    assert sum(shares) == everything and max(shares) <= everything / 2 + STEPS
    for name, p in two[0][shared].items():
        assert torch.equal(p, two[1][shared][name]), name
        torch.testing.assert_close(p, two[0][whole][name], rtol=1e-5, atol=1e-6)
        assert not torch.equal(p, _state(in_double(parametrized()))[name]), name
    states = [result[f"{shared} states"] for result in two]
    assert states[0].keys() == states[1].keys() == two[0][f"{whole} states"].keys()
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())


@pytest.mark.parametrize("kind", KERNEL_OPTIMIZERS)
def test_kernel_optimizers_gather_what_is_sharded(kind, two):
    """FSDP2: the run of whole parameters, with a state of which each process keeps its part."""
    for result in two:
        for name, p in result[f"{kind.__name__} shard"].items():
            torch.testing.assert_close(p, two[0][f"{kind.__name__} whole"][name], rtol=1e-5, atol=1e-7)
        assert "not finite" in result[f"{kind.__name__} shard nan"]
    stored = next(p for p in CASE.build().parameters() if p.is_complex()).shape
    local = two[0][f"{kind.__name__} shard local"]
    assert set(local) == set(kind.sharded_state)
    assert all(shape == (-(-stored[0] // 2), *stored[1:]) for shape in local.values())


def test_kernels_are_sharded_and_their_plan_stays(two):
    stored = {name: tuple(p.shape) for name, p in CASE.build().named_parameters()}
    for name, (kind, local) in two[0]["kinds"].items():
        assert kind == "DTensor"
        assert local == (-(-stored[name][0] // 2), *stored[name][1:])
    assert two[0]["shard plan"] == nm.summary(parametrized()) and two[0]["shard infshapes"]
    assert two[0]["shard infshapes at once"]  # a plain optimizer is known by them


def test_meta_and_shard_draws_the_numbers_of_rank_0(two):
    usual = _state(parametrized())
    for result in two:
        for name, p in usual.items():
            assert torch.equal(result["meta and shard start"][name], p), name


def test_sharded_run_resumes(two):
    for result in two:
        for name, p in result["shard, uninterrupted"].items():
            assert torch.equal(result["shard, resumed"][name], p), name


def test_refused_on_shards(two):
    assert "parametrize first" in two[0]["parametrize after shard"]
    assert "are sharded already" in two[0]["shard twice"]
    assert "load_checkpoint" in two[0]["load into shards"]
    assert "does not hold" in two[0]["optimizer before shard"]
