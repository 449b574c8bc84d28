# The manager. In the root of a checkout:
#   docker build -f deploy/docker/manager.Dockerfile -t proctor-manager .
# docs/deployment.md says how to run it. Nothing is written but the home, and a little in /tmp: the root file system can be
# read-only.
ARG PYTHON=python:3.12-slim

FROM ${PYTHON} AS build
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
COPY sdk sdk
COPY trial_keeper trial_keeper
COPY training_services training_services
COPY manager manager
RUN python -m venv /opt/proctor \
 && /opt/proctor/bin/pip install --no-cache-dir -c constraints.txt ".[kubernetes,remote,storage]"

FROM ${PYTHON}
# tini is process 1: it reaps the local keeper, which outlives the manager that has started it.
RUN apt-get update \
 && apt-get install -y --no-install-recommends tini \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --create-home proctor \
 && install -d -o proctor -g proctor -m 0700 /var/lib/proctor
COPY --from=build /opt/proctor /opt/proctor
# Which addresses can reach the port is decided by who publishes it.
ENV PATH=/opt/proctor/bin:$PATH \
    PROCTOR_HOME=/var/lib/proctor \
    PROCTOR_HOST=0.0.0.0 \
    PROCTOR_ALLOW_REMOTE=1 \
    PROCTOR_PORT=8080 \
    PROCTOR_LOG_FORMAT=json
USER 10001:10001
WORKDIR /var/lib/proctor
VOLUME /var/lib/proctor
EXPOSE 8080 8443
HEALTHCHECK --interval=30s --timeout=10s --start-period=2m CMD ["proctor", "manager", "status"]
ENTRYPOINT ["tini", "--", "proctor"]
CMD ["manager", "run"]
