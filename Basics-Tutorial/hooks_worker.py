"""For Training-Sessions-and-Hooks: a worker that counts steps on a ps, and survives the ps's death.

python hooks_worker.py INDEX CHECKPOINTS PS_ADDRESS WORKER_0_ADDRESS WORKER_1_ADDRESS
"""

import sys
import time

import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
index, folder, *addresses = int(sys.argv[1]), *sys.argv[2:]
config = tf.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{index}"])
cluster = {"ps": addresses[:1], "worker": addresses[1:]}
server = tf.train.Server(cluster, "worker", index, config=config)
with tf.device("/job:ps/task:0"):
    stop = tf.Variable(False, name="stop")
    step = tf.train.get_or_create_global_step()
    train = step.assign_add(1)
init, ready = tf.global_variables_initializer(), tf.report_uninitialized_variables()
saver = tf.train.Saver()


class Creator(tf.train.SessionCreator):
    def create_session(self):  # at the start, and again after every failure
        manager = tf.train.SessionManager(ready_op=ready, recovery_wait_secs=0.1)
        if index == 0:  # the chief: from the newest checkpoint, or from initial values
            newest = tf.train.latest_checkpoint(folder)
            if newest:
                print("restores step", tf.train.load_variable(newest, "global_step"), flush=True)
            session = manager.prepare_session(server.target, init, saver, folder, config=config)
        else:
            session = manager.wait_for_session(server.target, config)
        print("session step", session.run(step), "time", time.time(), flush=True)
        return session


class Watch(tf.train.SessionRunHook):
    own = 0

    def before_run(self, run_context):
        return tf.train.SessionRunArgs([step, stop])

    def after_run(self, run_context, run_values):
        now, told = run_values.results
        self.own += 1
        print("own", self.own, "step", now, "time", time.time(), flush=True)
        if told:
            run_context.request_stop()


hooks = [Watch()]
if index == 0:
    hooks.append(tf.train.CheckpointSaverHook(folder, save_steps=30, saver=saver))
with tf.train.MonitoredSession(Creator(), hooks) as session:
    while not session.should_stop():
        session.run(train)
        time.sleep(0.03)  # a larger model would take so long
print("the loop has ended", flush=True)
