"""How often a comparison calls two equal ways of training different, and two different ones.

    python benchmarks/compare_null.py [--simulations 1000] [--seeds 5]

Simulates right and wrong answers: every row has a difficulty, every way of training finds some rows easier
than the other way does, and every seed is better or worse by a little (`seed spread`, in log-odds). Prints
the share of comparisons with p < 0.05: by palm's statistic, and by four others that are in use. With an
effect of 0 it is the type-I error, which should be 0.05 or less, else the power.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from arguments import new_parser

from palm.experiments.statistics import LEVEL, Floats, paired_difference, t_tail

ACCURACY = 2.8
"""Log-odds of a row of average difficulty; some 0.88 of the rows are right."""

RESAMPLES = 400
METHODS = (
    "palm",
    "bootstrap of seeds and rows",
    "t test of seeds",
    "bootstrap of rows",
    "t test of all rows",
)


@dataclass(frozen=True)
class Scene:
    """A kind of comparison.

    Args:
        rows: test rows.
        seed_spread: standard deviation of the seeds, in log-odds.
        seeds: how many.
    """

    rows: int
    seed_spread: float
    seeds: int = 5


def right_answers(scene: Scene, effect: float, rng: np.random.Generator) -> Floats:
    """Whether each way and seed is right on each row, float64[2, seeds, rows]."""
    difficulty = rng.normal(0, 1.5, scene.rows)
    liking = rng.normal(0, 0.5, (2, 1, scene.rows))
    luck = rng.normal(0, scene.seed_spread, (2, scene.seeds, 1))
    odds = ACCURACY + difficulty + liking + luck + np.array([effect, 0.0])[:, None, None]
    return (rng.random(odds.shape) < 1 / (1 + np.exp(-odds))).astype(np.float64)


def rejections(scene: Scene, effect: float, rng: np.random.Generator) -> dict[str, bool]:
    """What each method says of one simulated comparison: whether it sees a difference."""
    right = right_answers(scene, effect, rng)
    by_row = right[0] - right[1]  # [seeds, rows]
    weights = rng.multinomial(scene.rows, np.full(scene.rows, 1 / scene.rows), size=RESAMPLES) / scene.rows
    per_seed, resampled = by_row.mean(axis=1), weights @ by_row.T
    found = paired_difference(per_seed, resampled)
    drawn = rng.integers(0, scene.seeds, resampled.shape)
    both = np.take_along_axis(resampled, drawn, axis=1).mean(axis=1)
    low, high = np.quantile(both, [LEVEL / 2, 1 - LEVEL / 2]).tolist()
    of_rows = float(resampled.mean(axis=1).std(ddof=1))
    of_all = float(by_row.std(ddof=1)) / np.sqrt(by_row.size)
    mean, several = abs(found.mean), scene.seeds - 1
    return {
        "palm": found.p_value < LEVEL,
        "bootstrap of seeds and rows": not low <= 0 <= high,
        "t test of seeds": bool(found.seed_error) and 2 * t_tail(mean / found.seed_error, several) < LEVEL,
        "bootstrap of rows": bool(of_rows) and mean / of_rows > 1.96,
        "t test of all rows": bool(of_all) and mean / of_all > 1.96,
    }


def simulated(scene: Scene, effect: float, simulations: int, seed: int = 0) -> dict[str, float]:
    """Method -> the share of simulated comparisons in which it sees a difference."""
    rng = np.random.default_rng(seed)
    found = [rejections(scene, effect, rng) for _ in range(simulations)]
    return {method: sum(each[method] for each in found) / simulations for method in METHODS}


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--simulations", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    print("| effect | points of accuracy | rows | seed spread |", " | ".join(METHODS), "|")
    print("|---|---|---|---|" + "---|" * len(METHODS))
    for effect in (0.0, 0.3, 0.6):
        for rows in (200, 500, 1000):
            for spread in (0.0, 0.1, 0.3):
                scene = Scene(rows, spread, args.seeds)
                right = right_answers(Scene(20_000, 0.0, 2), effect, np.random.default_rng(0)).mean((1, 2))
                shares = simulated(scene, effect, args.simulations).values()
                points = f"{100 * (right[0] - right[1]):.1f}" if effect else "0"
                cells = [f"{effect}", points, str(rows), f"{spread}", *(f"{share:.3f}" for share in shares)]
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
