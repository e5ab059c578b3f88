#!/usr/bin/env bash
# Makes the static HTML site of READMEs and notebooks in site/, or in the folder that is named.
here=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/common/setup.sh"
exec "$PYTHON" "$here/tests/make_site.py" "$@"
