"""The plugin that fits the tests into the available time, on small suites."""

import re
import time
from pathlib import Path

import budget
import machine
import pytest

OTHERS = range(10)
SUITE = """
import pytest

def test_fast(): pass

@pytest.mark.slow("so that there is something to leave out")
@pytest.mark.parametrize("n", range(3))
def test_with_parameters(n): pass
""" + "".join(f'\n@pytest.mark.slow("this one too")\ndef test_{n}(): pass\n' for n in OTHERS)

# A test takes a minute, on a fake clock that does not really wait.
CONFTEST = """
import budget
pytest_plugins = ["budget"]

def pytest_runtest_call(item):
    budget.time.sleep(60)
"""


class Clock:
    def __init__(self):
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def call(pytester, monkeypatch):
    """Runs pytest with the plugin on SUITE, on a machine with half the usual speed."""
    monkeypatch.setattr(machine, "slowness", lambda: 2.0)
    monkeypatch.setattr(machine, "measured", lambda: 2.0)
    monkeypatch.setattr(budget, "time", Clock())
    pytester.makeconftest(CONFTEST)

    def _call(*flags, suite=SUITE):
        pytester.makepyfile(test_suite=suite)
        return pytester.runpytest("-v", "-ra", *flags)

    return _call


def passed(done) -> list[str]:
    return re.findall(r"::(\w+)(?:\[\w+\])? PASSED", str(done.stdout))


def test_without_flags_all_tests_run(call):
    done = call()
    done.assert_outcomes(passed=14)
    assert done.ret == 0


def test_fast_leaves_out_what_is_marked_slow(call):
    done = call("--fast")
    done.assert_outcomes(passed=1, deselected=13)
    assert passed(done) == ["test_fast"]


def test_a_suite_that_fits_runs_completely(call):
    done = call("--minutes", "50")
    done.assert_outcomes(passed=14)
    assert done.ret == 0
    done.stdout.fnmatch_lines(["machine: 2.0 times as slow as a usual one"])
    done.stdout.fnmatch_lines(["run: 14 of 14 tests, left for another day: 0"])


def test_when_the_time_is_up_the_rest_is_left_for_another_day(call):
    """The test that runs at that moment ends; none fails."""
    done = call("--minutes", "8.5")
    done.assert_outcomes(passed=9, skipped=5)
    assert passed(done)[0] == "test_fast"
    assert budget.time.now == 60 * 9
    assert done.ret == 0
    done.stdout.fnmatch_lines(["SKIPPED*another day: 8.5 minutes are not enough here"])
    done.stdout.fnmatch_lines(["run: 9 of 14 tests, left for another day: 5"])


def test_a_different_part_each_day(call):
    def part(day):
        budget.time.now = 0.0
        return passed(call("--minutes", "4.5", "--day", day))[1:]

    first = part("2026-01-01")
    assert len(first) == 4
    assert part("2026-01-01") == first
    assert part("2026-01-02") != first
    names = {"test_with_parameters", *(f"test_{n}" for n in OTHERS)}
    assert {name for day in range(1, 8) for name in part(f"2026-01-0{day}")} == names


def test_fast_tests_are_skipped_too_when_the_time_is_up(call):
    done = call("--minutes", "0.5", suite=SUITE + "\ndef test_last(): pass\n")
    done.assert_outcomes(passed=1, skipped=14)
    assert passed(done) == ["test_fast"]
    assert done.ret == 0


def test_two_processes_share_the_tests(call, pytester):
    places = " ".join(str(Path(module.__file__).parent) for module in (budget, machine))
    pytester.makeini(f"[pytest]\npythonpath = {places}")
    # These processes have a real clock; they do not measure the machine, which this one does.
    pytester.makeconftest("""
pytest_plugins = ["budget"]

def pytest_configure(config):
    import machine
    if hasattr(config, "workerinput"):
        machine.measured = lambda: open("measured", "w")
""")
    done = call("-n", "2", "--minutes", "50")
    done.assert_outcomes(passed=14)
    done.stdout.fnmatch_lines(["run: 14 of 14 tests, left for another day: 0"])
    assert not (pytester.path / "measured").exists()
    done = call("-n", "2", "--minutes", "0")
    done.assert_outcomes(skipped=14)
    done.stdout.fnmatch_lines(["run: 0 of 14 tests, left for another day: 14"])


@pytest.mark.parametrize("flags", [(), ("--fast",), ("--minutes", "50"), ("--minutes", "0.1")])
def test_a_failure_is_a_failure_and_the_last_line_is_pytests(call, flags):
    done = call(*flags, suite=SUITE.replace("pass", "assert False", 1))
    assert done.ret == 1
    assert re.fullmatch(r"=+ 1 failed.* in [\d.]+s =+", done.outlines[-1])
    done = call(*flags)
    assert done.ret == 0
    assert re.fullmatch(r"=+ \d+ passed.* in [\d.]+s =+", done.outlines[-1])


@pytest.mark.parametrize("mark", ["slow", "slow()"])
def test_slow_needs_a_reason(call, mark):
    done = call(suite=f"import pytest\n@pytest.mark.{mark}\ndef test_it(): pass\n")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*test_it: say why*"])


def test_the_unit_is_never_below_that_of_a_usual_machine(monkeypatch):
    for took, slowness in ((0.1, 1.0), (1.5, 3.0)):
        monkeypatch.setattr(machine, "LOOP", f"print({took})")
        assert machine.measured() == slowness


def test_the_unit_is_measured_again_after_three_minutes(monkeypatch):
    monkeypatch.setattr(machine, "_when", time.monotonic() - 170)
    monkeypatch.setattr(machine, "_slowness", 2.0)
    monkeypatch.setattr(machine, "measured", lambda: 3.0)
    machine.renew()
    assert machine.seconds(10) == 20
    monkeypatch.setattr(machine, "_when", time.monotonic() - 190)
    machine.renew()
    assert machine.seconds(10) == 30
