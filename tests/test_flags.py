"""The command line: the same everywhere, and a mistake gives one clear line."""

import ast
import json
import pwd
import re
import runpy
import shutil
import subprocess
import sys
from unittest import mock

import pytest
from conftest import ROOT, copy_example, environment
from machine import seconds

from common import flags as common_flags
from common.cluster import Task
from common.datasets import download
from common.told import addresses, mistakes
from common.told.example import job_of, main_script

EXAMPLES = sorted(
    path.parent.name for path in ROOT.glob("[!.]*/run.sh")
    # Other tests check the flags of these.
    if path.parent.name not in ("tests", "Many-Workers", "Several-Machines")
)  # fmt: skip
HOGWILD = {"workers": 2, "ps": 1, "steps": 2000, "learning_rate": 0.2}
ALONE = HOGWILD | {"workers": 1, "ps": 0}

SHOWN_IN_WORDS = {  # defaults that depend on other things
    "data_url": "the data's publisher",
    "results": "results/<time>",
    "checkpoint_dir": "in --results",
    "workers": "one per GPU, or 2 without a GPU",
    "moving_rate": "0.9 / workers",
    "delay_period": "workers",
    "learning_rates": "learning_rate / workers",
    "threads": "processes",
    "memory_fraction": "all it needs",
}


def defaults_of(example: str) -> dict:
    """`DEFAULTS` as the example's script writes it."""
    script = main_script(ROOT / example)
    return ast.literal_eval(re.search(r"^DEFAULTS = (\{.*?\})", script.read_text(), re.M | re.S)[1])


def shown_defaults(text: str) -> dict[str, list[str]]:
    """flag -> its defaults in a `--help` text; there should be exactly one."""
    parts = re.split(r"\n  (?:-h, )?--(\w+)", text)
    pairs = zip(parts[1::2], parts[2::2], strict=True)
    return {name: re.findall(r"\(default: (.*?)\)", " ".join(part.split())) for name, part in pairs}


def expected_defaults(own: dict) -> dict[str, list[str]]:
    """What `--help` must show for an example with these `DEFAULTS`."""
    known = common_flags.EVERYWHERE | common_flags.IF_NAMED | common_flags.WITH_NETWORKS
    usual = common_flags.EVERYWHERE
    if own.get("model", "mlp") in common_flags.MODELS:
        usual = usual | common_flags.WITH_NETWORKS | common_flags.WITH_ALL
    if isinstance(own.get("model"), tuple):
        usual = usual | common_flags.WITH_NETWORKS
    values = {name: flag.default for name, flag in usual.items()} | own
    shown = {"help": [], "plain": ["show one on a terminal"], "open": ["do not"]}
    for name, value in values.items():
        if name == "chief":  # no flag
            continue
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        if isinstance(value, tuple):
            text = value[0]
        if value is None:
            text = SHOWN_IN_WORDS.get(name, "none")
        assert name in known or value is not None or name in SHOWN_IN_WORDS
        shown[name] = [text]
    return shown


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """A copy of the examples, to see whether a command writes there."""
    copy = tmp_path_factory.mktemp("house")
    for name in ("common", *EXAMPLES):
        ignore = shutil.ignore_patterns("__pycache__", "results")
        shutil.copytree(ROOT / name, copy / name, ignore=ignore)
    return copy


@pytest.fixture
def call(house, tmp_path):
    """Runs the copy's `bash FOLDER/run.sh flags` as on a machine without TensorFlow."""
    poison = tmp_path / "without"
    poison.mkdir()
    (poison / "tensorflow.py").write_text("raise SystemExit('TensorFlow was imported')")
    here = tmp_path / "here"
    here.mkdir()

    def _call(example, *flags):
        return subprocess.run(
            ["bash", str(house / example / "run.sh"), *map(str, flags)],
            capture_output=True,
            text=True,
            cwd=here,
            timeout=seconds(60),
            env=environment(PYTHONPATH=str(poison), COLUMNS="100"),
        )

    return _call


@pytest.mark.parametrize("example", EXAMPLES)
def test_help_lists_every_flag_with_its_default_and_needs_no_tensorflow(call, example):
    finished = call(example, "--help")
    assert (finished.returncode, finished.stderr) == (0, "")
    assert shown_defaults(finished.stdout) == expected_defaults(defaults_of(example))


