#!/usr/bin/env bash
# Builds a static HTML site from the READMEs and notebooks, in site/ or in the folder given.
here=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/common/setup.sh"
exec "$PYTHON" "$here/tests/make_site.py" "$@"
