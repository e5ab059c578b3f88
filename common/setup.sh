# Sourced by every run.sh: sets PYTHON to an interpreter that has the pinned packages, and makes
# .venv beside common/ at first use. PYTHON=... in the environment: used as it is, nothing is set up.
# Plain bash, since macOS still has version 3.2.

common=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=${common%/*}
venv=$root/.venv
log=$venv.log
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"

setup_fail() { echo "error: $*" >&2; exit 2; }

# .stamp, written last, says what is installed where; while .unfinished is there, nothing is sure.
setup_wanted() { echo "$root"; "$venv/bin/python" --version 2>&1; cat "$common/requirements.txt"; }
setup_ready() {
  [ -x "$venv/bin/python" ] && [ ! -e "$venv/.unfinished" ] &&
    [ "$(setup_wanted)" = "$(cat "$venv/.stamp" 2>/dev/null)" ]
}

setup_find_python() {
  local name wrong="" bare=""
  for name in python3.13 python3.12 python3.11 python3.10 python3 python; do
    if "$name" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 14))' 2>/dev/null
    then
      "$name" -c 'import venv, ensurepip' 2>/dev/null && { echo "$name"; return; }
      bare=${bare:-$name}
    else  # may also be a launcher of pyenv's that finds no such version
      wrong=${wrong:-$("$name" --version 2>&1 | grep '^Python ')}
    fi
  done
  [ -z "$bare" ] || setup_fail "$bare has no venv module: install it (on Debian and Ubuntu:" \
    "apt install ${bare/%python/python3}-venv)"
  [ -z "$wrong" ] || setup_fail "Python 3.10 to 3.13 is needed, but this machine has only $wrong:" \
    "install one of them"
  setup_fail "no Python found: install Python 3.10 to 3.13"
}

# Two set-ups at once would spoil each other: the second waits. The lock goes with its last holder.
setup_lock() {
  { exec 9>"$venv.lock"; } 2>/dev/null ||
    setup_fail "cannot write to $root: copy it to a folder of your own, or set PYTHON to a" \
      "Python that has the packages"
  "$python" -c '
import fcntl, os, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_DFL)
shell, waiting = os.getppid(), False
while os.getppid() == shell:
    try:
        fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
        break
    except BlockingIOError:
        if not waiting:
            print("Another set-up is running here: waiting for it.", file=sys.stderr, flush=True)
        waiting = True
        time.sleep(0.2)
    except OSError:  # this file system has no locks
        break
'
}

setup_free() {  # megabytes; a mount point's name may hold spaces, so look left of the "12%"
  df -Pk "$root" | awk 'NR == 2 && sub(/ +[0-9]+%.*/, "") { print int($NF / 1024) }'
}

# Why the command failed whose output is in the log.
setup_why() {
  local free
  free=$(setup_free)
  if grep -qi "No space left" "$log" || [ "${free:-9999}" -lt 20 ]; then
    echo "the disk is full: make room in $root"
  elif grep -qE "Failed to establish|Temporary failure|Connection|timed out|unreachable|ProxyError" \
    "$log"
  then
    echo "the packages cannot be downloaded: connect this machine to the network, or tell pip of a" \
      "proxy or an index that it can reach"
  elif grep -q "No matching distribution" "$log"; then
    echo "there is no package $(sed -n 's/.*No matching distribution found for //p' "$log")" \
      "for this system, $(uname -sm) with $("$venv/bin/python" --version 2>&1)"
  else
    echo "of this: $({ grep ERROR "$log" || cat "$log"; } | tail -n 1)"
  fi
}

# One line on how far pip is: it names the pins that this machine does not need, then what it gets.
setup_progress() {
  set -- "$venv"/lib/python*/site-packages/*.dist-info
  awk -v pins="$(grep -c '==' "$common/requirements.txt")" -v installed=$# '
    /^Ignoring / { pins-- }
    /^Collecting / { found++ }
    /^Processing / { found++; got++; what = $2; size = "" }
    /^ *Downloading .*\.whl \(/ { got++; what = $2; size = $(NF - 1) " " $NF }
    /^ *Using cached .*\.whl \(/ { got++; what = $3; size = "" }
    /^Installing collected/ { installing = 1 }
    END {
      sub(/.*\//, "", what)
      sub(/-(py|cp)[0-9].*/, "", what)
      if (installed > pins) installed = pins
      if (installing) printf "installing: %d of %d packages\n", installed, pins
      else if (got) printf "downloading: %d of %d packages: %s %s\n", got, pins, what, size
      else if (found) printf "looking up: %d of %d packages\n", found, pins
    }' "$log" 2>/dev/null
}

# Shows the progress while process $1 runs.
setup_watch() {
  local i=0 text="" shown=""
  while kill -0 "$1" 2>/dev/null; do
    text=$(setup_progress)
    if [ -n "$text" ] && [ -t 2 ]; then printf '\r  %-74.74s' "$text" >&2
    elif [ "$text" != "$shown" ] && [ $((i++ % 30)) -eq 0 ]; then echo "  $text" >&2; shown=$text; fi
    sleep 0.3 >/dev/null 2>&1 9>&-  # holds nothing open when this is ended
  done
}