@mock.patch.dict("os.environ")  # undoes the scripts' changes
@pytest.mark.parametrize("example", EXAMPLES)
def test_help_of_the_task_scripts(monkeypatch, capsys, example):
    own = defaults_of(example)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    for script in (ROOT / example).glob("*.py"):
        if "Task.from_flags" not in script.read_text():
            continue
        job = {"ps.py": "ps", "worker.py": "worker"}.get(script.name) or job_of(script)
        monkeypatch.setattr(sys, "argv", [str(script), "--help"])
        monkeypatch.syspath_prepend(script.parent)  # as Python does for a script
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(script), run_name="__main__")
        assert ended.value.code == 0
        shown = shown_defaults(capsys.readouterr().out)
        assert {name: shown[name] for name in ("job_name", "task_index")} == {
            "job_name": [job],
            "task_index": ["0"],
        }
        assert shown.get("ps_hosts", ["localhost:2222"]) == ["localhost:2222"]
        assert shown.get("chief_hosts", ["localhost:2225"]) == ["localhost:2225"]
        assert job in ("ps", "worker") or f"{job}_hosts" in shown
        workers = ["localhost:2223", "localhost:2224"][: own["workers"]]
        assert shown["worker_hosts"] == [",".join(workers)]
        assert shown.keys() >= expected_defaults(own).keys() - {"workers"}
        assert shown["steps"] == [str(own["steps"])]


def assert_one_sentence(text: str, *words: str) -> str:
    """Checks for exactly one line for the user, without a traceback, that contains these words."""
    assert re.fullmatch(r"error: .+\n", text), text
    for word in words:
        assert word in text
    return text


def options(defaults: dict, *given):
    """The command line of an example with these `DEFAULTS`, as its tasks read it."""
    parser = common_flags.parser(HOGWILD | defaults)
    found = parser.parse_args([str(value) for value in given])
    common_flags.complete(found, HOGWILD | defaults)
    mistakes.check(found, HOGWILD | defaults, parser)
    return found


def test_the_tables_of_flags_are_the_only_ones():
    """The launcher, a task and this test's own examples read the same tables."""
    names = [*common_flags.EVERYWHERE, *common_flags.IF_NAMED, *common_flags.WITH_NETWORKS,
             *common_flags.WITH_ALL]  # fmt: skip
    assert len(names) == len(set(names)) + 2  # it may also name target and evaluate_every
    lines = "".join(path.read_text() for path in (ROOT / "common").rglob("*.py"))
    for name in names:
        assert not re.search(rf'add_argument\(\s*"--{name}"', lines), name
    usual = {*common_flags.EVERYWHERE, "plain", "open"}
    networks = usual | common_flags.WITH_NETWORKS.keys()
    assert set(vars(options({}))) == networks | common_flags.WITH_ALL.keys()
    assert set(vars(options({"model": ("mlp", "linear")}))) == networks
    assert set(vars(options({"model": "own"}))) == usual
    for name, flag in common_flags.IF_NAMED.items():
        assert hasattr(options({name: flag.default}), name)


