#!/usr/bin/env python3
"""Converts documents to a token file for `weft train --data`, with any Hugging Face tokenizer.

    tokenize.py --tokenizer DIR/tokenizer.json --output corpus.u16 PATH...
    tokenize.py --tokenizer DIR/tokenizer.json --output chat.u32 --prompt-field question --answer-field answer FILE.jsonl
    tokenize.py --tokenizer DIR --output chat.u32 --chat-field messages FILE.jsonl

A PATH is a text file, which is one document; a .jsonl or .parquet file with a document in --field of each row; or a folder, which stands
for all files below it, also through links, sorted by path and without hidden ones; the output lies outside of it. Documents are written in
this order. With --separator TOKEN, that token follows each document ("<|end_of_text|>", "</s>"); without it, no token is added.

The suffix of the output determines the width of tokens: .u16 or .bin for 16 bits, .u32 for 32 bits, little-endian.

With --prompt-field and --answer-field, or with --chat-field, only answers have a loss. A mask, OUTPUT.mask, says which tokens those are:
train with --loss-mask true. A separator has a loss if it follows an answer. --chat-field names lists of {"role", "content"}; the chat
template of the tokenizer's folder renders them, and the messages of the assistant are the answers.

Prompts and answers of a document are encoded as one text. If a token had characters of both, or a prompt had other tokens than alone,
they are encoded one by one, so that a prompt has the tokens that it has alone. For tokenizers that put a space before a text, let a
prompt end without one, and the answer begin with it.

Needs the package `tokenizers`; for .parquet also `pyarrow`, and for --chat-field `transformers` (pip install …, in a
virtual environment).
"""
import os
import sys

# Python's own modules import `tokenize`. They must find theirs before this file.
TOOLS = os.path.dirname(os.path.abspath(__file__))
sys.path = [path for path in sys.path if os.path.abspath(path) != TOOLS] + [TOOLS]

import argparse
import functools
import importlib
import itertools
import json
import pathlib

from token_output import WIDTHS, Failure, locked, write_tokens

BATCH = 1000  # Documents that the tokenizer encodes at once, on all cores.


def load_package(name, what):
    try:
        return importlib.import_module(name)
    except ImportError:
        # Debian's pip installs nothing outside of a virtual environment.
        first = "" if sys.prefix != sys.base_prefix else "python3 -m venv venv && . venv/bin/activate && "
        raise Failure(f"{what} needs the package {name}: {first}pip install {name}") from None


def load_tokenizer(path):
    tokenizers = load_package("tokenizers", "tokenize.py")
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # The package raises plain Exception.
        raise Failure(f"--tokenizer {file}: {error}") from None
    tokenizer.no_truncation()  # A file may ask for both.
    tokenizer.no_padding()
    return tokenizer


def load_chat_template(path):
    """The function that renders a list of messages as text."""
    transformers = load_package("transformers", "--chat-field")
    folder = path if path.is_dir() else path.parent
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # The package raises many kinds.
        raise Failure(f"--tokenizer {folder}: {error}") from None
    if not tokenizer.chat_template:
        raise Failure(f"--tokenizer {folder}: has no chat template; use --prompt-field and --answer-field")
    return functools.partial(tokenizer.apply_chat_template, tokenize=False)


def files_below(folder, parents=()):
    """Yields the files below a folder, without hidden ones. Follows links, as `weft train --data` does.

    `parents`: (device, inode) of the folders from the root of the walk to this one.
    """
    info = folder.stat()
    identity = info.st_dev, info.st_ino
    if identity in parents:
        raise Failure(f"the folder {folder} contains itself through a link: remove the link")
    for entry in folder.iterdir():
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from files_below(entry, (*parents, identity))
        elif entry.is_file():
            yield entry
        elif entry.is_symlink():
            raise Failure(f"the target of link {entry} does not exist: fix or remove it")


def files_of(paths):
    """Yields the files of all paths. A folder stands for the files below it."""
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        files = sorted(files_below(path))
        if not files:
            raise Failure(f"{path}: has no files (hidden files are skipped)")
        yield from files


def check_outside(output, paths):
    """Refuses an output in a folder that is read, where the next run would take it for a document. Links inside of folders are not
    followed. A mask lies beside its output."""
    for path in paths:
        below = os.path.relpath(os.path.realpath(output), os.path.realpath(path)).split(os.sep)
        if path.is_dir() and not any(part.startswith(".") for part in below):
            raise Failure(f"--output {output}: lies in the folder {path}, all of whose files are documents: name another folder")


