#!/bin/sh
# Builds the labextension and the widget from the hashed lock and puts the former into .venv; does nothing when
# neither the sources nor what was built has changed. Needs .venv (bootstrap.sh) for its node and npm. No script
# of any package is run.
set -eu
cd "$(dirname "$0")"

venv=$(cd ../../.venv && pwd)
stamp=$venv/slicelift-frontend.stamp
built=../slicelift/labextension
installed=$venv/share/jupyter/labextensions/slicelift
PATH=$venv/bin:$PATH

sources() {
    find src style schema -type f ! -name '.*' | LC_ALL=C sort
    printf '%s\n' package.json package-lock.json tsconfig.json install.json .npmrc build.sh
}

fail() {
    printf 'slicelift: %s\n           %s\n' "$1" "$2" >&2
    exit 1
}

wanted=$(sources | tr '\n' '\0' | xargs -0 cksum | cksum | tr ' ' -)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && [ -f "$installed/package.json" ] &&
    [ -f "$built/package.json" ] && [ -f ../slicelift/widgets/static/widget.js ]; then
    exit 0
fi
rm -f "$stamp"

packages=$(cksum <package-lock.json | tr ' ' -)
if [ "$(cat node_modules/.slicelift.stamp 2>/dev/null)" != "$packages" ]; then
    printf '• front end: installing %s packages (types and compilers; about 500 MB)\n' "$(grep -c '"integrity"' package-lock.json)"
    npm ci --ignore-scripts --no-audit --no-fund --loglevel=error ||
        fail "the packages of the front end could not be installed." \
            "Check the network and npm's own settings (npm config list), then run the same command again."
    printf '%s\n' "$packages" >node_modules/.slicelift.stamp
fi

printf '• front end: building the JupyterLab extension and the widget\n'
rm -rf lib "$built"
log=$(mktemp)
npm run --silent build:prod >"$log" 2>&1 || {
    cat "$log" >&2
    rm -f "$log"
    fail "the front end could not be built." "The lines above say why."
}
rm -f "$log"

# A copy, as an installer makes it: through a link, removing the package would empty the sources' own folder.
rm -rf "$installed"
mkdir -p "$(dirname "$installed")"
cp -R "$built" "$installed"
cp install.json "$installed/"
printf '%s\n' "$wanted" >"$stamp"
