"""Plots of the results: `plots.py RESULTS.json` writes one picture per section into the same folder. Needs matplotlib."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from suite.statistics import summarize  # noqa: E402

COLORS = pyplot.get_cmap("tab10").colors
WEFT_COLORS = ("#12355b", "#3d7ea6", "#8fbcd4", "#c5dce8")


def draw(section: str, rows: list[dict], path: Path) -> None:
    """Draws a group of bars for each row, with one bar per variant. Whiskers are quartiles over rounds. The table over sizes is left out."""
    rows = [row for row in rows if row["rounds"] and not row["what"].endswith("table over sizes")]
    if not rows:
        return
    colors = colors_of(sorted({variant for row in rows for variant in row["rounds"]}))
    heights = [0.5 + 0.24 * len(row["rounds"]) for row in rows]
    figure, axes = pyplot.subplots(
        len(rows), 1, figsize=(9, sum(heights) + 0.6), squeeze=False, gridspec_kw={"height_ratios": heights}
    )
    for axis, row in zip(axes[:, 0], rows):
        draw_row(axis, row, colors)
    figure.suptitle(f"{section}: medians and quartiles of rounds; less is better", fontsize=10)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def draw_row(axis, row: dict, colors: dict[str, object]) -> None:
    for place, (variant, values) in enumerate(row["rounds"].items()):
        all_rounds = summarize(values)
        spread = [[all_rounds.median - all_rounds.low], [all_rounds.high - all_rounds.median]]
        axis.barh(place, all_rounds.median, xerr=spread, color=colors[variant], height=0.8, error_kw={"elinewidth": 1})
    axis.set_yticks(range(len(row["rounds"])), list(row["rounds"]), fontsize=7)
    axis.invert_yaxis()
    axis.tick_params(axis="x", labelsize=7)
    axis.set_title(f"{row['what']} [{row['unit']}]", fontsize=8, loc="left")
    axis.spines[["top", "right"]].set_visible(False)


def colors_of(variants: list[str]) -> dict[str, object]:
    """Shades of blue for weft's variants, other colors for peers."""
    ours = [variant for variant in variants if variant.startswith("weft")]
    peers = [variant for variant in variants if variant not in ours]
    colors: dict[str, object] = {variant: WEFT_COLORS[i % len(WEFT_COLORS)] for i, variant in enumerate(ours)}
    return colors | {variant: COLORS[(i + 1) % len(COLORS)] for i, variant in enumerate(peers)}


def main() -> None:
    results = Path(sys.argv[1])
    for section, rows in json.loads(results.read_text())["sections"].items():
        draw(section, rows, results.with_name(f"{section}.png"))


if __name__ == "__main__":
    main()
