"""Processes that share the updates of MuSOAP: the run of one process, bit for bit, in few messages."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import distribute_tensor

import neuralop_mup as nm
from support.errors import refused
from support.models import KERNEL, in_double, small_fno
from support.processes import in_processes
from support.training import random_gradients


def full(x):
    return (x.full_tensor() if hasattr(x, "placements") else x).clone()


def run(shard=False, **settings):
    """Return weights and averages after steps on gradients that all processes have, and messages of the last step."""
    whole = in_double(small_fno(width=6))
    model = in_double(small_fno(width=6))
    model = nm.shard(model) if shard else model
    optimizer, sent = nm.MuSOAP(model, lr=0.05, weight_decay=0.1, refresh=4, **settings), []
    for seed in range(6):  # beyond the first regular renewal of bases
        sent.clear()
        random_gradients(whole, seed)
        for p, own in zip(model.parameters(), whole.parameters(), strict=True):
            p.grad = distribute_tensor(own.grad, p.device_mesh, p.placements) if shard else own.grad
        with pytest.MonkeyPatch.context() as patch:
            for name in ("broadcast", "all_to_all_single", "all_reduce", "all_gather"):
                function = getattr(dist, name)
                patch.setattr(dist, name, lambda *a, _n=name, _f=function, **k: sent.append(_n) or _f(*a, **k))
            optimizer.step()
    weights = [full(p.detach()) for p in model.parameters()]
    states = [{key: full(x) for key, x in optimizer.state[p].items() if torch.is_tensor(x)} for p in model.parameters()]
    return weights, states, sent


def one_bad_shard(rank):
    """All processes refuse a step for what one finds in its shard. Averages are sharded as weights are."""
    model = nm.shard(small_fno())
    optimizer, kernel = nm.MuSOAP(model), model.get_parameter(KERNEL)
    kernel.grad = torch.zeros_like(kernel)
    optimizer.step()
    assert {key for key, v in optimizer.state[kernel].items() if hasattr(v, "to_local")} == {"exp_avg", "exp_avg_sq"}
    kernel.grad.to_local().fill_(torch.nan if rank == 1 else 0.0)
    with refused("notfinite"):
        optimizer.step()


def other_rates(rank):
    """Processes with errors of their own shares of the data would train different weights."""
    optimizer = nm.MuSOAP(small_fno(), steps=300, start_error=0.01 * (1 + rank), process_group=dist.group.WORLD)
    # A quarter of 0.01 and of 0.03, times √(4/2) for two layers.
    with refused("0.00354 0.0106 300 start_error"):
        optimizer.step()


def work(rank, folder):
    one_bad_shard(rank)
    other_rates(rank)
    return {"plain": run(), "shared": run(process_group=dist.group.WORLD), "sharded": run(shard=True)}


def test_processes_are_one_in_few_messages(tmp_path):
    """There are three: of a parameter with two or four rows one process has fewer rows, or none.

    A step has one broadcast of each process. With shards it has two exchanges for kernels, which are complex, two for the
    rest, and the check of gradients.
    """
    results = in_processes(3, work, tmp_path)
    for result in results:
        for how in ("shared", "sharded"):
            torch.testing.assert_close(result[how][:2], results[0]["plain"][:2], rtol=0, atol=0)
        assert (result["plain"][2], result["shared"][2]) == ([], ["broadcast"] * 3)
        sharded = result["sharded"][2]
        assert sharded.count("all_to_all_single") == 4 and set(sharded) <= {"all_to_all_single", "all_reduce"}
