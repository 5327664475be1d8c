"""Small file systems, mounted for a test: of memory, or of a file that holds ext4 or XFS.

To simulate a power cut, such a file system is shut down without flushing its log, and mounted again: unsynced writes
that the kernel had not written yet are lost.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SHUTDOWN = 0x8004587D
_WITHOUT_LOG_FLUSH = 2

needs_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may mount")


def _mount(*arguments: object) -> None:
    done = subprocess.run(["mount", *map(str, arguments)], check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")


@contextmanager
def tmpfs(where: Path, size: str) -> Iterator[Path]:
    """Give a file system in memory of this size."""
    where.mkdir()
    _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", where)
    try:
        yield where
    finally:
        subprocess.run(["umount", where], check=True)


@contextmanager
def read_only(where: Path) -> Iterator[None]:
    """Make a directory read-only, even for root."""
    _mount("--bind", where, where)
    try:
        _mount("-o", "remount,ro,bind", where)
        yield
    finally:
        subprocess.run(["umount", where], check=True)


class Loop:
    """A file system in a file."""

    def __init__(self, image: Path, where: Path) -> None:
        self._image = image
        self.where = where

    def mount(self) -> None:
        _mount("-o", "loop", self._image, self.where)

    def unmount(self) -> None:
        subprocess.run(["umount", self.where], check=True)

    def shut_down(self) -> None:
        """Cut the power."""
        fd = os.open(self.where, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", _WITHOUT_LOG_FLUSH))
        finally:
            os.close(fd)


@contextmanager
def loop(directory: Path, kind: str) -> Iterator[Loop]:
    """Give a file system of this kind, mounted."""
    program = shutil.which(f"mkfs.{kind}", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if program is None:
        pytest.skip(f"there is no mkfs.{kind} here")
    image, where = directory / f"{kind}.img", directory / kind
    where.mkdir()
    with image.open("wb") as file:
        file.truncate({"ext4": 32, "xfs": 320}[kind] << 20)
    subprocess.run([program, "-q", image], check=True)
    made = Loop(image, where)
    made.mount()
    try:
        yield made
    finally:
        made.unmount()
