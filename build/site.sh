#!/usr/bin/env bash
# Builds a static HTML site from the READMEs and notebooks, in site/ or in the folder given. On first
# use, installs Pagefind, which makes the index for its search.
here=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../common/setup.sh"
"$PYTHON" -c "import pagefind_bin" 2>/dev/null ||
  "$PYTHON" -m pip install --quiet --disable-pip-version-check -r "$here/requirements-site.txt" ||
  { echo "error: Pagefind cannot be installed: connect to the package index and try again" >&2; exit 1; }
exec "$PYTHON" "$here/make_site.py" "$@"
