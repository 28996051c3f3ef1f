#!/bin/sh
# Writes requirements/*.lock from pyproject.toml: hashed, for Python 3.11 to 3.13, naming no host.
# UPGRADE=1 takes the newest versions that pyproject.toml allows; otherwise what is locked stays.
set -eu
cd "$(dirname "$0")/../.."
export UV_CUSTOM_COMPILE_COMMAND="make lock"
compile() { # OUTPUT OPTION...
    output=$1
    shift
    .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest --generate-hashes --no-emit-index-url \
        --no-annotate ${UPGRADE:+--upgrade} --output-file "requirements/$output" "$@"
}
compile dev.lock pyproject.toml --all-extras --group dev
for extra in hub notebook job; do
    compile "$extra.lock" pyproject.toml --extra "$extra" --constraint requirements/dev.lock
done
grep -A99 '^uv==' requirements/dev.lock | awk 'NR > 1 && !/^ /{exit} {print}' >requirements/uv.lock
