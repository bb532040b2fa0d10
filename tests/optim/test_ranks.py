"""Matrix updates shared by processes: the run of one, bit for bit, in few messages."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import distribute_tensor

import neuralop_mup as nm
from support.models import KERNEL, in_double, small_fno
from support.processes import in_processes
from support.training import random_gradients

STEPS = 12  # beyond the first regular renewal of bases


def run(model, **settings):
    """Weights and averages after some steps on gradients that all processes have, and messages of the last step."""
    optimizer = nm.MuSOAP(model, lr=0.05, weight_decay=0.1, **settings)
    sent = []
    for seed in range(STEPS):
        sent.clear()
        whole = in_double(small_fno(width=6))
        random_gradients(whole, seed)
        for p, own in zip(model.parameters(), whole.parameters(), strict=True):
            p.grad = own.grad if not hasattr(p, "placements") else distribute_tensor(own.grad, p.device_mesh, p.placements)
        with pytest.MonkeyPatch.context() as patch:
            for name in ("broadcast", "all_to_all_single", "all_reduce", "all_gather"):
                function = getattr(dist, name)
                patch.setattr(dist, name, lambda *a, _n=name, _f=function, **k: sent.append(_n) or _f(*a, **k))
            optimizer.step()
    weights = {name: full(p.detach()) for name, p in model.named_parameters()}
    states = [{key: full(x) for key, x in optimizer.state[p].items() if torch.is_tensor(x)} for p in model.parameters()]
    return weights, states, list(sent)


def full(x):
    return (x.full_tensor() if hasattr(x, "placements") else x).clone()


def one_bad_shard(rank):
    """What one process finds in its shard is refused on all of them. States lie as weights do."""
    model = nm.shard(small_fno())
    optimizer, kernel = nm.MuSOAP(model), model.get_parameter(KERNEL)
    kernel.grad = torch.zeros_like(kernel)
    optimizer.step()
    assert {key for key, v in optimizer.state[kernel].items() if hasattr(v, "to_local")} == {"exp_avg", "exp_avg_sq"}
    kernel.grad.to_local().fill_(torch.nan if rank == 1 else 0.0)
    with pytest.raises(nm.MupError, match="not finite"):
        optimizer.step()


def other_rates(rank):
    """Each process with an error of its own share of the data would train weights of its own."""
    model = small_fno()
    optimizer = nm.MuSOAP(model, steps=300, start_error=0.01 * (1 + rank), process_group=dist.group.WORLD)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    # A quarter of 0.01 and of 0.03, times √(4/2) for two layers.
    with pytest.raises(nm.MupError, match="rates of one group from 0.00354 to 0.0106, steps from 300 to 300"):
        optimizer.step()


def runs(rank, folder):
    one_bad_shard(rank)
    other_rates(rank)
    return {
        "plain": run(in_double(small_fno(width=6))),
        "shared": run(in_double(small_fno(width=6)), process_group=dist.group.WORLD),
        "sharded": run(nm.shard(in_double(small_fno(width=6)))),
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Of three processes: of a parameter with two or four rows one has fewer, or none."""
    return in_processes(3, runs, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("how", ["shared", "sharded"])
def test_processes_are_one(how, ranks):
    weights, states, _ = ranks[0]["plain"]
    for result in ranks:
        torch.testing.assert_close(result[how][:2], (weights, states), rtol=0, atol=0)


def test_messages_of_a_step(ranks):
    """One broadcast from each process; with shards two exchanges for kernels, which are complex, two for the rest, and the
    check of gradients."""
    for result in ranks:
        assert result["plain"][2] == []
        assert result["shared"][2] == ["broadcast"] * len(ranks)
        sharded = result["sharded"][2]
        assert sharded.count("all_to_all_single") == 4 and set(sharded) <= {"all_to_all_single", "all_reduce"}
