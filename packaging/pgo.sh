#!/usr/bin/env bash
# Builds the codec twice and installs the second one into .venv: with counters, to run the benchmarks of the codec, and
# with what those have counted. For `make build-pgo`, which puts maturin and pytest on the PATH.
#
# The counts are merged by llvm-profdata of the very LLVM that rustc has: rustup's component llvm-tools.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PROFILES=$PWD/build/pgo
export CARGO_TARGET_DIR=$PWD/target/pgo
bin=$(rustc --print target-libdir)/../bin

command -v rustup >/dev/null && rustup component add llvm-tools
[[ -x $bin/llvm-profdata ]] || {
    echo "llvm-profdata is missing: install Rust with rustup (https://rustup.rs) and run: rustup component add llvm-tools" >&2
    exit 1
}

rm -rf "$PROFILES"
echo "==> building the codec with counters"
CARGO_ENCODED_RUSTFLAGS="-Cprofile-generate=$PROFILES" maturin develop --release
echo "==> counting: the benchmarks of the codec"
pytest bench --benchmark-only --benchmark-max-time=0.2 --benchmark-min-rounds=2 --quiet
"$bin/llvm-profdata" merge -o "$PROFILES/merged.profdata" "$PROFILES"
echo "==> building the codec with what was counted"
CARGO_ENCODED_RUSTFLAGS="-Cprofile-use=$PROFILES/merged.profdata" maturin develop --release
