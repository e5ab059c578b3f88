#!/usr/bin/env bash
# Sets up .venv on first use, then starts this folder's tasks; all flags: bash run.sh --help
here=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../common/setup.sh"
launch "$here" "$@"
