# shellcheck shell=bash disable=SC2034
# Shared by ./run and ./test, which source it from any folder: packages, configure, build. Needs bash.
# All messages go to stderr; stdout belongs to keyhole.

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
build_root=${KEYHOLE_BUILD_DIR:-$root/build}
[[ $build_root == /* ]] || build_root=$PWD/$build_root

# a,b|c,d means packages a and b, or c and d, since names change between releases. The first
# alternative that is installed is taken, else the first that apt knows.
build_packages=(
    g++ cmake ninja-build "pkg-config|pkgconf"                     # compiler and build
    libfmt-dev nlohmann-json3-dev libcli11-dev                     # text, JSON, command line
    libhwy-dev libdnnl-dev ocl-icd-opencl-dev                      # SIMD, matrix products (needs OpenCL)
    libpcre2-dev libutf8proc-dev                                   # tokenizers
    libzip-dev zlib1g-dev libstb-dev libgif-dev libfontconfig-dev fonts-dejavu-core  # traces, pictures, fonts
    libcairo2-dev libharfbuzz-dev                                  # PDF, and fonts in SVG
    libmd4c-dev                                                    # the manual's Markdown
    libssl-dev                                                     # hashes of models
    libsystemd-dev                                                 # file dialogs of the desktop (D-Bus)
    libimgui-dev libglfw3-dev libgl-dev libgl1-mesa-dri            # window
)
cuda='' simd='' test_objects=''  # see build

# Test programs, linked quickly; a virtual display, its pointer and its clipboard; a bus for a fake desktop; a
# reader of PDF; what checks the format of sources.
test_packages=(libgtest-dev mold xvfb xauth libxtst-dev xclip "dbus-daemon|dbus" poppler-utils
    clang-format-14)
# A browser that tests pages (122 MB to get, half a minute to install), and numpy for the Python module.
page_packages=(python3 python3-numpy chromium chromium-driver)
# Left out where apt does not know them: tests that need them are skipped. Ubuntu has Chromium as a snap.
optional_packages=(chromium chromium-driver clang-format-14)
fuzz_packages=("libclang-rt-16-dev|libclang-rt-dev")  # libFuzzer

first_releases="Debian 12 and Ubuntu 24.04 are the first releases"

say() { printf 'keyhole: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

is_installed() {
    [[ $(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

is_known() { [[ $(apt-cache policy "$1" 2>/dev/null) =~ Candidate:\ [^\(] ]]; }

# pick ALTERNATIVES: prints the packages of one entry, one per line. Where apt knows none, prints those of the
# first alternative.
pick() {
    local alternatives alternative packages package test fits
    IFS='|' read -ra alternatives <<<"$1"
    for test in is_installed is_known; do
        for alternative in "${alternatives[@]}"; do
            IFS=, read -ra packages <<<"$alternative"
            fits=1
            for package in "${packages[@]}"; do
                "$test" "$package" || fits=0
            done
            ((fits)) && printf '%s\n' "${packages[@]}" && return
        done
    done
    tr , '\n' <<<"${alternatives[0]}"
}

# ensure_packages WHY PACKAGE...: installs missing packages; first prints which ones and why.
ensure_packages() {
    local why=$1 package missing unknown=()
    shift
    if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
        command -v cmake >/dev/null && return  # another distribution: CMake names missing libraries
        die "this is no Debian or Ubuntu; install what these packages of theirs hold, then start again: $*"
    fi
    find_missing "$@"
    ((${#missing[@]})) || return 0
    if ((EUID != 0)); then
        say "$why needs packages that are not installed. As root, once:"
        printf 'sudo apt-get update && sudo apt-get install -y --no-install-recommends %s\n' \
            "${missing[*]}" >&2
        exit 1
    fi
    quietly "apt-get update" env DEBIAN_FRONTEND=noninteractive apt-get update || true  # older lists may do
    find_missing "$@"  # by the new lists
    for package in "${missing[@]}"; do
        is_known "$package" || unknown+=("$package")
    done
    ((${#unknown[@]} == 0)) || die "apt knows no package ${unknown[*]}: $first_releases that have" \
        "all that $why needs (Ubuntu: in universe)"
    say "$why needs packages that are not installed: ${missing[*]}"
    say "installing them with apt-get"
    local install="apt-get install -y --no-install-recommends ${missing[*]}"
    # shellcheck disable=SC2086 # $install is split into words on purpose
    quietly "$install" env DEBIAN_FRONTEND=noninteractive $install ||
        die "the packages did not install; mend that and start again"
}

is_left_out() { [[ " ${optional_packages[*]} " == *" $1 "* ]] && ! is_known "$1"; }

# find_missing PACKAGE...: sets the caller's array `missing`.
find_missing() {
    local entry package
    missing=()
    for entry in "$@"; do
        while read -r package; do
            is_installed "$package" || is_left_out "$package" || missing+=("$package")
        done < <(pick "$entry")
    done
}

# quietly WHAT COMMAND...: runs the command. On a terminal its output shows at once, else only if it fails.
quietly() {
    local what=$1 log status=0
    shift
    if [[ -t 2 ]]; then
        "$@" </dev/null >&2 || status=$?
    else
        log=$(mktemp)
        "$@" </dev/null >"$log" 2>&1 || status=$?
        ((status == 0)) || sed -E '/^\[[0-9]+\/[0-9]+\] /d' "$log" >&2  # without the steps that succeeded
        rm -f "$log"
    fi
    ((status == 0)) || say "failed: $what (exit status $status)"
    return "$status"
}

# cuda_for ARGUMENT...: prints KH_CUDA for `keyhole ARGUMENT...`. The module takes long to build. So it is
# built where a device is listed or the arguments ask for one. The variable KH_CUDA decides first.
cuda_for() {
    if [[ -n ${KH_CUDA:-} ]]; then
        printf '%s\n' "$KH_CUDA"
    elif [[ " $* " =~ \ (selftest|--backend[ =]cuda|--executor[ =]none)\  ]] ||
        nvidia-smi -L 2>/dev/null | grep -q '^GPU '; then
        printf 'AUTO\n'
    else
        printf 'OFF\n'
    fi
}

say_cuda() {
    if [[ $1 == OFF ]]; then
        say "no CUDA device is listed, so this builds for the CPU; KH_CUDA=ON ./run builds for CUDA too"
        return
    fi
    if command -v nvcc >/dev/null || [[ -n ${CUDACXX:-} || -x /usr/local/cuda/bin/nvcc ]]; then return; fi
    say "no nvcc, so this builds for the CPU; for CUDA install the toolkit" \
        "(https://developer.nvidia.com/cuda-downloads) and start again"
}

# Checked here, since an older CMake reports only that it cannot read the presets.
check_cmake() {
    local needed=3.25 found
    found=$(cmake --version | sed -n '1s/[^0-9]*//p')
    [[ $(printf '%s\n' "$needed" "$found" | sort -V | head -1) == "$needed" ]] ||
        die "CMake $needed or later is needed, $found was found (package cmake):" \
            "$first_releases that have it; or put one from https://cmake.org/download on PATH"
}

# cuda_of FOLDER: prints KH_CUDA of a build folder.
cuda_of() { sed -n 's/^KH_CUDA:[A-Z]*=//p' "$1/CMakeCache.txt" 2>/dev/null; }

# asks_more A B: whether KH_CUDA=A builds, or demands, what B does not.
asks_more() { [[ ($1 != OFF && $2 == OFF) || ($1 == ON && $2 != ON) ]]; }

# build PRESET TARGET...: configures and builds in $build_root/PRESET. A lock lets only one process build in a
# folder; others wait. $cuda and $simd: KH_CUDA and KH_SIMD, or empty for the preset's. A folder once
# configured with CUDA or for all instruction sets keeps that. $test_objects: a folder built before, whose
# objects of the unit tests are taken.
build() {
    local preset=$1 folder=$build_root/$1 fresh=() options=()
    shift
    mkdir -p "$folder" || die "cannot make the build folder $folder; name another in KEYHOLE_BUILD_DIR"
    exec 9>"$folder/.lock"
    flock 9
    if ! grep -qsxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$folder/CMakeCache.txt"; then
        fresh=(--fresh)  # new, or made by a clone in another folder
    fi
    if [[ -n $cuda ]] && { ((${#fresh[@]})) || asks_more "$cuda" "$(cuda_of "$folder")"; }; then
        options=("-DKH_CUDA=$cuda")
    fi
    [[ -z ${KH_TEST_PARTS:-} ]] || options+=("-DKH_TEST_PARTS=$KH_TEST_PARTS")
    [[ -z $test_objects ]] || options+=("-DKH_TEST_OBJECTS=$test_objects")
    # Packages installed since, such as GoogleTest, may offer more to build.
    if ((${#fresh[@]} + ${#options[@]})) || [[ ! -f $folder/build.ninja ||
        $root/CMakePresets.json -nt $folder/build.ninja ||
        /var/lib/dpkg/status -nt $folder/build.ninja ]]; then
        check_cmake
        if ((${#fresh[@]})) || grep -q "^KH_SIMD:.*=HOST" "$folder/CMakeCache.txt"; then
            options+=("-DKH_SIMD=${simd:-ALL}")
        fi
        say "configuring ($preset) in $folder"
        say_cuda "$cuda"
        quietly "cmake --preset $preset" \
            cmake -S "$root" --preset "$preset" -B "$folder" "${fresh[@]}" "${options[@]}" || return
        say "building ($preset)"
    fi
    quietly "building $*; in $folder" cmake --build "$folder" --target "$@" || return
    exec 9>&-
}
