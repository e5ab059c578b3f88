"""Starts one task by hand: `python main.py --job_name=worker --task_index=0 [flags]`.

`--job_name` and `--scheme` choose the script, which gets all flags.
"""

import argparse
import runpy
import sys
from pathlib import Path

here = Path(__file__).resolve().parent
sys.path.insert(1, str(here.parent))  # common/ is next to this folder

parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
parser.add_argument("--job_name", default="worker")
parser.add_argument("--scheme", default="asynchronous")
chosen, _ = parser.parse_known_args()
script = "ps.py" if chosen.job_name == "ps" else "worker.py"
if script == "worker.py" and chosen.scheme == "synchronous":
    script = "synchronous.py"
runpy.run_path(str(here / script), run_name="__main__")
