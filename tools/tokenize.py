#!/usr/bin/env python3
"""Converts text files to a token file for `weft train --data`, with any Hugging Face tokenizer.json.

    tokenize.py --tokenizer DIR/tokenizer.json --output corpus.u16 FILE...

The suffix of the output determines the width of tokens: .u16 or .bin for 16 bits, .u32 for 32 bits, little-endian. Files
are written in the order given. With --separator TOKEN, that token follows each file ("<|end_of_text|>", "</s>"); without it,
no token is added, neither at the beginning nor at the end. Needs the `tokenizers` package (pip install tokenizers).
"""
import os
import sys

# Python's own modules import `tokenize`. They must not find this file instead.
if __name__ == "__main__":
    sys.path = [path for path in sys.path if os.path.abspath(path) != os.path.dirname(os.path.abspath(__file__))]

import argparse
import array
import pathlib

WIDTHS = {".bin": ("H", 1 << 16), ".u16": ("H", 1 << 16), ".u32": ("I", 1 << 32)}


class Failure(Exception):
    """An error message for the user."""


def load_tokenizer(path):
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise Failure("the tokenizers package is missing: pip install tokenizers") from None
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # The package raises plain Exception.
        raise Failure(f"--tokenizer {path}: {error}") from None


def token_ids(tokenizer, files, separator):
    """Yields the ids of each file, followed by the separator if there is one. Files are not cut: a cut would change tokens."""
    end = None
    if separator is not None:
        end = tokenizer.token_to_id(separator)
        if end is None:
            raise Failure(f"--separator {separator}: the tokenizer has no such token")
    for path in files:
        try:
            text = path.read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise Failure(f"{path}: is not UTF-8 text at byte {error.start}") from None
        yield tokenizer.encode(text, add_special_tokens=False).ids
        if end is not None:
            yield [end]


def write_tokens(output, lists):
    """Writes a temporary file and renames it, so that no partial output is left. Returns the number of tokens."""
    code, limit = WIDTHS[output.suffix]
    partial = output.with_name(output.name + ".partial")
    count = 0
    try:
        with open(partial, "wb") as file:
            for ids in lists:
                if ids and max(ids) >= limit:
                    raise Failure(f"--output {output}: token {max(ids)} does not fit into 16 bits: name it .u32")
                tokens = array.array(code, ids)
                if sys.byteorder == "big":
                    tokens.byteswap()
                tokens.tofile(file)
                count += len(ids)
        os.replace(partial, output)
    finally:
        partial.unlink(missing_ok=True)
    return count


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--tokenizer", required=True, type=pathlib.Path)
    parser.add_argument("--output", required=True, type=pathlib.Path)
    parser.add_argument("--separator", help="a token to put after each file")
    options = parser.parse_args(arguments)
    if options.output.suffix not in WIDTHS:
        parser.error(f"--output {options.output}: the name must end in one of {', '.join(WIDTHS)}")
    return options


def main(arguments):
    options = parse(arguments)
    try:
        tokenizer = load_tokenizer(options.tokenizer)
        count = write_tokens(options.output, token_ids(tokenizer, options.files, options.separator))
    except (Failure, OSError) as error:
        print(f"tokenize.py: {error}", file=sys.stderr)
        return 1
    print(f"{options.output}: {count} tokens, vocabulary {tokenizer.get_vocab_size()}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
