# edge-runtime on JetPack 6.2 (L4T r36.4): Python 3.10, CUDA 12.6 and TensorRT 10.3 are the base image's own and come from no
# package index. From the top of the sources, on the board or wherever images for arm64 are built:
#   docker build -f docker/jetpack-6.Dockerfile -t edge-runtime:jetpack-6 .

ARG BASE=nvcr.io/nvidia/l4t-jetpack:r36.4.0

FROM python:3.12.12-slim-bookworm AS wheel
WORKDIR /src
COPY requirements/build.txt /requirements/build.txt
RUN python3 -m pip install --no-cache-dir --only-binary :all: --require-hashes -r /requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY configs ./configs
COPY systemd ./systemd
COPY edge_runtime ./edge_runtime
RUN python3 -m pip wheel --no-cache-dir --no-deps --no-build-isolation --no-index --wheel-dir /wheels .

# hadolint ignore=DL3006
FROM ${BASE} AS venv
# Without a version: Ubuntu's archive keeps one, and a pinned one would be gone in weeks.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/*
# Sees TensorRT among the system's packages; all else is its own, whatever the base image brings along.
RUN python3 -m venv --system-site-packages /opt/edge-runtime
COPY requirements/python3.10.txt /requirements/python3.10.txt
RUN /opt/edge-runtime/bin/python -m pip install --no-cache-dir --ignore-installed --only-binary :all: \
    --require-hashes -r /requirements/python3.10.txt
COPY --from=wheel /wheels /wheels
# The board runs bundles and exports none.
RUN /opt/edge-runtime/bin/python -m pip install --no-cache-dir --no-index --no-deps /wheels/*.whl \
    && rm /opt/edge-runtime/bin/edge-export \
    && /opt/edge-runtime/bin/edge-runtime --help

# hadolint ignore=DL3006
FROM ${BASE} AS runtime
LABEL org.opencontainers.image.title="edge-runtime for JetPack 6.2" \
      org.opencontainers.image.licenses="Apache-2.0"
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# It cannot be imported here: parts of it are mounted by the nvidia runtime when a container starts.
RUN if ! { python3 -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("tensorrt") is None)' \
         && dpkg-query --show --showformat='${Version}' libnvinfer10 | grep --quiet '^10[.]3[.]'; }; then \
       echo "the base image has no TensorRT 10.3 with its Python package" >&2; exit 1; fi
# The numbers of the host's edge-runtime, so that both mean the same by the owner of a socket (docker/env.sh).
ARG EDGE_UID=10001
ARG EDGE_GID=10001
RUN groupadd --gid "${EDGE_GID}" edge-runtime \
    && useradd --uid "${EDGE_UID}" --gid "${EDGE_GID}" --no-create-home --home-dir /tmp \
       --shell /usr/sbin/nologin edge-runtime \
    && install --directory --owner edge-runtime --group edge-runtime --mode 0750 /run/edge-runtime
COPY --from=venv /opt/edge-runtime /opt/edge-runtime
COPY docker/healthcheck.py /opt/edge-runtime/healthcheck.py
ENV PATH=/opt/edge-runtime/bin:${PATH} \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute
USER ${EDGE_UID}:${EDGE_GID}
WORKDIR /tmp
# Loading may take minutes, and until then the answer is 503.
HEALTHCHECK --interval=30s --timeout=5s --start-period=10m --retries=3 \
    CMD ["python3", "-IS", "/opt/edge-runtime/healthcheck.py"]
ENTRYPOINT ["/opt/edge-runtime/bin/edge-runtime"]
CMD ["serve", "--config", "/etc/edge-runtime/config.yaml"]
