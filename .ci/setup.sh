# shellcheck shell=bash disable=SC2034
# What ./run and ./test share: packages, configure, build. Sourced by them from anywhere; needs bash.
# Everything it says goes to stderr: stdout belongs to keyhole.

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
build_root=${KEYHOLE_BUILD_DIR:-$root/build}
[[ $build_root == /* ]] || build_root=$PWD/$build_root

build_packages=(
    g++ cmake ninja-build pkg-config                               # compiler and build
    libfmt-dev nlohmann-json3-dev libcli11-dev                     # text, JSON, command line
    libhwy-dev libdnnl-dev ocl-icd-opencl-dev                      # SIMD, matrix products (its CMake files want OpenCL)
    libpcre2-dev libutf8proc-dev                                   # tokenizers
    libzip-dev libstb-dev libgif-dev libfontconfig-dev fonts-dejavu-core  # traces, pictures, fonts
    libimgui-dev libglfw3-dev libgl-dev libgl1-mesa-dri            # window
)
test_packages=(libgtest-dev xvfb xauth)  # test programs; a display where there is none
fuzz_packages=(clang-16 libclang-rt-16-dev)  # libFuzzer

say() { printf 'keyhole: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

is_installed() { [[ $(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

# ensure_packages WHY PACKAGE...: installs those that are missing, saying which and why first.
ensure_packages() {
    local why=$1 package missing=()
    shift
    if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
        command -v cmake >/dev/null && return  # another distribution: CMake names what it misses
        die "this is no Debian or Ubuntu; install what these packages of theirs hold, then start again: $*"
    fi
    for package in "$@"; do
        is_installed "$package" || missing+=("$package")
    done
    ((${#missing[@]})) || return 0
    local install="apt-get install -y --no-install-recommends ${missing[*]}"
    if ((EUID != 0)); then
        say "$why needs packages that are not installed. As root, once:"
        printf 'sudo apt-get update && sudo %s\n' "$install" >&2
        exit 1
    fi
    say "$why needs packages that are not installed: ${missing[*]}"
    say "installing them with apt-get"
    quietly "apt-get update" env DEBIAN_FRONTEND=noninteractive apt-get update || true  # older lists may do
    # shellcheck disable=SC2086 # the words of $install are meant
    quietly "$install" env DEBIAN_FRONTEND=noninteractive $install ||
        die "the packages did not install; mend that and start again"
}

# quietly WHAT COMMAND...: runs it; its output shows on a terminal while it runs, else only if it fails.
quietly() {
    local what=$1 log status=0
    shift
    if [[ -t 2 ]]; then
        "$@" </dev/null >&2 || status=$?
    else
        log=$(mktemp)
        "$@" </dev/null >"$log" 2>&1 || status=$?
        ((status == 0)) || sed -E '/^\[[0-9]+\/[0-9]+\] /d' "$log" >&2  # without the steps that went well
        rm -f "$log"
    fi
    ((status == 0)) || say "failed: $what (exit status $status)"
    return "$status"
}

say_cuda() {
    if command -v nvcc >/dev/null || [[ -n ${CUDACXX:-} || -x /usr/local/cuda/bin/nvcc ]]; then return; fi
    say "no nvcc, so this builds for the CPU; for CUDA install the toolkit (https://developer.nvidia.com/cuda-downloads) and start again"
}

# build PRESET TARGET...: configures and builds into $build_root/PRESET. One at a time in a folder: a second start waits.
build() {
    local preset=$1 folder=$build_root/$1 fresh=()
    shift
    mkdir -p "$folder" || die "cannot make the build folder $folder; name another in KEYHOLE_BUILD_DIR"
    exec 9>"$folder/.lock"
    flock 9
    if ! grep -qsxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$folder/CMakeCache.txt"; then
        fresh=(--fresh)  # new, or made by a clone in another place
    fi
    if ((${#fresh[@]})) || [[ ! -f $folder/build.ninja || $root/CMakePresets.json -nt $folder/build.ninja ]]; then
        say "configuring ($preset) in $folder"
        say_cuda
        quietly "cmake --preset $preset" \
            cmake -S "$root" --preset "$preset" -B "$folder" "${fresh[@]}" || return
        say "building ($preset)"
    fi
    quietly "building $*; in $folder" cmake --build "$folder" --target "$@" || return
    exec 9>&-
}
