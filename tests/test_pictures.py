"""The pictures: what they draw is what was measured; they are small, and sharp."""

import base64
import io
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from conftest import ROOT
from matplotlib.colors import to_hex, to_rgba
from PIL import Image
from test_notebooks import ALL, code_cells, read

from common.pictures import curves, palette, plots, png, timeline
from common.record import trace
from common.teach import draw


def event(number: int, start: float, worker_lag: float = 0.0) -> dict:
    """A step of 10 ms: 3 ms pull, 4 ms compute, 2 ms push; the ps counts it after 8 ms."""
    start += worker_lag
    return {"time": start + 0.009, "local_step": number, "global_step": number, "loss": 1 / number,
            "pulled_at": number - 1, "staleness": 0, "gap": 0.003, "out": 0.007,
            "counted": start + 0.008, "pull": 0.003, "compute": 0.004, "push": 0.002}  # fmt: skip


EVENTS = [[event(2 * i + 1, 0.01 * i) for i in range(30)],
          [event(2 * i + 2, 0.01 * i, 0.005) for i in range(30)]]  # fmt: skip


@pytest.fixture
def axes():
    with plt.style.context(palette.STYLE):
        figure, axes = plt.subplots()
        yield axes
        plt.close(figure)


def coloured(axes, colour: str) -> list:
    """The bars of one colour."""
    return [bar for bar in axes.patches if to_hex(bar.get_facecolor()) == colour]


def marks(axes, colour: str) -> list[float]:
    """Where the lines of one colour stand that are as thick as those of updates."""
    lines = [line for line in axes.lines if line.get_color() == colour and line.get_lw() == 3.5]
    return sorted(line.get_xdata()[0] for line in lines if len(line.get_xdata()))


def test_the_shares_of_a_worker_add_up():
    found = timeline.shares(EVENTS[0])
    assert sum(found.values()) == pytest.approx(1)
    assert found["compute"] == pytest.approx(4 / 10, rel=0.02)
    assert found["wait"] == pytest.approx(1 / 10, rel=0.05)


def test_a_stretch_has_the_length_of_its_steps():
    begin, length = timeline.stretch(EVENTS[0], 4)
    assert length == pytest.approx(0.04)
    assert 0.1 <= begin <= 0.2  # in the middle third
    assert timeline.stretch(EVENTS[0][:2], 4) == pytest.approx((0, 0.019), abs=1e-9)


def test_the_timeline_shows_each_phase_and_each_update_where_it_was(axes):
    updates = trace.read_updates("nowhere", EVENTS)
    timeline.draw(axes, EVENTS, updates, cycles=4)
    begin, _ = timeline.stretch(EVENTS[0], 4)
    for name, milliseconds in (("pull", 3), ("compute", 4), ("push", 2)):
        bars = [bar for bar in coloured(axes, palette.PHASES[name]) if bar.get_width()]
        assert len(bars) >= 8
        assert all(bar.get_width() == pytest.approx(milliseconds) for bar in bars)
    for k, colour in enumerate(map(palette.worker, (0, 1))):
        expected = [1e3 * (e["counted"] - begin) for e in EVENTS[k]]
        expected = [at for at in expected if 0 <= at <= 40]
        assert marks(axes, colour) == pytest.approx(expected) and len(expected) >= 4
    assert [text.get_text() for text in axes.get_yticklabels()] == ["ps", "worker 0", "worker 1"]


def test_an_update_of_several_workers_has_all_their_colours(axes):
    updates = [{"time": 0.155, "number": 31, "workers": [0, 1]}]
    timeline.draw(axes, EVENTS, updates, cycles=10)
    at = marks(axes, palette.worker(0))
    assert len(at) == 1 and at == marks(axes, palette.worker(1))


def arrows(axes, colour: str) -> list[tuple[float, float]]:
    """Start and end of the arrows of one colour, in milliseconds."""
    found = [a for a in axes.texts if a.arrow_patch.get_edgecolor() == to_rgba(colour)]
    return sorted((arrow.xyann[0], arrow.xy[0]) for arrow in found)


