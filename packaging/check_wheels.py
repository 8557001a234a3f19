"""Are the wheels what they should be? Looks at their names and contents; nothing is run.

python check_wheels.py DIST
"""

from __future__ import annotations

import re
import struct
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAME = re.compile(r"smg_fast-(?P<version>[^-]+)-cp310-abi3-manylinux_2_(?P<glibc>\d+)_(?P<machine>\w+)\.whl")
NEWEST_GLIBC = 28
#: Three numbers: what more there may be, Cargo and Python write differently.
CARGO_VERSION = re.compile(r'^version = "(\d+\.\d+\.\d+)"$', re.MULTILINE)

#: ELF's number of each machine, and the alignment that its largest memory page asks of a segment: kernels for GB300
#: have pages of 64 KiB.
MACHINES = {"x86_64": (62, 4 << 10), "aarch64": (183, 64 << 10)}
LOAD = 1

CODEC = "smg_fast/_codec.abi3.so"
CONTENTS = {
    CODEC,
    "smg_fast/_codec.pyi",
    "smg_fast/py.typed",
    *(str(path.relative_to(ROOT)) for path in (ROOT / "smg_fast").rglob("*.py")),
    *(str(path.relative_to(ROOT)) for path in (ROOT / "smg_fast" / "embedded" / "model").iterdir()),
    "smg_fast/embedded/wire/vllm/layouts.json",
}


def main() -> None:
    dist = Path(sys.argv[1])
    version = cargo_version()
    assert [path.name for path in dist.glob("*.tar.gz")] == [f"smg_fast-{version}.tar.gz"]
    seen = []
    for wheel in sorted(dist.glob("*.whl")):
        name = NAME.fullmatch(wheel.name)
        assert name, wheel.name
        assert name["version"] == version, (wheel.name, version)
        assert int(name["glibc"]) <= NEWEST_GLIBC, wheel.name
        check_contents(wheel, name["machine"])
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB")
        seen.append(name["machine"])
    assert sorted(seen) == sorted(MACHINES), seen


def cargo_version() -> str:
    """The version in the one place where it is said."""
    found = CARGO_VERSION.search((ROOT / "Cargo.toml").read_text())
    assert found, "no version of three numbers in Cargo.toml"
    return found[1]


def check_contents(wheel: Path, machine: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert names == CONTENTS, f"{wheel.name}: {sorted(names ^ CONTENTS)}"
        codec = archive.read(CODEC)
    number, page = MACHINES[machine]
    assert codec[:6] == b"\x7fELF\x02\x01", "64 bits, little-endian"
    assert struct.unpack_from("<H", codec, 18) == (number,), f"{wheel.name}: the codec is for another machine"
    # https://refspecs.linuxfoundation.org/elf/gabi4+/ch5.pheader.html
    (offset,) = struct.unpack_from("<Q", codec, 32)
    size, count = struct.unpack_from("<HH", codec, 54)
    segments = [struct.unpack_from("<I44xQ", codec, offset + index * size) for index in range(count)]
    alignments = {alignment for kind, alignment in segments if kind == LOAD}
    assert min(alignments) >= page, f"{wheel.name}: segments are aligned to {alignments}, pages may have {page} bytes"


if __name__ == "__main__":
    main()
