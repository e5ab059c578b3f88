"""What run.sh must know about this example beyond `DEFAULTS`; see common/told/about.py."""

from common.flags import Flag
from common.told import converters as to
from common.told.about import About

ABOUT = About(
    flags={
        "window": Flag(to.COUNT, 10, "T",
                       "local steps between a pull and a push, in agn and local_sgd"),
        "bn_momentum": Flag(to.BELOW_ONE, 0.9, "D",
                            "batch normalisation: s <- D s + (1 - D) batch's statistics"),
        "dropout": Flag(to.BELOW_ONE, 0.2, "P", "the share of hidden units that a step drops"),
    },
)  # fmt: skip
