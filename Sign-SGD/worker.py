"""Sign-SGD: Signum with majority vote (Bernstein et al. 2018, 2019, arXiv 1802.04434, 1810.05291).

One bit per parameter travels each way. Worker k keeps its own copy w of w~, and repeats:

    wait   for a token: the count of updates so far
    pull   the vote of the last update:  w <- w - eta vote,  so that w = w~, bit for bit
           g_k = gradient of the mean loss on a fresh mini-batch of its own shard, at w
           m_k <- beta m_k + (1 - beta) g_k,  kept from step to step (beta: --sign_momentum)
    push   sign(m_k), together with the token; the sign of 0 is +1

A thread of the chief (worker 0) runs round after round: it gathers the signs of all workers; then,
all on the ps:

    vote = the sign that most workers sent; if as many sent the other, that of worker 0
    w~ <- w~ - eta vote,  and every worker gets a token, the new count

A worker whose w is not that of the update before pulls all of w~: at first, and after a restart.
"""

from common import cluster, copies, data, models, session  # import first: quiet start-up
import bits  # in this folder
from common.training.rounds import Rounds
import tensorflow.compat.v1 as tf

# Flags and their defaults (--help lists them all). --steps: updates, one per round.
DEFAULTS = {"workers": 2, "ps": 1, "steps": 1000, "learning_rate": 0.001, "sign_momentum": 0.9}
NOT_WHOLE = -2  # in place of the count of updates that w contains; no token is -1

# 1. Who am I? Flags or TF_CONFIG give this worker's index and the addresses of all tasks.
tf.disable_eager_execution()  # use graphs and sessions; the main README says why
task = cluster.Task.from_flags("worker", DEFAULTS)
flags = task.flags

# 2. This task's server: the tasks talk to each other through their servers.
server = tf.train.Server(task.cluster, task.job, task.index, config=task.config)

# 3. Parameters w~ and global_step, which counts their updates: on the ps, shared by all workers.
with tf.device(tf.train.replica_device_setter(cluster=task.cluster)):
    params = models.create(flags)  # weights, biases, weights, ...
    global_step = tf.train.get_or_create_global_step()


# Beside each parameter, the last vote on it: one bit per element, eight to a byte.
def beside(p):
    with tf.device(p.device):
        zeros = tf.zeros([bits.size(p.shape)], tf.uint8)
        return tf.Variable(zeros, trainable=False, name=f"{p.op.name}/vote")


votes = [beside(p) for p in params]

# Queues on the ps: workers wait there for tokens, and the chief's thread for signs like the votes.
rounds = Rounds(task, params, global_step, sent=votes)

with tf.device(task.device):  # this worker's GPU, or its CPU
    # 4. Worker k of n gets examples k, k + n, ...; next_batch() adds ops that draw a new batch.
    next_batch = data.batches(flags, worker=task.index, workers=flags.workers)

    # 5. The scheme. This worker's own w and m, and how many updates w contains, if it is whole.
    own, momentum = copies.local(params), copies.local(params)
    local = {"trainable": False, "collections": [tf.GraphKeys.LOCAL_VARIABLES]}
    contains = tf.Variable(tf.constant(NOT_WHOLE, tf.int64), **local)

    # Start from w, if it contains all updates but the last; else from all of w~, which is whole if
    # the count is still the token's after it was read. token.number: the count of updates so far
    def as_it_is():
        return [*[w.read_value() for w in own], contains + 1]

    def all_of_it():
        everything = copies.pull(params, global_step, after=token.number)
        with tf.device(global_step.device), tf.control_dependencies(everything.on_ps):
            return [*everything.w, global_step.read_value()]

    token = rounds.wait()
    follows = tf.equal(contains, token.number - 1)
    *start, count = tf.cond(follows, as_it_is, all_of_it)

    # Pull the vote: w <- w - eta vote. A call may be interrupted anywhere, so w is marked as not
    # whole, then written, then marked as whole, and only then used.
    pull = copies.pull(votes, global_step, after=token.number, beside=start)
    signs = [bits.unpack(vote, p.shape) for vote, p in zip(pull.w, params)]
    w = [tf.where(follows, p - flags.learning_rate * s, p) for p, s in zip(start, signs)]
    with tf.control_dependencies([*w, count]):
        begun = contains.assign(NOT_WHOLE)
    with tf.control_dependencies([begun]):
        changed = [variable.assign(value) for variable, value in zip(own, w)]
    with tf.control_dependencies(changed):
        whole = contains.assign(tf.where(tf.equal(count, token.number), count, NOT_WHOLE))
    with tf.control_dependencies([whole]):
        w = [tf.identity(p) for p in w]

    # m_k <- beta m_k + (1 - beta) g_k. Push sign(m_k)
    loss, grads = models.gradients(flags, w, next_batch())
    beta = flags.sign_momentum
    m = [beta * old + (1 - beta) * g for old, g in zip(momentum, grads)]
    push = copies.send([bits.pack(value) for value in m], votes)  # the signs travel to the ps
    keep = [variable.assign(value) for variable, value in zip(momentum, m)]
step = tf.group(rounds.push(push, token), *keep)

# The update: w~ <- w~ - eta vote, on the ps.
# global_step counts it first (update.number: the count before), then it is applied. Then release
# gives each worker the new count as its next token; after --steps updates it closes the queues of
# the tokens instead, which ends the loops.
# All workers build this part of the graph, but only the chief's thread runs it, once per round.
gathered = rounds.gather(flags.workers, stacked=True)  # gathered.values: [n, bytes], by worker
applied = []
with session.next_update(global_step, flags, gathered) as update:
    for p, vote, sent in zip(params, votes, gathered.values):
        signs = bits.unpack(sent, p.shape)  # [n, *shape]
        majority = tf.sign(tf.reduce_sum(signs, axis=0) + signs[0] / 2)  # a tie: worker 0's
        applied += [p.assign_sub(flags.learning_rate * majority), vote.assign(bits.pack(majority))]
rounds.release(tf.group(*applied), update, gathered)

# 6. The monitored session: worker 0 initialises w~, starts its thread, and gives each worker a
# first token. At the start and the end, each waits for all others.
me = session.Replica(step, loss, pull, push, token)  # what to run, and what to measure
with session.training(task, server, params, [me], rounds=rounds) as sess:
    while not sess.should_stop():  # 7. The loop
        sess.run(step)  # one step: token, pull; a batch, before or after; gradient; push
