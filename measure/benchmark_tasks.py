"""The processes that benchmark.py compares with a real run: `benchmark_tasks.py ROLE flags`.

`bare`: HogWild's worker with nothing around its loop; `ps`, `worker`, `coordinator`: the same
work with TensorFlow's own ParameterServerStrategy. `bare` and `coordinator` write to `--results`
when their training began and ended, and how many steps they made.
"""

import contextlib
import json
import os
import runpy
import sys
import time
from pathlib import Path

import tensorflow as tf

from common import cluster, data, datasets, models, session
from common.told import addresses
from common.training.together import StartAndStop

HOGWILD = Path(__file__).resolve().parents[1] / "HogWild" / "worker.py"
CALLS = int(os.environ.get("STEPS_PER_CALL", 1))  # of ParameterServerStrategy's function
TUNED = "TUNED" in os.environ  # one thread each, since there are more tasks than cores
DEFAULTS = {"steps": 1, "learning_rate": 0.05}
WARM_UP = 50  # steps before the clock starts, while TensorFlow traces and connects


def write(results: str, name: str, began: float, ended: float, steps: int) -> None:
    Path(results, f"{name}.json").write_text(
        json.dumps({"began": began, "ended": ended, "steps": steps})
    )


class Loop:
    """The parts of a session that HogWild's worker uses: should_stop and run."""

    def __init__(self, sess: tf.compat.v1.Session):
        self.should_stop = lambda: False
        self._run, self.steps, self.began, self.ended = sess.run, 0, time.time(), 0.0

    def run(self, step: tf.Operation) -> None:
        self._run(step)
        self.steps, self.ended = self.steps + 1, time.time()


@contextlib.contextmanager
def bare_training(task: cluster.Task, server: tf.distribute.Server, *_, **__):
    """Replaces `session.training`: no hooks, no logs, no checkpoints, no evaluation."""
    v1 = tf.compat.v1
    init = v1.global_variables_initializer()
    operations = v1.get_default_graph().get_operations()
    local = v1.local_variables_initializer(), *[o for o in operations if o.type == "MakeIterator"]
    together = StartAndStop(task)
    for job, k in task.servers:
        addresses.wait_for(f"{job} {k}", task.hosts[job][k], task.flags.timeout)
    with v1.Session(server.target, config=task.config) as sess:
        if task.is_chief:
            sess.run(init)
        sess.run(local)
        together.after_create_session(sess, None)
        loop = Loop(sess)
        with contextlib.suppress(tf.errors.OutOfRangeError):  # --steps updates have been made
            yield loop
        write(task.flags.results, f"bare-{task.index}", loop.began, loop.ended, loop.steps)
        together.end(sess)
        together.finish(sess, lambda session: None)


def serve(task: cluster.Task, spec: dict[str, list[str]]) -> None:
    """Runs a ps or a worker of ParameterServerStrategy until it is killed.

    A worker writes its shard to its own folder, where its input pipeline reads it.
    """
    if task.job == "worker":
        folder = Path(task.flags.results, f"shard-{task.index}")
        folder.mkdir(parents=True)
        os.chdir(folder)
        for name, array in zip(
            "xy", data.load(task.flags, "train", task.index, task.flags.workers)
        ):
            array.tofile(name)
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=int(TUNED))
    tf.distribute.Server(spec, task.job, task.index, config=config).join()


def coordinate(flags, spec: dict[str, list[str]]) -> None:
    """Trains with ParameterServerStrategy, as in TensorFlow's guide, without Keras."""
    tf.config.threading.set_intra_op_parallelism_threads(int(TUNED))
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(spec), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        params = models.create(flags)
    example, _, size = datasets.describe(flags)
    shard = size // len(spec["worker"])

    def dataset() -> tf.data.Dataset:  # runs on each worker, in its folder
        x = tf.io.decode_raw(tf.io.read_file("x"), tf.float32)
        x, labels = tf.reshape(x, [-1, *example]), tf.io.decode_raw(tf.io.read_file("y"), tf.int64)
        if not TUNED:
            examples = tf.data.Dataset.from_tensor_slices((x, labels)).shuffle(shard).repeat()
            return examples.batch(flags.batch_size, drop_remainder=True).prefetch(8)
        numbers = tf.data.Dataset.range(shard).shuffle(shard).repeat()
        numbers = numbers.batch(flags.batch_size, drop_remainder=True)
        batches = numbers.map(lambda chosen: (tf.gather(x, chosen), tf.gather(labels, chosen)))
        options = tf.data.Options()
        options.autotune.enabled = False
        options.threading.private_threadpool_size = 1
        return batches.prefetch(8).with_options(options)

    def update(*batch) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(models.evaluate(flags.model, params, *batch)["loss"])
        for param, grad in zip(params, tape.gradient(loss, params)):
            param.assign_sub(flags.learning_rate * grad)
        return loss

    @tf.function
    def tuned_step(iterator) -> None:
        update(*next(iterator))

    @tf.function
    def guide_step(iterator) -> tf.Tensor:
        losses = strategy.run(update, args=next(iterator))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    @tf.function
    def several_steps(iterator) -> tf.Tensor:
        loss = tf.zeros([])
        for _ in tf.range(CALLS):
            loss = strategy.run(update, args=next(iterator))
        return loss

    step = tuned_step if TUNED else guide_step if CALLS == 1 else several_steps

    iterator = iter(coordinator.create_per_worker_dataset(dataset))

    def train(steps: int) -> None:
        for _ in range(steps):
            coordinator.schedule(step, args=(iterator,))
        coordinator.join()

    train(WARM_UP)
    began = time.time()
    train(flags.steps // CALLS)
    write(flags.results, "strategy", began, time.time(), flags.steps)


def main(role: str) -> None:
    if role == "bare":
        session.training = bare_training
        sys.argv[0] = str(HOGWILD)
        runpy.run_path(sys.argv[0], run_name="__main__")
        return
    address = sys.argv.pop(1)  # the coordinator's; HogWild has no such task
    task = cluster.Task.from_flags("ps" if role == "ps" else "worker", DEFAULTS)
    spec = task.hosts | {"chief": [address]}
    if role == "coordinator":
        coordinate(task.flags, spec)
    else:
        serve(task, spec)


if __name__ == "__main__":
    main(sys.argv.pop(1))
