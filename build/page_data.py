"""Writes what the page "Who waits?" needs from Python: the digits, what the schemes say, and what
people train.

    python build/page_data.py           writes common/page/digits.js, formulas.js and presets.js
    python build/page_data.py --check   says which of them is old; then the exit code is 1

The formulas are those of the docstrings in Many-Workers/schemes.py.
"""

import argparse
import dataclasses
import inspect
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "common" / "page"
sys.path[:0] = [str(ROOT), str(ROOT / "Many-Workers"), str(ROOT / "Basics-Tutorial")]

import pays  # noqa: E402
from schemes import SCHEMES  # noqa: E402

from common import datasets  # noqa: E402

LEVELS = 16  # of a pixel's brightness
A = ord("A")


def digits() -> str:
    """The digits as strings: a letter for each pixel, A for 0, and a figure for each label."""
    parts = {}
    for part in ("train", "test"):
        images, labels = datasets.reader("digits").load(argparse.Namespace(), part)
        levels = (images.reshape(-1) * LEVELS).round().astype(int)
        parts[part] = "".join(chr(A + level) for level in levels), "".join(map(str, labels))
    text = "// The digits, as common/datasets/digits.py reads them. Made by build/page_data.py.\n"
    for part, (pixels, labels) in parts.items():
        text += f'const {part} = ["{pixels}", "{labels}"];\n'
    return (
        text
        + f"""
function read([pixels, labels]) {{
  const x = Float32Array.from(pixels, (letter) => (letter.charCodeAt(0) - {A}) / {LEVELS});
  return {{ x, labels: Uint8Array.from(labels) }};
}}

export const DIGITS = {{ width: 64, classes: 10, train: read(train), test: read(test) }};
"""
    )


GREEK = {"alpha": "α", "beta": "β", "delta": "δ", "eta": "η", "lambda": "λ", "mu": "μ"}  # noqa: RUF001
CITE = re.compile(r"[A-Z]\w+(?:(?:, \w+)? and \w+| et al\.)?(?:,? SIGMOD)? (?:19|20)\d\d")


def formulas() -> str:
    """Each scheme's formula, whom to cite, and its defaults."""
    found = {}
    for name, scheme in SCHEMES.items():
        formula, _, rest = inspect.getdoc(scheme).partition("\n\n")
        cite = CITE.search(" ".join(rest.split()))
        found[name] = {
            "formula": shown(formula, scheme),
            "cite": cite[0] if cite else "",
            "defaults": scheme.defaults,
            "folder": (ROOT / name / "worker.py").exists(),
        }
    said = "// What Many-Workers/schemes.py says of each scheme. Made by build/page_data.py.\n"
    return f"{said}export const FORMULAS = {json.dumps(found, indent=1, ensure_ascii=False)};\n"


def shown(formula: str, scheme: type) -> str:
    """A formula in the letters of the page, without what the page cannot set."""
    if "InnerSteps;" in formula:
        first = inspect.getdoc(scheme.__base__).partition("\n\n")[0]
        formula = formula.replace("InnerSteps;", f"{first};")
    formula = " ".join(formula.partition("with --")[0].replace("With --", "with --").split())
    formula = formula.replace("DownpourEasy", "DOWNPOUR-Easy").replace("w~", "w̃")
    formula = formula.replace("<-", "←").removesuffix(";").removesuffix(".")
    return re.sub(r"\b[a-z]+(?=\b|_)", lambda word: GREEK.get(word[0], word[0]), formula)


def presets() -> str:
    """The models, devices and links of Basics-Tutorial/pays.py."""
    models = {name: dataclasses.asdict(model) for name, model in pays.MODELS.items()}
    kinds = {"MODELS": models, "DEVICES": pays.DEVICES, "LINKS": pays.LINKS,
             "LONGEST": pays.LONGEST}  # fmt: skip
    said = "// What Basics-Tutorial/pays.py calculates with. Made by build/page_data.py.\n"
    return said + "".join(f"export const {kind} = {json.dumps(found, indent=1)};\n"
                          for kind, found in kinds.items())  # fmt: skip


def main() -> None:
    files = {
        PAGE / "digits.js": digits(),
        PAGE / "formulas.js": formulas(),
        PAGE / "presets.js": presets(),
    }
    if sys.argv[1:] == ["--check"]:
        old = [path.name for path, text in files.items() if path.read_text() != text]
        sys.exit(f"old: {', '.join(old)}; run python build/page_data.py" if old else 0)
    if sys.argv[1:]:
        sys.exit(__doc__)
    for path, text in files.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
