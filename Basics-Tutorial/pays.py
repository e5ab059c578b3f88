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

from dataclasses import dataclass, replace
from math import ceil


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
    def busy(self) -> float:
        """The share of the time that each worker's device computes, at most."""
        return self.rate / (self.workers * self.alone)

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


@dataclass(frozen=True)
class Model:
    """What somebody wants to train, on one device of several."""

    size: float  # bytes that travel each way
    flops: float  # per example, forward and backward
    batch: float  # examples in a mini-batch of one device
    examples: str  # what they are


# ResNet-50: 25.6 million parameters, 4.1 billion multiplications forward (He et al. 2016).
# DLRM: 26 tables of together 188 million rows of 128 numbers, and 2.4 million other parameters
# (Naumov et al. 2019, as in MLPerf); "its rows": only those of a mini-batch travel.
MODELS = {
    "ResNet-50": Model(4 * 25.6e6, 3 * 2 * 4.1e9, 256, "images"),
    "GPT-2 small": Model(2 * 124e6, 6 * 124e6, 16_384, "tokens"),
    "an 8B language model": Model(2 * 8.03e9, 6 * 8.03e9, 16_384, "tokens"),
    "DLRM, whole tables": Model(4 * (188e6 * 128 + 2.4e6), 6 * 2.4e6, 8192, "examples"),
    "DLRM, its rows": Model(4 * (8192 * 26 * 128 + 2.4e6), 6 * 2.4e6, 8192, "examples"),
}
# FLOP per second that training reaches on them, about 40% of what they are sold with.
DEVICES = {"H100": 400e12, "A100": 125e12, "V100": 50e12}
LONGEST = 2000  # local steps; those who train language models exchange every 30 to 500
# Bit per second each way, and seconds for one message.
LINKS = {
    "1 Gbit/s": (1e9, 1e-4),
    "10 Gbit/s": (10e9, 5e-5),
    "100 Gbit/s": (100e9, 2e-5),
    "400 Gbit/s": (400e9, 5e-6),
    "NVLink": (3.6e12, 5e-6),
}


def case(model: str, device: str, link: str, workers: int, window: int = 1) -> Case:
    """For these names. With one ps."""
    own, (speed, latency) = MODELS[model], LINKS[link]
    return Case(own.size / 4, own.flops, own.batch, DEVICES[device], speed, latency,
                workers=workers, window=window)  # fmt: skip


def enough(mine: Case, share: float = 0.9) -> int:
    """The smallest window with which a ring keeps the devices busy for this share of the time."""
    one = replace(mine, window=1)
    sending = mine.workers / one.ring - one.computing
    return max(1, ceil(sending * share / (1 - share) / one.computing))


def answer(mine: Case) -> str:
    """The calculation in one sentence. `mine`: from `case`."""
    gain = mine.ring / mine.alone
    much = "are slower than one" if gain < 1 else "beat one"
    return f"{mine.workers} devices {much}: at most {shown(max(gain, 0.01))} times as fast."


def why(model: str, mine: Case) -> str:
    """What the answer comes from, and what would change it."""
    least = enough(mine)
    sending = mine.workers * mine.window / mine.ring - mine.computing
    if mine.window >= least:
        then = "The link takes less than a tenth of the time."
    elif least > LONGEST:
        then = "No usual number of local steps makes up for that: send less."
    else:
        more = replace(mine, window=least)
        then = f"With an exchange every {least:,} steps: {shown(more.ring / more.alone)} times."
    return (
        f"Between two exchanges, each computes for {duration(mine.computing)} "
        f"({mine.window * mine.batch:,.0f} {MODELS[model].examples}), and a ring sends for "
        f"{duration(sending)}. {then} One parameter server could feed {shown(mine.fed)}."
    )


def shown(value: float) -> str:
    """With two digits, or all before the point."""
    if value < 0.01:
        return "under 0.01"
    if value >= 9.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 0.995 else f"{value:.2g}"


def duration(seconds: float) -> str:
    return f"{shown(seconds)} s" if seconds >= 0.995 else f"{shown(1e3 * seconds)} ms"
