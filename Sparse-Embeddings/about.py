"""What run.sh must know about this example beyond `DEFAULTS`; see common/told/about.py."""

from common.flags import Flag
from common.told import converters as to
from common.told.about import About

# MovieLens 100K: 943 users, 1,682 films, 100,000 ratings. F. Maxwell Harper and Joseph A. Konstan,
# 2015, The MovieLens Datasets: History and Context. For research and teaching, not for sale; the
# archive has the licence.
MOVIELENS = (
    "https://files.grouplens.org/datasets/movielens",
    {"ml-100k.zip": ("0e33842e24a9c977be4e0107933c0723", 4_924_029)},
)

ABOUT = About(
    flags={
        "data": Flag(to.dataset(("planted", "movielens"), ".csv"), "planted", "NAME",
                     "planted, movielens, or PATH.csv with the columns user, item, rating"),
        "optimizer": Flag(to.choice(("adagrad", "sgd")), "adagrad", "NAME", "adagrad or sgd"),
        "planted_users": Flag(to.COUNT, 2000, "N", "users of --data planted: the first rows"),
        "planted_items": Flag(to.COUNT, 198_000, "N", "items of --data planted: the other rows"),
        "planted_ratings": Flag(to.COUNT, 1_000_000, "N", "ratings of --data planted"),
        "zipf": Flag(to.number(float, "0 or more", lambda value: value >= 0), 1.1, "A",
                     "how often an item is rated: 1 / its rank ^ A; 0: all equally often"),
        "width": Flag(to.COUNT, 32, "N", "columns of the table"),
        "dense": Flag(bool, False, "", "send the whole table, for comparison: dense.py"),
    },
    downloads={"movielens": MOVIELENS},
)  # fmt: skip
