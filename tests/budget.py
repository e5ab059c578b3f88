"""A pytest plugin that leaves out tests when there is no time for all of them.

    --fast        without the tests marked `slow`
    --minutes 50  the fast tests, then others until the time is up, from another one each day

A test is fast unless it says why not: `@pytest.mark.slow("six runs")`, or `pytestmark = ...` for
a whole module, or `marks=...` for one parameter.

A plugin of our own, since pytest-split divides by durations that hold on one machine, and
pytest-timeout ends with a failure: a slow machine should run fewer tests, and fail none.
"""

import collections
import datetime
import time

import machine
import pytest

GOLDEN = 0.618  # the start moves this far each day, so that a few days cover all tests
LEFT = "left for another day"


def pytest_addoption(parser):
    group = parser.getgroup("budget", "tests that fit the available time")
    group.addoption("--fast", action="store_true", help="without the tests marked slow")
    group.addoption("--minutes", type=float, help="fast tests, then others until the time is up")
    group.addoption("--day", type=datetime.date.fromisoformat, default=datetime.date.today(),
                    metavar="YYYY-MM-DD", help="the day whose part --minutes chooses")  # fmt: skip


def pytest_configure(config):
    config.addinivalue_line("markers", "slow(why): --fast leaves this test out")
    if hasattr(config, "workerinput"):  # a process of pytest-xdist, which runs a part of the tests
        machine.take_over(config.workerinput["slowness"])
    if config.option.minutes is not None:
        config.pluginmanager.register(Budget(config.option.minutes, config.option.day))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    node.workerinput["slowness"] = machine.slowness()


def pytest_sessionstart():
    machine.slowness()  # now, while nothing else runs


def pytest_report_header():
    return f"machine: {machine.slowness():.1f} times as slow as a usual one"


def pytest_terminal_summary(terminalreporter, config):
    if config.option.collectonly or hasattr(config, "workerinput"):  # one process measures
        return
    before, after = machine.slowness(), machine.measured()  # the tests' time says little without
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


class Budget:
    """Runs fast tests first, then the others; when the time is up, skips the rest. The test that
    runs at that moment still ends: none takes much over a minute on a usual machine."""

    def __init__(self, minutes: float, day: datetime.date):
        self.minutes, self.day = minutes, day
        self.end = time.monotonic() + 60 * minutes
        self.every, self.left = collections.Counter(), collections.Counter()  # tests, by file

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        fast, others = ([i for i in items if slow(i) == kind] for kind in (False, True))
        first = int(self.day.toordinal() * GOLDEN % 1 * len(others))
        items[:] = fast + others[first:] + others[:first]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item):
        if time.monotonic() > self.end:
            pytest.skip(f"{LEFT}: {self.minutes:g} minutes are not enough here")

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
