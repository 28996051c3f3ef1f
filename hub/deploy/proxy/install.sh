#!/bin/sh
# Installs the hub's proxy into .build/proxy from the hashed lock, and does nothing when it is there already.
# Needs .venv (bootstrap.sh) for its node and npm. No script of any package is run.
set -eu
cd "$(dirname "$0")"

build=../../../.build/proxy
venv=../../../.venv/bin
stamp=$build/slicelift.stamp
wanted=$(cat package.json package-lock.json .npmrc | cksum | tr ' ' -)
program=$build/node_modules/configurable-http-proxy/bin/configurable-http-proxy
[ -f "$program" ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && exit 0

printf '• proxy: installing %s\n' "$(sed -n 's/.*"\(configurable-http-proxy\)": "\(.*\)".*/\1 \2/p' package.json)"
mkdir -p "$build"
rm -f "$stamp"
cp package.json package-lock.json .npmrc "$build/"
tools=$(cd "$venv" && pwd)
(cd "$build" && PATH="$tools:$PATH" npm ci --ignore-scripts --no-audit --no-fund --loglevel=error) || {
    printf '%s\n' "slicelift: the hub's proxy could not be installed." \
        "           Check the network and npm's own settings (npm config list), then run the same command again." >&2
    exit 1
}
printf '%s\n' "$wanted" >"$stamp"
