"""What a program for Linux needs of the system that it runs on: its libraries, and the version of glibc.

A wheel's tag `manylinux_2_N` (PEP 600) promises that everything in it runs with glibc 2.N or newer, and with
no other library than those that every such system has.
"""

from __future__ import annotations

import pathlib
import re
import struct
from dataclasses import dataclass

# Those of PEP 600's allowed libraries with which Rust programs are linked.
_EVERYWHERE = re.compile(r"lib(c|m|dl|rt|util|pthread|gcc_s)\.so\.[0-9]+|ld-linux[-.\w]*")
_DYNAMIC, _VERSIONS_NEEDED = 6, 0x6FFFFFFE
_NEEDED = 1


@dataclass
class Needs:
    """Of one file."""

    # Names of shared libraries.
    libraries: list[str]
    # N of the newest `GLIBC_2.N` that a symbol asks for; 0 if none does.
    glibc_minor: int

    @property
    def foreign(self) -> list[str]:
        """Libraries that not every system has."""
        return [name for name in self.libraries if not _EVERYWHERE.fullmatch(name)]


def read_needs(path: pathlib.Path) -> Needs | None:
    """Reads an ELF file of 64 bits, little-endian; None for any other file."""
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        return None
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    # Type, offset, size and linked section of each.
    sections = []
    for place in range(count):
        _, kind, _, _, offset, length, link = struct.unpack_from("<IIQQQQI", data, table + place * size)
        sections.append((kind, offset, length, link))

    def text(link: int, place: int) -> str:
        begin = sections[link][1] + place
        return data[begin : data.index(b"\0", begin)].decode()

    libraries, minors = [], [0]
    for kind, offset, length, link in sections:
        if kind == _DYNAMIC:
            for entry in range(offset, offset + length, 16):
                tag, value = struct.unpack_from("<qQ", data, entry)
                if tag == _NEEDED:
                    libraries.append(text(link, value))
        elif kind == _VERSIONS_NEEDED:
            while True:
                _, num_versions, _, first, following = struct.unpack_from("<HHIII", data, offset)
                version = offset + first
                for _ in range(num_versions):
                    _, _, _, name, further = struct.unpack_from("<IHHII", data, version)
                    found = re.fullmatch(r"GLIBC_2\.([0-9]+)(\.[0-9]+)?", text(link, name))
                    if found:
                        minors.append(int(found[1]))
                    version += further
                if not following:
                    break
                offset += following
    return Needs(libraries, max(minors))
