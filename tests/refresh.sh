#!/usr/bin/env bash
# Regenerates what the READMEs quote (outputs, pictures, diffs, numbers) and all notebooks.
# FOLDER...: only the README and the notebook of these folders, and what other pages quote of them.
# --fixed: only what needs no run. --benchmark: the benchmark's table first, about ten minutes.
# --notebooks [NAME...]: only the notebooks, or those named: AGN, Servers, Multiple-Workers.
here=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../common/setup.sh"
cd "$here/.." || exit 1
if [ "$1" = --benchmark ]; then
  "$PYTHON" tests/benchmark.py --json tests/benchmark.json || exit 1
fi
exec "$PYTHON" tests/refresh.py "$@"
