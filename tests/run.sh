#!/usr/bin/env bash
# Sets up .venv on first use, then runs all tests. --fast: only the fast ones, to run first after
# a change. --minutes N: the fast ones, then as many others as fit in N minutes. Other flags go to
# pytest and pytest-xdist, which runs two tests at a time; -n 0 runs one, and allows a debugger.
here=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../common/setup.sh"
cd "$here/.." && exec "$PYTHON" -m pytest -n 2 --dist worksteal "$@"
