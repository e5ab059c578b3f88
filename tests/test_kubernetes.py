"""`python -m common.commands.kubernetes`: its manifests, and what they start, without a cluster.

Kubernetes' own schemas check the manifests. runc starts their containers as the kubelet would: see
`kubelet.py`.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import kubelet
import pytest
import yaml
from conftest import ROOT, environment, reach
from machine import seconds
from rebuilt import collect
from test_flags import assert_one_sentence

from common.commands import kubernetes
from common.record import trace
from common.told import tf_config

RUNS = (
    ("HogWild", "--workers", "4"),
    ("HogWild", "--threads", "3"),
    ("HogWild", "--collect"),
    ("Synchronous-SGD", "--ps", "2", "--port", "3333", "--max_restarts", "0", "--timeout", "0.5"),
    ("In-Graph-Replication", "--ps", "2", "--name", "no", "--cpu", "500m", "--claim", "1"),
    ("Non-Distributed-Setup", "--steps", "10"),
    ("HogWild", "--workers", "4", "--tfjob"),
    ("In-Graph-Replication", "--tfjob"),
)
TEXT = "$(JOB_COMPLETION_INDEX) $$ \"é\" 'no': #"


@pytest.fixture
def printed(monkeypatch, capsys):
    """The objects that the command prints, by kind."""

    monkeypatch.chdir(ROOT)

    def _printed(*words) -> dict[str, dict]:
        monkeypatch.setattr(sys, "argv", ["kubernetes", *map(str, words)])
        kubernetes.main()
        return {item["kind"]: item for item in yaml.safe_load_all(capsys.readouterr().out)}

    return _printed


def templates(found: dict[str, dict]) -> list[dict]:
    """The templates of all pods."""
    if "TFJob" in found:
        return [spec["template"] for spec in found["TFJob"]["spec"]["tfReplicaSpecs"].values()]
    return [found["Job"]["spec"]["template"]]


def container(template: dict) -> dict:
    (only,) = template["spec"]["containers"]
    return only


@pytest.mark.slow("installs the schemas of Kubernetes")
def test_kubernetes_accepts_the_manifests(printed):
    kubelet.install(modules=("kubernetes_validate",))
    from kubernetes_validate import utils

    versions = dict.fromkeys(map(utils.major_minor, utils.all_versions()))
    versions = [v for v in versions if int(v.partition(".")[2]) >= 29]  # has all fields used here
    assert len(versions) > 5
    for words in RUNS:
        found = printed(*words)
        objects = [item for kind, item in found.items() if kind != "TFJob"]
        for template in templates(found) if "TFJob" in found else []:
            pod = template | {"metadata": template["metadata"] | {"name": "x"}}
            objects.append({"apiVersion": "v1", "kind": "Pod"} | pod)
        for version in versions:
            for item in objects:
                utils.validate(item, version, strict=True)


@pytest.mark.slow("installs hadolint")
def test_the_dockerfile_is_clean():
    kubelet.install(modules=("kubernetes_validate",))  # comes with it
    tool = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([tool, ROOT / "Several-Machines" / "Dockerfile"], capture_output=True,
                          text=True)  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("words", RUNS, ids=" ".join)
def test_only_the_pods_of_a_run_reach_its_port(printed, words):
    found = printed(*words)
    labels = [template.get("metadata", {}).get("labels") for template in templates(found)]
    if "NetworkPolicy" not in found:  # no server
        assert {"--threads", "--collect", "Non-Distributed-Setup"} & {*words}
        return
    policy = found["NetworkPolicy"]["spec"]
    for selector in (policy["podSelector"], policy["ingress"][0]["from"][0]["podSelector"]):
        assert labels == [selector["matchLabels"]] * len(labels)
    (rule,) = policy["ingress"]
    port = int(words[words.index("--port") + 1]) if "--port" in words else 2222
    assert rule.keys() == {"from", "ports"} and len(rule["from"]) == 1
    assert rule["ports"] == [{"protocol": "TCP", "port": port}]
    if service := found.get("Service"):
        assert service["spec"]["selector"] == labels[0]
        assert found["Job"]["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    others = printed("HogWild", "--name", "other")["NetworkPolicy"]["spec"]["podSelector"]
    assert others != policy["podSelector"]


@pytest.mark.parametrize("words", [words for words in RUNS if "--tfjob" not in words], ids=" ".join)
def test_each_pod_starts_its_own_task(printed, tmp_path, words):
    """The hosts that a task gets are the names of the pods that start them."""
    job = printed(*words, "--seed", "3")["Job"]
    name, spec = job["metadata"]["name"], job["spec"]
    if "--collect" in words:
        args = ["-m", "common.commands.collect", f"/results/{name.removesuffix('-collect')}"]
        assert container(spec["template"])["args"] == args
        return
    (tmp_path / "python").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "python").chmod(0o755)
    everyone = {}
    for k in range(spec["completions"]):
        env = {"JOB_COMPLETION_INDEX": str(k), "PATH": f"{tmp_path}:/usr/bin:/bin"}
        only = container(spec["template"])
        command = kubelet.expanded(only["command"] + only["args"], env)
        assert command[:3] == ["tini", "--", "sh"]
        task = subprocess.check_output(command[2:], env=env, text=True).splitlines()
        given = dict(zip(task[1::2], task[2::2], strict=True))
        assert (ROOT / task[0]).is_file() and given["--seed"] == "3"
        assert given["--results"] == f"/results/{name}"
        hosts = {key[2:-6]: value for key, value in given.items() if key.endswith("_hosts")}
        everyone[given["--job_name"], int(given["--task_index"])] = k
    tasks = [(job, i) for job, listed in hosts.items() for i, _ in enumerate(listed.split(","))]
    assert sorted(tasks or [("worker", 0)]) == sorted(everyone)
    for job, listed in hosts.items():
        for i, host in enumerate(listed.split(",")):
            port = words[words.index("--port") + 1] if "--port" in words else "2222"
            assert host == f"{name}-{everyone[job, i]}.{name}:{port}"


def test_arguments_arrive_as_they_were_given(printed):
    args = container(printed("HogWild", "--data_url", TEXT, "--data", "mnist")["Job"]["spec"]
                     ["template"])["args"]  # fmt: skip
    assert TEXT in kubelet.expanded(args, {"JOB_COMPLETION_INDEX": "7"})
    inside = ROOT / "Your-Own" / "tumours.csv"
    (template,) = templates(printed("Your-Own", "--data", inside))
    args = container(template)["args"]
    assert args[args.index("--data", args.index("--data") + 1) + 1] == "Your-Own/tumours.csv"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name an example first"),
        (("--workers", "2"), "name an example first"),
        (("tests",), "is not an example folder"),
        (("HogWild", "--results", "x"), "--results: every run writes to --claim"),
        (("HogWild", "--network=host"), "leave it out"),
        (("HogWild", "--link_mbit", "9"), "leave it out"),
        (("HogWild", "--name", "Run_1"), "--name: must be at most 50 lower-case letters"),
        (("HogWild", "--name", "a" * 51), "--name: must be at most 50"),
        (("HogWild", "--name", "1st"), "the first one a letter"),
        (("HogWild", "--name", "a-"), "the last one not a -"),
        (("HogWild", "--claim", "a..b"), "--claim: must be the name of a PersistentVolumeClaim"),
        (("HogWild", "--cpu", "0"), "--cpu: must be a number of cores"),
        (("HogWild", "--memory", "2 GB"), "--memory: must be an amount"),
        (("HogWild", "--port", "0"), "--port: must be a whole number from 1 to 65535"),
        (("HogWild", "--image", 'a" b'), "--image: must be an image"),
        (("HogWild", "--wrokers", "2"), "unknown argument --wrokers"),
        (("HogWild", "--delay", "5:1"), "the last worker is 1"),
        (("HogWild", "--ps", "0"), "needs a parameter server"),
    ],
)
def test_a_mistake_gives_one_sentence(printed, capsys, words, said):
    with pytest.raises(SystemExit) as ended:
        printed(*words)
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert_one_sentence(err, said)


def test_what_the_image_lacks_gives_one_sentence(printed, capsys, tmp_path):
    table = tmp_path / "table.csv"
    table.write_text((ROOT / "Your-Own" / "tumours.csv").read_text())
    (tmp_path / "worker.py").write_text('"""Mine."""\n\nDEFAULTS = {}\n')
    for words, said in ((("Your-Own", "--data", table), "move it to"), ((tmp_path,), "is not in")):
        with pytest.raises(SystemExit):
            printed(*words)
        assert_one_sentence(capsys.readouterr().err, said)


def test_an_evaluator_in_tf_config_is_ignored():
    cluster = {"ps": ["a:1"], "chief": ["b:1"], "worker": ["c:1"]}
    config = {"cluster": cluster | {"evaluator": ["d:1"]}, "environment": "cloud"}
    config["task"] = {"type": "worker", "index": 0}
    found = tf_config.parse(json.dumps(config), "worker", ("ps", "worker"))
    assert found == ({"ps": ["a:1"], "worker": ["b:1", "c:1"]}, "worker", 1)


@pytest.fixture
def node(printed, tmp_path):
    """A node of a cluster, on which `runc` starts pods."""
    kubelet.install(programs=("runc", "tini", "ip"))
    try:
        with kubelet.Node(tmp_path) as here:
            spec = printed("HogWild", "--collect")["Job"]["spec"]["template"]["spec"]
            spec["containers"][0] |= {"command": ["tini", "--", "true"], "args": []}
            probe = here.start(spec, "probe")
            if probe.wait(30):
                pytest.skip(f"runc cannot start a container here: {probe.output.read_text()}")
            yield here
    except (subprocess.CalledProcessError, PermissionError) as error:
        pytest.skip(f"this system allows no network namespaces ({error})")


def assert_all_end_well(pods: list) -> None:
    codes = [pod.wait(120) for pod in pods]
    assert codes == [0] * len(pods), "\n".join(pod.output.read_text() for pod in pods)


@pytest.mark.slow("a run in containers, with two restarts")
def test_a_run_whose_pods_are_killed(node):
    """SIGTERM ends a container, and so the pod of an eviction, at once. A worker and the ps come
    back in new pods, which have the old names and other addresses."""
    delay = seconds(0.05)
    words = ["HogWild", "--name", "run", "--steps", "100", "--delay", f"0:{delay},1:{delay}"]
    command = [sys.executable, "-m", "common.commands.kubernetes", *words]
    text = subprocess.check_output(command, cwd=ROOT, env=environment(), text=True)
    (job,) = [item["spec"] for item in yaml.safe_load_all(text) if item["kind"] == "Job"]
    spec, where = job["template"]["spec"], node.volume / "run"

    def start(k):
        return node.start(spec, f"run-{k}.run run-{k}", {"JOB_COMPLETION_INDEX": str(k)})

    pods = [start(k) for k in range(job["completions"])]  # the ps is the last one
    for k in (0, 1):
        reach(where, 5, k)
    pods[1].kill("TERM")
    pods[2].kill("KILL")
    assert pods[1].wait(spec["terminationGracePeriodSeconds"]) == 143
    assert pods[2].wait(10) == 137
    before = [len(trace.events_file(where, k).read_text().splitlines()) for k in (0, 1)]
    pods[1:] = [start(k) for k in (1, 2)]
    assert_all_end_well(pods)

    spec = yaml.safe_load(
        subprocess.check_output(
            [*command[:3], "HogWild", "--name", "run", "--collect"], cwd=ROOT, env=environment()
        )
    )
    table = node.start(spec["spec"]["template"]["spec"], "run-collect")  # fmt: skip
    assert_all_end_well([table])
    assert table.output.read_text().count("0 (1 restart)") == 2
    summary = json.loads((where / "summary.json").read_text())
    assert summary["global_step"] == 100 and (where / "curves.png").is_file()
    assert [task["restarts"] for task in summary["tasks"]] == [1, 0, 1]
    for task, early in zip(summary["tasks"][1:], before, strict=True):
        assert task["exit_code"] == 0 and task["local_steps"] > early
    assert {path.stat().st_uid for path in where.rglob("*.json*")} == {1000}


@pytest.mark.slow("a run in containers")
def test_a_run_with_the_tf_config_of_an_operator(node, printed):
    """As Kubeflow's Training Operator writes it, for an example with a chief."""
    job = printed("In-Graph-Replication", "--name", "run", "--steps", "50", "--tfjob")["TFJob"]
    replicas = job["spec"]["tfReplicaSpecs"]
    assert replicas.keys() == {"PS", "Worker", "Chief"}
    cluster = {kind.lower(): [f"run-{kind.lower()}-{k}.default.svc:2222"
                              for k in range(spec["replicas"])]
               for kind, spec in replicas.items()}  # fmt: skip
    pods = []
    for kind, spec in replicas.items():
        for k, address in enumerate(cluster[kind.lower()]):
            task = {"type": kind.lower(), "index": k}
            config = {"cluster": cluster, "task": task, "environment": "cloud"}
            names = re.sub(r":.*", "", address)
            env = {"TF_CONFIG": json.dumps(config)}
            pods.append(node.start(spec["template"]["spec"], names, env))
    assert_all_end_well(pods)
    done = collect(node.volume / "run")
    assert done.returncode == 0 and "?" not in done.stdout
    summary = json.loads((node.volume / "run" / "summary.json").read_text())
    assert [task["exit_code"] for task in summary["tasks"]] == [0] * len(pods)
