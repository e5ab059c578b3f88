"""What should become of a disturbed run, whether it does, and the table; used by `faults.py`."""

import math
import statistics
from collections import Counter, defaultdict
from typing import NamedTuple

PAUSES = {"stop": 20, "cut": 5}  # seconds that these faults last
PATIENCE = 60  # extra seconds that a run may take; more means it waits for what never comes
NAMES = {
    "kill": "SIGKILL", "term": "SIGTERM", "stop": "stopped for 20 s", "cut": "link cut for 5 s",
    "two": "two killed at once",
}  # fmt: skip
WHAT, LEFT = ("missing", "twice"), ("processes", "ports", "files")
HEAD = """# What becomes of a run that is disturbed

`measure/faults.py` starts every example, kills or stops a task or the launcher, or pulls the cable,
and looks at what is left. Each cell says how many runs ended as they should, and how much longer
they took than an undisturbed run (the median). A run should be complete: exit code 0, and exactly
as many updates as requested. When TensorFlow-2 loses a task, it may run a step twice: up to 10 more
updates count as complete. Only if the launcher is killed may the run end early. No process, port or
file outside the results may be left behind.
"""
UNDATED = "2026-11-24"  # when the records without a date were measured
NUMBERS = """\
The exit codes of all runs, and how many runs had each. Of the runs that ended with 0: how many
more or fewer updates they made than asked; how many numbers are missing or occur twice in the
events, and in `updates.jsonl` (the worst run); the seconds lost (the median, and the worst run).
Of all runs together: the processes, ports and files left behind.
"""


class Expected(NamedTuple):
    """What a run should come to, and why."""

    codes: tuple[int, ...]
    complete: bool  # with exactly as many updates as asked
    missing: float  # how many lines may be missing from the events
    twice: float  # how many may be duplicated there
    why: str


def expected(record: dict, like: dict) -> Expected:
    """What a disturbed run should come to; `like` is the undisturbed one. All should recover.

    A task writes its events every 0.25 s, or less often if that took over a tenth of the time, as
    it does on a busy machine. A checkpoint is saved once a second. The bounds are wider, since a
    disturbed run may be faster than the undisturbed one.
    """
    fault, who, example = record["fault"], record["who"].split(" and "), record["example"]
    second = like["lines"] / like["trained"]  # lines in a second
    if who == ["launcher"] and fault == "kill":
        return Expected((-9,), False, math.inf, math.inf, "all tasks end with their launcher")
    if who == ["launcher"] and fault == "term":
        why = "the launcher ends its tasks, or finishes if everything was already done"
        return Expected((143, 0), False, math.inf, math.inf, why)
    if fault in PAUSES:
        return Expected((0,), True, 0, 0, "nothing dies: all wait, or go on without the task")
    missing, twice = second, like["times"] * len(who)
    why = "the task is restarted; it may not have written its last steps, or may repeat one"
    if "ps" in who or ("chief" in who and like["chief_has_all"]):
        twice = 4 * second
        why = "the parameters are restored, and the updates after the checkpoint are repeated"
    if example.startswith("TensorFlow-2"):
        twice = 4 * second
        why = "its README: after any loss the program starts again from the newest checkpoint"
    if example.startswith("One-Network-per-Device"):
        twice = like["lines"] / 4 * len(who)
        why = "a worker starts its trial (one of four) over"
    return Expected((0,), True, missing, twice, why)


def wrong(record: dict, like: dict) -> list[str]:
    """What is not as expected, in words; an empty list if everything is."""
    if "struck" not in record:  # undisturbed, or from the soak, which lists its own faults
        return record.get("wrong", [])
    if not record["struck"]:
        return ["the moment had already passed in every attempt"]
    want, found = expected(record, like), []
    asked, made = like["asked"], record["made"]
    # The README of TensorFlow-2 says that a step in flight may be made twice.
    more = 10 if record["example"] == "TensorFlow-2" and record["fault"] not in PAUSES else 0
    if record["code"] not in want.codes:
        found.append(f"exit code {record['code']}: {record['says']}")
    elif (want.complete or record["code"] == 0) and not asked <= (made or 0) <= asked + more:
        found.append(f"{made} of {asked} updates")
    if record["traceback"]:
        found.append("a traceback on the screen")
    for lines, most in (("missing", want.missing), ("twice", want.twice + more)):
        for name in ("events", "updates"):
            if record[f"{name}_{lines}"] > most:
                found.append(f"{record[f'{name}_{lines}']} {lines} in the {name}")
    if record["broken"]:
        found.append(f"{record['broken']} lines that cannot be read")
    for what in LEFT:
        if record[what]:
            found.append(f"{len(record[what])} {what} left: {record[what][0]}")
    if record["lost"] > PAUSES.get(record["fault"], 0) + PATIENCE:
        found.append(f"{record['lost']:.0f} s longer")
    return found


