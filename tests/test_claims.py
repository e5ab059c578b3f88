"""What the pages recommend, beside the runs of the scoreboard."""

import re

import pytest
import scoreboard
import scoreboard_page as page
from conftest import ROOT

CLAIM = re.compile(r"<!-- holds (.*?) -->", re.S)
PAGES = [path for path in [*ROOT.glob("*.md"), *ROOT.glob("[!.]*/*.md"), *ROOT.glob("*/*.ipynb")]
         if CLAIM.search(path.read_text(encoding="utf-8"))]  # fmt: skip
CLAIMS = [(str(path.relative_to(ROOT)), claim) for path in sorted(PAGES)
          for claim in CLAIM.findall(path.read_text(encoding="utf-8"))]  # fmt: skip


@pytest.mark.parametrize(("where", "claim"), CLAIMS)
def test_the_runs_support_what_a_page_claims(where, claim):
    assert page.holds(" ".join(claim.split())), f"{where}: not what the runs say"


def section(text: str, heading: str) -> str:
    """From a heading to the next one of its level."""
    found = re.search(rf"^(#+) {re.escape(heading)}.*?\n(.*?)(?=^\1 |\Z)", text, re.M | re.S)
    return found[2]


@pytest.mark.parametrize("scheme", scoreboard.FOLDERS)
def test_a_scheme_is_recommended_with_its_seconds(scheme):
    """The table beside the text is the scheme's own, and the text claims what the runs support."""
    own = section((ROOT / scheme / "README.md").read_text(encoding="utf-8"), "When to use it")
    assert f"<!-- scoreboard: of {scheme} -->" in own
    named = set().union(*map(page.named, CLAIM.findall(own)))
    assert scheme in named


def test_questions_recommend_what_the_runs_support():
    """Each answer that names a scheme has a claim about it, or is not about speed."""
    text = (ROOT / "docs/QUESTIONS.md").read_text(encoding="utf-8")
    answers = re.split(r"^- ", section(text, "Which example do I need?"), flags=re.M)[1:]
    assert len(answers) > 15
    for answer in answers:
        links = set(re.findall(r"\]\(\.\./([\w-]+)/README\.md", answer))
        schemes = links & set(scoreboard.FOLDERS)
        named = set().union(*map(page.named, CLAIM.findall(answer)))
        if "<!-- not about speed -->" not in answer:
            assert schemes <= named, answer
