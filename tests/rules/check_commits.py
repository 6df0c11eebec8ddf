#!/usr/bin/env python3
"""Checks that the subjects of commits have at most 72 characters.

    check_commits.py ROOT

Older commits and merges are not checked. Prints one line for each subject that is too long. Exit code: 0 without such
subjects, 1 with some, 77 (skipped) if ROOT has no history or a history without the first commit to check.
"""
import subprocess
import sys

MAX_SUBJECT_LENGTH = 72
# The rule holds for the commits after this one.
BASE = "92fa7ed6f9fab925e2ebf71ec15c5270e344139f"


class NoHistory(Exception):
    """The reason why the commits cannot be checked."""


def git(root, *arguments):
    try:
        result = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, encoding="utf-8")
    except FileNotFoundError:
        raise NoHistory("git is not installed") from None
    if result.returncode != 0:
        raise NoHistory(result.stderr.strip() or f"git {arguments[0]} failed with {result.returncode}")
    return result.stdout


def has_commit(root, commit):
    try:
        git(root, "merge-base", "--is-ancestor", commit, "HEAD")
    except NoHistory:
        return False
    return True


def long_subjects(root, base):
    """[(abbreviated commit, length, subject)] of the commits after `base` whose subjects are too long."""
    git(root, "rev-parse", "HEAD")
    if not has_commit(root, base):
        raise NoHistory(f"the history does not reach back to commit {base[:10]}")
    lines = git(root, "log", "--no-merges", "--format=%h %s", f"{base}..HEAD").splitlines()
    commits = [line.partition(" ") for line in lines]
    return [(commit, len(subject), subject) for commit, _, subject in commits if len(subject) > MAX_SUBJECT_LENGTH]


def main(root, base=BASE):
    try:
        found = long_subjects(root, base)
    except NoHistory as reason:
        print(f"skipped: {reason}")
        return 77
    for commit, length, subject in found:
        print(f"commit {commit}: the subject has {length} characters, of at most {MAX_SUBJECT_LENGTH}: {subject}")
    print(f"subjects of commits that are too long: {len(found)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
