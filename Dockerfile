# syntax=docker/dockerfile:1
# One binary on Debian's smallest base. How to run it: docs/deploy.md
#   docker build -t lapsed .
FROM rust:1.95.0-slim-bookworm AS build
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked -p lapsed-cli \
    && install -D -m 0755 target/release/lapsed /out/usr/bin/lapsed \
    && install -d -m 0700 /out/var/lib/lapsed

# It brings the glibc and libgcc that the binary was linked with.
FROM debian:bookworm-slim
# Whom to trust behind rediss://, postgres:// with TLS, and https://; SSL_CERT_FILE names another file.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/usr/bin/lapsed /usr/bin/lapsed
COPY --from=build --chown=65532:65532 /out/var/lib/lapsed /var/lib/lapsed
USER 65532:65532
# Beyond loopback it wants a token: LAPSED_TOKEN, or [[server.tokens]] in a configuration of your own.
ENV LAPSED_LISTEN=0.0.0.0:7227 \
    LAPSED_DATA=/var/lib/lapsed
WORKDIR /var/lib/lapsed
VOLUME ["/var/lib/lapsed"]
EXPOSE 7227
# Through the binary itself: there is nothing else in the image to ask with.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["/usr/bin/lapsed", "healthcheck", "--live"]
ENTRYPOINT ["/usr/bin/lapsed"]
CMD ["serve", "--log", "json"]
