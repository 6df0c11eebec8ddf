#!/usr/bin/env python3
"""Checks that only code that shows dates reads the system's time.

    check_clocks.py ROOT

The system's time steps when somebody or NTP sets it. A wait for it then ends too early or never. Waits and measured times therefore
use a monotonic clock: Deadline or NowNs of weft/mesh/runtime.h, std::chrono::steady_clock, time.monotonic() in Python, or
/proc/uptime in a shell, whose SECONDS follows the system's time. `absl::Time` is a point of the system's time, and waits until one
follow its steps.

Prints one line for each violation. Exit code: 0 without violations, 1 with violations.
"""
import pathlib
import re
import sys

FOLDERS = ["include", "src", "sharding", "context_parallel", "python", "tests", "bench", "examples", "tools"]
# Files that show dates.
DATES = {
    "src/train/output/event_file.cc",  # TensorBoard draws curves over the dates of events.
}
CPP = re.compile(r"\babsl::(?:Now|Time|GetCurrentTimeNanos)\b|\b(?:system|high_resolution|utc|file)_clock\b|\bfile_time_type::clock\b"
                 r"|\bCLOCK_(?:REALTIME\w*|TAI)\b|\b(?:gettimeofday|timespec_get|ftime|std::time)\(|\btime\((?:0|NULL|nullptr|&\w+)\)")
PYTHON = re.compile(r"\btime\.time(?:_ns)?\(|\bdatetime\.(?:now|utcnow|today)\(|\bdate\.today\(|\bfrom time import\b.*\btime\b")
SHELL = re.compile(r"(?:\$\(|`)date\b|(?<![-.\w])date \+|\bEPOCH(?:SECONDS|REALTIME)\b|\$\{?SECONDS\b|\(\([^)]*\bSECONDS\b")
READS = {".h": CPP, ".cc": CPP, ".py": PYTHON, ".pyi": PYTHON, ".sh": SHELL, ".sbatch": SHELL}
SHELL_COMMENT = re.compile(r"(?:^|\s)#.*")


def violations(root):
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*")):
            name = str(file.relative_to(root))
            reads = READS.get(file.suffix)
            if reads is None or name in DATES or file.name.startswith("check_clocks"):
                continue
            for number, line in enumerate(file.read_text().splitlines(), 1):
                found = reads.search(SHELL_COMMENT.sub("", line) if reads is SHELL else line)
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