def test_arrows_go_from_the_read_to_the_worker_and_from_there_to_the_update(axes):
    timeline.draw(axes, EVENTS, trace.read_updates("nowhere", EVENTS), cycles=4)
    pulled, pushed = arrows(axes, palette.PULL), arrows(axes, palette.PUSH)
    assert len(pulled) >= 6 and len(pushed) >= 6
    assert [end - start for start, end in pulled] == pytest.approx([2] * len(pulled))  # read at 1
    assert [end - start for start, end in pushed] == pytest.approx([1] * len(pushed))  # sent at 7
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names[-3:] == ["update (colour: worker)", "from ps", "to ps"]


def test_a_synchronous_pull_begins_at_the_update_that_it_waited_for(axes):
    events = [[e | {"out": None, "counted": None} for e in EVENTS[0]]]
    updates = [{"time": e["counted"] + 0.0035, "number": e["global_step"], "workers": [0]}
               for e in EVENTS[0]]  # fmt: skip
    events = [[e | {"pulled_at": e["global_step"] - 2} for e in events[0]]]
    timeline.draw(axes, events, updates, cycles=4)
    pulled = arrows(axes, palette.PULL)  # the update is 1.5 ms after the step's begin
    assert pulled and [end - start for start, end in pulled] == pytest.approx([1.5] * len(pulled))


def test_the_chief_has_a_lane_if_it_keeps_the_parameters(axes):
    assert timeline.keeper_of({"tasks": [{"job": "chief"}, {"job": "worker"}]}) == "chief"
    assert timeline.keeper_of({"tasks": [{"job": "chief"}, {"job": "ps"}]}) == "ps"
    assert timeline.keeper_of({"tasks": [{"job": "worker"}]}) == ""
    timeline.draw(axes, EVENTS, trace.read_updates("nowhere", EVENTS), keeper="chief")
    assert axes.get_yticklabels()[0].get_text() == "chief"


def test_workers_that_share_a_step_have_lanes_of_their_own(axes, tmp_path):
    line = [["forward", 0, 0, 0.153, 0.154], ["forward", 1, 0, 0.155, 0.156]]
    (tmp_path / "clocks.jsonl").write_text(json.dumps(line) + "\n")
    clocks = curves.read(ROOT / "Model-Parallelism").computing(tmp_path)
    assert clocks == {0: [(0.153, 0.154)], 1: [(0.155, 0.156)]}
    timeline.draw(axes, [EVENTS[0], []], [], computing=clocks, cycles=20)
    assert [text.get_text() for text in axes.get_yticklabels()] == ["worker 0", "worker 1"]
    bars = coloured(axes, palette.COMPUTE)
    assert [bar.get_width() for bar in bars] == pytest.approx([1, 1])
    assert bars[1].get_x() - bars[0].get_x() == pytest.approx(2)
    assert timeline.shares([], clocks[1])["compute"] == 1


def test_without_a_ps_there_is_no_lane_for_it(axes):
    timeline.draw(axes, EVENTS[:1], trace.read_updates("nowhere", EVENTS), keeper="")
    assert [text.get_text() for text in axes.get_yticklabels()] == ["worker 0"]


def test_the_updates_of_a_synchronous_run_come_from_its_own_file(tmp_path):
    (tmp_path / "updates.jsonl").write_text('{"time": 5.0, "global_step": 1, "workers": [1, 0]}\n')
    assert trace.read_updates(tmp_path, EVENTS) == [{"time": 5.0, "number": 1, "workers": [1, 0]}]
    others = trace.read_updates("nowhere", [[EVENTS[0][0] | {"counted": None}]])
    assert others == []  # not measured


def test_few_points_are_not_joined(axes):
    known = [{"global_step": i, "test_accuracy": 0.1 * i} for i in range(1, 4)]
    plots.tested(axes, EVENTS, known, time=False)
    assert axes.lines[0].get_linestyle() == "None" and len(axes.lines[0].get_xdata()) == 3


