"""Does distributed training pay? Seconds, bytes and mini-batches per second, on paper.

For data parallelism with a parameter server (ps), in these units: seconds, bytes, bits per second
for links (as networks are sold), FLOP per second for devices. With P parameters of 4 bytes:

    computing    C = T B F / R         T mini-batches of B examples, F FLOP each, at R FLOP/s
    transfers    D = 2 L + 8 P / b     pull and push over a worker's link: latency L, b bytes/s
    one ps       Q = 8 P / (d b p)     the time that its link needs for a pull and a push; p servers
                                       share them; d = 2 if both directions work at once
    n workers    T min(n / (C + D), 1 / Q) mini-batches per second: they wait for themselves, or
                 for the link of the ps. One process alone: 1 / C for T = 1.
    ring         n T / (C + 2 (n - 1) (L + 4 P / (n b)))

These are upper bounds: nobody collides, nothing is sent but parameters, nobody needs the cores of
another task. Staleness, and what a larger T does to learning, are left out.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """A model, its data, the machines and the network."""

    parameters: float
    flops: float  # per example, forward and backward; fully connected: 6 per parameter
    batch: float  # examples in a mini-batch of one worker
    device: float  # FLOP/s that a worker reaches in practice
    link: float  # bit/s of each machine's link
    latency: float = 0.0  # seconds for one message, whatever its size
    workers: int = 1
    ps: int = 1
    window: int = 1  # mini-batches between a pull and a push
    directions: int = 2  # 1: pulls and pushes share the link's speed

    @property
    def computing(self) -> float:
        """C: seconds that a worker computes between a pull and a push."""
        return self.window * self.batch * self.flops / self.device

    @property
    def transfers(self) -> float:
        """D: seconds for a pull and a push, if nobody else uses the ps."""
        return 2 * self.latency + 8 * self.parameters / (self.link / 8)

    @property
    def at_ps(self) -> float:
        """Q: seconds that each ps's link is busy with one pull and push."""
        return 8 * self.parameters / (self.directions * self.link / 8 * self.ps)

    @property
    def fed(self) -> float:
        """How many workers the ps can feed: with more, they wait for its link."""
        return (self.computing + self.transfers) / self.at_ps

    @property
    def alone(self) -> float:
        """Mini-batches per second of one process without any ps."""
        return self.window / self.computing

    @property
    def rate(self) -> float:
        """Mini-batches per second of all workers together, at most."""
        return self.window * min(self.workers / (self.computing + self.transfers), 1 / self.at_ps)

    # The same without a ps, and what the roofline and the reader need.
    @property
    def ring(self) -> float:
        """Mini-batches per second with a ring all-reduce instead of the ps, at most."""
        n = self.workers
        hop = self.latency + 4 * self.parameters / (n * self.link / 8)
        return n * self.window / (self.computing + 2 * (n - 1) * hop)

    @property
    def intensity(self) -> float:
        """FLOP for each byte that a worker pulls or pushes."""
        return self.window * self.batch * self.flops / (8 * self.parameters)

    @property
    def verdict(self) -> str:
        """One line: what is gained, and what is the limit."""
        gain = self.rate / self.alone
        limit = "the ps's link" if self.workers > self.fed else "the workers themselves"
        return f"{gain:.2f} x one process; limit: {limit}; the ps feeds {self.fed:.1f} workers"
