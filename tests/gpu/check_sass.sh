#!/usr/bin/env bash
# check_sass.sh MODULE: reads the machine code of the CUDA module. Before a thread uses the first, it must
# have 64 bytes of weights, or of keys or values, under way; of quantised weights, whose loads have 8 to 32
# bits, 32 bytes in a loop for every type. Products must fuse multiplications and additions. A product uses
# weights where it reads inputs from shared memory, 16 bytes at once; a product in integers where it
# multiplies (IDP, and IMMA for eight lanes). Loads before a store to shared memory or a barrier are inputs,
# and do not count, but for IMMA, whose codes wait in registers: there a thread must have 48 bytes of inputs
# under way, in loads of 16, before it stores the first. Prints a line a kernel. Needs cuobjdump (CUDA
# toolkit): on PATH, beside nvcc, or in CUOBJDUMP.
set -euo pipefail
module=$1
tool=${CUOBJDUMP:-$(PATH=$PATH:/usr/local/cuda/bin command -v cuobjdump || true)}
if [[ -z $tool ]]; then
    echo "skipped: there is no cuobjdump"
    exit 0
fi
"$tool" -sass "$module" | awk '
    function width(op) {
        return op ~ /\.128/ ? 16 : op ~ /\.64/ ? 8 : op ~ /\.[US]16/ ? 2 : op ~ /\.[US]8/ ? 1 : 4
    }
    function use() {
        if (bytes > most) most = bytes
        if (bytes >= 32) n_loops++
        bytes = 0
    }
    function finish() {
        if (name == "") return
        n_kernels++
        good = most >= 64 && (!is_product || n_fused >= 64) && (!is_stored || n_loops >= 11) &&
            (!is_laid || n_integer >= 8) && (is_tiles ? most_inputs >= 48 : !is_laid || n_loops >= 8)
        if (!good) n_bad++
        printf "%-60s %4d bytes in flight, %3d loops, %5d %s  %s\n", name, most, n_loops,
            is_laid ? n_integer : n_fused, is_tiles ? "IMMA" : is_laid ? "IDP" : "FFMA",
            good ? "ok" : "FAILED"
    }
    /Function : / {
        finish()
        name = ""
        if ($0 ~ /MatrixVector|AttendSplit|LaidProducts|LaidTiles/) name = $3
        is_product = name ~ /MatrixVector/
        is_stored = name ~ /Stored/
        is_tiles = name ~ /LaidTiles/
        is_laid = is_tiles || name ~ /LaidProducts/
        bytes = most = inputs = most_inputs = n_loops = n_fused = n_integer = 0
    }
    name == "" { next }
    { op = $2 ~ /^@/ ? $3 : $2 }
    op ~ /^LDG/ { bytes += width(op) }
    is_laid && op ~ (is_tiles ? "^IMMA" : "^IDP") { use(); n_integer++ }
    is_product && op ~ /^LDS.*\.128/ { use() }
    is_tiles && op ~ /^LDG.*\.128/ { inputs += 16 }
    is_tiles && op ~ /^STS.*\.128/ { if (inputs > most_inputs) most_inputs = inputs; inputs = 0 }
    !is_product && !is_laid && op ~ /^(FFMA|FMUL)/ { use() }
    !is_tiles && op ~ /^(STS|BAR)/ { bytes = 0 }
    !is_laid && op ~ /^FFMA/ { bytes = 0 }
    op ~ /^FFMA/ { n_fused++ }
    END {
        finish()
        printf "%d of %d kernels are as they should be\n", n_kernels - n_bad, n_kernels
        exit n_kernels == 0 || n_bad > 0
    }'
