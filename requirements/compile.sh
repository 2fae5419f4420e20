#!/usr/bin/env bash
# Compile every *.in to pins: one file a kind of machine, for Linux on x86_64 and aarch64, Python 3.11 to 3.14.
# The files install on their own (`uv pip install --no-deps -r ...`) and name neither hosts nor paths.
#   requirements/compile.sh              all sets again, keeping what still fits
#   requirements/compile.sh --upgrade    with the newest versions that the *.in allow
set -euo pipefail
cd "$(dirname "$0")"
# Extra indexes and local wheels would end up in the pins (torch==2.13.0+cpu).
unset UV_FIND_LINKS UV_INDEX UV_DEFAULT_INDEX UV_TORCH_BACKEND
export UV_CUSTOM_COMPILE_COMMAND="requirements/compile.sh"

compile() { # name, further options
    local name=$1
    shift
    uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest \
        --annotation-style line --output-file "$name.txt" "$name.in" "$@"
    echo "requirements/$name.txt: $(grep -c '==' "$name.txt") packages"
}

compile cpu --excludes excludes-cpu.txt "$@"
for set in cuda vllm unsloth volta; do
    compile "$set" "$@"
done

# The tools: newest that fit the cpu set. What every set pins is left to the set, so that tools move nothing.
names() { sed -n 's/^\([a-z0-9][a-z0-9._-]*\)==.*/\1/p' "$1" | sort; }
shared=$(names cpu.txt)
for set in cuda vllm unsloth volta; do
    shared=$(comm -12 <(echo "$shared") <(names "$set.txt"))
done
leave_out=()
for name in $shared; do
    leave_out+=(--no-emit-package "$name")
done
compile dev --constraints cpu.txt --no-annotate "${leave_out[@]}" "$@"
