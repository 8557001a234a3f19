#!/usr/bin/env bash
# Installs the wheels of dist/, each into an empty environment, and runs smoke.py there. For `make wheels-test`, which
# puts pip on the PATH. This machine's wheel is installed beside $PYTHON (python3).
#
# On x86-64, the wheel for aarch64 runs under qemu's user emulation, by Debian's CPython for arm64 unpacked under build/.
# The emulated processors have no more than the architecture's baseline. --native leaves out what needs qemu.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. packaging/debian.sh

DIST=$PWD/dist
SMOKE=$PWD/packaging/smoke.py
RECORDED=$PWD/tests/data/tokenspeed/wire-0.1.1.json
WORK=$PWD/build/wheels
QEMU=$WORK/qemu/usr/bin
ARM64=$WORK/arm64
PYTHON=${PYTHON:-python3}
PIP=$(command -v pip)
NEEDED="run packaging/wheels-test.sh --native on a machine of each kind"

# smoke PYTHON MACHINE: nothing but the environment is on the PATH, so there is no compiler.
smoke() {
    local environment=$WORK/environment-$2
    rm -rf "$environment"
    "$1" -m venv --without-pip "$environment"
    (
        cd "$environment"
        export PATH=$PWD/bin
        "$PIP" --python bin/python install --quiet --only-binary=:all: "$DIST"/smg_fast-*_"$2".whl
        bin/python -I "$SMOKE" "$RECORDED"
    )
}

unpack_emulator() {
    [[ ! -e $WORK/emulator-complete ]] || return 0
    say "unpacking Debian's qemu, and its CPython for arm64, under build/"
    debian_unpack_alone "$WORK/qemu" qemu-user-static
    # libstdc++ is what pyzmq's wheel expects of the system.
    debian_unpack "$ARM64" arm64 python3 libstdc++6
    # CPython finds its environment, and what to start as sys.executable, by the name it is called by: this script's.
    cat >"$ARM64/python" <<SCRIPT
#!/bin/sh
exec "$QEMU/qemu-aarch64-static" -cpu cortex-a53 -L "$ARM64" -0 "\$0" "$(echo "$ARM64"/usr/bin/python3.*)" "\$@"
SCRIPT
    chmod +x "$ARM64/python"
    touch "$WORK/emulator-complete"
}

"$PYTHON" packaging/check_wheels.py "$DIST"
say "the wheel for $(uname -m) on this machine"
smoke "$PYTHON" "$(uname -m)"
if [[ ${1:-} == --native || $(uname -m) != x86_64 ]]; then
    say "the wheel for this machine works; the other one has not been run"
    exit
fi
unpack_emulator
say "its codec under qemu, on a processor with x86-64's baseline"
"$QEMU/qemu-x86_64-static" -cpu qemu64 "$WORK/environment-x86_64/bin/python" -I "$SMOKE" --codec-only "$RECORDED"
say "the wheel for aarch64 under qemu, on a processor with Armv8.0-A's baseline"
smoke "$ARM64/python" aarch64
say "both wheels work"
