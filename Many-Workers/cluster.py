"""Parameter servers, workers and the links between them, in virtual time (discrete events, SimPy).

A transfer takes bytes / speed, once those that came before have passed. The parameters are spread
evenly over all ps, whose links work in parallel.
"""

import random
from collections import deque

import simpy

# A full packet carries 1,448 bytes in 1,514 (as the kernel counts them), and three of four packets
# are acknowledged with 66. The calls around a transfer have so many bytes, whatever its size.
WIRE, CALL = (1514 + 3 / 4 * 66) / 1448, 1250
MESSAGE = 300  # bytes of a request or a confirmation, which are among those of a call
# TCP puts a large transfer on the link in pieces of 64 kB, two at a time. So a message waits for at
# most this much of each. (The transfers themselves do not take turns here, as they do there.)
AHEAD = 2 * 65_536


def transfer_seconds(parameters: int, mbit: float, bits: int = 32) -> float:
    """How long a link of `mbit` Mbit/s carries these parameters: `bits` each, and headers."""
    return bits * WIRE * parameters * 1e-6 / mbit


class Link:
    """A link that carries one transfer after another: who comes first is served first.

    Args:
        env: the simulated clock.
        mbit: Mbit/s; None: no limit.
    """

    def __init__(self, env, mbit: float | None):
        self.env = env
        self.seconds_per_byte = 8e-6 / mbit if mbit else 0.0
        self.waiting: deque = deque()
        self.until, self.ahead = 0.0, 0.0  # the end of this transfer, and bytes of the next ones
        self.sending, self.total_bytes = False, 0.0

    def send(self, count: float, done) -> None:
        """Calls `done()` when `count` bytes have passed; without a limit, at once."""
        self.total_bytes += count
        if not self.seconds_per_byte:
            done()
            return
        self.waiting.append((count, done))
        self.ahead += min(count, AHEAD)
        if not self.sending:
            self._next()

    def delay(self) -> float:
        """Seconds until a message that comes now has passed: at once, if the link is free."""
        if not self.sending:
            return 0.0
        rest = min(self.until - self.env.now, self.seconds_per_byte * AHEAD)
        return rest + self.seconds_per_byte * (self.ahead + MESSAGE)

    def _next(self) -> None:
        self.sending = bool(self.waiting)
        if not self.sending:
            return
        count, done = self.waiting.popleft()
        self.ahead -= min(count, AHEAD)
        self.until = self.env.now + count * self.seconds_per_byte

        def passed(_):
            done()
            self._next()

        self.env.timeout(count * self.seconds_per_byte).callbacks.append(passed)


