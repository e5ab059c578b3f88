"""Formulas as MathML, which browsers draw by themselves."""

import html

from docutils import nodes
from latex2mathml.converter import convert


def formula(tex: str, display: str) -> str:
    """A formula, with its TeX as its label."""
    found = convert(tex, display=display)
    return found.replace("<math ", f'<math aria-label="{html.escape(" ".join(tex.split()))}" ', 1)


def inline(translator, node) -> None:
    translator.body.append(formula(node.astext(), "inline"))
    raise nodes.SkipNode


def block(translator, node) -> None:
    translator.body.append(f'<div class="formula">{formula(node.astext(), "block")}</div>')
    raise nodes.SkipNode


def setup(app) -> dict:
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
