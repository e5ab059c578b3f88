"""What moves while a reader watches: sliders in JupyterLab, and the progress of a run."""

import asyncio
import base64
import io
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import browser
import jupyter_client
import matplotlib.pyplot as plt
import nbformat
import notebooks
import numpy as np
import pytest
import Recovery_run
from conftest import ROOT, environment, eventually
from machine import seconds
from matplotlib.figure import Figure
from PIL import Image
from test_notebooks import ALL, code_cells, frames, read

from common.teach import draw, play, progress, running

FIRST = code_cells(read("HogWild/HogWild.ipynb"))[0].source  # finds the collection
DRAWS = """
def line(axes, slope=1, start=0.0):
    axes.plot([0, 1], [start, start + slope])
    axes.set(ylim=(-5, 5), title=f"slope {slope}")
notebook.play(line, "A line with the slope.", slope=range(-3, 4), start=[0.0, 1.0])
"""


def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def lab(tmp_path):
    """The address of a JupyterLab on a folder below the collection's root, and that folder."""
    results = ROOT / "HogWild" / "results"
    results.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="lab-", dir=results))
    news = tmp_path / "settings/@jupyterlab/apputils-extension/notification.jupyterlab-settings"
    news.parent.mkdir(parents=True)
    news.write_text('{"fetchNews": "false"}')  # else a question comes up, and closes the menu
    number, token = port(), "a" * 32
    address = f"http://127.0.0.1:{number}"
    with open(tmp_path / "lab.log", "w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={number}",
             f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={folder}",
             "--ServerApp.port_retries=0", "--LabApp.news_url=None"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            env=environment(
                JUPYTER_CONFIG_DIR=str(tmp_path / "config"),
                JUPYTERLAB_SETTINGS_DIR=str(tmp_path / "settings"),
            ),
        )  # fmt: skip

    def ready() -> bool:
        try:
            return urllib.request.urlopen(f"{address}/api", timeout=5).status == 200
        except OSError:
            return False

    try:
        assert eventually(ready, 60), (tmp_path / "lab.log").read_text()
        yield address, token, folder
    finally:
        server.terminate()
        server.wait(seconds(30))
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        folder.rmdir()


def until_played(path: str) -> list[str]:
    """The code cells of a notebook up to its first slider."""
    cells = [cell.source for cell in code_cells(read(path))]
    last = next(i for i, source in enumerate(cells) if "notebook.play(" in source)
    return cells[: last + 1]


PLAYED = {"a line": [FIRST + DRAWS], "AGN": until_played("AGN/AGN.ipynb"),
          "All-Reduce": until_played("Basics-Tutorial/All-Reduce.ipynb")}  # fmt: skip


@pytest.mark.slow("opens JupyterLab in a browser")
@pytest.mark.parametrize("name", PLAYED)
def test_a_slider_changes_the_picture_in_jupyterlab(lab, name):
    address, token, folder = lab
    cells = [nbformat.v4.new_code_cell(source) for source in PLAYED[name]]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata = {"kernelspec": notebooks.KERNEL}
    nbformat.write(notebook, folder / "play.ipynb")
    with browser.opened() as chromium:
        tab = chromium.new_page()
        tab.set_default_timeout(1e3 * seconds(60))
        tab.goto(f"{address}/lab/tree/play.ipynb?token={token}")
        tab.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for()  # has a kernel
        cell = tab.locator(".jp-Notebook .jp-Cell").first
        begun = cell.locator(".jp-InputPrompt:not(:text-is('[ ]:'))")
        for _ in range(3):  # JupyterLab may lose a click while it still loads
            cell.click()
            tab.get_by_role("menuitem", name="Run", exact=True).click()
            tab.get_by_text("Run All Cells", exact=True).click()
            if eventually(begun.is_visible, 10):
                break
        picture = tab.locator(".jp-OutputArea .widget-html img")
        if not eventually(picture.is_visible, 60):
            pytest.fail(f"no picture; the page says:\n{tab.locator('body').inner_text()}")
        ended = f"[{len(cells)}]:"  # the last cell has ended, so the slider keeps the focus
        tab.get_by_text(ended, exact=True).wait_for()
        pictures = tab.locator(".jp-OutputArea img").count()
        assert len(cells) > 1 or pictures == 1  # the frames do not stand there, too
        slider = tab.locator(".jp-OutputArea .widget-slider [role=slider], .noUi-handle").first
        readout = tab.locator(".widget-readout").first
        before, value = picture.get_attribute("src"), readout.inner_text()
        slider.press("ArrowRight")
        assert eventually(lambda: picture.get_attribute("src") != before, 30)
        assert readout.inner_text() != value
        assert f" {readout.inner_text()}" in picture.get_attribute("alt")
        picture.evaluate("image => image.decode()")
        assert picture.get_attribute("src").startswith("data:image/svg")  # sharp on every screen


