# shellcheck shell=bash
# Debian's packages, unpacked into folders of the build; sourced. apt is given a state of its own, so that packages of
# another architecture can be had without changing the system and without being root. NEEDED is what to tell the user
# to do where there are none.

has() { command -v "$1" >/dev/null; }
say() { echo "==> $*"; }
fail() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}

# debian_unpack FOLDER ARCH PACKAGE...: packages of that architecture with everything that they depend on.
debian_unpack() {
    local packages=("${@:3}")
    _debian_fetch -o Dir::State::status=/dev/null --no-install-recommends --download-only install "${packages[@]/%/:$2}"
    # apt adds the system's own tools that it would install them with; they have the system's architecture.
    _debian_extract "$1" "*_$2.deb" "*_all.deb"
}

# debian_unpack_missing FOLDER PACKAGE...: packages with those of their dependencies that the system lacks.
debian_unpack_missing() {
    _debian_fetch --no-install-recommends --reinstall --download-only install "${@:2}"
    _debian_extract "$1" "*.deb"
}

# debian_unpack_alone FOLDER PACKAGE...: packages without their dependencies.
debian_unpack_alone() {
    _debian_fetch download "${@:2}"
    _debian_extract "$1" "*.deb"
}

_APT=$PWD/build/wheels/apt
_debian_is_current=

_debian_fetch() {
    has apt-get && has dpkg-deb || fail "apt-get is missing. On another system than Debian, $NEEDED"
    rm -rf "$_APT/archives"
    mkdir -p "$_APT/state/lists/partial" "$_APT/archives/partial"
    local options=(
        -qq --yes
        -o APT::Architecture=amd64 -o APT::Architectures::=amd64 -o APT::Architectures::=arm64
        -o Dir::State="$_APT/state" -o Dir::Cache="$_APT" -o Dir::Cache::archives=archives
        -o Dir::State::status=/var/lib/dpkg/status
        -o APT::Sandbox::User="$(id -un)" -o Debug::NoLocking=true -o Acquire::Languages=none
    )
    if [[ -z $_debian_is_current ]]; then
        apt-get "${options[@]}" update || fail "apt-get update failed. Without Debian's packages for amd64 and arm64, $NEEDED"
        _debian_is_current=yes
    fi
    (cd "$_APT/archives" && apt-get "${options[@]}" "$@" >/dev/null) || fail "apt-get failed. Without these packages, $NEEDED"
}

_debian_extract() {
    local folder=$1 pattern archive
    shift
    mkdir -p "$folder"
    for pattern in "$@"; do
        while IFS= read -r archive; do
            dpkg-deb --extract "$archive" "$folder"
        done < <(find "$_APT/archives" -maxdepth 1 -name "$pattern")
    done
}
