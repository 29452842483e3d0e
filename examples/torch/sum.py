"""Each process adds its rank, and the first one prints the sum and on which members they ran."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
size = dist.get_world_size()
total = torch.tensor([dist.get_rank()])
dist.all_reduce(total)
members = [torch.tensor([0]) for _ in range(size)]
dist.all_gather(members, torch.tensor([int(os.environ["NODEKEEPER_MEMBER"])]))
if dist.get_rank() == 0:
    print(f"the sum of {size} ranks is {total.item()}; they ran on the members {[m.item() for m in members]}", flush=True)
dist.barrier()
