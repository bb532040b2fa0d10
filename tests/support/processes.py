"""Processes that tests start."""

import os
import sys

import torch
import torch.distributed as dist

START = "forkserver" if sys.platform == "linux" else "spawn"  # from a process that has torch loaded (conftest.py)


def environment() -> dict[str, str]:
    """Variables for a process that imports the same modules as this one."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def in_process(rank, world, work, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    torch.save(work(rank, folder), f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def in_processes(n, work, folder):
    """Return the results of ``work(rank, folder)`` in n processes of one process group."""
    torch.multiprocessing.start_processes(in_process, (n, work, str(folder)), nprocs=n, start_method=START)
    return [torch.load(f"{folder}/{rank}.pt", weights_only=False) for rank in range(n)]
