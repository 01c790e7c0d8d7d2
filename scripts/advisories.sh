#!/usr/bin/env bash
# Are there advisories against a dependency? Needs RustSec's database, which is fetched over the network:
# where that cannot be had the check is skipped, and that is said. It never waits for more than a minute.
#
#   scripts/advisories.sh CARGO_DENY
set -euo pipefail
cd "$(dirname "$0")/.."
deny=${1:?which cargo-deny}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

export GIT_TERMINAL_PROMPT=0 GIT_HTTP_LOW_SPEED_LIMIT=1000 GIT_HTTP_LOW_SPEED_TIME=10
if ! timeout 60 "$deny" --locked fetch db >"$log" 2>&1; then
  echo "advisories: SKIPPED, the database cannot be fetched from here" \
    "($(grep -m1 -oE 'error: .*|.*(resolve|connect|timed out).*' "$log" | cut -c1-120 || echo 'no answer within a minute'))"
  exit 0
fi
"$deny" --locked --offline check advisories
