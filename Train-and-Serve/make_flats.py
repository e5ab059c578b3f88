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


def flats(count: int = 2000, seed: int = 0) -> list[dict]:
    """A row for each flat: column -> value; "" is a gap."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        area = rng.gamma(9, 8) + 18  # square metres
        rooms = max(1, round(area / 27 + rng.normal(0, 0.6)))
        year = int(rng.integers(1890, 2024))
        distance = rng.gamma(2, 2.5)  # kilometres to the next station
        district = rng.choice(list(DISTRICTS), p=[0.15, 0.1, 0.25, 0.25, 0.15, 0.1])
        heating = rng.choice(list(HEATING), p=[0.45, 0.25, 0.15, 0.15])
        balcony = rng.choice(["yes", "no"], p=[0.6, 0.4])
        # Old and new flats are dearer than those of the 1960s; small ones cost more per metre.
        metre = 9 + DISTRICTS[district] + 3.5 * ((year - 1960) / 60) ** 2 + 60 / area
        rent = area * metre * (1 - 0.02 * min(distance, 10)) + HEATING[heating]
        rent += (45 if balcony == "yes" else 0) + 20 * (rooms == 3) + rng.normal(0, NOISE)
        row = {"district": district, "heating": heating, "balcony": balcony, "rooms": rooms,
               "year": year, "distance": f"{distance:.1f}"}  # fmt: skip
        gaps = rng.random(len(row)) < 1 / 13
        row = {name: "" if gap else value for (name, value), gap in zip(row.items(), gaps)}
        rows.append(row | {"area": f"{area:.0f}", "rent": f"{rent:.0f}"})
    return rows


if __name__ == "__main__":
    made = flats()
    writer = csv.DictWriter(sys.stdout, made[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(made)
