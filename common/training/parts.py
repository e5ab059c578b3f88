"""The part that a task writes if no launcher watches the run: which task it is, how it ended.

`python -m common.collect` merges the parts of all tasks.
"""

import atexit
import json
import sys
import time

import common
from common.training import results


def leave(task, scheme: str) -> None:
    """Writes `task-JOB-INDEX.json` into the results folder, now and when this process ends.

    The `exit_code` of a killed task stays null, since it cannot write any more.
    """
    own = {"job_name", "task_index", *[f"{job}_hosts" for job in task.hosts]}
    flags = {name: value for name, value in vars(task.flags).items() if name not in own}
    part = {
        "scheme": scheme, "job": task.job, "index": task.index, "hosts": task.hosts,
        "flags": flags, "started": time.time(), "ended": None, "exit_code": None,
    }  # fmt: skip
    path = results.create(task.flags.results) / f"task-{task.job}-{task.index}.json"

    def write():
        text = json.dumps(part, indent=2) + "\n"
        results.write(path, lambda file: file.write(text.encode()))

    def end():
        part["exit_code"] = common.failed or int(hasattr(sys, "last_value"))  # 1 after an exception
        part["ended"] = time.time()
        write()
        print(f"the results of {task.name} are in {path.parent}; to merge a run's results: "
              "python -m common.collect FOLDER [FOLDER ...]", flush=True)  # fmt: skip

    write()
    atexit.register(end)
