#!/usr/bin/env python3
"""Tests of check_clocks.py on small trees."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import check_clocks
from small_tree import SmallTree


class CheckClocks(SmallTree):
    rule = check_clocks

    def test_accepts_monotonic_clocks(self):
        self.write("src/comm/a.cc", "const auto now = std::chrono::steady_clock::now();\nconst absl::Duration left = absl::Seconds(1);\n")
        self.write("python/weft/a.py", "deadline = time.monotonic() + 1\n")
        self.assertEqual(self.violations(), [])

    def test_accepts_dates_of_events(self):
        self.write("src/train/output/event_file.cc", "return std::chrono::system_clock::now();\n")
        self.assertEqual(self.violations(), [])

    def test_finds_reads_of_the_systems_time(self):
        self.write("src/comm/a.cc", "\nconst auto end = absl::Now() + timeout;\n")
        self.write("include/weft/comm/work.h", "absl::Status Wait(absl::Time deadline);\n")
        self.write("python/weft/a.py", "deadline = time.time() + 1\n")
        self.assertEqual(self.violations(), [
            "include/weft/comm/work.h:1: absl::Time is the system's time; use a monotonic clock",
            "src/comm/a.cc:2: absl::Now is the system's time; use a monotonic clock",
            "python/weft/a.py:1: time.time( is the system's time; use a monotonic clock",
        ])

    def test_finds_every_way_to_read_it(self):
        for name, reads in {
            "src/comm/a.cc": ["time(0)", "time(NULL)", "time(nullptr)", "time(&now)", "std::time(", "timespec_get(", "gettimeofday(",
                              "ftime(", "CLOCK_REALTIME", "CLOCK_REALTIME_COARSE", "CLOCK_TAI", "absl::GetCurrentTimeNanos",
                              "system_clock", "high_resolution_clock", "utc_clock", "file_clock", "file_time_type::clock"],
            "tools/a.py": ["time.time(", "time.time_ns(", "datetime.now(", "datetime.utcnow(", "datetime.today(", "date.today(",
                           "from time import sleep, time"],
            "tools/a.sh": ["$(date", "date +", "`date", "EPOCHSECONDS", "EPOCHREALTIME", "$SECONDS", "${SECONDS", "((SECONDS"],
            "examples/a.sbatch": ["EPOCHSECONDS", "((end = SECONDS"],
        }.items():
            for read in reads:
                with self.subTest(read):
                    self.write(name, f"first\n  x = {read} + 1)\n")
                    self.assertEqual(self.violations(), [f"{name}:2: {read} is the system's time; use a monotonic clock"])
            (self.root / name).unlink()

    def test_accepts_what_only_looks_alike(self):
        self.write("src/comm/a.cc", "Wait(run_time(0), time(step));\nclock_gettime(CLOCK_MONOTONIC, &now);\n")
        self.write("tools/a.py", "import time\nfrom time import monotonic\nupdated = update(today)\n")
        self.write("tools/a.sh", "# wait SECONDS WHAT\nread -r now _ </proc/uptime\nup-to-date=1 candidate=2 --date=$day\n")
        self.assertEqual(self.violations(), [])


if __name__ == "__main__":
    unittest.main()
