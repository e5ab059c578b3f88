"""The part that a task writes if no launcher watches the run: which task it is, how often it was
restarted, how it ended.

`python -m common.commands.collect` merges the parts of all tasks.
"""

import atexit
import contextlib
import json
import sys
import time

from common.record import faults, results

KILLED = "was killed, or its machine failed"  # all that is known if nobody watched


def leave(task, scheme: str) -> None:
    """Writes `task-JOB-INDEX.json` into the results folder, now and when this process ends.

    The `exit_code` of a killed task stays null, since it cannot write any more. A task that finds
    such a part in its folder counts as a restart.
    """
    own = {"job_name", "task_index", *[f"{job}_hosts" for job in task.hosts]}
    flags = {name: value for name, value in vars(task.flags).items() if name not in own}
    part = {
        "scheme": scheme, "job": task.job, "index": task.index, "hosts": task.hosts,
        "flags": flags, "started": time.time(), "ended": None, "exit_code": None, "restarts": 0,
        "restart_reasons": [],
    }  # fmt: skip
    path = results.create(task.flags.results) / f"task-{task.job}-{task.index}.json"
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):  # none, or not ours
        before = json.loads(path.read_text())
        same = all(before[name] == part[name] for name in ("scheme", "job", "index", "hosts"))
        if same and before["exit_code"] is None:
            reasons = [*before["restart_reasons"], KILLED]
            part |= {"restarts": len(reasons), "restart_reasons": reasons}
            print(f"restart {len(reasons)}: {task.name} {KILLED}", flush=True)

    def write():
        text = json.dumps(part, indent=2) + "\n"
        results.write(path, lambda file: file.write(text.encode()))

    def end():
        part["exit_code"] = faults.failed or int(hasattr(sys, "last_value"))  # 1 after an exception
        part["ended"] = time.time()
        write()
        print(
            f"the results of {task.name} are in {path.parent}; to merge a run's results: "
            ".venv/bin/python -m common.commands.collect FOLDER [FOLDER ...]",
            flush=True,
        )

    write()
    atexit.register(end)