def all_wrong(records: list[dict]) -> list[tuple[dict, list[str]]]:
    like = {record["example"]: record for record in records if record["fault"] == "none"}
    found = [(record, wrong(record, like.get(record["example"], {}))) for record in records]
    return [(record, words) for record, words in found if words]


def table(records: list[dict], rows: str, bad: list[dict]) -> list[str]:
    """A row for each example, or each `who`; a column for each fault."""
    cells = defaultdict(list)
    for record in records:
        cells[record[rows], record["fault"]].append(record)
    columns = [fault for fault in NAMES if any(fault == there for _, there in cells)]
    lines = ["| | " + " | ".join(NAMES[fault] for fault in columns) + " |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for name in dict.fromkeys(record[rows] for record in records):
        row = [name]
        for fault in columns:
            each = cells[name, fault]
            good = sum(record not in bad for record in each)
            whole = [record["lost"] for record in each if record["code"] == 0]
            longer = f", {statistics.median(whole):+.1f} s" if whole else ""
            count = f"{good} of {len(each)}" if good == len(each) else f"**{good} of {len(each)}**"
            row.append(count + longer if each else "")
        lines.append("| " + " | ".join(row) + " |")
    return lines


def text(records: list[dict]) -> str:
    """The page."""
    records = sorted(records, key=lambda record: record["example"])
    cells = [record for record in records if "struck" in record]
    like = [record for record in records if record["fault"] == "none"]
    faults = all_wrong(records)
    bad = [record for record, _ in faults]
    days = sorted({record.get("date", UNDATED) for record in records} or {UNDATED})
    measured = " to ".join(dict.fromkeys([days[0], days[-1]]))
    page = [HEAD, f"Measured with the code of {measured}, not with later changes.", ""]
    if cells:
        who = sorted(cells, key=lambda record: (" and " in record["who"], record["who"]))
        page += ["## By example", "", *table(cells, "example", bad), ""]
        page += ["## By what is disturbed", "", *table(who, "who", bad), ""]
        page += ["## In numbers", "", NUMBERS, *numbers([*like, *who]), ""]
    page += [line for record in records for line in record.get("page", [])]
    if faults:
        page += ["## Not as it should be", ""]
        for record, words in faults:
            name = " ".join(record[key] for key in ("example", "fault", "who", "moment"))
            page.append(f"- {name}: {'; '.join(words)}")
        page.append("")
    return "\n".join(page)


def numbers(records: list[dict]) -> list[str]:
    """What was seen, by who and fault: a row for each. The undisturbed runs are among `records`."""
    asked = {record["example"]: record["asked"] for record in records if record["fault"] == "none"}
    cells = defaultdict(list)
    for record in records:
        if "struck" in record:
            cells[record["who"], record["fault"]].append(record)
    head = ["", "runs", "exit codes", "updates", "missing", "twice", "missing in updates.jsonl",
            "twice there", "seconds lost", "at most", "processes", "ports", "files"]  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for (who, fault), each in cells.items():
        codes = Counter("none" if record["code"] is None else record["code"] for record in each)
        row = [f"{who}: {NAMES[fault]}", len(each)]
        row.append(", ".join(f"{code} ({n})" if codes.keys() - {code} else f"{code}"
                             for code, n in codes.items()))  # fmt: skip
        whole = [record for record in each if record["code"] == 0]
        if whole:
            off = [(record["made"] or 0) - asked[record["example"]] for record in whole]
            row.append(f"{min(off):+d} to {max(off):+d}" if any(off) else "all")
            for name in ("events", "updates"):
                row += [max(record[f"{name}_{what}"] for record in whole) for what in WHAT]
            lost = [record["lost"] for record in whole]
            row += [f"{statistics.median(lost):+.1f}", f"{max(lost):+.1f}"]
        else:
            row += [""] * 7
        row += [sum(len(record[what]) for record in each) for what in LEFT]
        lines.append(f"| {' | '.join(map(str, row))} |")
    return lines