# Runs a command with its output in the log; it does not outlive this shell, whatever ends that.
setup_run() {
  local pid status
  mkdir -p "$venv/tmp"
  TMPDIR=$venv/tmp PIP_USER=0 "$python" -c '
import os, subprocess, sys, time
os.setpgid(0, 0)
shell, job = os.getppid(), subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
while job.poll() is None:
    if os.getppid() != shell:
        os.killpg(0, 9)
    time.sleep(0.1)
sys.exit(job.returncode)
' "$@" >"$log" 2>&1 &
  pid=$!
  trap 'setup_stop $pid 130' INT
  trap 'setup_stop $pid 143' TERM HUP
  setup_watch "$pid" &
  wait "$pid"
  status=$?
  trap - INT TERM HUP
  { kill $!; wait; } 2>/dev/null
  if [ -t 2 ]; then printf '\r%76s\r' "" >&2; fi
  rm -rf "$venv/tmp"
  return $status
}

setup_stop() {
  trap '' INT TERM HUP
  { kill -9 -- "-$1" || kill -9 "$1"; kill $!; wait; } 2>/dev/null
  if [ -t 2 ]; then echo >&2; fi
  echo "error: the set-up was interrupted: start it again to complete it" >&2
  exit "$2"
}

setup_make() {
  local free moved_from
  if [ -d "$venv" ] &&
    { [ -e "$venv/.unfinished" ] || ! "$venv/bin/python" -c 'import pip' 2>/dev/null; }
  then
    [ -e "$venv/.stamp" ] || [ -e "$venv/.unfinished" ] ||
      setup_fail "$venv was not made by this set-up and has no pip: remove it, or set PYTHON"
    echo "Removing $venv: its set-up was interrupted, or its Python is gone." >&2
    touch "$venv/.unfinished"  # to the end, should this be interrupted too
    rm -rf "$venv"/[!.]* "$venv"
  fi
  if [ -d "$venv" ]; then
    echo "Bringing $venv up to date." >&2
    moved_from=$(head -n 1 "$venv/.stamp" 2>/dev/null)
  else
    free=$(setup_free)
    [ "${free:-9999}" -ge 3500 ] ||
      setup_fail "the packages need 3.5 GB in $root, but only $free MB are free: make room"
    echo "Setting up $venv with $("$python" --version): TensorFlow, Jupyter and what they need." >&2
    echo "This is done once and takes about two minutes." >&2
    mkdir -p "$venv" && touch "$venv/.unfinished"
    setup_run "$python" -m venv "$venv" ||
      setup_fail "set-up failed because $(setup_why) (details: $log)"
  fi
  touch "$venv/.unfinished"
  if ! setup_run "$venv/bin/python" -m pip install --disable-pip-version-check --no-input \
    --progress-bar off -r "$common/requirements.txt"
  then
    grep -q "^Installing collected" "$log" || rm -f "$venv/.unfinished"  # it is as it was
    setup_fail "set-up failed because $(setup_why) (details: $log)"
  fi
  # The .pth lets `python HogWild/worker.py`, started by hand, find common/; the scripts in bin/
  # name the folder they were made in.
  "$venv/bin/python" -c '
import pathlib, sys, sysconfig
root, moved_from = sys.argv[1:]
site = pathlib.Path(sysconfig.get_path("purelib"))
(site / "distributed-tensorflow-examples.pth").write_text(root + "\n")
scripts = pathlib.Path(sysconfig.get_path("scripts")).iterdir()
for script in scripts if moved_from not in ("", root) else ():
    if script.is_file() and not script.is_symlink():
        content = script.read_bytes()
        script.write_bytes(content.replace(moved_from.encode(), root.encode()))
' "$root" "${moved_from:-}" || setup_fail "cannot write to $venv: remove it and start again"
  setup_wanted >"$venv/.stamp" && rm -f "$venv/.unfinished" "$log"
  echo "Set-up is complete." >&2
}

if [ -z "${PYTHON:-}" ]; then
  PYTHON=$venv/bin/python
  if ! setup_ready; then
    python=$(setup_find_python) || exit 2
    setup_lock
    setup_ready || setup_make
    exec 9>&-
    rm -f "$venv.lock"
  fi
elif ! command -v "$PYTHON" >/dev/null; then
  setup_fail "PYTHON=$PYTHON: there is no such program"
fi

case ${PYTHON} in [!/]*/*) PYTHON=$PWD/$PYTHON ;; esac

# Starts an example. Not python -m, which would look for common/ in the current directory first.
launch() {
  exec "$PYTHON" -c '
import signal, sys
del sys.path[0]
signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the launcher has its own handler
try:
    from common.launch.launcher import main
except ModuleNotFoundError as error:
    print(f"error: PYTHON={sys.executable} lacks {error.name}: install common/requirements.txt there,"
          " or leave PYTHON unset", file=sys.stderr)
    sys.exit(2)
sys.exit(main(sys.argv[1:]))' "$@"
}
