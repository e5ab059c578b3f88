#!/usr/bin/env bash
# Builds a static HTML site from the READMEs and notebooks, in site/ or in the folder given. On first
# use, installs Sphinx and what else it needs.
here=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../common/setup.sh"
"$PYTHON" -c "import sys; sys.exit(sys.version_info < (3, 11))" ||
  { echo "error: the site needs Python 3.11 or newer: set PYTHON to one" >&2; exit 1; }
"$PYTHON" -c "import latex2mathml, myst_nb, pagefind_bin, sphinx_book_theme" 2>/dev/null ||
  "$PYTHON" -m pip install --quiet --disable-pip-version-check -r "$here/requirements-site.txt" ||
  { echo "error: Sphinx cannot be installed: connect to the package index and try again" >&2; exit 1; }
exec "$PYTHON" "$here/make_site.py" "$@"