@pytest.mark.parametrize("path", [path for path in ALL if frames(path)])
def test_the_frames_differ(path):
    """So do the pictures that the slider shows: they come from the same function."""
    for cell in code_cells(read(path)):
        for output in cell.outputs:
            about = output.get("metadata", {}).get("image/png", {}).get("frames")
            if about:
                data = base64.b64decode(output.data["image/png"])
                whole = np.asarray(Image.open(io.BytesIO(data)))
                rows = -(-len(about["labels"]) // about["columns"])
                parts = [part for row in np.vsplit(whole, rows)
                         for part in np.hsplit(row, about["columns"])]  # fmt: skip
                shown = {part.tobytes() for part in parts[: len(about["labels"])]}
                assert len(shown) == len(about["labels"])


def test_frames_stand_in_a_grid():
    frame = draw.finished(plt.figure(figsize=(2, 1), dpi=50), 1)
    assert Image.open(io.BytesIO(play.montage([frame] * 3))).size == (200, 100)


def test_frames_may_be_drawn_in_another_way(monkeypatch):
    """By default with `draw`; both are small, and sharp at the width that they state."""
    shown = []
    monkeypatch.setattr(play, "display", lambda data, metadata, raw: shown.append((data, metadata)))

    def line(axes, slope=1):
        axes.plot([0, slope])

    def point(axes, slope=1):
        axes.plot(slope, "o")

    for size, still in (((8, 5), None), ((8, 5), point)):
        play.play(line, "Lines or points.", size, still, slope=range(3))
    wide, usual = ((Image.open(io.BytesIO(data["image/png"])), about["image/png"]["width"])
                   for data, about in shown)  # fmt: skip
    assert wide[0].width == 2 * wide[1] and usual[0].width == 2 * usual[1]
    assert usual[1] == round(2 * play.SIZE[0] * plt.rcParams["figure.dpi"] * 0.75) < wide[1]


@pytest.fixture
def boxes(monkeypatch) -> list[list]:
    """The widgets of each `play.play`, which then shows nothing."""
    found, real = [], play.ipywidgets.VBox
    monkeypatch.setattr(play, "display", lambda *_, **__: None)
    monkeypatch.setattr(play.ipywidgets, "VBox", lambda each: found.append(each) or real(each))
    return found


async def settled(picture) -> None:
    """Waits until the picture shows what the sliders say."""
    while play.OLD in picture._dom_classes:
        await asyncio.sleep(0.01)


def test_only_the_last_of_many_moves_is_drawn(boxes):
    """Until then, the old picture says that it is old. The new one is described by its values."""
    drawn = []

    def line(axes, link_mbit=1, steps=2):
        drawn.append((link_mbit, steps))
        axes.plot([0, link_mbit])
        axes.set_title(f"{steps} <steps>")

    play.play(line, "Lines.", units={"link_mbit": "Mbit/s"}, link_mbit=range(1, 20), steps=(2, 3))
    ((link, steps, says, picture),) = boxes
    assert link.options[3] == ("4 Mbit/s", 4) and steps.options == (("2", 2), ("3", 3))
    assert 'alt="link mbit 1 Mbit/s, steps 2. 2 &lt;steps&gt;"' in picture.value
    drawn.clear()

    async def drag():
        before = picture.value
        for value in range(2, 9):
            link.value = value
        steps.value = 3
        assert (picture.value, drawn) == (before, [])
        assert "drawing ..." in says.value and play.OLD in picture._dom_classes
        await settled(picture)

    asyncio.run(drag())
    assert drawn == [(8, 3)] and "drawing" not in says.value
    assert 'alt="link mbit 8 Mbit/s, steps 3. 3 &lt;steps&gt;"' in picture.value


def test_a_steady_layout_is_that_of_the_first_picture(monkeypatch, boxes):
    """Else each picture has its own: wider ticks move the axes."""
    found = []

    def draws(figure, *args, **kwargs):
        savefig(figure, *args, **kwargs)
        places = [part.get_position() for part in [*figure.axes, *figure.texts]]
        found.append([place if isinstance(place, tuple) else place.bounds for place in places])

    savefig = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", draws)

    def line(axes, high=1):
        axes.plot([0, high])
        axes.figure.suptitle(f"up to {high}")

    async def move(slider, picture) -> None:
        slider.value = 1_000_000
        await settled(picture)

    for steady in (True, False):
        play.play(line, "A line.", steady=steady, high=(1, 1_000_000))
        slider, _, picture = boxes.pop()
        asyncio.run(move(slider, picture))
        assert (found[-1] == found[-2]) is steady


@pytest.mark.slow("starts a run, and kills its tasks")
def test_a_button_kills_a_task_and_the_lanes_answer(monkeypatch):
    boxes = []
    monkeypatch.setattr(Recovery_run, "display", lambda *_, **__: None)
    real = Recovery_run.ipywidgets.VBox
    monkeypatch.setattr(Recovery_run.ipywidgets, "VBox",
                        lambda each: boxes.append(each) or real(each))  # fmt: skip
    run = Recovery_run.Disturbed("HogWild", "--delay", "0:0.02,1:0.02", "--steps", 10**6)

    async def click() -> None:
        Recovery_run.buttons(run)
        ((row, picture),) = boxes
        for name in ("worker 1", "worker 1"):  # a second click finds nobody, or the new one
            next(each for each in row.children if each.description == f"kill {name}").click()
        while "worker 1 dies" not in picture.value:
            await asyncio.sleep(0.1)

    try:
        for k in (0, 1):
            run.wait_for(k, 5, seconds(120))
        asyncio.run(asyncio.wait_for(click(), seconds(60)))
        run.wait_for(1, 5, seconds(120))  # it is back
    finally:
        run.end()
    assert "The run is over, at update" in Recovery_run.lanes(run, time.time())


def test_bars_show_how_a_loss_falls():
    assert progress.bars([8, 4, 0]) == "█▅▁"
    assert len(progress.bars(list(range(1000)))) == 40
    assert progress.bars([0.0, float("nan")]) == "▁▁"
    assert progress.bars([1.0] * 40 + [float("inf")] * 40) == "▁" * 20 + "█" * 20  # diverges


@pytest.mark.slow("a kernel and a run in it")
def test_a_run_shows_its_loss_while_it_runs():
    manager = jupyter_client.KernelManager(kernel_name="python3")
    manager.start_kernel(env=environment(), cwd=str(ROOT / "HogWild"))
    client = manager.client()
    client.start_channels()
    texts = []

    def note(message):
        if message["msg_type"] in ("display_data", "update_display_data"):
            texts.append(message["content"]["data"]["text/plain"])

    try:
        client.wait_for_ready(seconds(60))
        answer = client.execute_interactive(
            FIRST + "\nrun = notebook.run('HogWild', '--steps', 400, '--delay', '0:0.01,1:0.01')",
            timeout=seconds(120), output_hook=note,
        )  # fmt: skip
        assert answer["content"]["status"] == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    first, *during, last = texts
    assert first.endswith("starting ...")
    steps = [int(found[1]) for text in during if (found := re.search(r"step (\d+)  loss", text))]
    assert len(steps) >= 2 and steps == sorted(steps) and steps[0] < steps[-1] <= 400
    assert any(set(text) & set(progress.BARS) for text in during)
    assert last.startswith("$ bash HogWild/run.sh --steps 400") and "test accuracy" in last


def test_a_changed_copy_differs_in_one_piece():
    copy = running.changed("HogWild", "GradientDescentOptimizer", "MomentumOptimizer")
    original = (ROOT / "HogWild" / "worker.py").read_text()
    expected = original.replace("GradientDescentOptimizer", "MomentumOptimizer")
    assert (copy / "worker.py").read_text() == expected != original
    assert (copy / "run.sh").exists() and (copy.parent / "common" / "setup.sh").exists()
    with pytest.raises(ValueError, match="contains 0 times: no such line"):
        running.changed("HogWild", "no such line", "")
