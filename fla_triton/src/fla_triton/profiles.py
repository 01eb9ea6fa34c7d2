"""Devices as data: what a launch plan needs to know of a chip."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Profile:
    """One kind of chip.

    Attributes:
        arch: as probes name it, ``"sm90"``.
        multiprocessors: programs that run side by side, at one a multiprocessor.
        shared_memory: bytes one program may use.
        grid_limit: largest number of programs on axis 0.
        dot_minimum: smallest side of a matrix product's tile.
        warp_width: threads of a warp.
        registers: 32-bit registers of a multiprocessor.
    """

    arch: str
    multiprocessors: int
    shared_memory: int
    grid_limit: int = 2**31 - 1
    dot_minimum: int = 16
    warp_width: int = 32
    registers: int = 65536


PROFILES = {
    profile.arch: profile
    for profile in (
        Profile("sm80", multiprocessors=108, shared_memory=163 * 1024),
        Profile("sm90", multiprocessors=132, shared_memory=227 * 1024),
        Profile("sm100", multiprocessors=148, shared_memory=227 * 1024),
        Profile("sm120", multiprocessors=170, shared_memory=99 * 1024),
    )
}
"""NVIDIA chips, by architecture."""