def check_text(place, text):
    """Refuses text that tokenizers cannot read: JSON and arguments may have surrogates, which UTF-8 has not."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Failure(f"{place}: is not Unicode text at character {error.start}") from None


def parquet_rows(path):
    pyarrow = load_package("pyarrow", path.name)
    try:
        for batch in importlib.import_module("pyarrow.parquet").ParquetFile(path).iter_batches():
            yield from batch.to_pylist()
    except (ValueError, OSError, pyarrow.ArrowException) as error:
        raise Failure(f"{path}: cannot be read: {error}") from None


def rows_of(path):
    """Yields (place, row) of a file of rows; a row is a dict."""
    if path.suffix == ".parquet":
        for number, row in enumerate(parquet_rows(path), 1):
            yield f"{path}: row {number}", row
        return
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            place = f"{path}: line {number}"
            try:
                row = json.loads(line)
            except ValueError as error:
                raise Failure(f"{place}: is not JSON: {error}") from None
            except RecursionError:
                raise Failure(f"{place}: has too many lists or objects in each other") from None
            if not isinstance(row, dict):
                raise Failure(f"{place}: is not an object with fields")
            yield place, row


def field_of(place, row, name, kind=str):
    if name not in row:
        raise Failure(f"{place}: has no field '{name}'; it has {', '.join(map(repr, row)) or 'none'}")
    if not isinstance(row[name], kind):
        raise Failure(f"{place}: the field '{name}' is not {'text' if kind is str else 'a list'}")
    if kind is str:
        check_text(f"{place}: the field '{name}'", row[name])
    return row[name]


def text_of(path):
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise Failure(f"{path}: is not UTF-8 text at byte {error.start}") from None


def chat_parts(place, field, messages, render):
    """Cuts a rendered chat into (text, has a loss). An answer begins after what the template puts before it."""
    parts, done = [], ""

    def add(count, has_loss, **options):
        """Adds the text that the first `count` messages append."""
        nonlocal done
        try:
            text = render(messages[:count], **options)
        except Exception as error:  # Templates may raise any exception.
            raise Failure(f"{place}: the chat template refuses the messages in '{field}': {error}") from None
        check_text(f"{place}: the text of the messages in '{field}'", text)
        if not text.startswith(done):
            raise Failure(f"{place}: the chat template changes earlier messages, so the answers cannot be told apart")
        parts.append((text[len(done):], has_loss))
        done = text

    for count, message in enumerate(messages, 1):
        if not isinstance(message, dict):
            raise Failure(f"{place}: message {count} in '{field}' is not an object with 'role' and 'content'")
        is_answer = message.get("role") == "assistant"
        if is_answer:
            add(count - 1, False, add_generation_prompt=True)
        add(count, is_answer)
    return parts


def documents_of(path, options, render):
    """Yields a file's documents, each a list of (text, has a loss)."""
    if path.suffix not in (".jsonl", ".parquet"):
        if options.is_masked:
            raise Failure(f"{path}: fields are in .jsonl and .parquet files only")
        yield [(text_of(path), True)]
        return
    for place, row in rows_of(path):
        if options.chat_field:
            yield chat_parts(place, options.chat_field, field_of(place, row, options.chat_field, list), render)
        elif options.prompt_field:
            yield [(field_of(place, row, options.prompt_field), False), (field_of(place, row, options.answer_field), True)]
        else:
            yield [(field_of(place, row, options.field), True)]


def batches_of(items, size):
    items = iter(items)
    while batch := list(itertools.islice(items, size)):
        yield batch


def loss_mask(parts, offsets):
    """A byte for each token of the joined parts, 1 if it has a loss. None if a token has characters with and without a loss.

    `offsets`: (begin, end) of each token's characters. Characters of no token, such as spaces, belong to the next one.
    """
    of_character = b"".join(bytes([has_loss]) * len(text) for text, has_loss in parts)
    mask, previous_end = bytearray(), 0
    for begin, end in offsets:
        kinds = set(of_character[min(begin, previous_end):max(end, begin + 1)])
        if len(kinds) > 1:
            return None
        mask.append(1 in kinds)
        previous_end = max(previous_end, end)
    return mask


def joined(parts):
    """The parts without empty ones. Neighbors that both have a loss, or both have none, become one part."""
    groups = itertools.groupby(((text, has_loss) for text, has_loss in parts if text), key=lambda part: part[1])
    return [("".join(text for text, _ in group), has_loss) for has_loss, group in groups]


def prompts_of(parts):
    """The text before each answer that has text before it. `parts`: joined."""
    before = itertools.accumulate(text for text, _ in parts)
    return [text for text, (_, has_loss) in zip(before, parts[1:], strict=False) if has_loss]


