#!/usr/bin/env bash
# Runs the checks and benches of a first session on a GPU, the most valuable first, each with a time limit:
# about 30 minutes in all. Results go to a folder named by date, device, commit and part, and to an archive of
# the same name; `summary.txt` lists what passed. Where OUT names a folder, it gets the archive too, after
# every step.
#     tests/gpu/first_run.sh [--part NAME] [--build FOLDER|ARCHIVE] [--alone] [--out DIR] [--minutes N]
# --part: checks, bench, profile, papers, products or sanitizer, 8 minutes each (default: all, 30 minutes).
# --build: the output of --build-only (default: build/gpu, built here if libraries and nvcc are installed).
# --alone: keyhole_selftest of this tree, built here with nvcc, in place of the archive's.
#
# A GPU machine seldom has Keyhole's libraries or a way to install them. So build on another system:
#     tests/gpu/first_run.sh --build-only [--arch 90-real]
# This makes build/gpu/box.tar.xz: programs, CUDA module, libraries, the headers of fmt. It says how large the
# archive is beside the working tree, fails where both take more than KEYHOLE_BOX_BYTES (64 MiB), and says
# what to leave out; `--fits ARCHIVE` looks again. The building system must not have a newer C library than
# the GPU machine (Debian 12 for Ubuntu 22.04 and later). cuBLAS is too large to bring: any version since 11
# will do. Copy the working tree to the GPU machine with that archive, which git ignores. Without the archive,
# a GPU machine with CMake, nvcc and the headers of fmt builds keyhole_selftest alone, and its checks run.
#
# The calls for a machine that keeps nothing from one call to the next. Each is complete by itself. Look at
# each result before the next call, and mend what `checks` finds first: call 2 is for a tree with a mended
# kernel, and is left out where nothing failed.
#     0. tests/gpu/first_run.sh --build-only                (where the libraries are; copy box.tar.xz along)
#        Where it says that both do not fit, leave out of the tree what it names: the first call fails if not.
#     1. tests/gpu/first_run.sh --build build/gpu/box.tar.xz --part checks       kernels, sessions, memcheck
#     2. tests/gpu/first_run.sh --build build/gpu/box.tar.xz --part checks --alone         the mended kernels
#     3. tests/gpu/first_run.sh --build build/gpu/box.tar.xz --part bench               shapes in f16 and bf16
#     4. tests/gpu/first_run.sh --build build/gpu/box.tar.xz --part profile     what products wait for
#     5. tests/gpu/first_run.sh --build build/gpu/box.tar.xz --part sanitizer    racecheck, initcheck, ...
# If time is left, run `papers` and `products` (from how many lanes cuBLAS is faster). Keep every archive.
set -uo pipefail
root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd)
build=$root/build/gpu out=$root/build/gpu-results minutes= commit= arch= build_only=0 part=all wants_alone=0
archive=
most_bytes=${KEYHOLE_BOX_BYTES:-$((64 << 20))}  # of a working tree and an archive that are copied to a box
usage() { sed -n '2,10s/^# //p' "${BASH_SOURCE[0]}" >&2; exit 2; }
while (($#)); do
    case $1 in
        --build) build=${2:?--build needs a folder or an archive}; shift ;;
        --out) out=${2:?--out needs a folder}; shift ;;
        --minutes) minutes=${2:?--minutes needs a number}; shift ;;
        --commit) commit=${2:?--commit needs a hash}; shift ;;
        --arch) arch=${2:?--arch needs a number, such as 90}; shift ;;
        --part) part=${2:?--part needs a name}; shift ;;
        --build-only) build_only=1 ;;
        --fits) archive=${2:?--fits needs an archive}; shift ;;
        --alone) wants_alone=1 ;;
        *) usage ;;
    esac
    shift
done
case $part in
    all) parts="checks bench profile papers products sanitizer"; minutes=${minutes:-30} ;;
    checks | bench | profile | papers | products | sanitizer) parts=$part; minutes=${minutes:-8} ;;
    *) usage ;;
esac
say() { printf 'first_run: %s\n' "$*" >&2; }

