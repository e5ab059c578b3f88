"""The same work in PyTorch: two processes that average their parameters every 10 steps with gloo.

`benchmark_torch.py RANK PORT STEPS FOLDER`, started by benchmark.py; STEPS is per process.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed

from common import data

WORKERS, WINDOW, WARM_UP, BATCH, HIDDEN, RATE = 2, 10, 100, 64, 128, 0.05


def main(rank: int, port: int, steps: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://localhost:{port}", rank=rank, world_size=WORKERS
    )
    flags = argparse.Namespace(data="synthetic", seed=0, data_url=None)
    x, labels = map(torch.from_numpy, data.load(flags, "train", rank, WORKERS))
    model = torch.nn.Sequential(
        torch.nn.Linear(x.shape[1], HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    loss_of = torch.nn.CrossEntropyLoss()
    order, at = torch.randperm(len(labels)), 0

    def average() -> None:
        with torch.no_grad():
            flat = torch.nn.utils.parameters_to_vector(model.parameters())
            torch.distributed.all_reduce(flat)
            torch.nn.utils.vector_to_parameters(flat / WORKERS, model.parameters())

    average()  # all start from the same parameters
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            torch.distributed.barrier()
            began = time.time()
        if at + BATCH > len(labels):
            order, at = torch.randperm(len(labels)), 0
        chosen, at = order[at : at + BATCH], at + BATCH
        optimizer.zero_grad()
        loss_of(model(x[chosen]), labels[chosen]).backward()
        optimizer.step()
        if step % WINDOW == WINDOW - 1:
            average()
    note = {"began": began, "ended": time.time(), "steps": steps}
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()  # else gloo's threads may abort at exit
    Path(folder, f"torch-{rank}.json").write_text(json.dumps(note))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), sys.argv[4])
