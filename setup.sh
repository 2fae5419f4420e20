#!/usr/bin/env bash
# From a fresh machine to a working .venv. Run it again whenever something is missing: it repairs, and takes seconds.
#   ./setup.sh [auto|cpu|cuda|spark|volta|vllm|plain]
#     auto    what nvidia-smi shows; the kind of the last time where there is one (a login node has no GPU)
#     cpu     torch's CPU build
#     cuda    NVIDIA GPU with unsloth; a V100 gets volta
#     spark   DGX Spark (GB10): the same set as cuda
#     volta   V100: torch 2.10.0
#     vllm    NVIDIA GPU with vLLM, without unsloth
#     plain   NVIDIA GPU with neither
# PYTHON names another interpreter; UV_TORCH_BACKEND another build of torch (uv's --torch-backend).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
venv=$PWD/.venv
marker=$venv/rlnb-set # written last: the set that is installed whole

say() { printf '\033[1m==> %s\033[0m\n' "$*"; }
fail() {
    echo "setup.sh: $*" >&2
    exit 2
}

gpu_set() {
    local gpu
    gpu=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1) || true
    case $gpu in
        7.0 | 7.2) echo volta ;;
        [7-9].* | [1-9][0-9].*) echo unsloth ;;
        *) echo none ;; # none, or older than every torch in requirements/
    esac
}

choose_set() {
    local seen
    case $1 in
        cpu | vllm | volta) echo "$1" ;;
        plain) echo cuda ;;
        spark) echo unsloth ;;
        cuda)
            seen=$(gpu_set)
            [ "$seen" = none ] && echo unsloth || echo "$seen"
            ;;
        auto)
            seen=$(gpu_set)
            if [ -f "$marker" ]; then
                cat "$marker"
            elif [ "$seen" = none ]; then
                echo cpu
            else
                echo "$seen"
            fi
            ;;
        *) fail "unknown kind of machine '$1'; write one of auto, cpu, cuda, spark, volta, vllm, plain." ;;
    esac
}