class Cluster:
    """The state of a run: global parameters `w`, their number of `updates`, and the clock.

    Args:
        flags: the command line; see `simulate.py`.
        scheme: of `schemes.py`.
        w: the initial global parameters.
        size: the number of parameters that a pull or push transfers, `scheme.bits` each.
        journal: of `journal.py`; gets every step and update.
    """

    def __init__(self, flags, scheme, w, size: int, journal):
        self.flags, self.scheme, self.w, self.journal = flags, scheme, w, journal
        self.env = simpy.Environment()
        self.updates, self.finished = 0, self.env.event()
        self.transfer_bytes = scheme.bits / 8 * WIRE * size
        mbit = flags.worker_mbit
        self.own = transfer_seconds(size, mbit, scheme.bits) if mbit else 0.0
        self.rng = random.Random(flags.seed)
        self.down = self._links()
        self.up = self._links() if flags.duplex else self.down
        self.busy_until = 0.0  # the ps handle one request after another
        self.window = getattr(flags, "window", 1)  # mini-batches between a pull and a push
        # Times of each worker's current step: it began, it asked (later by what it waited), the ps
        # read w~, it got w, it has computed.
        self.began, self.asked, self.read, self.got, self.computed = (
            [0.0] * flags.workers for _ in range(5)
        )
        # How many pushes of each worker are applied, and who waits for more of the others.
        self.pushed, self.held = [0] * flags.workers, []
        # Synchronous rounds: each worker's last token, and the contributions to this round.
        self.last_token, self.round = [-1] * flags.workers, {}
        self.released = self.env.event()

    def _links(self) -> list[Link]:
        flags = self.flags
        return [Link(self.env, flags.link_mbit) for _ in range(flags.ps)]

    # What takes time.

    def wait(self, seconds: float):
        """Returns an event to wait for."""
        return self.env.timeout(seconds)

    def message(self, links: list[Link]) -> float:
        """Seconds that a small message takes between a worker and the ps."""
        return max(link.delay() for link in links) + self.flags.latency

    def ask(self, k: int):
        """Worker k's request travels to the ps. Returns an event."""
        return self.wait(self.message(self.up))

    def travel(self, links: list[Link]):
        """The parameters, or values for all of them, travel between a worker and the ps."""
        arrived, parts = self.env.event(), len(links)
        own_link_free = self.env.now + self.own  # a worker has one transfer at a time

        def passed():
            nonlocal parts
            parts -= 1
            if not parts:
                arrived.succeed()

        for link in links:
            link.send(self.transfer_bytes / len(links) + CALL, passed)
        if parts:  # 0 without a limit: then all have passed already
            yield arrived
        yield self.wait(max(0.0, own_link_free - self.env.now) + self.flags.latency)

    def computing(self, k: int, begun: float | None = None):
        """Worker k computes T mini-batches, with gamma-distributed times. If the first one began at
        `begun`, only its rest is left. A late worker's batch is on its way since the step began, as
        in a real run. Returns an event."""
        seconds, spread = self.window * self.flags.compute, self.flags.spread
        if spread and seconds:
            shape = self.window / spread**2
            seconds = self.rng.gammavariate(shape, seconds / shape)
        late = (self.flags.delay or {}).get(k, 0.0)
        seconds += self.window * late
        if begun is not None:
            seconds -= min(self.env.now - begun, seconds / self.window)
        elif late:
            seconds -= min(self.env.now - self.began[k], late)
        self.computed[k] = self.env.now + seconds
        return self.wait(seconds)

    def serve(self, k: int, seconds: float):
        """The ps work for worker k, after those that came before. Returns an event."""
        self.busy_until = max(self.env.now, self.busy_until) + seconds / self.flags.ps
        return self.wait(self.busy_until - self.env.now)

    # What a worker does; see workers.py.

    def pull(self, k: int):
        """Returns w~ and the number of updates that it holds."""
        self.began[k] = self.asked[k] = self.env.now
        yield self.ask(k)
        arrived = self.env.now
        while not self.scheme.may_begin(k, self.pushed):
            self.held.append(self.env.event())
            yield self.held[-1]
        self.asked[k] += self.env.now - arrived  # that was waiting
        return (yield from self.fetch(k))

    def fetch(self, k: int):
        """The ps have worker k's request, and answer it. Returns the same as `pull`."""
        if self.flags.request:
            yield self.serve(k, self.flags.request)
        self.read[k] = self.env.now
        w, number = self.w, self.updates
        yield from self.travel(self.down)
        self.got[k] = self.env.now
        return w, number

    def push(self, k: int, a, pulled, pulled_at: int):
        """Sends `a` to the ps, which update w~. Returns once the worker has the confirmation."""
        yield from self.travel(self.up)
        yield self.serve(k, self.flags.update + self.flags.request)
        if self.finished.triggered:
            return  # too late
        staleness = self.updates - pulled_at
        w = self.scheme.update(self.w, a, staleness, pulled)
        self.update(w, [k])
        self.pushed[k] += 1
        number, (held, self.held) = self.updates, (self.held, [])
        for event in held:
            event.succeed()
        yield from self.answer(k, number, pulled_at, staleness, bool(held))

    def token(self, k: int):
        """Worker k's request waits at the ps for a token that it has not used; returns the
        newest."""
        self.began[k] = self.asked[k] = self.env.now
        yield self.ask(k)
        arrived = self.env.now
        while self.last_token[k] == self.updates:
            yield self.released
        self.asked[k] += self.env.now - arrived
        self.last_token[k] = self.updates
        return self.updates

    def push_to_round(self, k: int, a, token: int):
        """Sends `a` to the ps, which drop it if its round is over. The push that completes a round
        makes the update."""
        yield from self.travel(self.up)
        yield self.serve(k, self.flags.update + self.flags.request)
        if self.finished.triggered:
            return
        complete = False
        if token != self.updates:
            self.journal.drop(k)
        else:
            self.round[k] = a
            needed = self.flags.workers - getattr(self.flags, "backup_workers", 0)
            complete = len(self.round) == needed
        if complete:
            self.update(self.scheme.update_round(self.w, self.round), sorted(self.round))
            self.round, before = {}, self.released
            self.released = self.env.event()
            before.succeed()
        yield from self.answer(k, token + 1, token, 0, complete)

    def update(self, w, workers: list[int]) -> None:
        """Makes an update with the pushes of `workers`. The last one ends the run."""
        self.w, self.updates = w, self.updates + 1
        self.journal.update(self, workers)
        if self.updates == self.flags.steps:
            self.finished.succeed()

    def answer(self, k: int, number: int, pulled_at: int, staleness: int, woke: bool):
        """The ps have handled worker k's push, for update `number`, and confirm it. `woke`: it lets
        others go on, and the ps answer these first."""
        if woke and not self.finished.triggered:
            yield self.wait(0)
            if self.flags.request:
                yield self.serve(k, 0.0)
        told = self.message(self.down)
        self.journal.step(self, k, number, pulled_at, staleness, told)
        yield from self.confirm(k, told)

    def confirm(self, k: int, told: float):
        """The confirmation travels to worker k for `told` seconds. Worker 0 may then evaluate."""
        yield self.wait(told)
        if k == 0 and self.journal.is_due(self):
            yield from self.evaluate()

    def evaluate(self):
        """Worker 0 pulls w~ once more, to evaluate it. The target accuracy ends the run."""
        asked = self.env.now
        yield self.ask(0)
        w, number = self.w, self.updates
        yield from self.travel(self.down)
        self.journal.evaluate(w, number, asked, self.env.now)
        if self.journal.reached and not self.finished.triggered:
            self.finished.succeed()

    def run(self, worker) -> None:
        """Runs the process `worker(self, k)` of every worker k until the end."""
        for k in range(self.flags.workers):
            self.env.process(worker(self, k))
        self.env.run(until=self.finished)
