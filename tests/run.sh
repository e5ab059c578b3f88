#!/usr/bin/env bash
# Sets up .venv and adds what the tests need on first use, then runs all tests. --fast: only the fast
# ones, to run first after a change. --minutes N: the fast ones, then others until N minutes are
# over. Other flags go to pytest and pytest-xdist, which runs two tests at a time; -n 0 runs one, and
# allows a debugger.
here=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
given=${PYTHON:-}
source "$here/../common/setup.sh"
cd "$root" || exit
pins=$here/requirements.txt stamp=$venv/.tests
if [ -n "$given" ]; then
  lacks=$("$PYTHON" -c '
import importlib.metadata, sys
there = {one.name.lower().replace("_", "-") for one in importlib.metadata.distributions()}
print(*sorted(set(sys.argv[1:]) - there), sep=", ")' \
    $(sed -n '/^tests = \[/,/^\]/ s/^ *"\([a-z-]*\).*/\1/p' pyproject.toml)) || exit
  [ -z "$lacks" ] || setup_fail "PYTHON=$PYTHON lacks $lacks: install the packages of" \
    "tests/requirements.txt there, or unset PYTHON"
elif [ "$(cksum <"$pins")" != "$(cat "$stamp" 2>&1)" ]; then
  echo "Adding what the tests need to $venv."
  if ! "$venv/bin/uv" pip install --quiet --python "$PYTHON" --require-hashes -r "$pins"; then
    echo "uv could not install the packages; trying pip."
    python=$PYTHON
    setup_try "$PYTHON" -I -m pip install --no-input --quiet --require-hashes -r "$pins" 3>&2
  fi
  cksum <"$pins" >"$stamp"
fi
exec "$PYTHON" -m pytest -n 2 --dist worksteal "$@"
