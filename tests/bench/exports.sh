#!/usr/bin/env bash
# Exports a fixed set of runs, to compare two builds byte for byte:
#     tests/bench/exports.sh KEYHOLE_A FOLDER_A; tests/bench/exports.sh KEYHOLE_B FOLDER_B
#     diff -r FOLDER_A FOLDER_B
# Step times, free memory and the folder's own name are removed from run.json and from what is printed.
set -euo pipefail
keyhole=$(readlink -f "$1")
mkdir -p "$2"
out=$(readlink -f "$2")
cd "$(dirname "$(readlink -f "$0")")/../../assets"
export LC_ALL=C
base=models/keyhole-base garden=prompts/garden-gate.txt

# run NAME ARGUMENT...: keeps what the command prints, and the reason why it fails, if it does.
run() {
    local name=$1 status=0
    shift
    "$keyhole" "$@" >"$out/$name.out" 2>"$out/$name.err" || status=$?
    printf 'exit status %s\n' "$status" >>"$out/$name.err"
}

run decode decode --threads 2 --model $base --prompt-file $garden --lane full --lane h2o:budget=64 \
    --lane keyformer:budget=48,noise=gumbel,shadow=on --lane a2sf:budget=48 --lane tova:budget=32 \
    --tokens 24 --export all --layers 0,3 --heads 1,2 --out "$out/decode" --save "$out/run.keyhole"
run replay replay "$out/run.keyhole" --export run,mask,csv --out "$out/replay"
run views replay "$out/run.keyhole" --export view,view-mask,difference:0-1,atlas,overlap:0-1,curve:kl \
    --layers 3 --heads 1 --focus 1 --out "$out/views"

# Every command of a session: other lanes, sharing, shadow, forks, pins, forced tokens, rewinds, branches.
cat >"$out/script.txt" <<'END'
+2 force 300,301
+3 lane 1 tova:budget=20
+4 pin 1 373
+5 add window:budget=30,sinks=4
+6 lane 0 full:shadow=on
+7 fork 1 h2o:budget=12
+8 evict 1 20
+9 rewind 372
+9 lane 1 h2o:budget=24,kv=mqa
+10 sampling temperature=0.8,top_k=40
+11 follow on
+12 branch 1
+13 say "and then"
+15 remove 1
END
run script decode --threads 2 --model $base --prompt-file $garden --lane full \
    --lane h2o:budget=40 --script "$out/script.txt" --tokens 16 --export run,mask,scores,csv,json \
    --out "$out/script"
printf '+3 lane 1 tova:budget=20\n+6 fork 1 h2o:budget=12\n+10 evict 1 20\n+12 rewind 375\n' \
    >"$out/short.txt"
run short decode --threads 2 --model models/keyhole-mlkv2 --prompt-file $garden --lane full \
    --lane h2o:budget=40 --script "$out/short.txt" --tokens 16 --export run,mask,scores,csv,json \
    --out "$out/short" --save "$out/short.keyhole"
run short-replay replay "$out/short.keyhole" --export run,mask --out "$out/short-replay"
run stepwise decode --threads 2 --model $base --prompt "Once upon a time there was a dog." --lane full \
    --lane h2o:budget=8,dialect=released --lane a2sf:budget=8,prefill=stepwise --lane full:kv=mqa \
    --tokens 20 --export heatmap,run,gif-mask,frames,logits --rows all --out "$out/stepwise"
run free decode --threads 2 --model $base --prompt "Once upon a time there was a dog." --lane full \
    --lane tova:budget=8 --free --tokens 20 --export run,attention --out "$out/free"
run eval eval --model $base --task needle,passage --samples 3 --lane full --lane h2o:budget=64 --json
run info info --model $base

find "$out" \( -name '*.json' -o -name '*.out' -o -name '*.err' \) -exec sed -i -E \
    -e "s|$out|OUT|g" -e 's/"ms":[0-9.e+-]+/"ms":0/g' \
    -e 's/[0-9.]+ (ms|s|tokens\/s|steps\/s)\b/TIME/g' -e '/^RAM, /d' {} +
rm -f "$out"/*.keyhole  # zip files: their members hold step times; replays of them are compared
