"""Where a trace is written: the path is checked first, and the file appears under it whole or not at all.

A new file is laid out under a temporary name beside the final one and *published* once it is readable:
until then nothing stands at the path, or what stood there before. Afterwards the file only grows, so a
killed writer always leaves a readable file at the path.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from pathlib import Path

from moeinspect.errors import OutputError


def check_output_path(path: str | os.PathLike[str], force: bool = False) -> None:
    """Checks before a run that a trace can be written to `path`.

    Raises:
        OutputError: `path` is taken (without `force`), is a folder or no ordinary file, or its folder is
            missing or cannot be written to.
    """
    target = Path(path)
    _check_target(target, force)
    probe = _temporary_beside(target)
    try:
        os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: its folder does not take a new file ({_text(error)})",
            "choose another output with -o",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)


def _check_target(target: Path, force: bool) -> None:
    elsewhere = "choose another output with -o"
    if not os.fspath(target) or target.name in ("", ".", ".."):
        raise OutputError(f"cannot write {target}: it names no file", elsewhere)
    if not target.parent.is_dir():
        raise OutputError(f"cannot write {target}: there is no folder {target.parent}", "make it first")
    try:
        mode = target.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise OutputError(f"cannot write {target}: {_text(error)}", elsewhere) from error
    if target.is_dir():
        raise OutputError(f"cannot write {target}: it is a folder", elsewhere)
    if not force:
        raise OutputError(f"{target} exists", "overwrite it with --force, or choose another output with -o")
    if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)) or (target.exists() and not target.is_file()):
        raise OutputError(f"cannot write {target}: it is not an ordinary file", elsewhere)


class PendingFile:
    """A file under a temporary name that is about to appear at `path`.

    `replaces` tells that a file stood there and may be replaced: it is then kept until `publish`.
    """

    def __init__(self, path: str | os.PathLike[str], force: bool) -> None:
        """Chooses the temporary name; makes no file.

        Raises:
            OutputError: as `check_output_path`.
        """
        check_output_path(path, force)
        self.path = Path(path)
        self.force = force
        self.published = False
        self._target = self.path.resolve() if force else self.path
        self.replaces = force and self._target.exists()
        self.temporary = _temporary_beside(self._target)

    def publish(self) -> None:
        """Makes the file appear at the path, in one step.

        Raises:
            OutputError: somebody else made a file there in the meantime, and `force` is not given.
            OSError: the folder is gone or the like.
        """
        if self.published:
            return
        if self.force:
            self.temporary.replace(self._target)
        else:
            self._link()
        self.published = True

    def _link(self) -> None:
        """Unlike a rename, a hard link never replaces what appeared at the path meanwhile."""
        try:
            os.link(self.temporary, self.path)
        except FileExistsError:
            raise OutputError(
                f"{self.path} exists", "overwrite it with --force, or choose another output with -o"
            ) from None
        except OSError:  # a file system without hard links: claim the name, then move over the claim
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            self.temporary.replace(self.path)
        else:
            self.temporary.unlink()

    def discard(self) -> None:
        """Takes the file away, wherever it stands by now; what a `force` did not replace yet stays."""
        with contextlib.suppress(OSError):
            (self._target if self.published else self.temporary).unlink(missing_ok=True)


def _temporary_beside(target: Path) -> Path:
    """In the same folder, hence on the same file system; the name is cut so that it stays a valid one."""
    return target.parent / f".{target.name[:100]}.{secrets.token_hex(4)}.partial"


def require_space(fd: int, file_bytes: int, payload_bytes: int) -> None:
    """Checks that a file can grow, before HDF5 is asked to: it does not recover from a failed write.

    `file_bytes` is the size that the file will have at most, `payload_bytes` what will be written to it.

    Raises:
        OSError: EFBIG or ENOSPC, as the write itself would have failed.
    """
    limit = _file_size_limit()
    if limit is not None and file_bytes > limit:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    try:
        free = os.fstatvfs(fd)
    except OSError:
        return  # nothing to be learnt from this file system
    if free.f_blocks and payload_bytes > free.f_bfree * free.f_frsize:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _file_size_limit() -> int | None:
    try:
        import resource  # POSIX only
    except ImportError:
        return None
    soft, _hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    return None if soft == resource.RLIM_INFINITY else soft


def reason(error: BaseException) -> str:
    """The system's words for a failed HDF5 call, or the first line of HDF5's own."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    number = re.search(r"errno = (\d+)", str(error))
    if number and int(number[1]):
        return os.strerror(int(number[1]))
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    return (text.splitlines() or [type(error).__name__])[0]


def _text(error: OSError) -> str:
    return error.strerror or str(error)
