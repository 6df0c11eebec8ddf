"""Pictures of the engine's simulated benchmarks: `engine_plot.py TABLE PICTURE.svg` draws a printed table.

    weft_bench_simulated_control   messages of the busiest rank, against the number of ranks
    weft_bench_simulated_wire      share of the wire, against the rate of the link

Needs matplotlib.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot  # noqa: E402

MESSAGES = {2: "barrier", 3: "all-reduce of one f32", 4: "failure"}
MODES = ("a thread waits", "all threads compute", "constant windows, all threads compute")


def read_rows(table: str) -> list[list[list[float]]]:
    """The numbers of each row, by its fields between bars."""
    lines = (line.split("|") for line in table.splitlines())
    return [[[float(n) for n in field.split()] for field in fields] for fields in filter(is_row, lines)]


def is_row(fields: list[str]) -> bool:
    return len(fields) == 4 and re.fullmatch(r"\s*\d+\s+\d+\s*", fields[0]) is not None


def draw_messages(rows: list[list[list[float]]]) -> pyplot.Figure:
    runs = sorted(head + body for head, body, *_ in rows)
    placements = sorted({run[1] for run in runs})
    figure, panels = pyplot.subplots(1, len(placements), figsize=(4.5 * len(placements), 3.6), squeeze=False)
    for axis, per_node in zip(panels[0], placements):
        of_placement = [run for run in runs if run[1] == per_node]
        ranks = [run[0] for run in of_placement]
        for column, label in MESSAGES.items():
            axis.plot(ranks, [run[column] for run in of_placement], marker="o", markersize=3, label=label)
        axis.plot(ranks, [n - 1 for n in ranks], color="gray", linestyle="--", label="ranks - 1")
        axis.set(xscale="log", yscale="log", xlabel="ranks", title=f"{per_node:.0f} rank(s) a node")
        axis.set_xticks(ranks, [f"{n:,.0f}" for n in ranks])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    panels[0][0].set_ylabel("messages of the busiest rank")
    panels[0][0].legend(fontsize=7)
    return figure


def draw_shares(rows: list[list[list[float]]]) -> pyplot.Figure:
    """A panel for each mode, a color for each latency, and the worst of the operations."""
    figure, panels = pyplot.subplots(1, len(MODES), figsize=(4 * len(MODES), 3.4), sharey=True)
    for mode, (axis, title) in enumerate(zip(panels, MODES)):
        for latency in sorted({head[1] for head, *_ in rows}):
            links = [(head[0], min(shares[mode])) for head, *shares in rows if head[1] == latency]
            axis.plot(*zip(*links), marker="o", markersize=3, label=f"{latency:,.0f} us")
        rates = sorted({head[0] for head, *_ in rows})
        axis.axhline(0.9, color="gray", linestyle="--", linewidth=0.8)
        axis.set(xscale="log", ylim=(0, 1.05), xlabel="rate of the link, Gbit/s", title=title)
        axis.set_xticks(rates, [f"{rate:.0f}" for rate in rates])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    panels[0].set_ylabel("share of the wire,\nleast of three collectives")
    panels[0].legend(fontsize=7, title="latency", title_fontsize=7)
    return figure


def main() -> None:
    table = Path(sys.argv[1]).read_text()
    draw = draw_shares if "share of the wire" in table else draw_messages
    figure = draw(read_rows(table))
    figure.tight_layout()
    figure.savefig(sys.argv[2], metadata={"Date": None})


if __name__ == "__main__":
    main()
