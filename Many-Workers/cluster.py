"""Parameter servers, workers and the links between them, in virtual time (discrete events, SimPy).

A transfer waits until its links are free, and then takes bytes / speed.
The parameters are spread evenly over all ps, which send and receive at the same time.
"""

import random

import simpy

# On Ethernet, a full packet of 1,448 bytes of data takes 1,514, and half an acknowledgement of 66.
WIRE = (1514 + 33) / 1448


# What a few bytes wait for on a full link: on average 3/4 of the rest of the transfer that is on
# its way, and 30 kB of each that waits, since the packets of all connections mix. Both numbers were
# chosen so that the staleness fits the real runs over 100 Mbit/s in tests/linked.json.
REST, QUEUED = 3 / 4, 30_000


class Link:
    """A link that carries one transfer after another: of those that wait, chance takes the next.

    Args:
        env: the simulated clock.
        mbit: Mbit/s; None: no limit.
        random: decides who is next.
    """

    def __init__(self, env, mbit: float | None, random):
        self.env, self.random = env, random
        self.seconds_per_byte = 8e-6 / mbit if mbit else 0.0
        self.waiting, self.queued = [], 0.0
        self.sending, self.until, self.bytes = False, 0.0, 0.0

    def send(self, count: float, done) -> None:
        """Calls `done()` when `count` bytes have passed."""
        self.bytes += count
        if not self.seconds_per_byte:
            done()
            return
        self.waiting.append((count, done))
        self.queued += min(count, QUEUED)
        if not self.sending:
            self._next()

    def gap(self) -> float:
        """Seconds until a few bytes can pass."""
        if not self.sending:
            return 0.0
        rest = self.random.uniform(0, 2 * REST) * (self.until - self.env.now)
        return rest + self.seconds_per_byte * self.queued

    def _next(self) -> None:
        self.sending = bool(self.waiting)
        if not self.sending:
            return
        chosen = self.random.randrange(len(self.waiting))
        self.waiting[chosen], self.waiting[-1] = self.waiting[-1], self.waiting[chosen]
        count, done = self.waiting.pop()
        self.queued -= min(count, QUEUED)
        self.until = self.env.now + count * self.seconds_per_byte

        def passed(_):
            self._next()
            done()

        self.env.timeout(count * self.seconds_per_byte).callbacks.append(passed)


