"""The directory that Unix sockets live in, and what is left in it from earlier runs.

Whoever can reach an engine's sockets can read every prompt and forge every answer, so nobody but the user may.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import tempfile
from pathlib import Path

from .errors import BindError

#: Names the directory instead of the user's own.
DIRECTORY_VARIABLE = "SMG_ZMQ_SOCKET_DIR"

_PRIVATE = 0o700
#: Files of a worker that is named after its process: ``process_name`` and what follows it, and what they are for.
_OF_PROCESS = re.compile(
    r"([a-z]+-([0-9]+)(?:-[0-9]+)?)-(?:(?:in|out|http)(?:\.[0-9]+)?\.sock|engines(?:\.[0-9]+)?\.(?:json|new))"
)


def user_directory() -> Path:
    """Where this user's sockets live: as ``SMG_ZMQ_SOCKET_DIR`` says, else one of their own; it may be missing."""
    if given := os.environ.get(DIRECTORY_VARIABLE):
        return Path(given).absolute()
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK):
        return Path(runtime).absolute() / "smg-fast"
    return Path(tempfile.gettempdir()).absolute() / f"smg-fast-{os.getuid()}"


def process_name(kind: str) -> str:
    """The name of a worker that this process starts, and nobody else has to know: ``kind`` is of letters."""
    return f"{kind}-{os.getpid()}"


def clear_left_workers(directory: Path) -> list[Path]:
    """Remove the files of workers that are named after processes that were killed; returns the workers' paths.

    Where someone listens they stay, as a container has processes that are not seen here; so they do where they are
    not sockets, or cannot be removed. ``directory`` may be missing.
    """
    cleared = []
    for worker, files in _left_workers(directory).items():
        with contextlib.suppress(BindError, OSError):
            for path in sorted(files, key=lambda path: path.suffix, reverse=True):  # sockets first
                if path.suffix == ".sock":
                    clear_stale_socket(path)
                else:
                    path.unlink(missing_ok=True)
            cleared.append(worker)
    return cleared


def _left_workers(directory: Path) -> dict[Path, list[Path]]:
    """Files by the path of the worker, of those whose process is gone."""
    workers: dict[Path, list[Path]] = {}
    with contextlib.suppress(FileNotFoundError):
        for path in directory.iterdir():
            owner = _OF_PROCESS.fullmatch(path.name)
            if owner is not None and not Path("/proc", owner[2]).exists():
                workers.setdefault(directory / owner[1], []).append(path)
    return workers


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
