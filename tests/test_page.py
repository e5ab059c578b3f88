"""The page "Who waits?": its simulation does what the one in Python does."""

import html
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import browser
import make_site
import moving
import nbformat
import notebooks
import numpy as np
import overview
import pays
import pytest
import schemes
import simulate
from conftest import ROOT, environment, eventually, seconds
from toys import Unwatched, Written

from common.page import write
from common.teach import recorded

PAGE = ROOT / "common" / "page"
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="needs node, which runs the page's modules")


# They move a parameter as far if its gradient is 0, up to rounding, as if it is large.
NOISY = ("Sign-SGD", "DiLoCo", "Async-DiLoCo")


def in_python(options) -> dict:
    written = Written()
    cluster, journal = simulate.simulate(options, make_cluster=Unwatched, report=written)
    sent = sum(link.total_bytes for link in {*cluster.down, *cluster.up})
    return {"lines": written.lines, "w": cluster.w, "staleness": journal.staleness,
            "test": journal.evaluations[-1], "dropped": sum(journal.dropped),
            "megabytes": sent / 1e6}  # fmt: skip


def on_the_page(every) -> list[dict]:
    """The same flags as the page's settings would give."""
    flags = [vars(options) | {"delay": options.delay or {}} for options in every]
    process = subprocess.run(
        [NODE, ROOT / "tests" / "page_runs.mjs"], input=json.dumps(flags, default=str),
        capture_output=True, text=True, timeout=seconds(120), check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def same(options, page: dict) -> None:
    python = in_python(options)
    for k, mine in enumerate(page["steps"]):
        lines = python["lines"].get(f"events-worker-{k}", [])
        assert len(mine) == len(lines)
        for ours, theirs in zip(mine, lines):
            assert (ours["number"], ours["pulledAt"], ours["staleness"]) == (
                theirs["global_step"], theirs["pulled_at"], theirs["staleness"])  # fmt: skip
            times = [ours["told"], ours["counted"], ours["got"] - ours["asked"]]
            there = [theirs["time"], theirs["counted"], theirs["pull"]]
            np.testing.assert_allclose(times, there, rtol=1e-9, atol=1e-9)
            assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3, abs=1e-4)
    assert {int(s): n for s, n in page["staleness"].items()} == dict(python["staleness"])
    assert len(page["dropped"]) == python["dropped"]
    assert page["megabytes"] == pytest.approx(python["megabytes"], rel=1e-9)
    equal = np.isclose(page["w"], python["w"], rtol=1e-3, atol=1e-5)
    noise = 5 if options.scheme in NOISY else 1
    assert equal.mean() > 0.9 if noise > 1 else equal.all()
    found, there = page["test"], python["test"]
    assert found["accuracy"] == pytest.approx(there["test_accuracy"], abs=0.006 * noise)
    assert found["loss"] == pytest.approx(there["test_loss"], rel=1e-3 * noise)


SETTINGS = [
    {"seed": 0},
    {"seed": 1, "delay": {1: 0.03}, "link_mbit": 20, "request": 0.001},
    {"seed": 2, "ps": 3, "link_mbit": 5, "spread": 0.5, "workers": 5},
]


@needs_node
@pytest.mark.parametrize("model", ["linear", "mlp"])
@pytest.mark.parametrize("scheme", schemes.SCHEMES)
def test_the_page_simulates_what_python_simulates(scheme, model):
    """Every event of every run: who, when, from which count, how stale; and what is learned."""
    own = schemes.SCHEMES[scheme].defaults
    window = {"window": 4} if "window" in own else {}
    steps = 30 if schemes.SCHEMES[scheme].worker == "synchronous" else 100
    usual = {"scheme": scheme, "model": model, "workers": 4, "steps": steps, "batch_size": 20}
    every = [simulate.options(**usual | {"hidden": 16} | window | more) for more in SETTINGS]
    for options, page in zip(every, on_the_page(every), strict=True):
        same(options, page)


