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
    assert re.fullmatch(r"error: .+\n", answer["err"]), answer["err"]
    assert [word for word in words if word not in answer["err"]] == [], answer["err"]
    assert (answer["code"], answer["out"], answer["left"]) == (2, "", [])


@pytest.mark.parametrize("bad", bad_input.MISTAKES, ids=lambda bad: ascii(bad.flags)[1:-1])
def test_a_mistake_gives_one_line_and_leaves_nothing(answers, bad):
    assert_refused(answers[bad], bad.words)


@pytest.mark.parametrize("command", bad_input.SHELL, ids=ascii)
def test_a_mistake_typed_in_a_shell(place, command):
    assert_refused(bad_input.typed(command, *place), bad_input.SHELL[command])


def test_the_table_is_long_enough():
    assert len({*bad_input.MISTAKES, *bad_input.SHELL}) >= 60
