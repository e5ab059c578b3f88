#!/usr/bin/env bash
# Sets up .venv on first use, then runs an example on other hosts through ssh: bash run.sh --help
here=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../common/setup.sh"
exec "$PYTHON" "$here/ssh.py" "$@"