@needs_node
@pytest.mark.parametrize(
    "flags",
    [
        {"scheme": "Synchronous-SGD", "backup_workers": 2, "workers": 6},
        {"scheme": "DiLoCo", "outer": "momentum", "inner": "sgd", "window": 3},
        {"scheme": "DC-ASGD", "adaptive": True},
        {"scheme": "Synchronous-SGD-different-learning-rates",
         "learning_rates": [0.1, 0.2, 0.1, 0.05]},
        {"scheme": "Stale-Synchronous-Parallel", "max_staleness": 0, "delay": {0: 0.05}},
        {"scheme": "AEASGD", "delay": {2: 0.02}, "link_mbit": 1, "window": 5},
        {"scheme": "HogWild", "duplex": True, "link_mbit": 2, "spread": 1.5},
    ],
    ids=lambda flags: flags["scheme"],
)  # fmt: skip
def test_so_it_does_with_the_flags_of_a_scheme(flags):
    options = simulate.options(**{"workers": 4, "steps": 60, "model": "linear", **flags})
    (page,) = on_the_page([options])
    same(options, page)


def evaluated(code: str):
    """What a function of the page's modules returns: `code` is its body."""
    names = {"settings.js": "canDiffer, complete, fromAddress, toAddress", "pays.js": "answer, why",
             "simulation.js": "Simulation", "digits.js": "DIGITS"}  # fmt: skip
    lines = [
        f'import {{ {each} }} from "{(PAGE / name).as_uri()}";' for name, each in names.items()
    ]
    lines += [f"console.log(JSON.stringify((() => {{ {code} }})()));"]
    process = subprocess.run(
        [NODE, "--input-type=module", "-e", "\n".join(lines)],
        capture_output=True, text=True, timeout=seconds(60), check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


@needs_node
def test_an_address_keeps_what_was_set():
    kept = [
        {"scheme": "AGN", "workers": 8, "window": 3, "learning_rate": 0.0518},
        {"scheme": "HogWild", "link_mbit": None, "ps": 2, "slow": [1, 1, 2.5]},
        {"scheme": "Local-SGD", "deaths": [{"who": "w1", "at": 2.5}, {"who": "ps", "at": 4}]},
        {"workers": 8},
    ]  # fmt: skip
    code = f"return {json.dumps(kept)}.map((set) => fromAddress(toAddress(set)));"
    assert evaluated(code) == kept


@needs_node
@pytest.mark.parametrize(
    "wrong",
    ["scheme=constructor", "scheme=__proto__", "workers=99", "workers=0", "learning_rate=NaN",
     "toString=1", "slow=1,x", "deaths=w9@1", "deaths=w1", "link_mbit=7", "window=2.5"],
)  # fmt: skip
def test_what_is_wrong_in_an_address_is_left_out(wrong):
    code = f'return [fromAddress("#{wrong}"), complete(fromAddress("#{wrong}")).scheme];'
    assert evaluated(code) == [{}, "HogWild"]


@needs_node
def test_only_what_has_a_control_can_be_compared():
    names = ("scheme", "workers", "max_staleness", "slow", "deaths", "model", "toString")
    code = f'return {json.dumps(names)}.filter((name) => canDiffer("HogWild", name));'
    assert evaluated(code) == ["scheme", "workers"]


@needs_node
def test_what_pays_is_what_the_notebook_says():
    """In the same words, for all models, devices and links."""
    every = [
        dict(zip(("model", "device", "link", "workers", "window"), each, strict=True))
        for each in itertools.product(pays.MODELS, pays.DEVICES, pays.LINKS, (2, 8, 999), (1, 30))
    ]
    page = evaluated(f"return {json.dumps(every)}.map((set) => `${{answer(set)}} ${{why(set)}}`);")
    cases = [(each["model"], pays.case(**each)) for each in every]
    here = [f"{pays.answer(mine)} {pays.why(model, mine)}" for model, mine in cases]
    number = re.compile(r"\d[\d,.]*\d|\d")
    for ours, theirs in zip(page, here, strict=True):
        assert number.sub("#", ours) == number.sub("#", theirs)
        both = [[float(each.replace(",", "")) for each in number.findall(text)]
                for text in (ours, theirs)]  # fmt: skip
        np.testing.assert_allclose(*both, rtol=0.012)  # the last figure may be rounded otherwise
    assert any("send less" in text for text in page) and any("are slower" in text for text in page)


def died(scheme: str, deaths: str, code: str, workers: int = 4):
    """Of a run in which tasks die; `code` returns what is asked."""
    address = f"#scheme={scheme}&workers={workers}&deaths={deaths}"
    return evaluated(
        f'const run = new Simulation(complete(fromAddress("{address}")), DIGITS); {code}'
    )


@needs_node
def test_who_dies_and_who_waits_for_it():
    """A round never ends without its worker, and ends when it is back. Others go on in HogWild."""
    code = "return [5, 9, 12].map((at) => (run.advance(at), run.cluster.updates));"
    first, second, third = died("Synchronous-SGD", "w2@3,w2@10", code)
    assert first == second > 10 and third > second + 5
    first, second, _ = died("HogWild", "w2@3", code)
    assert second > first + 50
    assert died("HogWild", "w7@1", code, workers=2)[0] > 30  # there is none


@needs_node
def test_a_ps_comes_back_with_its_checkpoint_and_a_worker_with_the_parameters():
    code = """run.advance(5.5); const before = run.cluster.updates; run.advance(9);
    return [run.falls[0].from, run.falls[0].to, before, run.cluster.updates];"""
    at_death, kept, during, later = died("HogWild", "ps@5,w0@5.2,w0@5.4", code)
    assert at_death > kept > 0 and during == kept and later > kept + 50
    code = """run.advance(6.0001); const { scheme, w } = run.cluster;
    return [0, 1].map((k) => Math.hypot(...scheme.w[k].map((each, i) => each - w[i])));"""
    other, reborn = died("AEASGD", "w1@2,w1@6", code, workers=2)
    assert reborn == 0 < other


def test_what_the_page_has_from_python_is_of_today():
    """The digits, and the formulas of the docstrings."""
    command = [sys.executable, ROOT / "build" / "page_data.py", "--check"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr


def test_the_pictures_of_the_front_page_are_of_today():
    assert moving.picture() == (ROOT / "docs/who-waits.svg").read_text()
    drawn = {f"{name}.svg": overview.picture(name) for name in overview.PICTURES}
    assert {path.name: path.read_text() for path in overview.FOLDER.iterdir()} == drawn


def test_the_page_is_small():
    """All files together; and none asks another host for anything."""
    files = [path for path in PAGE.iterdir() if path.suffix in (".js", ".css", ".html")]
    assert sum(path.stat().st_size for path in files) < 300_000
    for path, word in itertools.product(files, ('<script src="http', "@import url", 'fetch("http')):
        assert word not in path.read_text()


@pytest.mark.slow("opens a browser")
def test_a_reader_drags_a_straggler_and_sends_the_address():
    """In the window of a computer: it moves, and follows what the reader does."""
    with browser.served(ROOT) as address, browser.opened() as chromium:
        tab, said = chromium.new_page(viewport={"width": 1280, "height": 900}), []
        tab.set_default_timeout(1e3 * seconds(60))
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.goto(f"{address}/common/page/index.html#scheme=Synchronous-SGD&workers=4")
        wait = "() => Number(document.getElementById('clock').textContent.split(' ')[0]) > 1"
        tab.wait_for_function(wait)
        shares = re.search(r"wait for others (\d+)%", tab.inner_text("#words"))
        assert int(shares[1]) < 20
        lanes = tab.locator(".lanes canvas").bounding_box()
        x, y = lanes["x"] + 100, lanes["y"] + 2.5 * 34
        tab.mouse.move(x, y)
        tab.mouse.down()
        tab.mouse.move(x + 200, y, steps=5)
        tab.mouse.up()
        tab.wait_for_function("() => /slow=1,1,[2-8][.\\d]*$/.test(location.hash)")
        tab.wait_for_function("() => /wait for others [3-9][0-9]%/.test(words.textContent)")
        slider = tab.get_by_role("slider", name="workers", exact=True)
        slider.focus()
        tab.keyboard.press("ArrowRight")
        tab.wait_for_url("**workers=5**")
        assert tab.evaluate("document.activeElement.id") == "set-workers"
        place = slider.bounding_box()
        tab.mouse.move(place["x"] + place["width"] * 4 / 7, place["y"] + place["height"] / 2)
        tab.mouse.down()
        tab.mouse.move(place["x"] + place["width"], place["y"] + place["height"] / 2, steps=8)
        tab.mouse.up()
        tab.wait_for_url("**workers=8**")
        tab.locator("[data-who=w0]").click()
        tab.wait_for_function("() => words.textContent.includes('Worker 0 is dead')")
        tab.wait_for_url("**deaths=w0**")
        tab.get_by_role("button", name="Pause").click()
        again = chromium.new_page()
        again.goto(tab.url)
        assert again.evaluate("location.hash") == tab.evaluate("location.hash")
        tab.set_viewport_size({"width": 390, "height": 800})
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        tab.locator("#pick").select_option("AGN")  # a phone has this in place of the menu
        tab.wait_for_url("**scheme=AGN**")
        again.goto(f"{address}/common/page/index.html#scheme=agn&workers=99")
        again.reload()
        assert again.inner_text("#copied").endswith("not understood: workers=99")
        assert again.inner_text("#formula strong") == "AGN"
        for case in range(10):
            tab.locator("#cases button").nth(case).click()
        assert "deaths=ps" in tab.url
        tab.locator("#skip").focus()
        tab.keyboard.press("Enter")
        assert "deaths=ps" in tab.url and tab.evaluate("document.activeElement.id") == "words"
    assert not said


def events(folder, k: int, steps: list[dict]) -> None:
    usual = {"staleness": 1, "pulled_at": 3, "loss": 0.5, "counted": None}
    lines = [json.dumps(usual | step) + "\n" for step in steps]
    (folder / f"events-worker-{k}.jsonl").write_text("".join(lines))


@pytest.fixture
def run(tmp_path):
    """Of two workers, with times since 1970."""
    launch = {"time": 999.0, "scheme": "HogWild", "flags": {"workers": 2, "ps": 1}}
    (tmp_path / "launches.jsonl").write_text(json.dumps(launch) + "\n")
    times = {"pull": 0.01, "compute": 0.02, "push": 0.03}
    events(tmp_path, 0, [
        {"time": 1000.06 + k, "local_step": k + 1, "global_step": 5 + k, **times,
         "counted": 1000.05 + k} for k in range(3)])  # fmt: skip
    events(tmp_path, 1, [{"time": 1001.0, "local_step": 1, "global_step": 7, **times,
                          "loss": float("inf"), "counted": 1000.9}])  # fmt: skip
    evaluation = {"time": 1002.0, "global_step": 7, "test_loss": 0.25}
    (tmp_path / "evaluations.jsonl").write_text(json.dumps(evaluation) + "\n")
    return tmp_path


def test_the_page_of_a_run_has_what_happened(run):
    """In one file; as long as there is no summary, it goes on."""
    text = write.write(run).read_text()
    found = json.loads(re.search(r"const RUN = (.*);</script>", text)[1])
    assert found["running"] and found["title"] == "HogWild, 2 workers"
    assert found["steps"][0][1] == [1.0, 0.01, 0.02, 0.03, 1.05, 6, 3, 1, 0.5, 2]
    assert found["steps"][1][0][8] is None  # its loss
    assert found["updates"] == [[0.05, 5, [0]], [1.05, 6, [0]], [2.05, 7, [0]], [0.9, 7, [1]]]
    assert found["evaluations"] == [[2.0, 7, 0.25]]
    assert not re.search(r"<script src|<link rel=.stylesheet|^import |^export ", text, re.M)
    summary = {"scheme": "HogWild", "flags": {"workers": 2}, "global_step": 7, "seconds": 2.06,
               "test_accuracy": 0.9}  # fmt: skip
    (run / "summary.json").write_text(json.dumps(summary))
    text = write.write(run).read_text()
    assert '"running": false' in text and "7 updates in 2.1 s, test accuracy 90.0%." in text


def test_a_run_that_goes_on_from_a_checkpoint_is_not_over(run):
    """The summary is that of the part before."""
    (run / "summary.json").write_text(json.dumps({"scheme": "HogWild", "flags": {"workers": 2}}))
    os.utime(run / "summary.json", (998, 998))
    assert '"running": true' in write.write(run).read_text()


def test_a_run_that_was_killed_does_not_go_on(run):
    found = write.read(run, stopped=True)
    assert not found["running"] and found["about"] == "The run was stopped after update 7."


def test_below_a_cell_it_stands_in_a_frame(run, monkeypatch):
    """The output keeps what the site needs to show the same."""
    shown = []
    monkeypatch.setattr(
        recorded, "display", lambda data, metadata, raw: shown.append((data, metadata))
    )
    recorded.recorded(run)
    ((data, metadata),) = shown
    assert json.loads(metadata["run"]) == write.read(run, stopped=True)
    assert "after update 7" in data["text/plain"]
    output = nbformat.v4.new_output("display_data", {**data}, metadata={**metadata})
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", outputs=[output])])
    kept = notebooks.cleaned(notebook).cells[0].outputs[0]
    assert kept.metadata == metadata and set(kept.data) == {"text/plain"}
    there = json.loads(kept.metadata["run"])
    frame = write.framed(there)
    text = html.unescape(re.search('srcdoc="(.*?)"', frame, re.S)[1])
    assert text == write.page(there)


def test_of_a_long_run_it_has_the_beginning(run, monkeypatch):
    monkeypatch.setattr(write, "STEPS", 2)
    text = write.write(run).read_text()
    found = json.loads(re.search(r"const RUN = (.*);</script>", text)[1])
    assert [len(mine) for mine in found["steps"]] == [2, 1]
    assert "The first 2 steps of each worker" in found["about"]


def test_the_command_says_where_the_page_is(run, tmp_path):
    command = [sys.executable, "-m", "common.commands.page", "--plain"]
    options = {"capture_output": True, "text": True, "cwd": ROOT, "check": False}
    process = subprocess.run([*command, run], **options)
    assert process.returncode == 0 and process.stdout.endswith("run.html\n"), process.stderr
    process = subprocess.run([*command, tmp_path / "nothing"], **options)
    assert process.returncode == 2 and "no launches.jsonl" in process.stderr + process.stdout
    assert len((process.stderr + process.stdout).splitlines()) == 1


@pytest.mark.slow("starts runs")
@pytest.mark.parametrize("folder", ["HogWild", "Many-Workers"])
def test_a_run_is_opened(folder, tmp_path):
    """By the browser that the user has, once; where there is no screen, by none."""
    opened = tmp_path / "opened"
    (tmp_path / "mine").write_text(f'#!/bin/sh\necho "$1" >>{opened}\n')
    (tmp_path / "mine").chmod(0o755)
    for name, screen in (("a", {"DISPLAY": ":99"}), ("b", {})):
        where = tmp_path / name
        command = ["bash", ROOT / folder / "run.sh", "--plain", "--open", "--results", where]
        env = environment(NO_CURVES="1", BROWSER=str(tmp_path / "mine"))
        env = {key: value for key, value in env.items() if "DISPLAY" not in key} | screen
        process = subprocess.run(
            [*command, "--workers", "2", "--steps", "100"], env=env, capture_output=True,
            text=True, timeout=seconds(120), check=False,
        )  # fmt: skip
        assert process.returncode == 0, process.stdout + process.stderr
        assert process.stdout.count("run.html") == 1
        assert '"running": false' in (where / "run.html").read_text()
    eventually(opened.exists, 10)
    assert opened.read_text() == f"file://{tmp_path}/a/run.html\n"


@pytest.mark.slow("opens a browser")
def test_a_click_on_a_mark_says_what_happened(run):
    write.write(run)
    with browser.served(run) as address, browser.opened() as chromium:
        tab = chromium.new_page(viewport={"width": 1280, "height": 700})
        tab.goto(f"{address}/run.html")
        tab.locator("#time").fill("500")
        tab.keyboard.press("0")
        words = tab.inner_text("#words")
        tab.set_viewport_size({"width": 390, "height": 800})
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    assert "Worker 0, update 6, at 1.050 s: loss 0.500" in words
    assert "pulled the parameters after update 3" in words and "computed 20.0 ms" in words


def cases() -> list[tuple[str, ...]]:
    """Title, settings, text and explanation of each case."""
    text = (PAGE / "cases.js").read_text(encoding="utf-8")
    return re.findall(r'\["(.+?)", "(#.+?)",\s+"(.+?)",\s+"(.+?)"\]', text)


def test_each_case_is_explained_by_a_page_that_leads_to_it():
    """The page's README lists them, for GitHub, where the page does not run."""
    readme = (PAGE / "README.md").read_text(encoding="utf-8")
    assert len(cases()) == len(re.findall(r"^### ", readme, re.M)) == 10
    for title, settings, text, explained in cases():
        assert f"### {title}\n\n{text} Explained in [" in readme
        assert f"(../../{explained}). Settings: `{settings}`\n" in readme
        page = (ROOT / explained.partition("#")[0]).read_text(encoding="utf-8")
        assert f"common/page/README.md#{make_site.slug(title)})" in page


def test_on_the_site_such_a_link_leads_to_the_page_with_these_settings():
    text = "[a](../common/page/README.md#a-dead-worker), [b](../common/page/README.md)"
    source = Path("Basics-Tutorial/Recovery.ipynb")
    found = make_site.markdown(text, source, make_site.reading_order())
    assert found.startswith('<a href="../who-waits/index.html#scheme=Synchronous-SGD&amp;workers=4')
    assert found.endswith('">a</a>, [b](../common/page/README.md)')