CHANGED = {  # other defaults of known flags
    "workers": 3,
    "steps": 17,
    "batch_size": 64,
    "learning_rate": 0.03,
    "data": "synthetic",
    "model": "linear",
    "hidden": 31,
    "seed": 5,
    "target_accuracy": 0.9,
    "delay": "0:0.5",
    "steps_per_execution": 4,
    "max_restarts": 1,
    "timeout": 60,
    "network": "host",
    "window": 3,
    "moving_rate": 0.2,
    "momentum": 0.5,
    "inner": "sgd",
    "inner_beta1": 0.8,
    "inner_beta2": 0.95,
    "inner_epsilon": 1e-5,
    "weight_decay": 0.0,
    "outer": "momentum",
    "outer_rate": 1.0,
    "outer_momentum": 0.5,
    "delay_period": 3,
    "dynamic_steps": True,
    "backup_workers": 1,
    "max_staleness": 5,
    "learning_rates": [0.1, 0.2],
    "target": 0.5,
    "evaluate_every": 10,
    "evaluate_on": 50,
    "checkpoint_every": 10,
    "keep_checkpoints": 5,
    "patience": 3,
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_known_flag_takes_the_examples_default(name):
    default = CHANGED[name]
    known = (common_flags.EVERYWHERE | common_flags.IF_NAMED)[name]
    assert default != known.default
    value = getattr(options({name: default}), name)
    assert value == ({0: 0.5} if name == "delay" else default)
    assert type(value) is type(known.default) or known.default is None or name == "timeout"


def test_all_known_flags_with_a_plain_default_were_tried():
    known = common_flags.EVERYWHERE | common_flags.IF_NAMED
    rest = {"ps", "data_url", "results", "checkpoint_dir", "threads"}
    assert {*known} - {*CHANGED} <= rest | {"link_mbit"}


@pytest.mark.parametrize(
    ("name", "default", "words"),
    [
        ("batch_size", -1, ("a whole number", "'-1'")),
        ("batch_size", 1.5, ("a whole number", "'1.5'")),
        ("learning_rate", 0, ("above 0", "'0'")),
        ("model", 3, ("linear, mlp, cnn", "'3'")),
        ("data", 3, ("one of digits, mnist", "'3'")),
        ("data", "nosuch", ("one of digits, mnist", "'nosuch'")),
        ("network", "foo", ("auto, private, host", "'foo'")),
        ("delay", "1", ("K:SECONDS", "'1'")),
        ("window", 0, ("1 or more", "'0'")),
        ("learning_rates", [0.1, "x"], ("a number above 0", "'x'")),
    ],
)
def test_a_bad_default_of_a_known_flag_gives_a_one_line_error(capsys, name, default, words):
    with pytest.raises(SystemExit) as ended:
        options({name: default})
    assert ended.value.code == 2
    assert_one_sentence(capsys.readouterr().err, f'DEFAULTS["{name}"]', *words)


OWN = {"layers": 3, "dropout": 0.5, "augment": True, "frozen": False, "schedule": "cosine",
       "widths": [64, 32], "decays": [0.5, 1]}  # fmt: skip


def test_an_unknown_key_becomes_a_flag_with_the_type_of_its_default():
    found = vars(options(OWN))
    assert {name: found[name] for name in OWN} == OWN
    given = ["--layers", -2, "--dropout", 1, "--no-augment", "--frozen", "--schedule", "a b",
             "--widths", "8", "--decays", "1,0.25,1e-3"]  # fmt: skip
    found = vars(options(OWN, *given))
    changed = {"layers": -2, "dropout": 1.0, "augment": False, "frozen": True,
               "schedule": "a b", "widths": [8], "decays": [1.0, 0.25, 0.001]}  # fmt: skip
    assert {name: found[name] for name in OWN} == changed
    assert type(found["dropout"]) is float and type(found["decays"][0]) is float
    assert type(found["widths"][0]) is int
    negative = vars(options(OWN, "--dropout", "-5e-1", "--decays=-1,-2"))
    assert (negative["dropout"], negative["decays"]) == (-0.5, [-1.0, -2.0])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--layers", "1.5"], ("--layers", "a whole number, like its default", "'1.5'")),
        (["--dropout", "much"], ("--dropout", "a number", "'much'")),
        (["--dropout", "nan"], ("--dropout", "a number", "'nan'")),
        (["--dropout", "inf"], ("--dropout", "a number", "'inf'")),
        (["--dropout=-inf"], ("--dropout", "a number", "'-inf'")),
        (["--decays=1,-inf"], ("--decays", "a number", "'-inf'")),
        (["--widths", "1,2.5"], ("--widths", "a whole number", "'2.5'")),
        (["--augment", "yes"], ("unknown argument yes",)),
        (["--augment=yes"], ("--augment",)),
        (["--no-layers"], ("unknown argument --no-layers",)),
    ],
)
def test_a_bad_value_of_an_own_flag_gives_a_one_line_error(capsys, given, words):
    with pytest.raises(SystemExit) as ended:
        options(OWN, *given)
    assert ended.value.code == 2
    assert_one_sentence(capsys.readouterr().err, *words)


def test_a_tuple_lists_the_choices_of_a_flag(capsys):
    """The first is the default. This also works for a known flag."""
    defaults = {"mode": ("averaged", "threads"), "model": ("small", "large")}
    found = options(defaults, "--model", "large")
    assert (found.mode, found.model) == ("averaged", "large")
    for given in (["--mode", "both"], ["--model", "mlp"]):
        with pytest.raises(SystemExit) as ended:
            options(defaults, *given)
        assert ended.value.code == 2
        words = ", ".join(defaults[given[0][2:]])
        assert_one_sentence(capsys.readouterr().err, given[0], f"one of {words}", repr(given[1]))


@pytest.mark.parametrize("default", [None, {}, {"a": 1}, [], ["a"], [True], (1, 2), [[1]], b"x"])
def test_a_default_that_shows_no_type_gives_a_one_line_error(capsys, default):
    with pytest.raises(SystemExit) as ended:
        options({"own": default})
    assert ended.value.code == 2
    assert_one_sentence(capsys.readouterr().err, 'DEFAULTS["own"] is', "gets its type from")


@pytest.mark.parametrize(
    "name", ["help", "plain", "open", "job_name", "task_index", "ps_hosts", "worker_hosts"]
)
def test_a_name_that_every_example_has_is_refused(capsys, name):
    with pytest.raises(SystemExit) as ended:
        options({name: 1})
    assert ended.value.code == 2
    assert_one_sentence(capsys.readouterr().err, f"every example has a --{name}", "another name")


