"""Token files that tools/tokenize.py writes: their widths, their lock, and the mask beside each."""
import array
import contextlib
import errno
import fcntl
import os
import sys

WIDTHS = {".bin": ("H", 1 << 16), ".u16": ("H", 1 << 16), ".u32": ("I", 1 << 32)}


class Failure(Exception):
    """An error message for the user."""


@contextlib.contextmanager
def locked(output):
    """Holds the lock of an output and of its mask, as runs would write the same temporary files. Does without on file systems that
    have no locks."""
    name = output.with_name(output.name + ".lock")
    is_held = False
    while not is_held:
        file = open(name, "w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Else its last owner has just removed it.
            is_held = os.path.samestat(os.stat(name), os.fstat(file.fileno()))
        except BlockingIOError:
            file.close()
            raise Failure(f"--output {output}: another run of tokenize.py writes it: wait for its end, or give another name") from None
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            is_held = True
        if not is_held:
            file.close()
    with file:
        try:
            yield
        finally:
            name.unlink(missing_ok=True)


def write_tokens(output, documents, with_mask):
    """Writes temporary files and renames them, so that no partial output is left. Returns the numbers of tokens, and of those with a loss."""
    code, limit = WIDTHS[output.suffix]
    mask_name = output.with_name(output.name + ".mask")
    names = [output, mask_name] if with_mask else [output]
    partial = [name.with_name(name.name + ".partial") for name in names]
    count = with_loss = 0
    try:
        with open(partial[0], "wb") as file, open(partial[-1] if with_mask else os.devnull, "wb") as mask_file:
            for ids, mask in documents:
                if ids and max(ids) >= limit:
                    raise Failure(f"--output {output}: token {max(ids)} does not fit into 16 bits: name it .u32")
                tokens = array.array(code, ids)
                if sys.byteorder == "big":
                    tokens.byteswap()
                tokens.tofile(file)
                mask_file.write(mask)
                count += len(ids)
                with_loss += sum(mask)
        # First, so that a run that ends here leaves no mask of other tokens. Without a mask to write, a folder of this name is none.
        if with_mask or mask_name.is_symlink() or not mask_name.is_dir():
            mask_name.unlink(missing_ok=True)
        for source, name in zip(partial, names, strict=True):
            os.replace(source, name)
    finally:
        for name in partial:
            name.unlink(missing_ok=True)
    return count, with_loss
