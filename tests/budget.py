"""A pytest plugin that chooses and orders tests when there is no time for all of them.

    --fast            without the tests marked `slow`
    --minutes 50      the fast tests, then as many others as fit, a different part each day
    --note_durations  writes the tests' durations to durations.json, in seconds of a usual machine

A test is fast unless it says why not: `@pytest.mark.slow("six runs")`, or `pytestmark = ...` for
a whole module, or `marks=...` for one parameter.
"""

import collections
import datetime
import json
import time
from pathlib import Path

import machine
import pytest

DURATIONS = Path(__file__).with_name("durations.json")
UNKNOWN = 10.0  # seconds for a test without an entry, on a usual machine: a run of an example
GOLDEN = 0.618  # the start moves this far each day, so that a few days cover all tests
LEFT = "left for another day"
SETTLED = 60  # after this many seconds, the tests' own pace counts as much as the machine's speed


def pytest_addoption(parser):
    group = parser.getgroup("budget", "tests that fit the available time")
    group.addoption("--fast", action="store_true", help="without the tests marked slow")
    group.addoption("--minutes", type=float, help="fast tests, then what fits into this time")
    group.addoption("--day", type=datetime.date.fromisoformat, default=datetime.date.today(),
                    metavar="YYYY-MM-DD", help="the day whose part --minutes chooses")  # fmt: skip
    group.addoption("--note_durations", action="store_true", help=f"rewrite {DURATIONS.name}")


def pytest_configure(config):
    config.addinivalue_line("markers", "slow(why): --fast leaves this test out")
    if hasattr(config, "workerinput"):  # a process of pytest-xdist, which runs a part of the tests
        machine.take_over(config.workerinput["slowness"])
    if config.option.minutes is not None:
        config.pluginmanager.register(Budget(config.option.minutes, config.option.day))
    if config.option.note_durations and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Notes())


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    node.workerinput["slowness"] = machine.slowness()


def pytest_sessionstart():
    machine.slowness()  # now, while nothing else runs


def pytest_report_header():
    return f"machine: {machine.slowness():.1f} times as slow as a usual one"


def pytest_terminal_summary(terminalreporter, config):
    if not config.option.collectonly:  # the tests' time says little without this
        before, after = machine.slowness(), machine.measured()
        terminalreporter.line(
            f"machine: before, {before:.1f} times as slow as a usual one; after, {after:.1f} times"
        )


def pytest_collection_modifyitems(config, items):
    for item in items:
        if any(len(mark.args) != 1 for mark in item.iter_markers("slow")):
            raise pytest.UsageError(f'{item.nodeid}: say why, as in @pytest.mark.slow("six runs")')
    if config.option.fast:
        config.hook.pytest_deselected(items=list(filter(slow, items)))
        items[:] = [item for item in items if not slow(item)]


def slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None


def function(nodeid: str) -> str:
    """The name without parameters."""
    return nodeid.partition("[")[0]


def durations() -> dict[str, float]:
    """Seconds on a usual machine, by test function; the mean over its parameters."""
    return json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}


class Budget:
    """Runs fast tests first, then the others while they fit; skips the rest."""

    def __init__(self, minutes: float, day: datetime.date):
        self.minutes, self.day = minutes, day
        self.end = time.monotonic() + 60 * minutes
        self.known = durations()
        self.usual, self.took = 0.0, 0.0  # totals of the finished tests
        self.every, self.left = collections.Counter(), collections.Counter()  # tests, by file

    def usually(self, item: pytest.Item) -> float:
        return self.known.get(function(item.nodeid), UNKNOWN)

    @property
    def pace(self) -> float:
        """Seconds here per second on a usual machine: first measured, later mostly observed."""
        return (self.took + SETTLED * machine.slowness()) / (self.usual + SETTLED)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        fast, others = ([i for i in items if slow(i) == kind] for kind in (False, True))
        skipped = self.day.toordinal() * GOLDEN % 1 * sum(map(self.usually, others))
        first, passed = 0, 0.0
        while first < len(others) and passed + self.usually(others[first]) <= skipped:
            passed += self.usually(others[first])
            first += 1
        items[:] = fast + others[first:] + others[:first]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item):
        remaining = self.end - time.monotonic()
        if remaining < (self.pace * self.usually(item) if slow(item) else 0):
            pytest.skip(f"{LEFT}: {self.minutes:g} minutes are not enough here")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        began, left = time.monotonic(), self.left.total()
        done = yield
        if self.left.total() == left:
            self.usual += self.usually(item)
            self.took += time.monotonic() - began
        return done

    def pytest_runtest_logreport(self, report):
        if report.when == "setup":
            file = report.location[0]
            self.every[file] += 1
            self.left[file] += report.skipped and LEFT in report.longrepr[2]

    def pytest_terminal_summary(self, terminalreporter, config):
        if config.option.collectonly:
            return
        terminalreporter.section(f"run on {self.day} within {self.minutes:g} minutes")
        for file, number in sorted(self.every.items()):
            terminalreporter.line(f"{file}: {number - self.left[file]} of {number} run")
        total, left = self.every.total(), self.left.total()
        terminalreporter.line(f"run: {total - left} of {total} tests, left for another day: {left}")


class Notes:
    """Records how long tests take; tests that do not run keep their earlier entries."""

    def __init__(self):
        self.took = collections.defaultdict(float)  # by nodeid, with set-up and teardown
        self.passed = set()

    def pytest_runtest_logreport(self, report):
        self.took[report.nodeid] += report.duration / machine.slowness()
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid)

    def pytest_sessionfinish(self):
        cases = collections.defaultdict(list)
        for nodeid in self.passed:
            cases[function(nodeid)].append(self.took[nodeid])
        new = {name: round(sum(each) / len(each), 2) for name, each in cases.items()}
        text = json.dumps(durations() | new, indent=1, sort_keys=True)
        DURATIONS.write_text(text + "\n")
