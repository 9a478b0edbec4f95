"""Few active workers: whether ways to come and go close the gap to periodic averaging.

    python benchmarks/participation_study.py --out participation

sweeps `study/participation` (16 of 64 workers active, 3,000 steps): periodic averaging with τ = 10
that redraws in every round, and partial averaging with τ = 11 that hands models over, their average
or what newcomers heard, all at once or in turn, after 1, 2, 5 or 10 cycles. Each has the rate that
is best for it on validation samples, and is then judged on the test set by five other seeds. Start
it several times at once and they share the runs; stopped or killed, it goes on where it was.
`--rows FILE` writes a line for each run, `--show FILE` prints the tables of one.
"""

import argparse
from pathlib import Path

import few_active
import torch

RATES = (0.005, 0.01, 0.02, 0.04, 0.08)
QUICK = (
    "metrics.evaluate_every=1500",
    "metrics.discrepancy_every=0",
    "checkpoints.final=false",
    "engine.name=fused",
)


def main() -> None:
    """Run what the time allows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="the folder of datasets")
    parser.add_argument("--out", type=Path, default=Path("participation"))
    parser.add_argument("--seconds", type=float, default=1e9, help="no run begins after these")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--schemes", help="some of them, by ,")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--rows", type=Path, help="write what is known of each run")
    parser.add_argument("--show", type=Path, help="print the table of such a file, and end")
    given = parser.parse_args()
    if given.show:
        found = few_active.read(given.show)
        print("\n".join([*few_active.table(found), "", *few_active.crossed(found)]))
        return
    torch.set_num_threads(1)
    recipe = few_active.with_ways(few_active.STUDY, (*QUICK, *given.set))
    schemes = given.schemes.split(",") if given.schemes else few_active.ORDER
    study = few_active.swept(recipe, RATES, given.seeds, given.out, schemes)
    try:
        few_active.work(study, few_active.Worker(given.data, given.seconds))
    except few_active.TimeIsUp:
        known = study.sweeping.progress()
        print(f"time is up: {known.done:.0f} of {known.total:.0f} runs")
    if given.rows:
        few_active.write(few_active.rows(few_active.STUDY, study), given.rows)


if __name__ == "__main__":
    main()