SESSION = "# 6. The monitored session"
HOOK = """class Losses(tf.train.SessionRunHook):
    def __init__(self):
        self.seen = []

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(loss)

    def after_run(self, run_context, run_values):
        self.seen.append(float(run_values.results))

    def end(self, session):
        with open(f"{flags.results}/hook-{task.index}", "w") as file:
            print(self.seen, file=file)


"""


def with_own(to):
    """A copy of HogWild with new flags, other defaults for known ones, and a hook."""
    source = (ROOT / "HogWild" / "worker.py").read_text()
    line = next(line for line in source.splitlines() if line.startswith("DEFAULTS = "))
    defaults = ast.literal_eval(line.partition(" = ")[2]) | OWN | {"batch_size": 16, "hidden": 8}
    for old, new in (
        (line, f"DEFAULTS = {defaults!r}"),
        (SESSION, HOOK + SESSION),
        (", [me]) as sess:", ", [me], hooks=[Losses()]) as sess:"),
    ):
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return copy_example("HogWild", to, worker=source)


def test_own_flags_and_hooks(run, tmp_path):
    """The flags are in the help and in the summary. The hook sees every step. On the host's network
    no bytes are counted, since other programs use it too."""
    root = with_own(tmp_path / "own")
    help = subprocess.run(["bash", str(root / "HogWild" / "run.sh"), "--help"], text=True,
                          capture_output=True, env=environment(COLUMNS="100"))  # fmt: skip
    shown = shown_defaults(help.stdout)
    assert {name: shown[name] for name in OWN} == {
        "layers": ["3"], "dropout": ["0.5"], "augment": ["True"], "frozen": ["False"],
        "schedule": ["cosine"], "widths": ["64,32"], "decays": ["0.5,1"],
    }  # fmt: skip
    assert "--no-augment" in help.stdout
    assert (shown["batch_size"], shown["hidden"]) == (["16"], ["8"])
    flags = ["--no-augment", "--dropout", "0.25", "--widths", "4,5", "--steps", 200]
    # With the delay, a step is so long that both workers make many.
    flags += ["--delay", "0:0.002,1:0.002", "--network", "host"]
    finished = run("HogWild", *flags, root=root)
    written = finished.summary["flags"]
    expected = OWN | {"augment": False, "dropout": 0.25, "widths": [4, 5]}
    assert {name: written[name] for name in OWN} == expected
    assert (written["batch_size"], written["hidden"]) == (16, 8)
    assert finished.summary["examples"] == 200 * 16
    assert finished.parameters[0].shape == (64, 8)
    for k in (0, 1):
        seen = ast.literal_eval((finished.results / f"hook-{k}").read_text())
        losses = [event["loss"] for event in finished.events(k)]
        assert len(losses) > 10
        assert seen == pytest.approx(losses, rel=1e-6)
    assert finished.summary["bytes_per_step"] is finished.summary["link_use"] is None
    assert not (finished.results / "network.jsonl").exists()
    assert "network:" not in finished.output


@pytest.fixture
def task(monkeypatch):
    """`task("worker", "--task_index", 1)` -> the Task of such a script."""

    # Another program may use the default ports; test_by_hand.py tries one in use.
    monkeypatch.setattr("common.told.by_hand.check_free", lambda address: None)

    def _task(job, *flags, config=None, defaults=HOGWILD):
        script = ROOT / "HogWild" / f"{job}.py"
        monkeypatch.setattr(sys, "argv", [str(script), *map(str, flags)])
        monkeypatch.delenv("TF_CONFIG", raising=False)
        monkeypatch.setenv("TASK_RESTARTS", "0")  # as from the launcher: the task writes no part
        if config is not None:
            text = config if isinstance(config, str) else json.dumps(config)
            monkeypatch.setenv("TF_CONFIG", text)
        if job == "chief":
            defaults = defaults | {"chief": 1}
        return Task.from_flags(job, None if job == "ps" else defaults)

    return _task


def test_a_task_without_flags_is_the_first_of_its_job_on_localhost(task):
    hosts = {"ps": ["localhost:2222"], "worker": ["localhost:2223", "localhost:2224"]}
    worker, ps = task("worker"), task("ps")
    assert (worker.job, worker.index, worker.hosts) == ("worker", 0, hosts)
    assert (ps.job, ps.index, ps.hosts) == ("ps", 0, hosts)
    assert (worker.flags.workers, worker.flags.ps) == (2, 1)
    assert worker.flags.checkpoint_dir == worker.flags.results + "/checkpoints"
    assert worker.flags.results.startswith(str(ROOT / "HogWild" / "results"))
    single = task("worker", defaults=HOGWILD | {"workers": 1})
    assert single.hosts == {"ps": ["localhost:2222"], "worker": ["localhost:2223"]}