# glibc_of FILE...: prints the newest C library version that the files require.
glibc_of() { objdump -T "$@" 2>/dev/null | grep -oE 'GLIBC_2\.[0-9]+' | sort -V | tail -1; }

# make_box: makes both builds, and $build/box with all that they need except the C library and CUDA's own.
make_box() {
    local type folder file box=$build/box
    for type in Release RelWithDebInfo; do  # without assertions for the bench, with them for the checks
        folder=$build/$([[ $type == Release ]] && echo release || echo checked)
        # No oneDNN: it is 40 MB, and the CPU side of a test works without it.
        cmake -S "$root" -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=$type -DKH_CUDA=ON -DKH_BLAS=OFF \
            -DKH_UNITY=ON ${arch:+"-DKH_CUDA_ARCHITECTURES=$arch"} || {
            say "Keyhole does not configure here (above); where its libraries are missing and cannot be" \
                "had, build with"
            say "--build-only on another machine and give its archive with --build"
            return 1
        }
        local targets=(keyhole_cuda keyhole_bench)
        [[ $type == Release ]] || targets=(keyhole_cuda keyhole_selftest keyhole_gpu_tests)
        ninja -C "$folder" "${targets[@]}" || return 1
    done
    rm -rf "$box"
    mkdir -p "$box"/{release,checked,lib} || return 1
    cp "$build"/release/{keyhole_bench,libkeyhole_cuda.so} "$box/release" &&
        cp "$build"/checked/{keyhole_selftest,keyhole_gpu_tests,libkeyhole_cuda.so} "$box/checked" || return 1
    for file in "$box"/*/*; do
        ldd "$file" | awk '$3 ~ /^\// {print $3}'
    done | sort -u |
        grep -vE '/(lib(c|m|dl|rt|pthread|cublas|cublasLt|cuda)|ld-linux[^/]*)\.so' |
        xargs cp -Lt "$box/lib" || return 1
    strip --strip-debug "$box"/*/*
    # Libraries that need a newer C library than the programs do (libstdc++) are used only where the machine
    # has no suitable ones.
    local glibc
    glibc=$(glibc_of "$box"/{release,checked}/*)
    mkdir "$box/lib/newer" || return 1
    for file in "$box"/lib/*.so*; do
        [[ $(printf '%s\n' "$glibc" "$(glibc_of "$file")" | sort -V | tail -1) == "$glibc" ]] ||
            mv "$file" "$box/lib/newer"
    done
    {
        echo "commit $(git -C "$root" rev-parse --short HEAD 2>/dev/null || echo unknown)"
        echo "built $(date +%F), $(nvcc --version 2>/dev/null | tail -1 || true)," \
            "architectures ${arch:-as CMake chose}"
        echo "needs $glibc ($(glibc_of "$box"/lib/newer/*) where" \
            "$(ls "$box/lib/newer" | xargs) are missing) and cuBLAS, of any version since 11"
    } >"$box/built.txt"
    # So that a mended kernel can be built there.
    mkdir "$box/include" && cp -r "$(fmt_headers "$build/checked")/fmt" "$box/include" || return 1
    XZ_OPT=-9e tar -cJf "$build/box.tar.xz" -C "$build" box && cat "$box/built.txt" &&
        fits_beside_tree "$build/box.tar.xz"
}

# fmt_headers FOLDER: prints where the build in FOLDER has the headers of fmt.
fmt_headers() {
    local folder
    for folder in $(sed -n 's|^fmt_DIR:PATH=\(.*\)/lib/.*|\1/include|p' "$1/CMakeCache.txt") /usr/include; do
        [[ ! -f $folder/fmt/format.h ]] || { echo "$folder"; return; }
    done
}

# in_mb BYTES: prints them in MB.
in_mb() { awk -v n="$1" 'BEGIN { printf "%.1f MB", n / 1e6 }'; }

# fits_beside_tree ARCHIVE: says how large the archive and the working tree are. Fails where a box takes less,
# and names models to leave out: one test reads all of them.
fits_beside_tree() {
    local tree archive sum model left_out=
    tree=$(cd "$root" && git ls-files -z --cached --others --exclude-standard |
        xargs -0 stat -c %s -- 2>/dev/null | awk '{ n += $1 } END { printf "%d", n }')
    archive=$(stat -c %s "$1")
    sum=$((tree + archive))
    say "$1 takes $(in_mb "$archive") and the working tree $(in_mb "$tree"):" \
        "together $(in_mb $sum) of $(in_mb "$most_bytes")"
    ((sum <= most_bytes)) && return
    say "that is $(in_mb $((sum - most_bytes))) more than is copied to a box"
    for model in keyhole-mqa keyhole-mlkv2 keyhole-mlkv-half keyhole-gqa2; do
        ((sum > most_bytes)) || break
        [[ -d $root/assets/models/$model ]] || continue
        left_out+=" assets/models/$model"
        sum=$((sum - $(find "$root/assets/models/$model" -type f -printf '%s\n' |
            awk '{ n += $1 } END { printf "%d", n }')))
    done
    if ((sum > most_bytes)); then
        say "without the other demo models it is still $(in_mb $((sum - most_bytes))) too much"
    else
        say "copy a tree without$left_out: the one test that reads all demo models is then skipped, by name"
    fi
    return 1
}

# make_alone: makes a box with keyhole_selftest alone, which needs none of Keyhole's libraries.
make_alone() {
    say "building keyhole_selftest alone"
    local headers=$box/include
    [[ -f $headers/fmt/format.h ]] || headers=
    cmake -S "$root" -B "$build/alone" -DKH_SELFTEST_ONLY=ON ${arch:+"-DKH_CUDA_ARCHITECTURES=$arch"} \
        ${headers:+"-DKH_FMT_INCLUDE=$headers"} &&
        cmake --build "$build/alone" --parallel --target keyhole_selftest || return 1
    box=$build/alone-box
    rm -rf "$box"
    mkdir -p "$box"/{checked,lib/newer} && cp "$build/alone/keyhole_selftest" "$box/checked" &&
        echo "commit $(git -C "$root" rev-parse --short HEAD 2>/dev/null || echo unknown), self-test alone" \
            >"$box/built.txt"
}

# find_box: sets $box; unpacks or builds it if necessary.
find_box() {
    if [[ -f $build ]]; then
        tar -xf "$build" -C "$(dirname "$build")" || return 1
        build=$(dirname "$build")
    fi
    box=$build
    [[ -x $box/checked/keyhole_selftest && -d $box/lib ]] || box=$build/box
    if ((wants_alone)); then
        make_alone
    else
        [[ -x $box/checked/keyhole_selftest ]] || make_box || make_alone
    fi
}

# cublas_folders: prints folders that may hold cuBLAS, besides the loader's own: toolkits and Python packages.
cublas_folders() {
    ls -d /usr/local/cuda*/lib64 /usr/local/cuda*/lib /usr/local/cuda*/targets/*/lib 2>/dev/null
    python3 -c 'import site, sys; print("\n".join(
        site.getsitepackages() + [site.getusersitepackages()] + sys.path))' 2>/dev/null |
        while read -r folder; do ls -d "$folder"/nvidia/*/lib 2>/dev/null; done
}

if [[ -n $archive ]]; then
    fits_beside_tree "$archive"
    exit
fi
if ((build_only)); then
    arch=${arch:-90-real}
    make_box
    exit
fi
find_box || exit 1
alone=0
[[ -x $box/release/keyhole_bench ]] || alone=1
libraries=$box/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}  # for these programs only: others need the machine's
missing() {
    local file
    for file in "$box"/checked/* "$box"/release/*; do
        LD_LIBRARY_PATH=$libraries ldd "$file" 2>&1
    done | grep 'not found' | sort -u
}
# The module opens cuBLAS at run time, of any version since 11.
if ! ldconfig -p 2>/dev/null | grep -q 'libcublas\.so\.[0-9]'; then
    for folder in $(cublas_folders); do
        compgen -G "$folder/libcublas.so.*" >/dev/null && libraries+=:$folder && break
    done
fi
[[ -z $(missing) ]] || libraries+=:$box/lib/newer
if [[ -n $(missing) ]]; then
    say "the programs do not run here:"
    missing >&2
    cat "$box/built.txt" >&2
    exit 1
fi
# Where the tests find fixtures and models: the build's source folder may be on another machine.
export KEYHOLE_SOURCE_DIR=$root

[[ -n $commit ]] || commit=$(awk '$1 == "commit" {print $2}' "$box/built.txt")
device=$(nvidia-smi --query-gpu=name --format=csv,noheader -i 0 2>/dev/null | tr ' /' '--' || true)
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader -i 0 2>/dev/null || true)
if [[ -z $device ]]; then
    say "the programs load, but nvidia-smi lists no GPU here"
    exit 1
fi
out=$out/$(date +%F)-$device-$commit-$part
mkdir -p "$out" || exit 1
{
    echo "date $(date -Is), commit $commit, device $device, driver ${driver:-none}"
    cat "$box/built.txt"
    nvidia-smi 2>&1 || true
    uname -a
} >"$out/machine.txt"
: >"$out/summary.txt"
finish=$((SECONDS + 60 * minutes))

# save: makes the archive of the results so far, also in OUT, since a call may be ended at any time.
save() {
    tar -czf "$out.tar.gz" -C "$(dirname "$out")" "$(basename "$out")"
    [[ -z ${OUT:-} ]] || cp "$out.tar.gz" "$OUT/"
}

# step NAME LIMIT COMMAND...: runs the command, writes its output to NAME.txt and one line to the summary.
step() {
    local name=$1 limit=$2 begin=$SECONDS status=0
    shift 2
    local left=$((finish - SECONDS))
    if ((left < 10)); then
        echo "$name: left out, the $minutes minutes are over" >>"$out/summary.txt"
        save
        return 1
    fi
    ((limit < left)) || limit=$left
    echo "\$ $*" >"$out/$name.txt"
    LD_LIBRARY_PATH=$libraries timeout -k 5 "$limit" "$@" >>"$out/$name.txt" 2>&1 || status=$?
    printf '%s: %s (%d s)\n' "$name" "$( ((status)) && echo "FAILED, status $status" || echo passed)" \
        $((SECONDS - begin)) |
        tee -a "$out/summary.txt"
    save
    return $status
}

bench=("$box/release/keyhole_bench" bench --backend cuda)
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)
# sanitize TOOL NAME COMMAND...: runs the command as a step under one tool of compute-sanitizer.
sanitize() {
    local tool=$1 name=$2
    shift 2
    if [[ -z $sanitizer ]]; then
        echo "sanitizer-$tool-$name: left out, compute-sanitizer is not installed" | tee -a "$out/summary.txt"
        return
    fi
    step "sanitizer-$tool-$name" 240 "$sanitizer" --tool "$tool" --error-exitcode 9 "$@"
}

# Errors show first in the table of kernels. When the self-test fails, it runs again launch by launch.
run_checks() {
    step selftest 90 "$box/checked/keyhole_selftest" ||
        KEYHOLE_CUDA_CHECK=1 step selftest-by-launch 120 "$box/checked/keyhole_selftest"
    ((alone)) || step gpu-tests 240 "$box/checked/keyhole_gpu_tests"
    sanitize memcheck selftest "$box/checked/keyhole_selftest"
}
# shape_step NAME SHAPE DTYPE CONTEXT OPTIONS...
shape_step() {
    local name=$1 shape=$2 dtype=$3 context=$4
    shift 4
    step "bench-$name" 100 "${bench[@]}" --rounds 5 --tokens 60 --shape "$shape" --dtype "$dtype" \
        --context "$context" "$@"
}
# The rows of the manual's table first.
run_bench() {
    local shape dtype
    for dtype in f16 q8_0 q4_k; do
        shape_step llama-2-7b-$dtype-0 llama-2-7b $dtype 16 --lane full --parts
        shape_step llama-2-7b-$dtype-0-lanes-8 llama-2-7b $dtype 16 --lane full --parts --batch 8
    done
    shape_step llama-2-7b-q4_k-0-widened llama-2-7b q4_k 16 --lane full --parts --precision float
    shape_step llama-2-7b-f16-8k llama-2-7b f16 8192 --lane full --parts
    for shape in llama-2-7b llama-3-8b mpt-7b tinyllama-1.1b pythia-160m; do
        for dtype in f16 bf16; do
            [[ $dtype == f16 || $shape == llama-3-8b ]] || continue
            shape_step $shape-$dtype-2k $shape $dtype 2048 --lane full --lane h2o:budget=25% \
                --lane keyformer:budget=50% --parts --instrument
        done
    done
    for shape in llama-3-8b mpt-7b tinyllama-1.1b pythia-160m; do
        shape_step $shape-f16-0 $shape f16 16 --lane full
    done
}
# What the kernels of products wait for, by Nsight Compute, if it is there and can read the counters. All
# kernels are functions of one name, so the filter is of the whole name.
run_profile() {
    local profiler of name dtype batch
    profiler=$(command -v ncu || ls /usr/local/cuda/bin/ncu 2>/dev/null || true)
    if [[ -z $profiler ]]; then
        echo "profile: left out, ncu is not installed" | tee -a "$out/summary.txt"
        return
    fi
    for of in "q4_k 8 LaidTiles" "q4_k 1 LaidProducts" "q8_0 8 LaidTiles" "q8_0 1 LaidProducts" \
        "f16 1 MatrixVector"; do
        read -r dtype batch name <<<"$of"
        step "profile-$name-$dtype-lanes-$batch" 60 "$profiler" --clock-control none --set full \
            --kernel-name-base demangled -k "regex:$name" --launch-skip 8 --launch-count 4 --page details \
            "${bench[@]}" --rounds 1 --tokens 4 --shape llama-2-7b --layers 4 --dtype "$dtype" --context 16 \
            --lane full --batch "$batch"
    done
}
run_papers() {
    local paper
    for paper in keyformer-table1 keyformer-figure10 tova-table1 mlkv-figure3 mlkv-figure5; do
        step "paper-$paper" 150 "${bench[@]}" --rounds 5 --tokens 40 --paper $paper
    done
}
# Finds from how many lanes cuBLAS is faster: runs our kernels alone, then cuBLAS alone.
run_products() {
    local batch from
    for batch in 1 4 8 12 16 32 64; do
        for from in 1 4096; do
            step "cublas-batch$batch-from$from" 40 "${bench[@]}" --shape llama-2-7b --context 512 \
                --tokens 30 --batch $batch --cublas-from $from --lane tova:budget=256
        done
    done
    local context
    for context in 2048 8192; do
        step prompt-$context 60 "${bench[@]}" --prompt --rounds 5 --shape llama-2-7b --context $context \
            --precision weights --lane full --lane h2o:budget=256 --lane keyformer:budget=256
        step prompt-$context-in-float 60 "${bench[@]}" --prompt --rounds 2 --shape llama-2-7b \
            --context $context --precision float --lane full --lane h2o:budget=256 --lane keyformer:budget=256
    done
}
run_sanitizer() {
    local tool
    for tool in racecheck initcheck synccheck; do
        sanitize $tool selftest "$box/checked/keyhole_selftest"
    done
    ((alone)) && return
    for tool in memcheck racecheck initcheck synccheck; do
        sanitize $tool tests "$box/checked/keyhole_gpu_tests" \
            --gtest_filter="*Dialects*:*Commands*:*Clone*:*Prompt*:*Shadows*:*LanesOfAnySharing*"
    done
}
for name in $parts; do
    if ((alone)) && [[ $name != checks && $name != sanitizer ]]; then
        echo "$name: left out, keyhole_selftest alone was built" | tee -a "$out/summary.txt"
    else
        "run_$name"
    fi
done
save
echo "results: $out.tar.gz"
! grep -q FAILED "$out/summary.txt"
