"""Damage to the files of the newest checkpoint: each damaged file is named, and none is used."""
import ctypes
import json
import os
import random
import re
import shutil
import struct

from checkpoint_place import Outcome, hash_of

FILES = ("checkpoint.json", "model.safetensors", "optimizer.safetensors", "config.json")


def damaged(change, message, count=1):
    """Damages the newest checkpoint in `count` ways: the run names it, and goes on from the one before."""

    def run(harness):
        problems, seconds, output = [], 0, ""
        for number in range(count):
            place = harness.place(1)
            what = change(place, number)
            outcome = place.train()
            seconds, output = max(seconds, outcome.seconds), outcome.output
            found = list(outcome.complaints)
            if outcome.code != 0:
                found.append(f"exit code {outcome.code}")
            elif hash_of(outcome.output) != harness.expected(1)[1]:
                found.append("other weights")
            for text in (message, "is not used", "after step 4"):
                if not re.search(text, outcome.output):
                    found.append(f"no message like '{text}'")
            problems += [f"{what}: {problem}" for problem in found]
            shutil.rmtree(place.folder.parent)
        warnings = [line for line in output.splitlines() if line.startswith("warning  ck")]
        note = "weft: " + (warnings[0][9:] if warnings else "") + (f" ({count} runs)" if count > 1 else "")
        return Outcome(0, note, seconds, []), problems

    return run


def flip_a_bit(place, number):
    draw = random.Random(number)
    path = place.path(8, FILES[number % len(FILES)])
    content = bytearray(path.read_bytes())
    bit = draw.randrange(len(content) * 8)
    content[bit // 8] ^= 1 << (bit % 8)
    # The case of a hexadecimal digit in the checksum of checkpoint.json has no meaning.
    if bytes(content).lower() == path.read_bytes().lower():
        content[0] ^= 1
    path.write_bytes(content)
    return f"bit {bit} of {path.name}"


def truncate(place, number):
    path = place.path(8, FILES[number % len(FILES)])
    size = path.stat().st_size
    boundaries = [0, 1, 7, 8, 9, size // 2, size - 1]
    if path.suffix == ".safetensors":
        header = struct.unpack("<Q", path.read_bytes()[:8])[0]
        boundaries += [8 + header - 1, 8 + header, 8 + header + 1]
    keep = boundaries[number // len(FILES) % len(boundaries)]
    os.truncate(path, min(keep, size - 1))
    return f"{path.name} cut to {keep} bytes"


def remove(place, number):
    path = place.path(8, FILES[number])
    path.unlink()
    return f"without {path.name}"


def file_of_another_step(place, _):
    shutil.copy(place.path(4, "model.safetensors"), place.path(8, "model.safetensors"))
    return "a file of another step"


def link_out_of_folder(place, _):
    """A link out of the folder, to a file with the right content."""
    path = place.path(8, "model.safetensors")
    outside = place.folder / "outside.safetensors"
    path.rename(outside)
    path.symlink_to(outside)
    return "a link out of the folder"


def refused(change, message):
    """Changes the newest checkpoint so that nothing in it is torn: the run ends, and passes over nothing."""

    def run(harness):
        place = harness.place(1)
        change(place, 0)
        outcome = place.train()
        problems = [] if outcome.code == 3 else [f"exit code {outcome.code}, expected 3"]
        if not re.search(message, outcome.output):
            problems.append(f"no message like '{message}'")
        return outcome, problems

    return run


def wrong_array(shape, dtype, message):
    """A checkpoint whose checksums are right, but with an array of another shape or dtype: one of another model."""
    return refused(lambda place, _: rewrite_header(place, shape, dtype), message)


def xxh3(data):
    """The checksum of bytes, by the library whose header weft compiles."""
    function = ctypes.CDLL("libxxhash.so.0").XXH3_64bits
    function.argtypes, function.restype = [ctypes.c_char_p, ctypes.c_size_t], ctypes.c_uint64
    return f"{function(data, len(data)):016x}"


def rewrite_header(place, shape, dtype):
    path = place.path(8, "model.safetensors")
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:8 + size])
    name = "model.norm.weight"
    header[name]["shape"] = shape or header[name]["shape"]
    header[name]["dtype"] = dtype or header[name]["dtype"]
    text = json.dumps(header, separators=(",", ":")).encode()
    assert len(text) <= size
    text = text.ljust(size)
    path.write_bytes(content[:8] + text + content[8 + size:])
    manifest_path = place.path(8, "checkpoint.json")
    manifest = json.loads(manifest_path.read_text())
    del manifest["checksum"]
    for entry in manifest["files"]["model.safetensors"]["ranges"]:
        if entry[0] == 0:
            entry[-1] = xxh3(path.read_bytes()[:entry[1]])
    body = json.dumps(manifest, separators=(",", ":"))[:-1]
    manifest_path.write_text(body + ',\n"checksum": "' + xxh3(body.encode()) + '"}\n')
