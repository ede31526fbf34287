# ckconv as a command: docker run --rm -v "$PWD:/models" -u "$(id -u):$(id -g)" ckconv convert model.gguf model.bump
FROM python:3.13-slim AS build
COPY . /src
RUN pip wheel --no-cache-dir --wheel-dir /wheels /src

FROM python:3.13-slim
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels ckconv
WORKDIR /models
USER 65534:65534
ENTRYPOINT ["ckconv"]
CMD ["--help"]