def test_devices_and_filters(task):
    hosts = ("--ps_hosts", "a:1,b:1", "--worker_hosts", "c:1,d:1,e:1")
    worker = task("worker", *hosts, "--task_index", 2)
    assert (worker.name, worker.address, worker.is_chief) == ("worker 2", "e:1", False)
    assert worker.device == "/job:worker/task:2"
    assert list(worker.config.device_filters) == ["/job:ps", "/job:worker/task:2"]
    assert worker.cluster.as_dict() == {"ps": ["a:1", "b:1"], "worker": ["c:1", "d:1", "e:1"]}
    assert (worker.flags.workers, worker.flags.ps) == (3, 2)
    assert task("worker", *hosts).is_chief

    ps = task("ps", *hosts, "--task_index", 1)
    assert (ps.name, ps.address, ps.is_chief) == ("ps 1", "b:1", False)
    assert ps.device == "/job:ps/task:1"
    assert list(ps.config.device_filters) == ["/job:ps/task:1"]

    alone = task("worker", defaults=ALONE)
    assert (alone.hosts, alone.device, alone.is_chief) == ({}, "", True)
    assert not alone.config.device_filters


def test_a_chief_runs_the_program_and_the_others_serve(task):
    """The chief talks to all tasks, so it has no filters; the others end when it has left."""
    hosts = ("--ps_hosts", "a:1", "--worker_hosts", "b:1,c:1", "--chief_hosts", "d:1")
    chief = task("chief", *hosts)
    assert (chief.name, chief.address, chief.device) == ("chief 0", "d:1", "/job:chief/task:0")
    assert chief.is_chief and not chief.config.device_filters
    assert chief.clients == {"chief 0": "d:1"}
    assert chief.servers == [("ps", 0), ("worker", 0), ("worker", 1)]
    assert (chief.flags.workers, chief.flags.ps) == (2, 1)
    assert task("chief").hosts["chief"] == ["localhost:2225"]

    without = task("worker", *hosts[:4])
    assert without.clients == {"worker 0": "b:1", "worker 1": "c:1"}
    assert without.servers == [("ps", 0)]


def test_a_chief_without_its_key_in_defaults_is_refused(monkeypatch, capsys):
    """Otherwise run.sh would start its script as a worker."""
    monkeypatch.setattr(sys, "argv", [str(ROOT / "HogWild" / "chief.py")])
    with pytest.raises(SystemExit) as ended:
        Task.from_flags("chief", HOGWILD)
    assert ended.value.code == 2
    assert_one_sentence(capsys.readouterr().err, "chief.py", '"chief": 1')


def test_a_cluster_without_ps(task, capsys):
    """`"ps": None`: workers only, or workers and a chief."""
    worker = task("worker", defaults=HOGWILD | {"ps": None})
    assert worker.hosts == {"worker": ["localhost:2223", "localhost:2224"]}
    assert (worker.flags.ps, worker.servers, worker.is_chief) == (0, [], True)
    assert sorted(task("chief", defaults=HOGWILD | {"ps": None}).hosts) == ["chief", "worker"]
    with pytest.raises(SystemExit) as ended:
        task("worker", "--ps", 1, defaults=HOGWILD | {"ps": None})
    assert ended.value.code == 2
    assert_one_sentence(capsys.readouterr().err, "--ps", "no parameter server")


def test_the_cores_are_shared_by_the_tasks_of_one_machine(task, monkeypatch):
    monkeypatch.setattr("common.cluster.cores", lambda: 12)
    hosts = ("--ps_hosts", "a:1", "--worker_hosts", "a:2,a:3,b:1")
    threads = [
        task("worker", *hosts, "--task_index", k).config.intra_op_parallelism_threads
        for k in range(3)
    ]
    assert threads == [4, 4, 12]
    assert task("worker", defaults=ALONE).config.intra_op_parallelism_threads == 12


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("workers", [1, 3])
def test_a_replayed_run_has_one_thread_for_each_task(task, workers):
    hosts = ("--ps_hosts", "a:9", "--worker_hosts", ",".join(f"a:{k + 1}" for k in range(workers)))
    config = task("ps", *hosts).config
    assert config.intra_op_parallelism_threads == config.inter_op_parallelism_threads == 1


def cluster_config(kind, index, **jobs) -> dict:
    return {"cluster": jobs or {"ps": ["p:1"], "worker": ["a:1", "b:1"]},
            "task": {"type": kind, "index": index}}  # fmt: skip


