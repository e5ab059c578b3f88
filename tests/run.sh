#!/usr/bin/env bash
# Sets up .venv at first use, then runs the tests; flags are pytest's.
here=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../common/setup.sh"
cd "$here/.." && exec "$PYTHON" -m pytest "$@"