# What a set has no wheels for, said before anything is downloaded.
refuse_what_has_no_wheels() {
    local libc
    if [ "$set" = volta ] && [ "$(uname -m)" = aarch64 ]; then
        fail "volta: torch 2.10.0 for aarch64 is a build for the CPU alone; write cpu, or use an x86_64 machine."
    fi
    libc=$(getconf GNU_LIBC_VERSION 2>/dev/null) || return 0 # not glibc: uv says what is missing
    libc=${libc#glibc }
    if [ "$set" = vllm ] && [ "$(printf '%s\n' 2.31 "$libc" | sort -V | head -n 1)" != 2.31 ]; then
        fail "vllm: needs glibc 2.31 or newer (Ubuntu 20.04, Debian 11, RHEL 9), and here is $libc; write cuda, or use the Docker image."
    fi
}

# 3.11 to 3.14 with working modules; a pyenv shim, say, exists and still does not run.
serves() { "$1" -c 'import ssl, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' >/dev/null 2>&1; }

find_python() {
    local candidate candidates=(python3 python python3.12 python3.11 python3.13 python3.14)
    if [ -n "${PYTHON:-}" ]; then candidates=("$PYTHON"); fi
    for candidate in "${candidates[@]}"; do
        if serves "$candidate"; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    fail "no Python 3.11 to 3.14 found; install one (with its venv module) or name it: PYTHON=/path/to/python ./setup.sh"
}

# uv from PATH, else into the project's own .venv: that asks for no rights and touches no system package.
find_uv() {
    if uv --version >/dev/null 2>&1; then
        echo uv
        return
    fi
    if [ ! -x "$venv/bin/uv" ]; then
        say "uv (installer) into .venv" >&2
        serves "$venv/bin/python" || "$python" -m venv --clear "$venv" >&2 ||
            fail "$python cannot make a virtual environment; install its venv module (Debian: apt install python3-venv)."
        "$venv/bin/python" -m ensurepip >/dev/null 2>&1 || true
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check uv >&2 ||
            fail "pip could not install uv; see the lines above, or install uv yourself and run this again."
    fi
    echo "$venv/bin/uv"
}

# What pip was told about where packages come from, uv is told too; its own variables come first.
hand_on_pip_settings() {
    if [ -n "${PIP_FIND_LINKS:-}" ]; then export UV_FIND_LINKS=${UV_FIND_LINKS:-${PIP_FIND_LINKS// /,}}; fi
    if [ -n "${PIP_INDEX_URL:-}" ]; then export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$PIP_INDEX_URL}; fi
    if [ -n "${PIP_EXTRA_INDEX_URL:-}" ]; then export UV_INDEX=${UV_INDEX:-$PIP_EXTRA_INDEX_URL}; fi
}

# PyPI's torch for Linux is a CUDA build, so a CPU machine asks for the CPU build, unless its wheel is at hand.
choose_torch_backend() {
    local version tag folder links=${UV_FIND_LINKS:-}
    if [ "$set" != cpu ] || [ -n "${UV_TORCH_BACKEND:-}" ]; then return; fi
    version=$(sed -n 's/^torch==\([0-9.]*\).*/\1/p' requirements/cpu.txt)
    tag=$("$venv/bin/python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
    for folder in ${links//,/ }; do
        if compgen -G "${folder#file://}/torch-${version}*-${tag}-*_$(uname -m).whl" >/dev/null; then return; fi
    done
    export UV_TORCH_BACKEND=cpu
}

make_venv() {
    if [ -f "$marker" ] && [ "$(cat "$marker")" != "$set" ]; then
        say ".venv was made for $(cat "$marker"): made again, for $set"
        "$uv" venv --quiet --clear --seed --python "$python" "$venv"
    elif ! serves "$venv/bin/python"; then
        "$uv" venv --quiet --clear --seed --python "$python" "$venv"
    fi
    rm -f "$marker"
}

register_kernel() {
    local spec=$venv/share/jupyter/kernels/rlnb/kernel.json
    if grep -qsF "\"$venv/bin/python" "$spec"; then return; fi
    "$venv/bin/python" -m ipykernel install --sys-prefix --name rlnb --display-name rlnb >/dev/null
}

[ $# -le 1 ] || fail "one kind of machine at most, for example: ./setup.sh cpu"
set=$(choose_set "${1:-auto}")
refuse_what_has_no_wheels
python=$(find_python)
uv=$(find_uv)
if [[ $uv == "$venv"/* && -f $marker && $(cat "$marker") != "$set" ]]; then
    cp "$uv" "$venv.uv" && uv=$venv.uv # making .venv again must not remove the installer
    trap 'rm -f "$venv.uv"' EXIT
fi
hand_on_pip_settings

say "[1/4] .venv for '$set' from $("$python" -V) ($python)"
make_venv
choose_torch_backend

say "[2/4] packages: requirements/$set.txt, dev.txt, embedded.txt, and rlnb itself"
# The files are whole sets, so no dependency is looked up: a CPU machine gets no CUDA, unsloth moves nothing.
"$uv" pip install --python "$venv/bin/python" --no-deps \
    -r "requirements/$set.txt" -r requirements/dev.txt -r requirements/embedded.txt
# Built with the set's own setuptools, so that running this again needs no network.
"$uv" pip install --quiet --python "$venv/bin/python" --no-deps --no-build-isolation --editable .

say "[3/4] Jupyter kernel 'rlnb'"
register_kernel
if git rev-parse --git-dir >/dev/null 2>&1; then
    git config --replace-all include.path ../.gitconfig '^\.\./\.gitconfig$' # notebooks without outputs
fi
# A saved notebook keeps its widgets: opened again it would say "Error displaying widget" in place of a replay.
install -D -m 644 requirements/jupyterlab.json "$venv/share/jupyter/lab/settings/overrides.json"
echo "$set" >"$marker"
mkdir -p outputs

say "[4/4] rlnb doctor"
"$venv/bin/rlnb" doctor
