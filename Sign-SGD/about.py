"""What run.sh must know about this example beyond `DEFAULTS`; see common/told/about.py."""

from common.flags import Flag
from common.told import converters as to
from common.told.about import About

ABOUT = About(
    flags={
        "sign_momentum": Flag(to.BELOW_ONE, 0.9, "B", "beta: how much of m a step keeps"),
    },
)
