"""Files that a command writes when it has worked for long, looked at before it begins."""

from __future__ import annotations

import os
from pathlib import Path

from fla_core.errors import ContractError


def check_writable(command: str, option: str, path: Path | None, *, makes_folders: bool) -> None:
    """Look whether a file can be written, without touching it.

    Args:
        command, option: whose file.
        path: of the file; None is none.
        makes_folders: the command makes the folders above it.

    Raises:
        ContractError: it cannot.
    """
    if path is None:
        return
    folder = path.parent
    while makes_folders and not folder.exists():
        folder = folder.parent
    problem = ""
    if path.is_dir():
        problem = "is a folder"
    elif not folder.is_dir():
        problem = f"there is no folder {folder}"
    elif not os.access(path if path.exists() else folder, os.W_OK):
        problem = "must not be written"
    if problem:
        expected = "the path of a file that can be written"
        raise ContractError(command, option, expected, f"{path}: {problem}")
