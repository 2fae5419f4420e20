# rlnb with its notebooks on NVIDIA GPUs, x86-64 and arm64 (DGX Spark) alike. docs/docker.md: users, caches, clusters, errors.
#   docker build -t rlnb .          (on DGX Spark: docker build -t rlnb --build-arg KIND=spark .)
#   docker run --rm -it --init --gpus all --shm-size=32g --ulimit memlock=-1 --ulimit stack=67108864 -p 127.0.0.1:8888:8888 -v "$PWD/outputs:/rlnb/outputs" -v "$PWD/model_cache:/rlnb/model_cache" rlnb
# CUDA's libraries and ptxas come as wheels (requirements/), the driver's from the NVIDIA Container Toolkit.
FROM ubuntu:24.04

# One of setup.sh's kinds: cuda, spark, volta, vllm, plain.
ARG KIND=cuda
# The owner of the project and of what is written into mounted folders: --build-arg USER_ID="$(id -u)".
ARG USER_ID=1000

# Versions are the release's: an archive keeps no older ones, so a pin would break the build.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates g++ gcc git make python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

# The base's own user holds 1000. Folders that any user may fill (1777) also serve `docker run --user` and new volumes.
RUN (userdel --remove ubuntu || true) \
    && useradd --no-log-init --create-home --user-group --uid "$USER_ID" --shell /bin/bash rlnb \
    && install -d -m 1777 /home/rlnb /home/rlnb/.cache /home/rlnb/.cache/huggingface /rlnb/outputs /rlnb/model_cache \
    && install -d -o "$USER_ID" /rlnb

# UTF-8, and the driver's parts also where not `--gpus` but a runtime asks for them.
ENV LANG=C.UTF-8 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

USER $USER_ID
WORKDIR /rlnb
# What setup.sh reads comes first: a change of notebooks, parameters or pages installs nothing again.
COPY --chown=rlnb:rlnb pyproject.toml setup.sh ./
COPY --chown=rlnb:rlnb requirements requirements
COPY --chown=rlnb:rlnb rlnb rlnb
# Downloads stay in the builder's cache, so a change of rlnb/ fetches nothing; the home in the image stays empty.
RUN --mount=type=cache,id=rlnb-$USER_ID,target=/tmp/build,mode=1777 \
    HOME=/tmp/build UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1 ./setup.sh "$KIND"
COPY --chown=rlnb:rlnb . .

# HOME and USER also for users without a name, who come with `docker run --user`.
ENV HOME=/home/rlnb \
    USER=rlnb \
    PATH=/rlnb/.venv/bin:$PATH

EXPOSE 8888
# The token is $JUPYTER_TOKEN, else Jupyter makes one and prints it.
CMD ["jupyter", "lab", "--ip=0.0.0.0", "--port=8888", "--no-browser"]
