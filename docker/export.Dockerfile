# edge-export, for a workstation: from a checkpoint to a bundle, on the processor. From the top of the sources:
#   docker build -f docker/export.Dockerfile -t edge-runtime:export .
#   docker run --rm --network none --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges \
#     --user "$(id -u):$(id -g)" -v "$PWD/checkpoints:/checkpoints:ro" -v "$PWD/bundles:/bundles" \
#     edge-runtime:export export --source /checkpoints/gemma-3-4b-it --output /bundles/gemma-3-4b --precision int4

FROM python:3.12.12-slim-bookworm AS wheel
WORKDIR /src
COPY requirements/build.txt /requirements/build.txt
RUN python3 -m pip install --no-cache-dir --only-binary :all: --require-hashes -r /requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY configs ./configs
COPY systemd ./systemd
COPY edge_runtime ./edge_runtime
COPY export ./export
RUN python3 -m pip wheel --no-cache-dir --no-deps --no-build-isolation --no-index --wheel-dir /wheels .

FROM python:3.12.12-slim-bookworm AS venv
RUN python3 -m venv /opt/edge-runtime
COPY requirements/export.txt /requirements/export.txt
RUN /opt/edge-runtime/bin/python -m pip install --no-cache-dir --ignore-installed --only-binary :all: \
    --require-hashes -r /requirements/export.txt
COPY --from=wheel /wheels /wheels
RUN /opt/edge-runtime/bin/python -m pip install --no-cache-dir --no-index --no-deps /wheels/*.whl \
    && /opt/edge-runtime/bin/edge-export --help

FROM python:3.12.12-slim-bookworm AS export
LABEL org.opencontainers.image.title="edge-export" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=venv /opt/edge-runtime /opt/edge-runtime
ENV PATH=/opt/edge-runtime/bin:${PATH} \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /tmp
ENTRYPOINT ["/opt/edge-runtime/bin/edge-export"]
CMD ["--help"]
