# syntax=docker/dockerfile:1
# prototrain in a container. For the CPU, and for NVIDIA's GPUs with what TensorFlow needs of CUDA:
#   docker build -t prototrain .
#   docker build -t prototrain:gpu --build-arg DEVICE=gpu .
#   docker run --rm -it -v "$PWD:/work" prototrain run models.simple
#   docker run --rm -it --gpus all -v "$PWD:/work" prototrain:gpu run mymodel
FROM python:3.11-slim

ARG DEVICE=cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1

WORKDIR /opt/prototrain
COPY setup.cfg pyproject.toml MANIFEST.in README.md LICENSE ./
COPY prototrain ./prototrain
RUN if [ "$DEVICE" = gpu ]; then pip install '.[plot,gpu]' 'tensorflow[and-cuda]'; else pip install '.[plot]'; fi

# Models are imported from the working directory, and experiments are written below it: mount your own there.
WORKDIR /work
COPY models ./models
ENTRYPOINT ["prototrain"]
CMD ["--help"]
