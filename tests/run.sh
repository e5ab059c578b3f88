#!/usr/bin/env bash
# Sets up .venv at first use, then runs all tests. --fast: only what a change needs first.
# --minutes N: the fast ones, then others while they fit. Other flags are pytest's.
here=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../common/setup.sh"
cd "$here/.." && exec "$PYTHON" -m pytest "$@"
