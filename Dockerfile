# Worker, inbox and command line in one image: what runs is the service's command (docker-compose.yml).
# Two environments are built apart from the image that runs: one with what is needed to make our wheel, one with what it needs.
# Both are pinned by hash; nothing is built from a source archive.
FROM python:3.11.16-slim-bookworm@sha256:528257d48c1da0dcecc2e725d1ae34498d60c965f1241e39cd6a85a8859bdf84 AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/tools && python -m venv --without-pip /opt/effects
WORKDIR /src
COPY requirements/run.txt requirements/build.txt requirements/
RUN /opt/tools/bin/pip install --only-binary :all: --require-hashes -r requirements/build.txt \
 && /opt/tools/bin/pip --python /opt/effects/bin/python install --only-binary :all: --require-hashes -r requirements/run.txt
COPY pyproject.toml README.md worker.py starter.py ./
COPY activities/ activities/
COPY commands/ commands/
COPY inbox/ inbox/
COPY ledger/ ledger/
COPY providers/ providers/
COPY workflows/ workflows/
RUN /opt/tools/bin/pip wheel --no-index --no-deps --no-build-isolation --wheel-dir wheels . \
 && /opt/tools/bin/pip --python /opt/effects/bin/python install --no-index --no-deps wheels/*.whl

FROM python:3.11.16-slim-bookworm@sha256:528257d48c1da0dcecc2e725d1ae34498d60c965f1241e39cd6a85a8859bdf84
COPY --from=build /opt/effects /opt/effects
ENV PATH=/opt/effects/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# a number, so that nothing has to look it up to know that it is not root
USER 10001:10001
WORKDIR /tmp
CMD ["python", "-m", "worker"]
