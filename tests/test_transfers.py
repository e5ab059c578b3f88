"""What a step sends, from the partition graphs that TensorFlow actually ran, and from its trace.

One transfer each way between a worker and each ps: w~ one way, the pushed values the other way, 4
bytes per parameter. So the ps does the update's arithmetic, and counting and timing a step add no
transfers. The chief's part of a synchronous round, the update, sends nothing.

`test_replay.py` probes its runs too, which covers every example that it replays.
"""

import collections
import math
import re

import pytest
from conftest import ROOT, copy_example

LOOP = "    while not sess.should_stop():"
# The first traced call may lack what another task received, since it only then begins to record.
PROBE = """    if task.index == 0:
        sess.run(step)
        for call in range(3):
            metadata = tf.RunMetadata()
            options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
            options.output_partition_graphs = not call
            sess.run(step, options=options, run_metadata=metadata)
            for graph in metadata.partition_graphs:
                for node in graph.node:
                    places = [node.attr[f"{end}_device"].s.decode() for end in ("send", "recv")]
                    if node.op == "_Send" and places[0] != places[1]:
                        say("transfer", *places)
            for device in metadata.step_stats.dev_stats:
                for node in device.node_stats:
                    if node.node_name == "RecvTensor":
                        memory = node.output[0].tensor_description.allocation_description
                        say("step", call, memory.requested_bytes, node.timeline_label)
"""
IMPORT = "import tensorflow.compat.v1 as tf\n"
SAY = """
import sys


def say(*words):
    # The whole line at once, since two threads say something.
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()
"""
# The chief's thread makes the updates of a synchronous scheme. Its other calls fetch values.
PROBE_OF_ROUNDS = """
import collections
import functools
import threading


def run(self, fetches, *args, **more):
    if threading.current_thread() is threading.main_thread():
        return plain_run(self, fetches, *args, **more)
    if not all(isinstance(each, tf.Operation) for each in tf.nest.flatten(fetches)):
        return plain_run(self, fetches, *args, **more)
    calls[str(fetches)] += 1
    call = calls[str(fetches)] - 2
    if call not in range(3):
        return plain_run(self, fetches, *args, **more)
    metadata = tf.RunMetadata()
    options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
    found = plain_run(self, fetches, options=options, run_metadata=metadata)
    say("round", call, "is traced")
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            if node.node_name == "RecvTensor":
                memory = node.output[0].tensor_description.allocation_description
                say("round", call, memory.requested_bytes, node.timeline_label)
    return found


def make_callable(self, fetches, *args, **more):
    if threading.current_thread() is threading.main_thread():
        return plain_callable(self, fetches, *args, **more)
    return functools.partial(self.run, fetches)


calls = collections.Counter()
plain_run, tf.Session.run = tf.Session.run, run
plain_callable, tf.Session.make_callable = tf.Session.make_callable, make_callable
"""
SMALL = 32  # bytes of a token, of a count, of who pushed: less than the 10 biases of `linear`


def probed(example: str, to):
    """A copy of an example that prints what three steps of worker 0 and three rounds send."""
    source = (ROOT / example / "worker.py").read_text()
    assert source.count(LOOP) == 1 and source.count(IMPORT) == 1
    # The script's own hook sees every step; what it fetches from a ps is also sent.
    source = source.replace("hooks=[log_rate]", "hooks=[]")
    source = source.replace(IMPORT, IMPORT + SAY + PROBE_OF_ROUNDS)
    return copy_example(example, to, worker=source.replace(LOOP, PROBE + LOOP))


def log_of_chief(finished) -> str:
    return (finished.results / "logs" / "worker-0.log").read_text()


def assert_one_transfer_each_way(finished, ps: int = 1) -> None:
    found = collections.Counter(
        tuple(re.findall(r"/job:(\w+)/replica:0/task:(\d+)", line))
        for line in re.findall(r"^transfer (.*)$", log_of_chief(finished), re.M)
    )
    worker = ("worker", "0")
    # Not counted: a worker's own copies between its processor and its GPU.
    with_worker = {e: count for e, count in found.items() if worker in e and e[0] != e[1]}
    expected = {}
    for index in range(ps):
        expected |= {(worker, ("ps", str(index))): 1, (("ps", str(index)), worker): 1}
    assert with_worker == expected


def assert_one_large_transfer_each_way(finished) -> None:
    """Each other one is at most a number, or a sign that there is nothing: TensorFlow sends one for
    each value of a branch that is not taken."""
    found = collections.Counter()
    for line in re.findall(r"^step 2 (\d+ .* from .*)$", log_of_chief(finished), re.M):
        size, *_ = line.split()
        if int(size) > SMALL:
            found[tuple(re.findall(r"/job:(\w+)/replica:0/task:(\d+)", line))] += 1
    ps, worker = ("ps", "0"), ("worker", "0")
    assert found == {(worker, ps): 1, (ps, worker): 1}


def sent(finished, what: str) -> collections.Counter:
    """(from, to) -> bytes that one call sent from task to task. `what`: step or round. Of three
    traced calls, the most, since a receiver may record nothing in the first."""
    each, most = collections.Counter(), collections.Counter()
    for line in re.findall(rf"^{what} (\d \d+ .* from .*)$", log_of_chief(finished), re.M):
        call, size, *_ = line.split()
        a, b = map(" ".join, re.findall(r"/job:(\w+)/replica:0/task:(\d+)", line))
        if a != b:
            each[call, a, b] += int(size)
    for (_, a, b), size in each.items():
        most[a, b] = max(most[a, b], size)
    return most


def assert_bytes(finished, rounds: bool = False, bits: int = 32) -> None:
    """A step pulls every parameter once and pushes every parameter once, as so many bits; the
    chief's part of a round sends next to nothing."""
    once = sum(math.ceil(array.size * bits / 8) for array in finished.parameters)
    ways, worker = collections.Counter(), "worker 0"
    for (a, b), size in sent(finished, "step").items():
        ways["pulls" if b == worker else "pushes" if a == worker else "moves elsewhere"] += size
    for way, least in {"pulls": once, "pushes": once, "moves elsewhere": 0}.items():
        assert least <= ways[way] <= least + SMALL, (
            f"a step {way} {ways[way]:,} bytes, not {least:,}"
        )
    if rounds:
        assert "\nround 2 is traced\n" in log_of_chief(finished)
        found = sent(finished, "round")
        assert found.total() <= SMALL, f"each round sends {found.total():,} bytes: {dict(found)}"


@pytest.mark.slow("the same with two ps; for Your-Own, see its own tests")
def test_a_step_makes_one_transfer_each_way(run, tmp_path):
    root = probed("DOWNPOUR", tmp_path / "mine")
    flags = ["--steps", 20, "--workers", 1, "--ps", 2, "--model", "linear"]
    finished = run("DOWNPOUR", *flags, root=root)
    assert_one_transfer_each_way(finished, 2)
    assert_bytes(finished)


@pytest.mark.slow("a round with two ps")
def test_each_ps_sums_the_gradients_of_its_own_parameters(run, tmp_path):
    """The chief's part of a round sends no gradient from ps to ps."""
    root = probed("Synchronous-SGD", tmp_path / "mine")
    flags = ["--steps", 20, "--workers", 2, "--ps", 2, "--model", "linear"]
    finished = run("Synchronous-SGD", *flags, root=root)
    assert_bytes(finished)
    assert "\nround 2 is traced\n" in log_of_chief(finished)
    between = {way: size for way, size in sent(finished, "round").items() if size > 4 * SMALL}
    assert not between
