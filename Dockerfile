# The panel alone. Build: docker build -t tierkeeper . ; run it with docker-compose.yml or deploy/.
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY requirements/runtime.lock requirements/runtime.lock
RUN python -m venv /opt/tierkeeper \
 && /opt/tierkeeper/bin/pip install --no-cache-dir --require-hashes -r requirements/runtime.lock

FROM python:3.11-slim-bookworm
RUN groupadd --gid 10001 tierkeeper \
 && useradd --uid 10001 --gid 10001 --home-dir /var/lib/tierkeeper --create-home --shell /usr/sbin/nologin tierkeeper
COPY --from=build /opt/tierkeeper /opt/tierkeeper
WORKDIR /srv/tierkeeper
COPY app app
COPY templates templates
COPY static static
COPY migrations migrations
COPY docs docs
COPY LICENSE README.md ./
RUN printf '#!/bin/sh\nexec /opt/tierkeeper/bin/python -m app "$@"\n' > /usr/local/bin/tierkeeper \
 && chmod 0755 /usr/local/bin/tierkeeper \
 && /opt/tierkeeper/bin/python -m compileall -q app
ENV TIERKEEPER_DATA_DIR=/var/lib/tierkeeper \
    TIERKEEPER_HOST=0.0.0.0 \
    PYTHONPATH=/srv/tierkeeper \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
# Removing records needs the rights of whoever wrote them: run with the cache server's uid (compose: user:), not as root.
USER tierkeeper
VOLUME ["/var/lib/tierkeeper"]
EXPOSE 8090
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=3s --start-period=20s --retries=3 \
  CMD ["/opt/tierkeeper/bin/python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8090/livez', timeout=2)"]
ENTRYPOINT ["tierkeeper"]
CMD ["serve"]
