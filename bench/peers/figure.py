"""Draw the peers' bar chart.

python -m bench.peers.figure bench/results/peers-imagenet.json docs/figures/peers-imagenet.png
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

OURS, PEER = "#2ca02c", "#7f7f7f"


def draw_peers(rows: dict[str, Any], path: Path) -> Path:
    """Images per second and bytes per image of each system that took part.

    Args:
        rows: the `rows` of a JSON file of bench.peers.
        path: of the picture.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    entries = [entry for entry in rows["summary"] if entry["images_per_s"]]
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), constrained_layout=True, sharey=True)
    measures = (("images_per_s", 1.0, "images/s"), ("bytes_per_image", 1e3, "kB on the link per image"))
    for axis, (key, unit, label) in zip(axes, measures, strict=True):
        for position, entry in enumerate(entries):
            value = {name: number / unit for name, number in entry[key].items()}
            middle = value["median"]
            whisker = [[middle - value["min"]], [value["max"] - middle]]
            axis.barh(position, middle, color=OURS if entry["ours"] else PEER, xerr=whisker, capsize=2)
            axis.annotate(f" {middle:.3g}", (value["max"], position), va="center", fontsize=8)
        axis.set_xlabel(label)
        axis.margins(x=0.15)
    axes[0].set_yticks(range(len(entries)), [entry["system"] for entry in entries])
    axes[0].invert_yaxis()
    figure.suptitle(f"{rows['settings']['data']}, {rows['settings']['link_mbit']:g} Mbit/s, one core on each side")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


if __name__ == "__main__":
    print(draw_peers(json.loads(Path(sys.argv[1]).read_text())["rows"], Path(sys.argv[2])))
