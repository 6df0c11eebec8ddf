"""The results of cases: a line for each, a Markdown table, and the failures and counts at the end."""
import os
import sys

import fault_run

NO_CASE = 5  # Exit code if no case has one of the given names.


def report_no_case(names):
    """Returns the exit code."""
    print(f"{os.path.basename(sys.argv[0])}: no case has a name that contains {' or '.join(map(repr, names))}", file=sys.stderr)
    return NO_CASE


class Results:
    """`columns`: the names of a table's columns between the fault and the seconds."""

    def __init__(self, columns=()):
        header = ["fault", *columns, "seconds", "exit code", "message"]
        self.rows = [self.row(header), self.row("---" for _ in header).replace(" ", "")]
        self.failures, self.counts = [], {"ok": 0, "skipped": 0, "FAILED": 0}

    @staticmethod
    def row(cells):
        return f"| {' | '.join(str(cell) for cell in cells)} |"

    def add(self, name, code, seconds, output, problems, values=()):
        """`values`: those of `columns`."""
        verdict = "FAILED" if problems else "skipped" if fault_run.is_skipped(code, output) else "ok"
        self.counts[verdict] += 1
        message = fault_run.message_of(output)
        if verdict == "skipped":
            print(f"skipped  {name}: {message.removeprefix('skipped: ')}", flush=True)  # As tools/summarize_tests.py reads it.
        else:
            print(f"{verdict:7}  {seconds:6.1f} s  exit {code}  {name}", flush=True)
        if problems:
            self.failures.append("\n        ".join([name, *problems[:10], *output.splitlines()[-12:]]))
        self.rows.append(self.row([name, *values, f"{seconds:.1f}", code, message]))

    def finish(self, table):
        """Appends the table to a file, unless `table` is None, and prints the rest. Returns the exit code."""
        if table:
            with open(table, "a") as file:
                file.write("\n".join(self.rows) + "\n\n")
        passed, skipped, failed = self.counts.values()
        print(*self.failures, f"{passed} passed, {skipped} skipped, {failed} failed", sep="\n")
        return 1 if failed else 0
