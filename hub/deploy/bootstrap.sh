#!/bin/sh
# Makes .venv from the hashed lock, and does nothing when it is there already.
#
#   sh hub/deploy/bootstrap.sh            python3 >= 3.11 with venv and pip, git
#   SLICELIFT_PYTHON=/path/to/python      takes this interpreter and no other
#
# Interpreters are tried by running them, since a name on PATH may be a shim that only prints an error. Nothing
# but the packages named in requirements/dev.lock is downloaded; no interpreter ever is.
set -eu
cd "$(dirname "$0")/../.."

lock=requirements/dev.lock
say() { printf '%s\n' "$*"; }

fail() {
    say "slicelift: $1" >&2
    say "           $2" >&2
    exit 1
}

digest() { # of everything the environment is made from
    cat "$lock" requirements/uv.lock pyproject.toml extension/jupyter-config/* | cksum | tr ' ' -
}

works() { # INTERPRETER MINOR... : runs, is one of the wanted versions
    "$1" -c 'import sys, ssl, sqlite3, ctypes
assert sys.version_info[0] == 3 and str(sys.version_info[1]) in sys.argv[1:]' "$2" 2>/dev/null
}

candidates() { # MINOR : one interpreter a line
    printf '%s\n' "python3.$1" python3
    for root in "${PYENV_ROOT:-$HOME/.pyenv}" /root/.pyenv /usr/local /opt/python; do
        for found in "$root"/versions/3."$1"*/bin/python "$root"/bin/python3."$1"; do
            [ -x "$found" ] && printf '%s\n' "$found"
        done
    done
    return 0
}

find_python() {
    if [ -n "${SLICELIFT_PYTHON:-}" ]; then
        for minor in 12 13 11; do works "$SLICELIFT_PYTHON" "$minor" && say "$SLICELIFT_PYTHON" && return; done
        return 0
    fi
    for minor in 12 13 11; do
        for candidate in $(candidates "$minor"); do
            works "$candidate" "$minor" && say "$candidate" && return
        done
    done
    return 0
}

parts() { # what is not a Python package; each step knows by a stamp whether it is done
    sh hub/deploy/proxy/install.sh || exit 1
    sh extension/frontend/build.sh || exit 1
}

command -v git >/dev/null 2>&1 || fail "git is not installed." "Install it: apt-get install git"

stamp=.venv/slicelift.stamp
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(digest)" ] && .venv/bin/python -c '' 2>/dev/null; then
    parts
    exit 0
fi

python=$(find_python)
[ -n "$python" ] || fail "no Python 3.11, 3.12 or 3.13 was found${SLICELIFT_PYTHON:+ at $SLICELIFT_PYTHON}." \
    "Install one (apt-get install python3 python3-venv python3-pip) or name it: make up SLICELIFT_PYTHON=/path/to/python3.12"
"$python" -c 'import venv, ensurepip' 2>/dev/null || fail "$python has no venv or no pip." \
    "Install them: apt-get install python3-venv python3-pip"

version=$("$python" -c 'import platform; print(platform.python_version())')
if [ -x .venv/bin/python ] && [ "$(.venv/bin/python -c 'import platform; print(platform.python_version())' 2>/dev/null)" = "$version" ]; then
    say "• environment: .venv (Python $version) is brought up to date"
else
    say "• environment: making .venv with Python $version ($python)"
    rm -rf .venv
    "$python" -m venv .venv
fi
rm -f "$stamp"
if ! .venv/bin/uv --version >/dev/null 2>&1; then
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.lock ||
        fail "uv could not be installed into .venv." "Check the network and pip's own settings (pip config list), then run the same command again."
fi
say "• environment: installing $(grep -c '^[a-z0-9].*==' "$lock") pinned packages (about 5 GB with torch; minutes when nothing is cached)"
export UV_PYTHON_DOWNLOADS=never UV_LINK_MODE="${UV_LINK_MODE:-hardlink}"
.venv/bin/uv pip sync --quiet --python .venv/bin/python --require-hashes "$lock" ||
    fail "the pinned packages could not be installed." "Check the network and the disk (df -h .), then run the same command again: what is there stays."
# the front end is built before: the build hook would do it again, without the lock's `npm ci`
sh extension/frontend/build.sh || exit 1
SKIP_JUPYTER_BUILDER=1 .venv/bin/uv pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation --editable . ||
    fail "slicelift itself could not be installed into .venv." "The lines above say why."
digest >"$stamp"
parts
say "• environment: ready"