@pytest.mark.parametrize("chief", ["chief", "master"])
def test_tf_config(task, chief):
    plain = task("worker", config=cluster_config("worker", 1))
    assert (plain.index, plain.hosts) == (1, {"ps": ["p:1"], "worker": ["a:1", "b:1"]})
    ps = task("ps", config=cluster_config("ps", 1, ps=["p:1", "q:1"], worker=["a:1"]))
    assert (ps.index, ps.address, ps.flags.workers, ps.flags.ps) == (1, "q:1", 1, 2)

    jobs = {"ps": ["p:1"], chief: ["c:1"], "worker": ["a:1", "b:1"]}
    everyone = ["c:1", "a:1", "b:1"]
    first = task("worker", config=cluster_config(chief, 0, **jobs))
    assert (first.job, first.index, first.is_chief) == ("worker", 0, True)
    assert first.hosts["worker"] == everyone
    last = task("worker", config=cluster_config("worker", 1, **jobs))
    assert (last.index, last.address, last.is_chief) == (2, "b:1", False)
    assert task("ps", config=cluster_config("ps", 0, **jobs)).hosts["worker"] == everyone
    alone = task("worker", config=cluster_config(chief, 0, ps=["p:1"], **{chief: ["c:1"]}))
    assert (alone.index, alone.hosts) == (0, {"ps": ["p:1"], "worker": ["c:1"]})


def test_tf_config_of_an_example_with_a_chief(task, capsys):
    jobs = {"ps": ["p:1"], "chief": ["c:1"], "worker": ["a:1", "b:1"]}
    chief = task("chief", config=cluster_config("chief", 0, **jobs))
    assert (chief.name, chief.hosts) == ("chief 0", jobs)
    with pytest.raises(SystemExit) as ended:
        task("chief", config=cluster_config("worker", 0, **jobs))
    assert ended.value.code == 2
    assert_one_sentence(capsys.readouterr().err, "the chief's", "start worker.py")
    with pytest.raises(SystemExit) as ended:
        task("chief", config=cluster_config("worker", 0))
    assert_one_sentence(capsys.readouterr().err, "TF_CONFIG", "ps and worker and chief")


def test_flags_override_tf_config(task):
    config = cluster_config("worker", 0)
    assert task("worker", "--task_index", 1, config=config).address == "b:1"
    assert task("worker", "--worker_hosts", "x:1,y:1", config=config).address == "x:1"
    # The launcher passes everything, even if TF_CONFIG is about something else.
    said = ("--ps_hosts", "p:9", "--worker_hosts", "x:9,y:9", "--task_index", 1)
    for other in (cluster_config("worker", 0, worker=["a:1"]), "something else"):
        assert task("worker", *said, config=other).address == "y:9"
    assert task("worker", config="something else", defaults=ALONE).hosts == {}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{'cluster'", ("TF_CONFIG must look like", "as JSON")),
        ("[]", ("TF_CONFIG must look like",)),
        ({"cluster": {"ps": ["p:1"], "worker": ["a:1"]}}, ("TF_CONFIG must look like", "'task'")),
        ({"task": {"type": "worker", "index": 0}}, ("TF_CONFIG must look like", "'cluster'")),
        (cluster_config("worker", "first"), ("TF_CONFIG must look like",)),
        (cluster_config("worker", -1), ("TF_CONFIG must look like", "negative")),
        (cluster_config("worker", 0, ps="p:1", worker=["a:1"]), ("TF_CONFIG", "ps is not a list")),
        (cluster_config("worker", 0, ps=[2222], worker=["a:1"]), ("TF_CONFIG", "ps is not a list")),
        (
            cluster_config("worker", 0, worker=["a:1"]),
            ("TF_CONFIG", "ps and worker", "{'worker': ['a:1']}"),
        ),
        (cluster_config("worker", 0, ps=["p:1"]), ("TF_CONFIG", "ps and worker")),
        (cluster_config("worker", 0, ps=[], worker=["a:1"]), ("TF_CONFIG", "ps and worker")),
        (
            cluster_config("worker", 0, ps=["p:1"], worker=["a:1"], scorer=["e:1"]),
            ("TF_CONFIG", "ps and worker", "scorer"),
        ),
        (cluster_config("evaluator", 0), ("TF_CONFIG", "ps, worker or chief", "'evaluator'")),
        (cluster_config("worker", 2), ("TF_CONFIG", "no worker 2", "the last one is 1")),
        (cluster_config("ps", 0), ("the worker's", "is a ps", "start ps.py")),
        (cluster_config("worker", 0, ps=["p"], worker=["a:1"]), ("TF_CONFIG", "'p'", "host:port")),
    ],
)
def test_a_bad_tf_config(task, capsys, config, words):
    with pytest.raises(SystemExit) as ended:
        task("worker", config=config)
    assert ended.value.code == 2
    assert_one_sentence(capsys.readouterr().err, *words)


