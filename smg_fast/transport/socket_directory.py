"""The directory that Unix sockets live in, and what is left in it from earlier runs.

Whoever can reach an engine's sockets can read every prompt and forge every answer, so nobody but the user may.
"""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

from .errors import BindError

_PRIVATE = 0o700


def prepare_directory(directory: Path) -> None:
    """Create ``directory`` and its missing parents with mode 0700, or make sure that the one that exists is private.

    Nobody else may be able to put another in its place either. What was there before is never changed.

    Raises
    ------
    BindError
        It is a symbolic link, no directory, someone else's, open to others, or cannot be created; or others can rename
        something on its path.
    """
    try:
        _create(directory)
        status = directory.lstat()
    except OSError as error:
        raise BindError(f"cannot create the socket directory {directory}: {error.strerror}") from error
    if stat.S_ISLNK(status.st_mode):
        raise BindError(f"the socket directory {directory} is a symbolic link; give the directory itself")
    if not stat.S_ISDIR(status.st_mode):
        raise BindError(f"the socket directory {directory} is not a directory")
    if status.st_uid != os.geteuid():
        raise BindError(
            f"the socket directory {directory} belongs to user {status.st_uid}, and this is user {os.geteuid()}; "
            "use a directory of your own"
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise BindError(
            f"the socket directory {directory} has mode {mode:04o}, which lets other users in; "
            f"mend it with: chmod 700 {directory}"
        )
    for parent in dict.fromkeys((*directory.parents, *directory.resolve().parents)):
        _check_parent(directory, parent)


def clear_stale_socket(path: Path) -> None:
    """Remove the socket that a dead process left at ``path``. Nothing there: nothing to do.

    Raises
    ------
    BindError
        Someone listens on it, it is no socket, or it cannot be removed.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise BindError(f"cannot look at {path}: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise BindError(f"{path} exists and is not a socket; remove it, or choose another worker URL")
    if _listening(path):
        raise BindError(f"{path} is in use: another process listens on it")
    remove_socket(path)


def remove_socket(path: Path) -> None:
    """Remove the socket at ``path``, if it is there. Raises ``BindError`` if that is not allowed."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise BindError(f"cannot remove the socket {path}: {error.strerror}") from error


def _check_parent(directory: Path, parent: Path) -> None:
    """``parent`` may be a symbolic link. Whoever owns the root directory can do anything anyway."""
    status = parent.lstat()
    if status.st_uid not in (0, os.geteuid(), Path("/").stat().st_uid):
        raise BindError(
            f"the socket directory {directory} is not safe: user {status.st_uid} could replace it, "
            f"as {parent} is theirs; use a directory below your own or root's"
        )
    mode = stat.S_IMODE(status.st_mode)
    # A group is let be: where each user has a group of their own, directories are made with mode 775.
    if mode & 0o002 and not mode & stat.S_ISVTX and not stat.S_ISLNK(status.st_mode):
        raise BindError(
            f"the socket directory {directory} is not safe: {parent} has mode {mode:04o}, so that other users could "
            f"replace it; mend it with: chmod o-w {parent}"
        )


def _create(directory: Path) -> None:
    """Like ``Path.mkdir(parents=True)``, which would give the parents the mode of the umask."""
    if os.path.lexists(directory):
        return
    _create(directory.parent)
    try:
        directory.mkdir(_PRIVATE)
    except FileExistsError:
        return


def _listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except BlockingIOError:
            return True  # its backlog is full, so there is one
        except OSError as error:
            raise BindError(f"cannot tell whether {path} is in use: {error.strerror}") from error
        return True
