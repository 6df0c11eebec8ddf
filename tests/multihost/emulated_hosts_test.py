#!/usr/bin/env python3
"""Tests that tools/emulated_hosts.sh ends its command and returns its exit code. Exits with 77 (skipped) where it cannot create hosts."""
import pathlib
import signal
import subprocess
import sys
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools/emulated_hosts.sh"


class Command(unittest.TestCase):
    def test_gives_the_exit_code(self):
        self.assertEqual(subprocess.run([SCRIPT, "sh", "-c", "exit 5"], timeout=60).returncode, 5)

    def test_ends_with_the_script(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)  # bash cannot trap a signal that is ignored when it starts.
            with subprocess.Popen([SCRIPT, "sh", "-c", "echo $$; exec sleep 60"], stdout=subprocess.PIPE, text=True) as script:
                command = pathlib.Path("/proc", script.stdout.readline().strip())
                self.assertTrue(command.exists())
                script.send_signal(number)
                self.assertEqual(script.wait(timeout=60), 130)
                self.assertFalse(command.exists(), number.name)


if __name__ == "__main__":
    probe = subprocess.run([SCRIPT, "true"], capture_output=True, text=True, timeout=60)
    if probe.returncode == 77:
        print(probe.stdout, end="")
        sys.exit(77)
    unittest.main()
