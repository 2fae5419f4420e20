#!/usr/bin/env bash
# Make an environment with the pins of a GPU set on torch's CPU build, to run GPU code paths without a GPU.
#   tests/gpu_paths/environment.sh unsloth .gpu_paths/unsloth
# Left out: torch's CUDA parts and what needs them. Packages come from where .venv's came from (see setup.sh).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
set=$1 folder=$2
pins=requirements/$set.txt
if [ -f "$folder/made-of" ] && cmp -s "$folder/made-of" "$pins"; then exit 0; fi

uv=$(command -v uv || echo .venv/bin/uv)
if [ -n "${PIP_FIND_LINKS:-}" ]; then export UV_FIND_LINKS=${UV_FIND_LINKS:-${PIP_FIND_LINKS// /,}}; fi
if [ -n "${PIP_INDEX_URL:-}" ]; then export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$PIP_INDEX_URL}; fi
if [ -z "${UV_FIND_LINKS:-}" ]; then export UV_TORCH_BACKEND=${UV_TORCH_BACKEND:-cpu}; fi
echo "==> $folder: $pins on torch's CPU build"
"$uv" venv --quiet --clear --python .venv/bin/python "$folder"
{
    grep -vE '^(torch|torchvision|triton|triton-windows|xformers|cuda-[a-z]+|nvidia-(cu|nccl|nv)[a-z0-9-]*)==|^ *#' "$pins"
    grep '^torch==' requirements/cpu.txt
    echo triton==3.7.1
} >"$folder/requirements.txt"
"$uv" pip install --quiet --python "$folder/bin/python" --no-deps \
    -r "$folder/requirements.txt" -r requirements/dev.txt -r requirements/embedded.txt
"$uv" pip install --quiet --python "$folder/bin/python" --no-deps --no-build-isolation --editable .
cp "$pins" "$folder/made-of" # last: an interrupted installation is made anew
