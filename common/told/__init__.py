"""What a task was told: its command line, its example's defaults, `TF_CONFIG`; and checks.

This page lists every convention between an example, `run.sh` and the tasks.

What an example says
====================
`DEFAULTS` is a dictionary of literals in the folder's main script: `chief.py` if there is one, else
`worker.py` or `train.py`. The launcher reads it without running the script (`example.py`).

    "workers": 2     this many worker processes
               1     and no other number is accepted
               None  one per GPU, or 2 without a GPU
    "ps":      1     this many parameter servers (or more): `ps.py`
               0     none: one process runs all replicas, and no server
               None  none, but several processes
    "chief":   1     one more process runs the script that says so; each worker runs `worker.py`

These three say what to start; "chief" is no flag. All others are flags (`common/flags.py`). The
value of a known flag is its default in this example, with two exceptions:

    None             the example refuses the flag, if all examples have it
    ("a", "b")       the flag accepts only these words; the first one is the default
    "data": "x.csv"  a file in the folder; if it is no .npz, the example reads it itself
    "model": "own"   the example's only network

Any other name becomes a flag with the type of its default: `True` or `False` (`--name`,
`--no-name`), a number, a text, a list of numbers (`--name 1,2`), a tuple of words (choices). A few
examples check a flag more closely, or say on the screen what others do not: in their `about.py`
(`common/told/about.py` describes it). Panels of their own for curves.png are in their `curves.py`
(`common/pictures/curves.py`). Both are copied along with the folder.

Which script runs
=================
The main script, unless a flag chooses another one in the folder: `--mode towers` runs `towers.py`,
if `DEFAULTS` list the choices of `mode` in a tuple, and `towers.py` exists (not for `data` and
`model`); `--dense` runs `dense.py`, if it is a flag that is on or off, and off by default;
`--threads N` runs `threads.py`. `DEFAULTS` of all scripts of a folder must be equal,
except "workers", "ps", "chief", "threads" and tuples of words: `--help` shows the main script's.

The launcher passes to each task all flags that were given, then `--results`, `--checkpoint_dir`,
`--JOB_hosts` for each job, `--job_name` and `--task_index`. A task that lacks one of these was
started by hand: it reads `TF_CONFIG`, runs all checks itself, and writes `task-JOB-INDEX.json`
(`by_hand.py`).

What a task says
================
A task prints to its log, `logs/JOB-INDEX.log`. Some beginnings of a line mean something:

    "> "            run.sh shows the rest of the line on the screen
    "error: "       with exit code 2: the sentence that run.sh shows as the reason (`common.fail`)
    "[worker K] "   how far worker K is, for people: run.sh reads the events, not these lines

TensorFlow and Python write to it, too. run.sh shows the lines from `Traceback` on as the reason of
exit code 1, and says that memory ran out if a task that aborts wrote `std::bad_alloc` or the like
(`common/record/faults.py`). A task acts on its own line `RunStep still blocked after ...`, and says
`TensorFlow aborted a call by mistake; nothing is lost` (`common/graph/aborts.py`).

Exit codes
==========
    0        a task: its work is done; run.sh: all results are written
    1        an error that nobody foresaw, with a traceback; run.sh: a task ended so or died too
             often, or the time is over
    2        wrong input, or this machine lacks something: one line that begins with `error: `
    128 + N  run.sh was stopped by signal N: 130 by Ctrl-C, 143 by SIGTERM

run.sh restarts a task that a signal killed, `--max_restarts` times; after any other exit code but 0
it ends the run.

Environment variables
=====================
A user may set these:

    PYTHON                 the Python that run.sh uses as it is, in place of .venv
    DATA_DIR               where downloaded data is kept; default: ~/.cache/distributed-tensorflow
    TF_CONFIG              the task and its cluster as JSON, where flags do not give them
    NO_CURVES              if set, run.sh draws no curves.png; the notebooks set it
    DISPLAY, WAYLAND_DISPLAY  without both, there is no screen on which --open could show a run
    CUDA_VISIBLE_DEVICES   CUDA's: which GPUs a process may use
    TF_CPP_MIN_LOG_LEVEL   TensorFlow's: how much its core logs; default here: 2, only errors
    TF_ENABLE_ONEDNN_OPTS  TensorFlow's: oneDNN's kernels; default here: 0; CIFAR-10 sets 1
    TF_USE_LEGACY_KERAS    TensorFlow's: set while it is imported, so that Keras loads on first use
    COLUMNS                the width of the screen, for `--help`

These pass between processes of one run:

    TASK_RESTARTS          the launcher started this task, and has restarted it so many times
    STARTED_AGAIN          in TensorFlow-2: how often a task has started itself again
    PYTHONPATH             the launcher puts the folder above common/ first
    PYTHONUNBUFFERED       so that the log has each line at once
    TMPDIR                 the run's folder for temporary files, which the launcher removes

Tasks unset `http_proxy`, `https_proxy`, `grpc_proxy` and `all_proxy`, since gRPC would use them
even on one machine; notebooks unset the first two, and FORCE_COLOR, which their kernel sets.
Slurm's own variables are read in Several-Machines: SLURM_JOB_ID, SLURM_RESTART_COUNT,
SLURM_JOB_NODELIST, SLURM_TASKS_PER_NODE, SLURM_PROCID, SLURM_LOCALID, SLURM_GPUS_PER_TASK.

Files
=====
`common/README.md` describes each file of a results folder.
"""
