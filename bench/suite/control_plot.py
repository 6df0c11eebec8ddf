"""Curves of control messages: `control_plot.py TABLE PICTURE.svg` draws the table that weft_bench_simulated_control prints.

Needs matplotlib.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot  # noqa: E402

COLUMNS = {2: "barrier", 3: "all-reduce of one f32", 4: "failure"}


def read_rows(table: str) -> list[list[int]]:
    """Ranks, ranks per node, and the messages of the busiest rank."""
    lines = (line.split("|") for line in table.splitlines())
    return [[int(n) for n in (head + body).split()] for head, body, *_ in filter(is_row, lines)]


def is_row(fields: list[str]) -> bool:
    return len(fields) == 4 and re.fullmatch(r"\s*\d+\s+\d+\s*", fields[0]) is not None


def main() -> None:
    rows = read_rows(Path(sys.argv[1]).read_text())
    placements = sorted({row[1] for row in rows})
    figure, panels = pyplot.subplots(1, len(placements), figsize=(4.5 * len(placements), 3.6), squeeze=False)
    for axis, per_node in zip(panels[0], placements):
        of_placement = sorted(row for row in rows if row[1] == per_node)
        ranks = [row[0] for row in of_placement]
        for column, label in COLUMNS.items():
            axis.plot(ranks, [row[column] for row in of_placement], marker="o", markersize=3, label=label)
        axis.plot(ranks, [n - 1 for n in ranks], color="grey", linestyle="--", label="ranks - 1")
        axis.set(xscale="log", yscale="log", xlabel="ranks", title=f"{per_node} rank(s) a node")
        axis.set_xticks(ranks, [f"{n:,}" for n in ranks])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    panels[0][0].set_ylabel("messages of the busiest rank")
    panels[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(sys.argv[2], metadata={"Date": None})


if __name__ == "__main__":
    main()
