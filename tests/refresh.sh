#!/usr/bin/env bash
# Makes everything anew that the READMEs quote: outputs, pictures, diffs, numbers.
# --fixed: only what needs no run. --benchmark: the benchmark's table first, about five minutes.
here=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../common/setup.sh"
cd "$here/.." || exit 1
if [ "$1" = --benchmark ]; then
  "$PYTHON" tests/benchmark.py --json tests/benchmark.json || exit 1
fi
exec "$PYTHON" tests/refresh.py "$@"
