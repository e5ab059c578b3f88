"""What run.sh must know about this example beyond `DEFAULTS`; see common/told/about.py."""

from common.told.about import About

# The workers print their own lines: progress.py.
ABOUT = About(line=lambda worker, event: "")