def test_errors_are_told_apart_however_small_they_are(axes):
    """On a logarithmic axis that they fill; no error at all is drawn as half an example."""
    known = [{"global_step": k, "test_accuracy": right, "examples": 1000}
             for k, right in enumerate([0.2, 0.9, 0.98, 1.0])]  # fmt: skip
    plots.tested(axes, EVENTS, known, time=False)
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [80, 10, 2, 0.05])
    assert (axes.get_yscale(), axes.get_ylabel()) == ("log", "test error")
    low, high = axes.get_ylim()
    assert 0.02 < low < 0.05 and 80 < high < 160
    axes.figure.canvas.draw()
    assert {"0.1%", "1%", "10%"} <= {text.get_text() for text in axes.get_yticklabels()}


def test_no_error_on_an_unknown_number_of_examples_is_drawn(axes):
    """TensorFlow-2's evaluations do not say on how many."""
    plots.tested(
        axes, EVENTS, [{"global_step": k, "test_accuracy": 1.0} for k in (0, 1)], time=False
    )
    assert axes.lines[0].get_ydata().tolist() == [0.05, 0.05]


def test_a_loss_is_logarithmic_but_no_return(axes):
    plots.learning(axes, EVENTS)
    assert axes.get_yscale() == "log" and axes.get_ylim()[0] > 0
    _, others = plt.subplots()
    plots.learning(others, [[e | {"return": -e["loss"]} for e in EVENTS[0]]], what="return")
    assert others.get_yscale() == "linear"


def test_a_run_that_has_diverged_can_be_drawn(axes):
    bad = [[e | {"loss": np.nan} for e in EVENTS[0]], [e | {"loss": np.inf} for e in EVENTS[1]]]
    plots.learning(axes, bad)
    axes.figure.canvas.draw()


def test_the_time_is_marked_where_it_was(axes):
    plots.learning(axes, EVENTS)
    labels = {text.get_text(): text.get_position()[0] for text in axes.texts}
    assert labels["0.1 s"] == pytest.approx(20, abs=1)  # two workers, a step in 10 ms each


@pytest.mark.parametrize(
    ("staleness", "dropped", "title"),
    [(2, 0, "How stale, without the start?"), (0, 3, "Who came too late?"),
     (0, 0, "Where does the time go?")],
)  # fmt: skip
def test_a_panel_shows_what_there_is_to_see(axes, staleness, dropped, title):
    tasks = [{"job": "worker", "index": k, "contributed": 9, "dropped": dropped} for k in (0, 1)]
    # Only the first update is very stale: that is the start, and stays out.
    events = [[e | {"staleness": staleness if i else 9} for i, e in enumerate(mine)]
              for mine in EVENTS]  # fmt: skip
    plots.apart(axes, {"tasks": tasks}, events)
    assert axes.get_title(loc="left") == title
    assert not staleness or axes.get_xlim()[1] < 3


def test_a_run_of_one_step_has_no_start_to_leave_out(axes):
    one = [EVENTS[0][:1], []]
    assert trace.steady(one) == one
    plots.apart(axes, {"tasks": []}, one)
    assert axes.patches


def test_what_one_worker_did_alone_belongs_to_the_start():
    """The other one's process needed longer to start; nothing was stale until then."""
    late = [EVENTS[0], [event(60 + i, 0.15 + 0.01 * i) for i in range(9)]]
    since = trace.began(late[1][0])
    assert trace.steady(late) == [[e for e in EVENTS[0] if trace.began(e) >= since], late[1]]
    alone = [EVENTS[0], [event(60, 1.0)]]  # it began when all else was over
    assert trace.steady(alone) == [EVENTS[0][21:], alone[1]]  # so only the first fifth is left out


