#!/usr/bin/env bash
# Fetches what the tests of tests/services run against: `scripts/services.sh`, after `make setup`.
# Kafka comes by Maven and needs Java 17 or newer; root on Debian or Ubuntu gets both. PostgreSQL is in .venv.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'services: %s\n' "$*" >&2; }

has_java() {
    local java=${JAVA_HOME:+$JAVA_HOME/bin/}java version
    version=$("$java" -version 2>&1 | sed -nE '1s/.*"([0-9]+).*/\1/p') || return 1
    [ "${version:-0}" -ge 17 ]
}

has_maven() { command -v mvn >/dev/null; }

missing=()
has_java || missing+=(default-jre-headless)
has_maven || missing+=(maven)
if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        say "installing ${missing[*]}"
        apt-get -qq update
        DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends "${missing[@]}" >/dev/null
    fi
    if ! has_java || ! has_maven; then
        say "Java 17 or newer and Maven are needed. On Debian and Ubuntu: apt-get install ${missing[*]}"
        say "Another Java than the first on PATH is named by JAVA_HOME."
        exit 2
    fi
fi

exec .venv/bin/python -m tests.services fetch
