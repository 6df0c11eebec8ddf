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


if __name__ == "__main__":
    unittest.main()
