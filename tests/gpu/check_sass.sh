#!/usr/bin/env bash
# check_sass.sh MODULE: reads the machine code of the CUDA module. Products with weights, and attention, must
# have at least four 16-byte loads under way before they use the first; products must fuse multiplications and
# additions. Those for one or two lanes may also norm their inputs, with two multiplications a term. Prints a
# line a kernel. Needs cuobjdump (CUDA toolkit): on PATH, beside nvcc, or in CUOBJDUMP.
set -euo pipefail
module=$1
tool=${CUOBJDUMP:-$(PATH=$PATH:/usr/local/cuda/bin command -v cuobjdump || true)}
if [[ -z $tool ]]; then
    echo "skipped: there is no cuobjdump"
    exit 0
fi
"$tool" -sass "$module" | awk '
    function finish() {
        if (name == "") return
        n_kernels++
        apart = name ~ /Li[12]E/ ? n_products / 16 : n_products
        good = most >= 4 && (name ~ /AttendSplit/ || (n_fused > 0 && n_fused >= 8 * apart))
        if (!good) n_bad++
        printf "%-60s %3d loads in flight, %4d FFMA, %4d FMUL  %s\n", name, most, n_fused, n_products,
            good ? "ok" : "FAILED"
    }
    /Function : / {
        finish()
        name = ""
        if ($0 ~ /MatrixVector|AttendSplit/) name = $3
        run = most = n_fused = n_products = 0
    }
    name == "" { next }
    /LDG\.E\.128/ { if (++run > most) most = run }
    /FFMA|FMUL/ { run = 0 }
    /FFMA/ { n_fused++ }
    /FMUL/ { n_products++ }
    END {
        finish()
        printf "%d of %d kernels are as they should be\n", n_kernels - n_bad, n_kernels
        exit n_kernels == 0 || n_bad > 0
    }'
