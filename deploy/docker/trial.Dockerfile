# An image for trials on Kubernetes: copy it, and add what yours import. In the folder with your requirements.txt:
#   docker build -f …/deploy/docker/trial.Dockerfile -t my-trials .
# Proctor is not installed in it: the keeper brings what `import proctor` and `import nni` need, and your code. The keeper
# itself needs Python 3.10 or newer as python3, and bash.
ARG BASE=python:3.12-slim

FROM ${BASE}
COPY requirements.txt /requirements.txt
RUN python3 -m pip install --no-cache-dir -r /requirements.txt \
 && useradd --uid 10001 --create-home trial
USER 10001:10001
WORKDIR /home/trial
