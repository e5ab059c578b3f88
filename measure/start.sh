#!/usr/bin/env bash
# Starts an instrument, after setting up .venv on first use: bash measure/start.sh NAME [flags]
here=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../common/setup.sh"
export PYTHONPATH="$PYTHONPATH:$root/Many-Workers"
[ -f "$here/$1.py" ] || setup_fail "no instrument has this name: $here/README.md lists them"
exec "$PYTHON" "$here/$1.py" "${@:2}"
