"""What tf.train.SyncReplicasOptimizer does if one of two workers is missing.

Each update should contain one gradient from each worker. Here only one worker runs; it takes six
steps.
"""

import threading

import tensorflow.compat.v1 as tf

threading.excepthook = lambda _: None  # the optimizer's queue runner complains at the end
tf.disable_eager_execution()
tf.logging.set_verbosity(tf.logging.ERROR)


def six_steps(tokens: int) -> str:
    """What happens in six steps if the queue holds this many tokens when training begins."""
    with tf.Graph().as_default():
        w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
        global_step = tf.train.get_or_create_global_step()
        optimizer = tf.train.SyncReplicasOptimizer(
            tf.train.GradientDescentOptimizer(1.0), replicas_to_aggregate=2, total_num_replicas=2
        )
        step = optimizer.apply_gradients([(tf.constant(1.0), w)], global_step)
        hook = optimizer.make_session_run_hook(is_chief=True, num_tokens=tokens)
        server = tf.train.Server.create_local_server()
        with tf.train.MonitoredTrainingSession(
            server.target, hooks=[hook], stop_grace_period_secs=0
        ) as session:
            for k in range(6):
                try:
                    session.run(step, options=tf.RunOptions(timeout_in_ms=3000))
                except tf.errors.DeadlineExceededError:
                    return f"step {k + 1} waits for a token, as it should: there is no other worker"
            made = session.run(global_step)
            return f"{made} updates were made, each from two gradients from the same worker"


if __name__ == "__main__":
    print("tokens by default:", six_steps(-1))
    print("num_tokens=0:     ", six_steps(0))
