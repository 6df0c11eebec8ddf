#!/usr/bin/env python3
"""What grows with layers, width, vocabulary and sequence: a table and a picture of docs/benchmarks.md.

    bench/growth.py docs/benchmarks/growth.svg > table.md

Each curve changes one size of a base model and keeps the others. Every point is a run of `weft train` in bf16 with FSDP on 2 ranks, after a
forecast of `weft plan`. Steps are medians of all but the first; memory is what is resident on a rank, with the pages of its peer.

REQUIRES: a build of `weft` (preset release), matplotlib, and no other programs on the machine.
"""
import pathlib
import sys
import tempfile

import matplotlib

matplotlib.use("agg")
from forecasts import forecast, run  # noqa: E402
from matplotlib import pyplot  # noqa: E402

BASE = {"layers": 4, "dim": 512, "vocab-size": 4096, "seq-len": 1024}
CURVES = {"layers": (2, 4, 8, 16, 32), "dim": (256, 512, 1024, 2048), "vocab-size": (4096, 16384, 65536, 131072),
          "seq-len": (512, 1024, 2048, 4096, 8192, 16384)}
STEPS = 4


def flags_of(sizes: dict[str, int]) -> str:
    heads = sizes["dim"] // 64
    shape = {**sizes, "heads": heads, "kv-heads": heads // 2, "ffn-dim": 3 * sizes["dim"]}
    return " ".join(f"--{name} {value}" for name, value in shape.items()) + " --param-dtype bf16"


def parameters_of(sizes: dict[str, int]) -> int:
    dim, layers = sizes["dim"], sizes["layers"]
    return 2 * sizes["vocab-size"] * dim + layers * (12 * dim * dim + 2 * dim) + dim


def measure(sizes: dict[str, int], folder: pathlib.Path) -> dict[str, float]:
    row = (flags_of(sizes), (1, 2), 1)
    expected, measured = forecast(row, folder / "costs.json"), run(row, folder / "metrics.jsonl", count=STEPS, skipped=1)
    print(f"| {sizes['layers']} | {sizes['dim']} | {sizes['vocab-size']:,} | {sizes['seq-len']:,} | {parameters_of(sizes) / 1e6:.0f} M | "
          f"{measured['step']:.0f} ms | {2 * sizes['seq-len'] / measured['step'] * 1e3:,.0f} | {measured['resident']:.0f} MiB | "
          f"{expected['resident']:.0f} MiB |", flush=True)
    return {"step": measured["step"], "resident": measured["resident"], "expected": expected["resident"]}


def main() -> None:
    if len(sys.argv) != 2 or not sys.argv[1].endswith(".svg"):
        sys.exit(__doc__)
    figure, panels = pyplot.subplots(2, len(CURVES), figsize=(3.4 * len(CURVES), 5.6))
    print("| layers | dim | vocabulary | tokens a rank | parameters | step | tokens/s | resident on a rank | forecast |")
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for (name, values), (times, memories) in zip(CURVES.items(), panels.T):
            points = [measure({**BASE, name: value}, pathlib.Path(folder)) for value in values]
            times.plot(values, [point["step"] / 1e3 for point in points], marker="o", markersize=3)
            memories.plot(values, [point["resident"] / 1024 for point in points], marker="o", markersize=3, label="measured")
            memories.plot(values, [point["expected"] / 1024 for point in points], color="gray", linestyle="--", label="forecast")
            times.set_title(name)
            for axis in (times, memories):
                axis.set_xticks(values[-3:], [f"{value:,}" for value in values[-3:]])
                axis.set_ylim(bottom=0)
                axis.grid(alpha=0.3)
    panels[0][0].set_ylabel("s a step")
    panels[1][0].set_ylabel("GiB resident on a rank")
    panels[1][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(sys.argv[1], metadata={"Date": None})


if __name__ == "__main__":
    main()
