#!/usr/bin/env bash
# Regenerates what the READMEs quote (outputs, pictures, diffs, numbers) and all notebooks.
# FOLDER...: only these folders' READMEs and notebooks, and what other pages quote from them.
# --fixed: only what needs no training run. --benchmark: first measures the benchmark table again,
# which takes about ten minutes.
# --notebooks [NAME...]: only the notebooks, or those named: AGN, Servers, Multiple-Workers.
here=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../common/setup.sh"
export PYTHONPATH="$PYTHONPATH:$root/measure:$root/Many-Workers"  # the tables of what was measured
cd "$root" || exit 1
if [ "$1" = --benchmark ]; then
  "$PYTHON" measure/benchmark.py --json measure/benchmark.json || exit 1
fi
exec "$PYTHON" build/refresh.py "$@"
