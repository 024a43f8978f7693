#!/usr/bin/env bash
# Writes requirements.lock and requirements-dev.lock from pyproject.toml: `scripts/lock.sh [--upgrade]`.
# One version of each package for all supported Pythons and platforms, with hashes, without the name of any registry.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
.venv/bin/python -m venv "$tools"
"$tools/bin/pip" install --quiet --disable-pip-version-check uv==0.13.9

lock() {
    local file=$1
    shift
    "$tools/bin/uv" pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest \
        --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
        --output-file "$file" "$@" pyproject.toml >/dev/null
    sed -i "1i # Made by \`make lock\` from pyproject.toml; not written by hand." "$file"
}

lock requirements.lock --group build "$@"
# The same versions, and more packages.
lock requirements-dev.lock --group build --group dev --all-extras --constraints requirements.lock "$@"
