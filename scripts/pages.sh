#!/usr/bin/env bash
# Writes the man pages and shell completions that the binary generates, as packages want them.
#
#   scripts/pages.sh path/to/lapsed DIR    into DIR/man/*.1.gz and DIR/completions/{lapsed.bash,_lapsed,lapsed.fish}
set -euo pipefail

[[ $# -eq 2 && -x $1 ]] || {
  echo 'usage: scripts/pages.sh path/to/lapsed DIR' >&2
  exit 2
}
lapsed=$1 dir=$2
rm -rf "$dir"
mkdir -p "$dir/man" "$dir/completions"
"$lapsed" man "$dir/man"
gzip -9n "$dir"/man/*.1
"$lapsed" completions bash >"$dir/completions/lapsed.bash"
"$lapsed" completions zsh >"$dir/completions/_lapsed"
"$lapsed" completions fish >"$dir/completions/lapsed.fish"
