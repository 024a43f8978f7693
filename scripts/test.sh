#!/usr/bin/env bash
# All tests, in groups side by side: `scripts/test.sh [REPORTS]`. Those against a real Kafka and a real PostgreSQL
# wait most of the time; what they say is shown when they have ended. REPORTS is a folder for what became of each.
set -uo pipefail
cd "$(dirname "$0")/.."
set -m # each group is a process group of its own, and may be sent Ctrl-C

reports=${1:-}
logs=build/tests
mkdir -p "$logs"

run() { # name, what pytest is to run
    local name=$1
    shift
    .venv/bin/python -m pytest --durations=12 ${reports:+--junitxml="$reports/$name.xml"} "$@"
}

# Halves of about the same length.
shopt -s extglob
services=tests/services
first=("$services/journal" $services/test_[a-g]*.py $services/test_kafka_@(chaos|look).py)
second=($services/test_[h-jl-z]*.py $services/test_kafka!(_chaos|_look).py)

declare -A started
trap 'for pid in "${started[@]}"; do kill -- "-$pid" 2>/dev/null; done' EXIT

run services-1 "${first[@]}" >"$logs/services-1.log" 2>&1 &
started[services-1]=$!
run services-2 "${second[@]}" >"$logs/services-2.log" 2>&1 &
started[services-2]=$!

status=0
run tests || status=1
for name in "${!started[@]}"; do
    wait "${started[$name]}" || status=1
    echo "--- $name"
    grep -v '|rdkafka#' "$logs/$name.log" # it tells of every broker that a test has killed
done
started=()
exit $status
