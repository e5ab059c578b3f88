#!/usr/bin/env bash
# Measures both splits and the pipeline (transfers, idle time) and draws pipeline.png.
here=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../common/setup.sh"
exec "$PYTHON" "$here/costs.py"