def test_a_tilde_is_the_home_folder(monkeypatch, tmp_path):
    """The shell replaces it only at the start of a word, so not in --results=~/runs."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine.npz").touch()
    words = ["--results=~/runs", "--checkpoint_dir", "~", "--data", "~/mine.npz"]
    options = common_flags.parser(HOGWILD).parse_args(words)
    assert options.results == str(tmp_path / "runs")
    assert options.checkpoint_dir == str(tmp_path)
    assert options.data == str(tmp_path / "mine.npz")
    monkeypatch.setenv("DATA_DIR", "~/data")
    assert download.folder("mnist") == tmp_path / "data" / "mnist"
    monkeypatch.delenv("DATA_DIR")
    assert download.folder("mnist") == tmp_path / ".cache/distributed-tensorflow/mnist"
    root = pwd.getpwnam("root").pw_dir
    options = common_flags.parser(HOGWILD).parse_args(["--results", "~root/runs"])
    assert options.results == f"{root}/runs"
    monkeypatch.chdir(tmp_path)
    options = common_flags.parser(HOGWILD).parse_args(["--results", "./~"])
    assert options.results == str(tmp_path / "~")


# An address, and what the error says to write instead.
FORMS = [
    ("http://a:2222", "write 'a:2222', without http://"),
    ("grpc://a:2222/", "write 'a:2222', without grpc://"),
    ("::1:2222", "an IPv6 address needs brackets, as in '[::1]:2222'"),
    ("fd00::7:2222", "an IPv6 address needs brackets, as in '[fd00::7]:2222'"),
    ("::1", "an IPv6 address needs brackets and a port, as in '[::1]:2222'"),
    ("[::1]", "the port is missing, as in '[::1]:2222'"),
    ("a.example", "the port is missing, as in 'a.example:2222'"),
    ("a:", "the port is missing, as in 'a:2222'"),
    ("a:port", "a port is a whole number from 1 to 65535"),
    ("a:0", "a port is a whole number from 1 to 65535"),
    ("a:65536", "a port is a whole number from 1 to 65535"),
    ("a:-1", "a port is a whole number from 1 to 65535"),
    ("[a]:2222", "such as 'a.example:2222', '10.0.0.1:2222' or '[fd00::1]:2222'"),
    ("a/b:2222", "such as 'a.example:2222'"),
    (" a:2222", "such as 'a.example:2222'"),
    (":2222", "such as 'a.example:2222'"),
    ("", "such as 'a.example:2222'"),
]
SAME = [  # two names of one address
    ("localhost:2222", "127.0.0.1:2222"),
    ("localhost:2222", "[::1]:2222"),
    ("127.0.0.1:2222", "127.0.0.2:2222"),
    ("LOCALHOST:2222", "0.0.0.0:2222"),
    ("a:2222", "A:2222"),
    ("a:2222", "a:02222"),
    ("10.0.0.1:2222", "[::ffff:10.0.0.1]:2222"),
    ("[fd00::1]:2222", "[FD00:0:0::1]:2222"),
]


def refused(say: str, task, capsys, address: str, other: str = "c:1") -> str:
    """The error for a cluster with these two addresses, said by a flag or by TF_CONFIG."""
    with pytest.raises(SystemExit) as ended:
        if say == "flag":
            task("worker", "--ps_hosts", "p:1", "--worker_hosts", f"{other},{address}")
        else:
            task("worker", config=cluster_config("worker", 0, ps=["p:1"], worker=[other, address]))
    assert ended.value.code == 2
    return assert_one_sentence(capsys.readouterr().err)


@pytest.mark.parametrize("say", ["flag", "TF_CONFIG"])
@pytest.mark.parametrize(("address", "instead"), FORMS)
def test_an_address_in_a_wrong_form(task, capsys, say, address, instead):
    said = refused(say, task, capsys, address)
    source = "--worker_hosts" if say == "flag" else "TF_CONFIG"
    assert f"{source}: {address!r} does not have the form host:port" in said
    assert instead in said


@pytest.mark.parametrize("say", ["flag", "TF_CONFIG"])
@pytest.mark.parametrize(("address", "other"), SAME)
def test_one_address_under_two_names(task, capsys, say, address, other):
    said = refused(say, task, capsys, address, other)
    assert f"same address {address}, since {other} is the same one: give each its own" in said


def test_addresses_that_are_right_and_different(task):
    hosts = ["[::1]:2222", "localhost:2223", "[fd00::1]:2222", "a-b_c.example:1", "10.0.0.1:65535"]
    made = task("worker", "--ps_hosts", hosts[0], "--worker_hosts", ",".join(hosts[1:]))
    assert made.hosts == {"ps": hosts[:1], "worker": hosts[1:]}
    made = task("worker", config=cluster_config("worker", 3, ps=hosts[:1], worker=hosts[1:]))
    assert made.hosts == {"ps": hosts[:1], "worker": hosts[1:]}
    assert addresses.split(hosts[0]) == ("::1", 2222)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--ps_hosts localhost", ("--ps_hosts", "'localhost'", "host:port")),
        ("--ps_hosts a:1, --worker_hosts b:1", ("--ps_hosts", "''", "host:port")),
        ("--worker_hosts a:b", ("--worker_hosts", "'a:b'", "host:port")),
        ("--worker_hosts :2222", ("--worker_hosts", "':2222'", "host:port")),
        ("--worker_hosts a:0", ("--worker_hosts", "'a:0'", "host:port")),
        ("--worker_hosts a:65536", ("--worker_hosts", "'a:65536'", "host:port")),
        ("--worker_hosts a:1,b:1,a:1", ("same address a:1", "its own")),
        ("--ps_hosts a:1 --worker_hosts a:1", ("same address a:1", "its own")),
        ("--task_index 2", ("--task_index", "no worker 2", "the last one is 1")),
        ("--task_index -1", ("--task_index", "0 or more")),
        ("--job_name ps", ("the worker's", "start ps.py")),
        ("--job_name chief", ("--job_name", "'ps', 'worker'")),
        ("--delay 2:1", ("--delay 2", "the last worker is 1")),  # of the cluster, not of --workers
        ("--nonsense", ("unknown argument --nonsense",)),
        ("--link_mbit 9", ("--link_mbit", "started by hand", "only run.sh", "leave it out")),
        ("--link_mbit=9 --network host", ("--link_mbit", "started by hand", "leave it out")),
        ("--network private", ("--network", "started by hand", "only run.sh", "leave it out")),
        ("--open", ("--open", "only run.sh", "leave it out", "common.commands.page")),
    ],
)
def test_a_bad_cluster_on_the_command_line(task, capsys, flags, words):
    with pytest.raises(SystemExit) as ended:
        task("worker", *flags.split())
    assert ended.value.code == 2
    assert_one_sentence(capsys.readouterr().err, *words)


def test_a_private_network_is_refused_only_if_a_task_script_is_asked_for_it(task):
    """Not if `DEFAULTS` has it, nor if the launcher passes the flag on."""
    private = HOGWILD | {"network": "private"}
    assert task("worker", defaults=private | {"link_mbit": 9}).flags.network == "private"
    assert task("worker", "--network", "host", defaults=private).flags.network == "host"
    passed = ("--ps_hosts", "a:1", "--worker_hosts", "b:1", "--job_name", "worker",
              "--task_index", 0, "--network", "private", "--link_mbit", 9)  # fmt: skip
    assert task("worker", *passed).flags.link_mbit == 9


def test_a_task_started_by_hand_warns_that_its_port_is_open(task, capsys):
    """Nothing else. A task of the launcher does not: run.sh has warned if its ports are open."""
    hosts = ("--ps_hosts", "a:1", "--worker_hosts", "b:2,c:3")
    what = "open on all interfaces of this machine, without authentication: run only on a network"
    for port, *words in (1, "ps"), (3, "worker", "--task_index", 1), (4, "chief"):
        chief = ("--chief_hosts", "d:4") if "chief" in words else ()
        task(*words, *hosts, *chief)
        assert capsys.readouterr().out == f"warning: port {port} is {what} that you trust\n"
    task("worker", *hosts, "--job_name", "worker", "--task_index", 0)
    assert capsys.readouterr().out == ""


def test_an_example_with_one_worker_refuses_a_cluster_with_two(task, capsys):
    with pytest.raises(SystemExit) as ended:
        task("worker", "--worker_hosts", "a:1,b:1", defaults=HOGWILD | {"workers": 1})
    assert ended.value.code == 2
    assert_one_sentence(capsys.readouterr().err, "--workers 2", "one worker")


def test_the_scripts_of_a_folder_have_the_same_defaults(run, tmp_path):
    worker = (ROOT / "HogWild" / "worker.py").read_text()
    changed = worker.replace('"learning_rate": 0.2', '"learning_rate": 0.1')
    assert changed != worker
    root = copy_example("HogWild", tmp_path / "mine", worker=changed)
    finished = run("HogWild", "--threads", 2, "--steps", 20, root=root, ok=False)
    assert finished.code == 2
    assert_one_sentence(finished.output, "threads.py", 'DEFAULTS["learning_rate"]', "worker.py")
