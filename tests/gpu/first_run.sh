#!/usr/bin/env bash
# Everything that a first session on a GPU should run, in the order in which results are worth most, each with a limit of its own: about
# 30 minutes in all. Results go into a folder named by device, driver, date and commit; `summary.txt` there says what passed.
#     tests/gpu/first_run.sh [--build DIR] [--out DIR] [--minutes N] [--commit HASH]
# --build: where keyhole_selftest, keyhole_gpu_tests, keyhole_bench and libkeyhole_cuda.so lie (default: build/gpu, built there if the
# sources and nvcc are at hand; else build it elsewhere with --build-only and copy the folder here).
#     tests/gpu/first_run.sh --build-only [--build DIR] [--arch 90]
set -uo pipefail
root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd)
build=$root/build/gpu out= minutes=30 commit= arch= build_only=0
while (($#)); do
    case $1 in
        --build) build=${2:?--build needs a folder}; shift ;;
        --out) out=${2:?--out needs a folder}; shift ;;
        --minutes) minutes=${2:?--minutes needs a number}; shift ;;
        --commit) commit=${2:?--commit needs a hash}; shift ;;
        --arch) arch=${2:?--arch needs a number, such as 90}; shift ;;
        --build-only) build_only=1 ;;
        *) sed -n '2,7s/^# //p' "$0" >&2; exit 2 ;;
    esac
    shift
done
programs=(keyhole_selftest keyhole_gpu_tests keyhole_bench)

# Built without assertions for the bench, with them beside it for the checks.
if ((build_only)) || [[ ! -x $build/release/keyhole_bench ]]; then
    for type in Release RelWithDebInfo; do
        folder=$build/$([[ $type == Release ]] && echo release || echo checked)
        cmake -S "$root" -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=$type -DKH_CUDA=ON ${arch:+-DKH_CUDA_ARCHITECTURES=$arch} &&
            ninja -C "$folder" "${programs[@]}" keyhole_cuda || exit 1
        # For a box without them: all that the programs need but the C library, which is everywhere, and CUDA's own.
        for program in "${programs[@]}"; do
            ldd "$folder/$program" | awk '$3 ~ /^\// {print $3}' | grep -vE '/(lib(c|m|dl|rt|pthread)|ld-linux[^/]*)\.so' |
                xargs -r cp -Lnt "$folder"
        done
    done
    ((build_only)) && exit 0
fi

[[ -n $commit ]] || commit=$(git -C "$root" rev-parse --short HEAD 2>/dev/null || echo unknown)
device=$(nvidia-smi --query-gpu=name --format=csv,noheader -i 0 2>/dev/null | tr ' /' '--' || true)
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader -i 0 2>/dev/null || true)
if [[ -z $device ]]; then
    echo "first_run: nvidia-smi lists no GPU here" >&2
    exit 1
fi
out=${out:-$root/build/gpu-results}/$(date +%F)-${device:-no-device}-$commit
mkdir -p "$out"
{
    echo "date $(date -Is), commit $commit, device ${device:-none}, driver ${driver:-none}"
    nvidia-smi 2>&1 || true
    uname -a
} >"$out/machine.txt"
: >"$out/summary.txt"
finish=$((SECONDS + 60 * minutes))

# step NAME LIMIT COMMAND...: into NAME.txt; one line of the summary.
step() {
    local name=$1 limit=$2 begin=$SECONDS status=0
    shift 2
    local left=$((finish - SECONDS))
    if ((left < 10)); then
        echo "$name: left out, the $minutes minutes are over" >>"$out/summary.txt"
        return 1
    fi
    ((limit < left)) || limit=$left
    echo "\$ $*" >"$out/$name.txt"
    timeout "$limit" "$@" >>"$out/$name.txt" 2>&1 || status=$?
    printf '%s: %s (%d s)\n' "$name" "$( ((status)) && echo "FAILED, status $status" || echo passed)" $((SECONDS - begin)) |
        tee -a "$out/summary.txt"
    return $status
}

checked=$build/checked release=$build/release
export LD_LIBRARY_PATH=$checked:${LD_LIBRARY_PATH:-}
# What is wrong shows first in the table of kernels; once more launch by launch where it fails.
step selftest 90 "$checked/keyhole_selftest" ||
    KEYHOLE_CUDA_CHECK=1 step selftest-by-launch 120 "$checked/keyhole_selftest"
step gpu-tests 240 "$checked/keyhole_gpu_tests"
# The numbers before the slow checks.
bench=("$release/keyhole_bench" bench --backend cuda --rounds 5 --tokens 60 --parts)
lanes=(--lane full --lane "h2o:budget=25%" --lane "keyformer:budget=50%")
for shape in pythia-160m tinyllama-1.1b llama-2-7b mpt-7b llama-3-8b; do
    for dtype in f16 bf16; do
        step "bench-$shape-$dtype" 100 "${bench[@]}" --shape $shape --dtype $dtype --context 2048 "${lanes[@]}" --instrument
    done
done
for paper in keyformer-table1 keyformer-figure10 tova-table1 mlkv-figure3 mlkv-figure5; do
    step "paper-$paper" 150 "$release/keyhole_bench" bench --backend cuda --rounds 5 --tokens 40 --paper $paper
done
# From how many lanes cuBLAS wins: own kernels alone, cuBLAS alone.
for batch in 1 4 8 12 16 32 64; do
    for from in 1 4096; do
        step "cublas-batch$batch-from$from" 40 "$release/keyhole_bench" bench --backend cuda --shape llama-2-7b --context 512 \
            --tokens 30 --batch $batch --cublas-from $from --lane tova:budget=256
    done
done
step prompt-in-weight-type 60 "$release/keyhole_bench" bench --backend cuda --shape llama-2-7b --context 4096 --tokens 10 \
    --lane full --narrow-prompt
if sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null); then
    for tool in memcheck racecheck initcheck synccheck; do
        step "sanitizer-$tool-selftest" 240 "$sanitizer" --tool $tool --error-exitcode 9 "$checked/keyhole_selftest"
    done
    for tool in memcheck racecheck initcheck synccheck; do
        step "sanitizer-$tool-tests" 300 "$sanitizer" --tool $tool --error-exitcode 9 "$checked/keyhole_gpu_tests" \
            --gtest_filter="*Dialects*:*Commands*:*Clone*:*Prompt*:*Shadows*:*LanesOfAnySharing*"
    done
else
    echo "sanitizer: left out, compute-sanitizer is not installed" | tee -a "$out/summary.txt"
fi
echo "results: $out"
! grep -q FAILED "$out/summary.txt"
