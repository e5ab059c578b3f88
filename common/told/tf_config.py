"""`TF_CONFIG`, the environment variable that names a task and its cluster."""

import json

from common import fail


def parse(text: str, job: str, jobs: tuple[str, ...]) -> tuple[dict[str, list[str]], str, int]:
    """Returns the hosts, and this task's job and index. If the example's `jobs` have no chief, the
    `chief` of `TF_CONFIG` becomes worker 0."""
    try:
        config = json.loads(text)
        cluster = dict(config["cluster"])
        name, index = config["task"]["type"], int(config["task"]["index"])
        if index < 0:
            raise ValueError("a negative index")
        for key, value in cluster.items():
            if not isinstance(value, list) or not all(isinstance(a, str) for a in value):
                raise ValueError(f"{key} is not a list of addresses")
    except (ValueError, KeyError, TypeError) as error:
        fail('TF_CONFIG must look like {"cluster": {"ps": [...], "worker": [...]}, "task": '
             f'{{"type": "{job}", "index": 0}}}} as JSON ({error!r})')  # fmt: skip
    if name not in ("ps", "worker", "chief", "master"):
        fail(f"TF_CONFIG: the task type must be ps, worker or chief, not {name!r}")
    cluster.pop("evaluator", None)  # it takes no part in training
    chief = cluster.pop("chief", cluster.pop("master", []))
    name = "chief" if name == "master" else name
    if "chief" in jobs:
        cluster["chief"] = chief
    else:
        index += len(chief) if name == "worker" else 0
        name = "worker" if name == "chief" else name
        cluster["worker"] = chief + cluster.get("worker", [])
    if set(cluster) != set(jobs) or not all(cluster.values()):
        wanted = " and ".join(jobs) + ("" if "chief" in jobs else " (or chief)")
        fail(f"TF_CONFIG must give addresses for the jobs {wanted}, and no others, not {cluster}")
    return cluster, name, index
