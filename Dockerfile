# The agent, for a file server. Without torch and CUDA, and as a user without rights.
#
#   docker build -t sophon-agent --build-arg VERSIONS="pillow==13.0.0" .
#   docker run -d --init --name agent --hostname fileserver -p 5555:5555 \
#       -v /data/imagenet:/data:ro -v sophon-keys:/keys sophon-agent --export imagenet=/data
#   docker cp agent:/keys/sophon/agent/tokens/first fileserver:5555    # the first loader's key; its file goes to
#       ~/.config/sophon/keys/ on the loader's host, with mode 600
#
# With op workers for named ops (docs/agent.md), and torch for the CPU:
#   docker build -t sophon-agent --build-arg EXTRAS=torch,codecs \
#       --build-arg VERSIONS="torch==2.14.1 torchvision==0.29.1 pillow==13.0.0" .
#
# A bucket in place of a folder (docs/buckets.md), with EXTRAS=agent,codecs,stores, and a line for each of
# AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION in bucket.env; without it, the machine's role:
#   docker run -d --init --name agent --hostname fileserver -p 5555:5555 --env-file bucket.env -v sophon-keys:/keys \
#       sophon-agent --export imagenet=s3://bucket/imagenet/train --index-folder /keys/indexes
FROM python:3.12-slim-bookworm AS build
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN SOPHON_NATIVE=required pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim-bookworm
# Extras of pyproject.toml: `metrics` for --metrics, `stores` for buckets, `torch` for named ops.
ARG EXTRAS="agent,codecs"
# Those of the loader's host. With another Pillow the agent makes no pictures, it only cuts parts out of JPEG files.
ARG VERSIONS="pillow"
# hadolint ignore=DL3013,DL3042,SC2086
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
        $VERSIONS "$(echo /wheels/*.whl)[$EXTRAS]" \
    && useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin agent \
    && install -d -o agent -m 700 /keys
# Keys are made below /keys at the first start; `status` finds them there.
ENV XDG_CONFIG_HOME=/keys OMP_NUM_THREADS=1
VOLUME /keys
USER 10001
EXPOSE 5555
# With the key first: a question without one counts as refused at the door.
HEALTHCHECK --interval=60s --timeout=15s --start-period=10s \
    CMD ["sh", "-c", "A='sophon-agent status tcp://127.0.0.1:5555 --timeout-s 4'; $A --key /keys/sophon/agent/tokens/first || $A"]
ENTRYPOINT ["sophon-agent", "serve", "--bind", "tcp://0.0.0.0:5555"]
CMD ["--export", "data=/data"]
