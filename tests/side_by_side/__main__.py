"""``python -m tests.side_by_side``: random scenarios on torch and on the reference, and in what they differ."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from itertools import islice

from harness.vendor.load import load_implementation
from tests.side_by_side.argued import reason_for
from tests.side_by_side.comparing import Pair
from tests.side_by_side.drawing import drawn


def main() -> int:
    """Compare; 1 if there is a difference for which no reason is given, of which the first of each kind is shown."""
    parser = argparse.ArgumentParser(prog="python -m tests.side_by_side", description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="how many scenarios (100)")
    parser.add_argument("--seed", type=int, default=0, help="which ones (0)")
    given = parser.parse_args()
    argued, others = compare(given.seed, given.count)
    print(f"{given.count} scenarios of seed {given.seed} on torch and the reference")
    for reason, count in argued.most_common():
        print(f"  {count} differ, with a reason: {reason}")
    for kind, count in others.most_common():
        print(f"  {count} differ, without one: {kind}")
    return 1 if others else 0


def compare(seed: int, count: int) -> tuple[Counter[str], Counter[str]]:
    """How many scenarios differ for each reason, and in each kind without one."""
    argued, others = Counter[str](), Counter[str]()
    scenarios = islice(drawn(seed, claims=load_implementation("torch").claims), count)
    with Pair() as pair:
        for number, scenario in enumerate(scenarios, start=1):
            found = pair.differences(scenario)
            reasons = [reason_for(scenario, each) for each in found]
            argued.update({reason for reason in reasons if reason})
            open_ones = {
                each.kind: each for each, reason in reversed([*zip(found, reasons, strict=True)]) if not reason
            }
            for kind, each in open_ones.items():
                if kind not in others:
                    print(f"{number}. {scenario}\n{each}\n", flush=True)
            others.update(open_ones.keys())
    return argued, others


if __name__ == "__main__":
    sys.exit(main())
