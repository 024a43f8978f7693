#!/usr/bin/env bash
# Builds .venv from the lock files: `scripts/setup.sh runtime` what a user gets, `scripts/setup.sh dev` the rest.
# Needs Python 3.11 or newer with venv; PYTHON=/path/to/python names one.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }

# The first name that runs, is new enough and can make environments.
find_python() {
    local name lacks_venv=
    for name in ${PYTHON:-python3.14 python3.13 python3.12 python3.11 python3}; do
        "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue
        if "$name" -c 'import ensurepip, venv' >/dev/null 2>&1; then
            echo "$name"
            return
        fi
        lacks_venv=$name
    done
    if [ -n "$lacks_venv" ]; then
        say "$lacks_venv cannot make environments: its venv module is missing."
        say "On Debian and Ubuntu: apt-get install python3-venv"
    else
        say "no Python 3.11 or newer found${PYTHON:+ at $PYTHON}. Install one, or name it: make setup PYTHON=/path/to/python3"
    fi
    exit 2
}

make_venv() {
    # Anything but a working interpreter is a leftover: of a moved folder, or of a Python that is gone.
    if .venv/bin/python -m pip --version >/dev/null 2>&1; then return; fi
    local python
    python=$(find_python)
    say "new .venv with $("$python" --version)"
    rm -rf .venv
    "$python" -m venv .venv
}

# The lock names every package with its hash, so there is nothing left to resolve.
install() {
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps "$@"
}

case "${1:-}" in
runtime)
    make_venv
    say "packages of requirements.lock"
    install --require-hashes -r requirements.lock
    install --no-build-isolation --editable .
    ;;
dev)
    say "packages of requirements-dev.lock"
    install --require-hashes -r requirements-dev.lock
    ;;
*)
    say "usage: scripts/setup.sh runtime|dev"
    exit 2
    ;;
esac
