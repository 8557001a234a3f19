"""Who may have the directory of the sockets, and what may be in it."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from smg_fast.transport.errors import BindError
from smg_fast.transport.socket_directory import clear_stale_socket, prepare_directory


def test_a_missing_directory_is_created_for_the_user_alone_with_its_parents(tmp_path: Path) -> None:
    previous = os.umask(0o022)
    try:
        prepare_directory(tmp_path / "a" / "b")
    finally:
        os.umask(previous)
    for created in (tmp_path / "a", tmp_path / "a" / "b"):
        assert stat.S_IMODE(created.stat().st_mode) == 0o700


def test_a_private_directory_is_taken_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    prepare_directory(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o500


@pytest.mark.parametrize("mode", [0o710, 0o701, 0o755, 0o777, 0o1777])
def test_a_directory_open_to_others_is_refused_and_left_alone(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(BindError, match=f"mode {mode:04o}.*chmod 700"):
        prepare_directory(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == mode


@pytest.mark.parametrize("target", ["real", "nowhere"])
def test_a_symbolic_link_is_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "real").mkdir(0o700)
    (tmp_path / "link").symlink_to(tmp_path / target)
    with pytest.raises(BindError, match="symbolic link"):
        prepare_directory(tmp_path / "link")


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BindError, match="is not a directory"):
        prepare_directory(tmp_path / "file")
    with pytest.raises(BindError, match="cannot create"):
        prepare_directory(tmp_path / "file" / "below")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "theirs"
    directory.mkdir(0o700)
    os.chown(directory, 12345, -1)
    with pytest.raises(BindError, match="belongs to user 12345"):
        prepare_directory(directory)


@pytest.mark.parametrize("mode", [0o777, 0o757])
def test_a_parent_in_which_others_can_rename_is_refused(tmp_path: Path, mode: int) -> None:
    parent = tmp_path / "shared"
    (parent / "between").mkdir(0o755, parents=True)
    parent.chmod(mode)
    with pytest.raises(BindError, match=f"{parent} has mode {mode:04o}.*chmod o-w {parent}"):
        prepare_directory(parent / "between" / "mine")
    parent.chmod(mode | stat.S_ISVTX)
    prepare_directory(parent / "between" / "mine")


def test_a_parent_behind_a_symbolic_link_is_looked_at_too(tmp_path: Path) -> None:
    (tmp_path / "shared" / "between").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "shared" / "between")
    prepare_directory(tmp_path / "link" / "mine")
    (tmp_path / "shared").chmod(0o777)
    with pytest.raises(BindError, match=r"shared has mode 0777"):
        prepare_directory(tmp_path / "link" / "mine")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_parent_of_another_user_is_refused(tmp_path: Path) -> None:
    parent = tmp_path / "theirs"
    (parent / "mine").mkdir(0o700, parents=True)
    os.chown(parent, 12345, -1)
    parent.chmod(0o1777)  # its owner can rename what is in it all the same
    with pytest.raises(BindError, match=f"user 12345 could replace it, as {parent} is theirs"):
        prepare_directory(parent / "mine")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link away")
def test_a_link_of_another_user_among_the_parents_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.chown(tmp_path / "link", 12345, -1, follow_symlinks=False)
    with pytest.raises(BindError, match=r"user 12345 could replace it, as .*link is theirs"):
        prepare_directory(tmp_path / "link" / "mine")


def test_the_socket_of_a_dead_process_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    clear_stale_socket(path)
    assert not path.exists()
    clear_stale_socket(path)


def test_a_socket_someone_listens_on_is_in_use(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(str(path))
        alive.listen()
        with pytest.raises(BindError, match=f"{path} is in use"):
            clear_stale_socket(path)
    assert path.exists()


def test_what_is_no_socket_is_never_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(BindError, match="not a socket"):
        clear_stale_socket(path)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(BindError, match="not a socket"):
        clear_stale_socket(link)
    assert path.read_text() == "precious"
