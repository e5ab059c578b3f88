#!/usr/bin/env bash
# Sets up .venv on first use, then runs all tests. --fast: only what a change needs first.
# --minutes N: the fast ones, then others while they fit. Other flags are pytest's, or those of
# pytest-xdist, which runs two tests at a time: one, with a debugger if you like, with -n 0.
here=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../common/setup.sh"
cd "$here/.." && exec "$PYTHON" -m pytest -n 2 --maxschedchunk 1 "$@"
