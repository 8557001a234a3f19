#!/usr/bin/env bash
# Builds the sdist, and from it a wheel for x86-64 and one for aarch64, into dist/. For `make wheels`, which puts maturin
# and ziglang on the PATH. Zig is the linker: it has the C library of both architectures, of the age that is asked for.
#
# Rust is the one on the PATH if it has both targets or rustup can add them; else Debian's, unpacked under build/.
# WHEELS_RUST=debian takes Debian's in any case.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. packaging/debian.sh

TARGETS=(x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu)
TAG=manylinux_2_28
NEEDED="install Rust with rustup (https://rustup.rs) and run: rustup target add ${TARGETS[*]}"

has_targets() {
    local target
    for target in "${TARGETS[@]}"; do
        compgen -G "$(rustc --print target-libdir --target "$target")/libstd-*.rlib" >/dev/null || return 1
    done
}

choose_rust() {
    has cc || fail "cc is missing: what runs during the build is linked with it (Debian: apt install gcc)"
    if [[ ${WHEELS_RUST:-} != debian ]] && has rustc && has cargo; then
        if ! has_targets && has rustup; then
            say "asking rustup for ${TARGETS[*]}"
            rustup target add "${TARGETS[@]}" || true
        fi
        if has_targets; then
            say "Rust: $(command -v rustc), $(rustc --version)"
            return
        fi
        say "Rust: $(command -v rustc) lacks a target"
    fi
    [[ $(uname -m) == x86_64 ]] || fail "$NEEDED"
    local folder=$PWD/build/wheels/rust
    if [[ ! -e $folder/complete ]]; then
        say "unpacking Debian's Rust under build/"
        debian_unpack_missing "$folder" rustc-web cargo-web
        debian_unpack_alone "$folder" libstd-rust-web-dev:amd64 libstd-rust-web-dev:arm64
        touch "$folder/complete"
    fi
    export PATH=$folder/usr/bin:$PATH LD_LIBRARY_PATH=$folder/usr/lib/x86_64-linux-gnu RUSTC=$folder/usr/bin/rustc
    has_targets || fail "Debian's Rust lacks a target: $NEEDED"
    say "Rust: Debian's, $(rustc --version)"
}

# Where git knows it. A folder without a repository of its own may lie in someone else's.
revision() {
    local prefix
    prefix=$(git rev-parse --show-prefix 2>/dev/null) && [[ -z $prefix ]] || return 0
    git describe --always --dirty --abbrev=12 --exclude='*'
}

choose_rust
SMG_FAST_REVISION=$(revision)
say "git revision: ${SMG_FAST_REVISION:-not known}"
[[ $SMG_FAST_REVISION ]] && export SMG_FAST_REVISION
# Flags of this machine's owner, such as target-cpu=native, must not get into what others shall run.
export CARGO_ENCODED_RUSTFLAGS='' CARGO_TARGET_DIR=$PWD/target

rm -rf dist build/wheels/source
mkdir -p build/wheels/source
maturin sdist --out dist
tar -xzf dist/smg_fast-*.tar.gz --strip-components=1 -C build/wheels/source
dist=$PWD/dist
for target in "${TARGETS[@]}"; do
    say "building the wheel for ${target%%-*}"
    (cd build/wheels/source && maturin build --release --zig --target "$target" --compatibility "$TAG" --out "$dist")
done
ls -l dist
