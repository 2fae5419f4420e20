# x86_64 and DGX Spark (aarch64) alike: torch brings its own CUDA libraries, Triton wants a C compiler.
#   docker build -t rlnb --build-arg KIND=cuda .
#   docker run --gpus all --ipc=host --ulimit memlock=-1 -v "$PWD/outputs:/rlnb/outputs" rlnb run notebooks/grpo_code_execution.ipynb
FROM nvidia/cuda:13.0.2-base-ubuntu24.04
ARG KIND=cuda
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc git libc6-dev make python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /rlnb
COPY . .
RUN ./setup.sh "$KIND"
ENTRYPOINT [".venv/bin/rlnb"]
