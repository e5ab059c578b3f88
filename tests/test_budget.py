"""The plugin that fits the tests into the available time, on small suites."""

import json
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
USUAL = {"test_fast": 30, "test_with_parameters": 10} | {f"test_{n}": 60 for n in OTHERS}


# A test takes twice its usual time, on a fake clock that does not really wait.
CONFTEST = """
import budget
pytest_plugins = ["budget"]

def pytest_runtest_call(item):
    usual = budget.durations().get(budget.function(item.nodeid), budget.UNKNOWN)
    budget.time.sleep(2 * usual * getattr(item.module, "LONGER", 1))
"""


class Clock:
    def __init__(self):
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def call(pytester, monkeypatch, tmp_path):
    """Runs pytest with the plugin on SUITE, on a machine with half the usual speed."""
    monkeypatch.setattr(machine, "slowness", lambda: 2.0)
    monkeypatch.setattr(machine, "measured", lambda: 2.0)
    monkeypatch.setattr(budget, "time", Clock())
    monkeypatch.setattr(budget, "DURATIONS", tmp_path / "durations.json")
    usual = {f"test_suite.py::{name}": seconds for name, seconds in USUAL.items()}
    budget.DURATIONS.write_text(json.dumps(usual))
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


def left_for_another_day(done) -> set[str]:
    names = re.findall(r"::(\w+)(?:\[\w+\])? SKIPPED", str(done.stdout))
    done.stdout.fnmatch_lines([f"run: {14 - len(names)} of 14 tests, left*day: {len(names)}"])
    return set(names)


def test_what_does_not_fit_is_left_for_another_day(call):
    done = call("--minutes", "9")  # 1 for the fast one, 2 for each of the others
    assert passed(done)[0] == "test_fast" and 5 <= len(passed(done)) <= 7
    assert len(left_for_another_day(done)) in (6, 7)
    assert done.ret == 0
    done.stdout.fnmatch_lines(["SKIPPED*another day: 9 minutes are not enough here"])


def test_a_different_part_each_day(call):
    def part(day):
        return [name for name in passed(call("--minutes", "9", "--day", day)) if name[-1].isdigit()]

    first = part("2026-01-01")
    assert 3 <= len(first) <= 4
    assert part("2026-01-01") == first
    assert part("2026-01-02") != first
    assert {name for day in range(1, 8) for name in part(f"2026-01-0{day}")} == set(list(USUAL)[2:])


def test_unusually_slow_tests_are_noticed_in_time(call):
    """At most one test can exceed the time, however wrong the recorded durations are."""
    done = call("--minutes", "9", suite=SUITE + "\nLONGER = 5\n")
    assert passed(done)[0] == "test_fast" and len(passed(done)) <= 3
    assert budget.time.now <= 60 * (9 + 10)
    assert done.ret == 0


def test_fast_tests_are_skipped_too_when_the_time_is_up(call):
    done = call("--minutes", "0.5", suite=SUITE + "\ndef test_last(): pass\n")
    done.assert_outcomes(passed=1, skipped=14)
    assert passed(done) == ["test_fast"]
    assert done.ret == 0


def test_two_processes_share_the_tests(call, pytester):
    pytester.makeini(
        f"[pytest]\npythonpath = {Path(budget.__file__).parent} {Path(machine.__file__).parent}"
    )
    # These processes have a real clock, and expect each test to take 20 s.
    done = call("-n", "2", "--minutes", "0.1", suite=SUITE + "\nLONGER = 0\n")
    done.assert_outcomes(passed=1, skipped=13)
    done.stdout.fnmatch_lines(["run: 1 of 14 tests, left for another day: 13"])


@pytest.mark.parametrize("flags", [(), ("--fast",), ("--minutes", "50"), ("--minutes", "0.1")])
def test_a_failure_is_a_failure_and_the_last_line_is_pytests(call, flags):
    done = call(*flags, suite=SUITE.replace("pass", "assert False", 1))
    assert done.ret == 1
    assert re.fullmatch(r"=+ 1 failed.* in [\d.]+s =+", done.outlines[-1])
    done = call(*flags)
    assert done.ret == 0
    assert re.fullmatch(r"=+ \d+ passed.* in [\d.]+s =+", done.outlines[-1])


def test_durations_are_noted_in_seconds_of_a_usual_machine(call):
    suite = """
import time, pytest

@pytest.mark.parametrize("seconds", [0.2, 0.6])
def test_new(seconds): time.sleep(seconds)

def test_fast(): assert False
"""
    call("--note_durations", suite=suite)
    noted = json.loads(budget.DURATIONS.read_text())
    assert noted.pop("test_suite.py::test_new") == pytest.approx(0.2, abs=0.1)  # half the mean
    assert noted == {f"test_suite.py::{name}": seconds for name, seconds in USUAL.items()}


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
