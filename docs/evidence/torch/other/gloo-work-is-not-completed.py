"""The work of gloo's reduce_scatter_single says that it is not completed after it was waited for (torch 2.13.0).

Run: python docs/evidence/torch/other/gloo-work-is-not-completed.py
Expected: True after wait() for every collective. Got: False for reduce_scatter_single and reduce_scatter.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    works = {
        "all_reduce": dist.all_reduce(torch.ones(2), async_op=True),
        "reduce_scatter": dist.reduce_scatter(torch.ones(2), [torch.ones(2)] * 2, async_op=True),
        "reduce_scatter_single": reduce_scatter_single(torch.ones(2), torch.ones(4), async_op=True),
    }
    for name, work in works.items():
        work.wait()
        print(f"rank {rank}: {name}: is_completed() is {work.is_completed()} after wait()", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=2)
