"""What a step transfers, read from the partition graphs that TensorFlow ran.

One transfer each way between a worker and each ps: w~ to the worker, the push to the ps. So the ps
computes the update, and counting and timing a step transfers nothing more.
"""

import collections
import re

import pytest
from conftest import ROOT, copy_example

FOLDERS = sorted(path.parent.name for path in ROOT.glob("[!.]*/worker.py"))
FAST = ("HogWild", "AEASGD", "Synchronous-SGD")  # a plain one, one with local state, one that waits
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
LOOP = "    while not sess.should_stop():"


def marked(folders, *more):
    slow = pytest.mark.slow("the same of another example")
    return [
        pytest.param(name, *more, marks=[] if name in FAST and not more else slow)
        for name in folders
    ]


@pytest.mark.parametrize(
    ("example", "ps"),
    [
        *[pytest.param(*p.values, 1, marks=p.marks) for p in marked(FOLDERS)],
        *marked(["HogWild", "DOWNPOUR"], 2),
    ],
)
def test_a_step_makes_one_transfer_each_way(run, tmp_path, example, ps):
    source = (ROOT / example / "worker.py").read_text()
    assert source.count(LOOP) == 1
    # A hook of the script's own sees every step; what it fetches from a ps travels, too.
    source = source.replace("hooks=[log_rate]", "hooks=[]")
    root = copy_example(example, tmp_path / "mine", worker=source.replace(LOOP, PROBE + LOOP))
    finished = run(example, "--steps", 20, "--ps", ps, root=root)
    log = (finished.results / "logs" / "worker-0.log").read_text()
    found = collections.Counter(
        tuple(re.findall(r"/job:(\w+)/replica:0/task:(\d+)", line))
        for line in re.findall(r"^transfer (.*)$", log, re.M)
    )
    worker = ("worker", "0")
    with_worker = {ends: count for ends, count in found.items() if worker in ends}
    expected = {}
    for index in range(ps):
        expected |= {(worker, ("ps", str(index))): 1, (("ps", str(index)), worker): 1}
    assert with_worker == expected
