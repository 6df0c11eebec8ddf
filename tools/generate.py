#!/usr/bin/env python3
"""Generates text with `weft generate` and the tokenizer.json of a Hugging Face folder.

    generate.py --hf-model DIR --prompt TEXT [FLAGS OF weft generate]
    generate.py -n 4 --hf-model DIR --prompt TEXT --temperature 0.8 --top-p 0.95

Encodes the prompt with the special tokens that the tokenizer adds, runs `weft generate --print-tokens`, and prints the new
text as its tokens arrive. `-n RANKS` starts the ranks by tools/mpirun.sh. Needs the `tokenizers` package (pip install tokenizers, in a
virtual environment).
"""
import os
import sys

# Python's own modules import `tokenize`. They must not find the file of that name beside this one.
TOOLS = os.path.dirname(os.path.abspath(__file__))
if __name__ == "__main__":
    sys.path = [path for path in sys.path if os.path.abspath(path) != TOOLS]

import argparse
import contextlib
import importlib.util
import pathlib
import shutil
import signal
import subprocess

REPLACEMENT = "\ufffd"
BAD_FILE = 3  # Exit code, as of weft generate.
SIGNAL_BASE = 128  # A process that signal N has killed has the exit code 128 + N, as in a shell.


def tokenize_tool():
    """tools/tokenize.py, under a name that does not hide Python's own module."""
    spec = importlib.util.spec_from_file_location("weft_tokenize", os.path.join(TOOLS, "tokenize.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tool = tokenize_tool()


class BadFile(tool.Failure):
    """An error message about a file that cannot be read."""


class TextStream:
    """Text of a growing list of tokens. Holds a character back until all of its bytes have come."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.tokens = []
        self.shown = ""  # Text of the first shown_tokens tokens.
        self.shown_tokens = 0

    def add(self, token):
        self.tokens.append(token)
        return self.take(hold_back=True)

    def take(self, hold_back):
        text = self.decode()
        if hold_back and text.endswith(REPLACEMENT):
            return ""
        # The tokenizer decodes neighboring bytes together: a stray one turns those that are shown into replacement
        # characters. They stay as they are, and the text goes on behind them.
        if not text.startswith(self.shown):
            self.tokens, self.shown = self.tokens[self.shown_tokens:], ""
            text = self.decode()
        new, self.shown, self.shown_tokens = text[len(self.shown):], text, len(self.tokens)
        return new

    def decode(self):
        return self.tokenizer.decode(self.tokens, skip_special_tokens=True)


def printable(text):
    """`text` without control characters: escape sequences of a model would act on the terminal."""
    return "".join(c if c in "\n\t" or (ord(c) >= 0x20 and not 0x7F <= ord(c) < 0xA0) else f"\\x{ord(c):02x}" for c in text)


def find_program(path):
    built = pathlib.Path(TOOLS).parent / "build" / "release" / "bin" / "weft"
    found = path or shutil.which("weft") or (str(built) if built.exists() else None)
    if found is None:
        raise tool.Failure("weft is neither in PATH nor in build/release/bin: build it, or give --weft PATH")
    return found


def write(text):
    try:
        print(text, end="", flush=True)
    except OSError as error:
        # Python would write the text once more at its end, and print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise tool.Failure(f"standard output cannot be written: {error.strerror}") from None


def token_of(line):
    try:
        return int(line)
    except ValueError:
        raise tool.Failure(f"{line.rstrip()!r}, which weft has printed, is not a token id: is --weft the program?") from None


def run(command, ids, stream):
    """Generates after the tokens `ids`, and prints the new text. Returns weft's exit code."""
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, errors="replace")
    except OSError as error:
        raise tool.Failure(f"cannot run {command[0]}: {error.strerror}") from None
    try:
        with contextlib.suppress(BrokenPipeError):  # weft has failed before it has read them.
            with process.stdin:
                process.stdin.write("\n".join(map(str, ids)))
        for line in process.stdout:
            write(printable(stream.add(token_of(line))))
    except BaseException:
        process.terminate()
        raise
    finally:
        process.stdout.close()
        code = process.wait()
    if code == 0:
        write(printable(stream.take(hold_back=False)) + "\n")
    return code if code >= 0 else SIGNAL_BASE - code


def load_tokenizer(options):
    tool.load_package("tokenizers", "generate.py")
    if options.tokenizer is None and not (options.hf_model / "tokenizer.json").exists():
        raise BadFile(f"--hf-model {options.hf_model}: has no tokenizer.json: give --tokenizer PATH or, for a model whose tokens are "
                      "bytes, run weft generate --prompt TEXT")
    try:
        return tool.load_tokenizer(options.tokenizer or options.hf_model)
    except tool.Failure as failure:
        raise BadFile(str(failure).replace("--tokenizer", "--tokenizer" if options.tokenizer else "--hf-model", 1)) from None


def generate(options, flags):
    """Returns weft's exit code."""
    tokenizer = load_tokenizer(options)
    tool.check_text("--prompt", options.prompt)
    ids = tokenizer.encode(options.prompt).ids
    if not ids:
        raise tool.Failure("--prompt: the tokenizer makes no tokens of it: give some text")
    launcher = [] if options.n is None else [os.path.join(TOOLS, "mpirun.sh"), "-n", str(options.n)]
    command = [*launcher, find_program(options.weft), "generate", "--hf-model", str(options.hf_model),
               "--prompt-tokens-file", "-", "--print-tokens", *flags]
    return run(command, ids, TextStream(tokenizer))


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--hf-model", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--prompt", required=True, metavar="TEXT")
    parser.add_argument("--tokenizer", type=pathlib.Path, metavar="PATH", help="tokenizer.json, or its folder [that of --hf-model]")
    parser.add_argument("--weft", metavar="PATH", help="the program [from PATH, or build/release/bin/weft]")
    parser.add_argument("-n", type=int, metavar="RANKS", help="start so many ranks by tools/mpirun.sh")
    return parser.parse_known_args(arguments)


def main(arguments):
    options, flags = parse(arguments)
    try:
        return generate(options, flags)
    except KeyboardInterrupt:
        return SIGNAL_BASE + signal.SIGINT
    except tool.Failure as failure:
        print(f"generate.py: {failure}", file=sys.stderr)
        return BAD_FILE if isinstance(failure, BadFile) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
