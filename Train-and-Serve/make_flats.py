"""Makes `flats.csv`: 2,000 flats and their rents, planted, with words, numbers and gaps.

    python make_flats.py > flats.csv

The rent is a formula of the other columns plus noise of NOISE euros, so nobody can predict it
better than that. Of all columns but the rent and the area, one value in thirteen is missing.
"""

import csv
import sys

import numpy as np

NOISE = 60.0  # euros, the standard deviation
DISTRICTS = {
    "centre": 6.0,
    "harbour": 4.5,
    "north": 1.0,
    "south": 0.0,
    "west": 2.0,
    "village": -2.5,
}
HEATING = {"gas": 0.0, "district heating": 35.0, "heat pump": 70.0, "oil": -40.0}


def rent_of(area, rooms, year, distance, district, heating, balcony):
    """The rent without noise, in euros; numbers, or arrays of them. `district` and `heating` are
    what they add, `balcony` is 1 or 0."""
    # Old and new flats are dearer than those of the 1960s; small ones cost more per metre.
    metre = 9 + district + 3.5 * ((year - 1960) / 60) ** 2 + 60 / area
    rent = area * metre * (1 - 0.02 * np.minimum(distance, 10)) + heating
    return rent + 45 * balcony + 20 * (rooms == 3)


def drawn(rng: np.random.Generator, area: float) -> dict:
    """The other columns of a flat with this area, in square metres."""
    return {
        "rooms": max(1, round(area / 27 + rng.normal(0, 0.6))),
        "year": int(rng.integers(1890, 2024)),
        "distance": rng.gamma(2, 2.5),  # kilometres to the next station
        "district": rng.choice(list(DISTRICTS), p=[0.15, 0.1, 0.25, 0.25, 0.15, 0.1]),
        "heating": rng.choice(list(HEATING), p=[0.45, 0.25, 0.15, 0.15]),
        "balcony": rng.choice(["yes", "no"], p=[0.6, 0.4]),
    }


def _rent(area: float, flat: dict) -> float:
    words = DISTRICTS[flat["district"]], HEATING[flat["heating"]], flat["balcony"] == "yes"
    return rent_of(area, flat["rooms"], flat["year"], flat["distance"], *words)


def flats(count: int = 2000, seed: int = 0) -> list[dict]:
    """A row for each flat: column -> value; "" is a gap."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        area = rng.gamma(9, 8) + 18
        flat = drawn(rng, area)
        rent = _rent(area, flat) + rng.normal(0, NOISE)
        shown = {name: flat[name] for name in ("district", "heating", "balcony", "rooms", "year")}
        shown["distance"] = f"{flat['distance']:.1f}"
        gaps = rng.random(len(shown)) < 1 / 13
        row = {name: "" if gap else value for (name, value), gap in zip(shown.items(), gaps)}
        rows.append(row | {"area": f"{area:.0f}", "rent": f"{rent:.0f}"})
    return rows


def best(row: dict, draws: int = 400) -> float:
    """The best prediction from what a row shows: the median of the rents that the formula gives if
    the missing values are drawn as `flats` draws them."""
    rng, area = np.random.default_rng(0), float(row["area"])
    known = {name: row[name] for name in ("district", "heating", "balcony") if row[name]}
    known |= {name: float(row[name]) for name in ("rooms", "year", "distance") if row[name]}
    if len(known) == 6:
        return _rent(area, known)
    return float(np.median([_rent(area, drawn(rng, area) | known) for _ in range(draws)]))


if __name__ == "__main__":
    made = flats()
    writer = csv.DictWriter(sys.stdout, made[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(made)
