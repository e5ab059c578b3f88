"""`python common/launch FOLDER [flags]`, or `python -m common.launch`: runs an example."""

import os
import signal
import sys

here = os.path.dirname(os.path.abspath(__file__))
root = os.path.dirname(os.path.dirname(here))
# The common/ that this file is in, whatever the current directory and PYTHONPATH hold.
sys.path[:] = [root, *[path for path in sys.path if path and path != here]]

signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the launcher has its own handler
try:
    from common.launch.launcher import main
except ModuleNotFoundError as error:
    print(
        f"error: PYTHON={sys.executable} lacks {error.name}: install the packages of "
        "common/requirements.txt there, or unset PYTHON",
        file=sys.stderr,
    )
    sys.exit(2)
sys.exit(main(sys.argv[1:]))