def encode_answers(tokenizer, documents):
    """The (ids, mask) of each document of prompts and answers."""
    documents = [joined(parts) for parts in documents]
    encodings = tokenizer.encode_batch(["".join(text for text, _ in parts) for parts in documents], add_special_tokens=False)
    prompts = [prompts_of(parts) for parts in documents]
    alone = iter(tokenizer.encode_batch_fast(list(itertools.chain.from_iterable(prompts)), add_special_tokens=False))
    results, apart = [], []
    for number, whole in enumerate(encodings):
        mask = loss_mask(documents[number], whole.offsets)
        begins = [index for index in range(1, len(mask or ())) if mask[index] > mask[index - 1]]
        if [whole.ids[:begin] for begin in begins] != [next(alone).ids for _ in prompts[number]] or mask is None:
            apart.append(number)
        results.append((whole.ids, mask))
    texts = [text for number in apart for text, _ in documents[number]]
    encodings = iter(tokenizer.encode_batch_fast(texts, add_special_tokens=False))
    for number in apart:
        ids, mask = [], bytearray()
        for _, has_loss in documents[number]:
            part = next(encodings).ids
            ids += part
            mask += bytes([has_loss]) * len(part)
        results[number] = ids, mask
    return results


def encode_texts(tokenizer, documents):
    """The (ids, mask) of each document of one text."""
    encodings = tokenizer.encode_batch_fast([text for [(text, _)] in documents], add_special_tokens=False)
    return [(encoding.ids, bytearray(b"\1" * len(encoding.ids))) for encoding in encodings]


def encode(tokenizer, documents, separator, is_masked):
    """Yields the (ids, mask) of each document. Texts are not cut: a cut would change tokens."""
    end = None
    if separator is not None:
        check_text("--separator", separator)
        end = tokenizer.token_to_id(separator)
        if end is None:
            raise Failure(f"--separator {separator}: the tokenizer has no such token")
    for batch in batches_of(documents, BATCH):
        encoded = encode_answers(tokenizer, batch) if is_masked else encode_texts(tokenizer, batch)
        for parts, (ids, mask) in zip(batch, encoded, strict=True):
            if end is not None:
                ids.append(end)
                mask.append(parts[-1][1] if parts else 0)  # A chat may have no message.
            yield ids, mask


def with_progress(files):
    """Yields the files, and shows on a terminal how many of their bytes have been read."""
    if not sys.stderr.isatty():
        yield from files
        return
    tqdm = load_package("tqdm", "a progress bar").tqdm
    with tqdm(total=sum(file.stat().st_size for file in files), unit="B", unit_scale=True) as bar:
        for file in files:
            bar.set_postfix_str(file.name)
            yield file
            bar.update(file.stat().st_size)


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=pathlib.Path, metavar="PATH")
    parser.add_argument("--tokenizer", required=True, type=pathlib.Path, help="a tokenizer.json, or the folder of one")
    parser.add_argument("--output", required=True, type=pathlib.Path)
    parser.add_argument("--separator", help="a token to put after each document")
    parser.add_argument("--field", default="text", help="the field of rows that holds a document [text]")
    parser.add_argument("--prompt-field", help="the field that holds a prompt, which has no loss")
    parser.add_argument("--answer-field", help="the field that holds the answer to it, which has a loss")
    parser.add_argument("--chat-field", help="the field that holds a list of messages")
    options = parser.parse_args(arguments)
    if options.output.suffix not in WIDTHS:
        parser.error(f"--output {options.output}: the name must end in one of {', '.join(WIDTHS)}")
    if bool(options.prompt_field) != bool(options.answer_field):
        parser.error("--prompt-field and --answer-field: give both or neither")
    if options.prompt_field and options.chat_field:
        parser.error("--chat-field: leave out --prompt-field and --answer-field, or this one")
    options.is_masked = bool(options.prompt_field or options.chat_field)
    return options


def main(arguments):
    options = parse(arguments)
    try:
        tokenizer = load_tokenizer(options.tokenizer)
        render = load_chat_template(options.tokenizer) if options.chat_field else None
        check_outside(options.output, options.paths)
        files = list(files_of(options.paths))
        documents = itertools.chain.from_iterable(documents_of(file, options, render) for file in with_progress(files))
        encoded = encode(tokenizer, documents, options.separator, options.is_masked)
        with locked(options.output):
            count, with_loss = write_tokens(options.output, encoded, options.is_masked)
    except (Failure, OSError) as error:
        print(f"tokenize.py: {error}", file=sys.stderr)
        return 1
    masked = f", {with_loss} of them with a loss" if options.is_masked else ""
    print(f"{options.output}: {count} tokens{masked}, vocabulary {tokenizer.get_vocab_size()}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
