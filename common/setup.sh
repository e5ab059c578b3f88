# Sourced by every run.sh: sets PYTHON to an interpreter that has the pinned packages, and makes
# .venv beside common/ at first use. PYTHON=... in the environment: used as it is, nothing is set up.

common=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export PYTHONPATH="${common%/*}${PYTHONPATH:+:$PYTHONPATH}"

setup_fail() { echo "error: $*" >&2; exit 2; }

# The stamp holds what was installed, where; it is written last, so an interrupted set-up has none.
setup_wanted() { echo "${common%/*}"; cat "$common/requirements.txt"; }

setup_find_python() {
  local name found=""
  for name in python3.13 python3.12 python3.11 python3.10 python3 python; do
    command -v "$name" >/dev/null 2>&1 || continue
    if "$name" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 14))' 2>/dev/null
    then echo "$name"; return; fi
    found=${found:-$("$name" --version 2>&1 | head -n 1)}
  done
  [ -z "$found" ] && setup_fail "no Python found: install Python 3.10 to 3.13"
  setup_fail "Python 3.10 to 3.13 is needed, but this machine has only $found: install one of them"
}

setup_make() {
  local venv=$1 python log=$1.log status
  python=$(setup_find_python) || exit 2
  "$python" -c 'import venv, ensurepip' 2>/dev/null ||
    setup_fail "$python has no venv module: install it (on Debian and Ubuntu: apt install python3-venv)"
  local free
  free=$(df -Pk "${venv%/*}" | awk 'NR == 2 { print $4 }')
  if [ ! -d "$venv" ] && [ "${free:-9999999}" -lt 3500000 ]; then
    setup_fail "the packages need 3.5 GB in ${venv%/*}, but only $((free / 1024)) MB are free: make room"
  fi
  echo "Setting up $venv with $("$python" --version): TensorFlow, Jupyter and what they need."
  echo "This is done once and takes about two minutes."
  rm -f "$venv/.stamp"
  if ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
    rm -rf "$venv"
    "$python" -m venv "$venv" >"$log" 2>&1 ||
      setup_fail "cannot make $venv: $(tail -n 1 "$log") (details: $log)"
  fi
  "$venv/bin/python" -m pip install --disable-pip-version-check --progress-bar off \
    -r "$common/requirements.txt" 2>&1 | tee "$log" | setup_progress
  status=${PIPESTATUS[0]}
  if [ "$status" -ne 0 ]; then
    if grep -qi "No space left" "$log"; then setup_fail "the disk is full: make room in ${venv%/*}"; fi
    if grep -qiE "Failed to establish|Temporary failure|ConnectionError|NewConnectionError|timed out|Network is unreachable|ProxyError" "$log"
    then setup_fail "the packages cannot be downloaded: connect this machine to the network, or set a pip index or proxy (details: $log)"; fi
    setup_fail "pip could not install the packages: $(grep -m 1 ERROR "$log") (details: $log)"
  fi
  # Lets `python HogWild/worker.py`, started by hand, find common/.
  local site
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  echo "${common%/*}" >"$site/distributed-tensorflow-examples.pth"
  setup_wanted >"$venv/.stamp"
  rm -f "$log"
  echo "Set-up is complete."
}

# One line that moves on a terminal; elsewhere a line for every tenth package.
setup_progress() {
  local line n=0 total
  total=$(grep -c '==' "$common/requirements.txt")
  while IFS= read -r line; do
    case $line in
      Collecting*)
        n=$((n + 1))
        if [ -t 2 ]; then printf '\r  %3d of about %d: %-50.50s' "$n" "$total" "${line#Collecting }" >&2
        elif [ $((n % 10)) -eq 1 ]; then echo "  $n of about $total: ${line#Collecting }" >&2; fi ;;
      Installing*) if [ -t 2 ]; then echo >&2; fi; echo "  installing $n packages ..." >&2 ;;
    esac
  done
}

if [ -z "${PYTHON:-}" ]; then
  PYTHON=${common%/*}/.venv/bin/python
  if ! { [ -x "$PYTHON" ] && setup_wanted | cmp -s - "${common%/*}/.venv/.stamp"; }; then
    # Two set-ups at once would spoil each other: the second waits for the first.
    exec 9>"${common%/*}/.venv.lock" || setup_fail "cannot write to ${common%/*}"
    if command -v flock >/dev/null; then flock 9; fi
    if ! { [ -x "$PYTHON" ] && setup_wanted | cmp -s - "${common%/*}/.venv/.stamp"; }; then
      setup_make "${common%/*}/.venv"
    fi
    exec 9>&-
    rm -f "${common%/*}/.venv.lock"
  fi
fi
