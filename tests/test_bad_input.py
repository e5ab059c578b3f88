"""Misspelt, damaged or impossible input: a one-line error, exit code 2, and nothing left over."""

import re

import bad_input
import pytest
from conftest import environment


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A copy of the examples, the folder from which commands run, and the environment."""
    house, here = (tmp_path_factory.mktemp(name) for name in ("house", "here"))
    bad_input.copy(house)
    bad_input.prepare(here)
    return house, here, environment(DATA_DIR=str(house.parent / "cache"), COLUMNS="100")


@pytest.fixture(scope="module")
def answers(place):
    return dict(zip(bad_input.MISTAKES, bad_input.all_refused(*place), strict=True))


def assert_refused(answer: dict, words: tuple[str, ...]) -> None:
    assert bad_input.is_refused(answer), answer
    assert [word for word in words if word not in answer["err"]] == [], answer["err"]


@pytest.mark.parametrize("bad", bad_input.MISTAKES, ids=lambda bad: ascii(bad.flags)[1:-1])
def test_a_mistake_gives_one_line_and_leaves_nothing(answers, bad):
    assert_refused(answers[bad], bad.words)


@pytest.mark.parametrize("command", bad_input.SHELL, ids=ascii)
def test_a_mistake_typed_in_a_shell(place, command):
    assert_refused(bad_input.typed(command, *place), bad_input.SHELL[command])


def test_the_table_is_long_enough():
    assert len({*bad_input.MISTAKES, *bad_input.SHELL}) >= 60


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, 0),
        ({"code": 1}, 1),
        ({"err": ""}, 1),
        ({"err": "Traceback:\n  x\n"}, 1),
        ({"err": "error: one\nerror: two\n"}, 1),
        ({"out": "results in new\n"}, 1),
        ({"left": ["/new", "/new/logs"]}, 1),
    ],
)
def test_the_table_shows_what_is_wrong(monkeypatch, capsys, changes, code):
    good = {"code": 2, "out": "", "err": "error: a | b\n", "left": []}
    answers = [good | changes, *[good] * (len(bad_input.MISTAKES) - 1)]
    instead = {"copy": None, "prepare": None, "all_refused": answers, "typed": good}
    for name, found in instead.items():
        monkeypatch.setattr(bad_input, name, lambda *_, found=found: found)
    assert bad_input.main() == code
    rows = [re.split(r"(?<!\\)\|", line) for line in capsys.readouterr().out.splitlines()]
    assert {len(row) for row in rows} == {4 + 2}
    assert len(rows) == 2 + len(bad_input.MISTAKES) + len(bad_input.SHELL)
    assert rows[-1][2:-1] == [r" error: a \| b ", " 2 ", " nothing "]
    assert [k for k, row in enumerate(rows) if "**" in row[2]] == [2] * code
