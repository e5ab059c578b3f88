# Sourced by every run.sh: sets PYTHON to an interpreter that has the pinned packages; on first use
# creates .venv, beside common/. If PYTHON is set, it is used as is. Also runs in bash 3.2 (macOS).

common=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=${common%/*} venv=${common%/*}/.venv
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
unset PYTHONSAFEPATH  # scripts import modules from their own folder

setup_fail() { echo "error: $*" >&2; exit 2; }

# .stamp records what is installed where. It is filled last: while it is empty, .venv is incomplete
setup_wanted() { echo "$root"; "$venv/bin/python" --version; cksum <"$common/requirements.txt"; }
setup_ready() { [ "$(setup_wanted 2>&1)" = "$(cat "$venv/.stamp" 2>&1)" ]; }

setup_find_python() {
  local found only=""
  for python in python3.13 python3.12 python3.11 python3.10 python3 python; do
    found=$("$python" -c 'import sys; print("Python %d.%d without venv" % sys.version_info[:2])
import ensurepip, venv; print("with venv")' 2>/dev/null)
    case $found in
      *3.1[0-3]*"with venv") return ;;
      *"with venv") found=${found%% without*} ;;  # the wrong version, but not without venv
    esac
    only="$only${found:+; $python is ${found%%[![:print:]]*}}"
  done
  setup_fail "no suitable Python: install Python 3.10 to 3.13 with its venv module (on Debian or" \
    "Ubuntu: apt install python3-venv)${only:-; there is no Python}"
}

setup_try() {  # runs a command; if it fails, prints a one-line error. fd 3 is the screen
  local said
  said=$(set -o pipefail; "$@" 2>&1 >&3 | while IFS= read -r line; do
    echo "$line" >&3; echo "$line"; done) && return
  case $said in
    *"No space left"*) setup_fail "the disk is full: make room in $root" ;;
    *onnect* | *unreachable* | *"timed out"* | *Proxy*) setup_fail "cannot download the" \
      "packages: connect this machine to the internet, or give pip a proxy or an index that it can reach" ;;
    *) setup_fail "cannot install the packages here ($(uname -sm), $("$python" --version)): see" \
      "the installer's own error above" ;;
  esac
}

setup_make() {  # replaces .venv, whatever is wrong with it
  [ ! -L "$venv" ] && { [ ! -e "$venv" ] || [ -e "$venv/.stamp" ]; } ||
    setup_fail "$venv was not made by this set-up: remove it, or set PYTHON to a Python that has" \
      "the packages"
  echo "Setting up $venv with $("$python" --version): TensorFlow, Jupyter and their dependencies." \
    "This happens once, and again if you update or move this folder, or interrupt the set-up."
  mkdir -p "$venv" && : >"$venv/.stamp" && find "$venv" -mindepth 1 ! -name .stamp -delete
  # The free kilobytes stand to the left of the "12%"; a mount point's name may contain spaces.
  df -Pk "$root" | awk 'NR == 2 && sub(/ +[0-9]+%.*/, "") && $NF < 3500000 { exit 1 }' ||
    setup_fail "too little disk space: the set-up needs 3.5 GB free in $root"
  mkdir "$venv/tmp" && export TMPDIR="$venv/tmp" PIP_USER=0  # deleted with .venv
  setup_try "$python" -I -m venv "$venv"
  local pip=("$venv/bin/python" -I -m pip install --no-input --require-hashes -r)
  if ! "${pip[@]}" "$common/uv.txt" 2>/dev/null || ! "$venv/bin/uv" pip install --compile-bytecode \
    --python "$venv/bin/python" --require-hashes -r "$common/requirements.txt"
  then
    echo "uv could not install the packages; trying pip."
    setup_try "${pip[@]}" "$common/requirements.txt"
  fi
  # With .venv, a script that is started by hand, in any folder, finds common/.
  echo "$root" >"$(echo "$venv"/lib/python3*/site-packages)/distributed-tensorflow-examples.pth"
  rm -rf "$venv/tmp"
  setup_wanted >"$venv/.stamp"
  echo "Set-up is complete."
}

setup_stop() {
  trap '' INT TERM HUP
  { kill -9 -- "-$!" || kill -9 $!; wait; } 2>/dev/null
  [ ! -t 2 ] || printf '\n\033[?25h' >&2  # shows the cursor, which pip hides
  echo "error: the set-up was interrupted: run it again to complete it" >&2
  exit "$1"
}

if [ "$0" = "$common/setup.sh" ] && [ $# = 1 ]; then  # called below
  setup_ready || python=$1 setup_make 3>&2 >&2; exit
elif [ -z "${PYTHON:-}" ]; then
  PYTHON=$venv/bin/python
  if ! setup_ready; then
    setup_find_python
    [ -w "$root" ] && [ -w "$common/setup.sh" ] || setup_fail "cannot write to $root: copy it to a" \
      "folder of your own, or set PYTHON to a Python that has the packages"
    # One set-up at a time, in its own process group, which ends with this shell, however that ends.
    "$python" -I -c '
import fcntl, os, signal, subprocess, sys
os.setpgid(0, 0)
shell, lock = os.getppid(), open(sys.argv[2], "a")
signal.signal(signal.SIGALRM, lambda *_: os.getppid() == shell or os.killpg(0, signal.SIGKILL))
signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
try: fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("Another set-up is running here; waiting for it to finish.", file=sys.stderr, flush=True)
    fcntl.flock(lock, fcntl.LOCK_EX)
except OSError: pass  # a file system without locks
os._exit(subprocess.call(sys.argv[1:], stdin=subprocess.DEVNULL))  # skips cleanup, so no more alarms' \
      "$BASH" "$common/setup.sh" "$python" &
    trap 'setup_stop 130' INT; trap 'setup_stop 143' TERM HUP
    wait $! || exit
    trap - INT TERM HUP
  fi
elif ! command -v "$PYTHON" >/dev/null; then
  setup_fail "PYTHON=$PYTHON is not a program that you can run: correct it, or unset PYTHON"
fi

case ${PYTHON} in [!/]*/*) PYTHON=$PWD/$PYTHON ;; esac

launch() { exec "$PYTHON" "$common/launch" "$@"; }
