"""Draw the losses of the three runs, and how far the sharded are from the unsharded; needs matplotlib.

python -m examples.training.plot FOLDER: reads the losses in this folder, and writes training.svg beside them
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot

STYLES: dict[str, dict[str, Any]] = {
    "none": {"label": "unsharded, one process", "color": "#c0c0c0", "linewidth": 7},
    "torch": {"label": "torch's fully_shard", "color": "#1f6feb", "linewidth": 2.5},
    "reference": {"label": "the reference's fully_shard", "color": "#d1242f", "linestyle": "", "marker": "."},
}


def main(folder: Path) -> None:
    """Two panels over the same steps, with a line where four ranks went on."""
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "training"})
    runs = {name: [json.loads(line) for line in (folder / f"{name}.jsonl").open()] for name in STYLES}
    figure, (upper, lower) = pyplot.subplots(2, 1, sharex=True, figsize=(8, 5), height_ratios=(3, 1))
    for name, style in STYLES.items():
        losses = [line["loss"] for line in runs[name]]
        upper.plot(losses, **style)
        if name != "none":
            lower.plot([loss - line["loss"] for loss, line in zip(losses, runs["none"], strict=True)], **style)
    resumed = [line["ranks"] for line in runs["torch"]].index(4) - 0.5
    for axes in (upper, lower):
        axes.axvline(resumed, color="#808080", linestyle="--", linewidth=1)
        axes.grid(alpha=0.3)
    upper.text(resumed, 1.02, "two ranks ← checkpoint → four ranks", ha="center", transform=upper.get_xaxis_transform())
    upper.set_ylabel("loss, nats a byte")
    lower.set(ylabel="sharded −\nunsharded", xlabel="step")
    upper.legend()
    figure.savefig(folder / "training.svg", metadata={"Date": None}, bbox_inches="tight")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