def test_a_diagram_says_what_it_draws(monkeypatch):
    shown = []
    monkeypatch.setattr(draw, "display", lambda data, **about: shown.append((data, about)))
    draw.diagram({"ps": (0, 0, "ps"), "worker 0": (2, 0, "worker 0")},
                 [("ps", "worker 0", "pull", "weights"), ("worker 0", "ps", "push", "gradients")],
                 title="Two tasks")  # fmt: skip
    ((data, about),) = shown
    assert data["text/plain"] == about["metadata"]["image/png"]["alt"]
    for words in ("Two tasks", "ps to worker 0: pull", "worker 0 to ps: push"):
        assert words in data["text/plain"]
    assert data["image/png"].startswith(b"\x89PNG")


def test_no_box_of_a_diagram_is_cut_off():
    with pytest.raises(
        ValueError, match=r"the box 'one client:.*' does not fit: shorten its lines"
    ):
        draw.diagram({"ps": (0, 0, "ps"), "one client: a long line": (2, 0, "client")}, size=(4, 2))
    plt.close()


def test_a_smooth_curve_keeps_a_constant():
    np.testing.assert_allclose(plots.smooth([2.0] * 9, 4), 2.0)


def stored(path: str) -> list[tuple[bytes, int]]:
    """The pictures of a notebook, and how wide each is shown."""
    outputs = [output for cell in code_cells(read(path)) for output in cell.outputs]
    return [(base64.b64decode(output.data["image/png"]), output.metadata["image/png"]["width"])
            for output in outputs if "image/png" in output.get("data", {})]  # fmt: skip


def files() -> list[Path]:
    return [path for path in ROOT.glob("[!.]*/**/*.png") if not {"results", "web"} & {*path.parts}]


@pytest.mark.parametrize("path", ALL)
def test_every_picture_of_a_notebook_is_small(path):
    for picture, _ in stored(path):
        assert len(picture) <= png.LIMIT
        assert Image.open(io.BytesIO(picture)).mode == "P"


@pytest.mark.parametrize("path", ALL)
def test_every_picture_of_a_notebook_is_sharp(path):
    """On a screen with twice the usual pixels."""
    for picture, width in stored(path):
        sharp = png.width(picture)
        assert sharp >= width, f"run build/refresh.sh --notebooks {path}"


def test_every_picture_of_a_page_is_small():
    assert files()
    for path in files():
        assert path.stat().st_size <= png.LIMIT, path
        assert Image.open(path).mode == "P", path


def test_every_picture_of_a_page_is_sharp():
    """GitHub and the site show a page's text, and so its pictures, about 825 pixels wide."""
    for path in files():
        sharp = png.width(path.read_bytes())
        assert sharp >= 825, f"run build/refresh.sh {path.parent.name}"


def test_a_small_picture_keeps_colours_and_smooth_edges(axes):
    for k in range(8):
        axes.plot([0, 1 + k], color=palette.worker(k), lw=3)
    axes.set_title("Letters")
    large = png.drawn(axes.figure)
    few = png.small(large)
    assert len(few) < len(large) / 3
    assert png.width(few) == axes.figure.get_figwidth() * axes.figure.dpi
    before, after = (np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), int)
                     for data in (large, few))  # fmt: skip
    assert np.abs(before - after).max() <= 32  # the colours along an edge; seen by nobody
    assert np.abs(before - after).mean() < 0.5
    for k in range(8):
        exact = 255 * np.array(to_rgba(palette.worker(k))[:3])
        assert np.abs(after - exact).sum(-1).min() <= 6
    assert (after[0, 0] == 255).all()  # the paper stays white
    assert len(np.unique(after.reshape(-1, 3), axis=0)) > 32  # edges stay smooth


def test_a_large_picture_gets_fewer_colours():
    grey = np.random.default_rng(0).integers(0, 256, (200, 400, 1), np.uint8).repeat(3, 2)
    for rows, most, least in ((100, png.COLOURS[0], png.COLOURS[1]), (200, png.COLOURS[1], 0)):
        file = io.BytesIO()
        Image.fromarray(grey[:rows]).save(file, "PNG")
        few = png.small(file.getvalue())
        assert len(few) < png.LIMIT
        found = len(Image.open(io.BytesIO(few)).getcolors())
        assert least < found <= most
