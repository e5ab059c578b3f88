"""What a step sends, from the partition graphs that TensorFlow actually ran.

One transfer each way between a worker and each ps: w~ one way, the pushed values the other way. So
the ps does the update's arithmetic, and counting and timing a step add no transfers.

`test_replay.py` probes its runs too, which covers every example that it replays.
"""

import collections
import re

import pytest
from conftest import ROOT, copy_example

LOOP = "    while not sess.should_stop():"
PROBE = """    if task.index == 0:
        sess.run(step)
        metadata = tf.RunMetadata()
        options = tf.RunOptions(output_partition_graphs=True)
        sess.run(step, options=options, run_metadata=metadata)
        for graph in metadata.partition_graphs:
            for node in graph.node:
                places = [node.attr[f"{end}_device"].s.decode() for end in ("send", "recv")]
                if node.op == "_Send" and places[0] != places[1]:
                    print("transfer", *places, flush=True)
"""


def probed(example: str, to):
    """A copy of an example whose worker 0 prints what its second step sends."""
    source = (ROOT / example / "worker.py").read_text()
    assert source.count(LOOP) == 1
    # The script's own hook sees every step; what it fetches from a ps is also sent.
    source = source.replace("hooks=[log_rate]", "hooks=[]")
    return copy_example(example, to, worker=source.replace(LOOP, PROBE + LOOP))


def assert_one_transfer_each_way(finished, ps: int = 1) -> None:
    log = (finished.results / "logs" / "worker-0.log").read_text()
    found = collections.Counter(
        tuple(re.findall(r"/job:(\w+)/replica:0/task:(\d+)", line))
        for line in re.findall(r"^transfer (.*)$", log, re.M)
    )
    worker = ("worker", "0")
    # Not counted: a worker's own copies between its processor and its GPU.
    with_worker = {e: count for e, count in found.items() if worker in e and e[0] != e[1]}
    expected = {}
    for index in range(ps):
        expected |= {(worker, ("ps", str(index))): 1, (("ps", str(index)), worker): 1}
    assert with_worker == expected


@pytest.mark.slow("the same with two ps; for Your-Own, see its own tests")
def test_a_step_makes_one_transfer_each_way(run, tmp_path):
    root = probed("DOWNPOUR", tmp_path / "mine")
    flags = ["--steps", 20, "--workers", 1, "--ps", 2]
    assert_one_transfer_each_way(run("DOWNPOUR", *flags, root=root), 2)