class Cluster:
    """The state of a run: global parameters `w`, their number of `updates`, and the clock.

    Args:
        flags: the command line; see `simulate.py`.
        scheme: of `schemes.py`.
        w: the initial global parameters.
        size: the number of parameters, 4 bytes each, that a pull or push transfers.
        journal: is told about every step and update.
    """

    def __init__(self, flags, scheme, w, size: int, journal):
        self.flags, self.scheme, self.w, self.journal = flags, scheme, w, journal
        self.env = simpy.Environment()
        self.updates, self.end = 0, self.env.event()
        self.size = 4 * WIRE * size
        self.random = random.Random(flags.seed)
        self.down = self._links(flags.link_mbit, flags.ps)
        self.up = self._links(flags.link_mbit, flags.ps) if flags.duplex else self.down
        self.own = self._links(flags.worker_mbit, flags.workers)
        self.busy_until = 0.0  # the ps handle one push after another
        self.batches = getattr(flags, "window", 1)  # mini-batches between a pull and a push
        # Of each worker's step: when it asked, the ps read w~, it got w, and its computing ends.
        self.asked, self.read, self.got, self.ends = ([0.0] * flags.workers for _ in range(4))
        # Synchronous rounds: the token that each worker has used, and the pushes of this round.
        self.used, self.pushes = [-1] * flags.workers, {}
        self.released = self.env.event()

    def _links(self, mbit: float | None, count: int) -> list[Link]:
        return [Link(self.env, mbit, self.random) for _ in range(count)]

    # How long things take: each returns an event to wait for.

    def wait(self, seconds: float):
        return self.env.timeout(seconds)

    def message(self, k: int, links: list[Link]) -> float:
        """Seconds that a few bytes take between worker k and the ps."""
        return max(link.gap() for link in (self.own[k], *links)) + self.flags.latency

    def ask(self, k: int):
        """Worker k's request travels to the ps."""
        return self.wait(self.message(k, self.up))

    def travel(self, k: int, links: list[Link]):
        """The parameters, or values for all of them, travel between worker k and the ps."""
        arrived, parts = self.env.event(), len(links) + 1

        def passed():
            nonlocal parts
            parts -= 1
            if not parts:
                arrived.succeed()

        for link in links:
            link.send(self.size / len(links), passed)
        self.own[k].send(self.size, passed)
        if parts:  # a link has a limit
            yield arrived
        yield self.wait(self.flags.latency)

    def compute(self, k: int):
        """T mini-batches. Their times have a gamma distribution with the mean `--compute`."""
        seconds, spread = self.batches * self.flags.compute, self.flags.spread
        if spread and seconds:
            shape = self.batches / spread**2
            seconds = self.random.gammavariate(shape, seconds / shape)
        seconds += self.batches * (self.flags.delay or {}).get(k, 0.0)
        self.ends[k] = self.env.now + seconds
        return self.wait(seconds)

    def serve(self, k: int):
        """The ps handles worker k's push, after those that came before."""
        self.busy_until = max(self.env.now, self.busy_until) + self.flags.update
        return self.wait(self.busy_until - self.env.now)

    # What a worker does; see workers.py.

    def pull(self, k: int):
        """Returns w~ and the number of updates that it holds."""
        self.asked[k] = self.env.now
        yield self.ask(k)
        self.read[k] = self.env.now
        w, number = self.w, self.updates
        yield from self.travel(k, self.down)
        self.got[k] = self.env.now
        return w, number

    def push(self, k: int, a, pulled, pulled_at: int):
        """Sends `a` to the ps, which updates w~. Returns when the worker knows."""
        yield from self.travel(k, self.up)
        yield self.serve(k)
        if self.updates == self.flags.steps:
            return  # too late: the run ends
        staleness = self.updates - pulled_at
        self.w = self.scheme.update(self.w, a, staleness, pulled)
        self.updates += 1
        told = self.message(k, self.down)
        self.journal.step(self, k, self.updates, pulled_at, staleness, told)
        self.updated([k])
        yield self.wait(told)
        if k == 0 and self.journal.is_due(self):
            yield from self.evaluate()

    def token(self, k: int):
        """Waits until there is a token that worker k has not used; returns the newest."""
        while self.used[k] == self.updates:
            yield self.released
        yield self.wait(self.message(k, self.down))
        self.used[k] = self.updates
        return self.updates

    def push_to_round(self, k: int, a, token: int):
        """Sends `a` to the ps, which drops it if its round is over. The push that completes a round
        makes the update."""
        yield from self.travel(k, self.up)
        yield self.serve(k)
        told = self.message(k, self.down)
        self.journal.step(self, k, token + 1, token, 0, told)
        if token != self.updates:
            self.journal.drop(k)
        else:
            self.pushes[k] = a
            if len(self.pushes) == self.flags.workers - getattr(self.flags, "backup_workers", 0):
                self.w = self.scheme.together(self.w, self.pushes)
                self.updates += 1
                self.updated(sorted(self.pushes))
                self.pushes, before = {}, self.released
                self.released = self.env.event()
                before.succeed()
        yield self.wait(told)
        if k == 0 and self.journal.is_due(self):
            yield from self.evaluate()

    def evaluate(self):
        """Worker 0 pulls w~ once more, to evaluate it. The target accuracy ends the run."""
        asked = self.env.now
        yield self.ask(0)
        w, number = self.w, self.updates
        yield from self.travel(0, self.down)
        self.journal.evaluate(w, number, asked, self.env.now)
        if self.journal.reached and not self.end.triggered:
            self.end.succeed()

    def updated(self, workers: list[int]):
        """After each update; the last one ends the run."""
        self.journal.update(self, workers)
        if self.updates == self.flags.steps and not self.end.triggered:
            self.end.succeed()

    def run(self, worker):
        """Runs the process `worker(self, k)` of every worker k until the end."""
        for k in range(self.flags.workers):
            self.env.process(worker(self, k))
        self.env.run(until=self.end)
