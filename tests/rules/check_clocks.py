#!/usr/bin/env python3
"""Checks that only code that shows dates reads the system's time.

    check_clocks.py ROOT

The system's time steps when somebody or NTP sets it. A wait for it then ends too early or never. Waits and measured times therefore
use a monotonic clock: Deadline or NowNs of weft/mesh/runtime.h, std::chrono::steady_clock, or time.monotonic() in Python.
`absl::Time` is a point of the system's time, and waits until one follow its steps.

Prints one line for each violation. Exit code: 0 without violations, 1 with violations.
"""
import pathlib
import re
import sys

FOLDERS = ["include", "src", "sharding", "context_parallel", "python", "tests", "bench", "examples", "tools"]
SUFFIXES = {".h", ".cc", ".py", ".pyi"}
# Files that show dates.
DATES = {
    "src/train/output/event_file.cc",  # TensorBoard draws curves over the dates of events.
}
READS = re.compile(r"absl::Now\b|absl::Time\b|\bsystem_clock\b|\bhigh_resolution_clock\b|\bCLOCK_REALTIME\b|\bgettimeofday\b"
                   r"|\bstd::time\b|\btime\((?:NULL|nullptr)\)|\btime\.time(?:_ns)?\(|\bdatetime\.now\(|\bdatetime\.utcnow\(")


def violations(root):
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*")):
            name = str(file.relative_to(root))
            if file.suffix not in SUFFIXES or name in DATES or file.name.startswith("check_clocks"):
                continue
            for number, line in enumerate(file.read_text().splitlines(), 1):
                found = READS.search(line)
                if found:
                    yield f"{name}:{number}: {found.group()} is the system's time; use a monotonic clock"


def main(root):
    found = list(violations(root))
    for line in found:
        print(line)
    print(f"uses of the system's time outside of dates: {len(found)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
