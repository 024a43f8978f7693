#!/usr/bin/env bash
# All tests: `scripts/test.sh [REPORTS]`. First those that need nothing, then those against a real Kafka and a real
# PostgreSQL, in two halves side by side, for they wait half of the time. (All at once, on two cores, they run into
# their time-outs.) REPORTS is a folder for what became of each test.
set -uo pipefail
cd "$(dirname "$0")/.."
set -m # what runs in the background is a process group of its own, and may be sent Ctrl-C

reports=${1:-}
log=build/tests/services-2.log
mkdir -p "$(dirname "$log")"

run() { # name, what pytest is to run
    local name=$1
    shift
    .venv/bin/python -m pytest --durations=12 ${reports:+--junitxml="$reports/$name.xml"} "$@"
}

# Halves of about the same length.
shopt -s extglob
services=tests/services
first=("$services/journal" $services/test_[a-g]*.py $services/test_kafka_@(chaos|look|replay).py)
second=($services/test_[h-jl-z]*.py $services/test_kafka!(_chaos|_look|_replay).py)

status=0
run tests || status=1

run services-2 "${second[@]}" >"$log" 2>&1 &
beside=$!
trap 'kill -- "-$beside" 2>/dev/null' EXIT
run services-1 "${first[@]}" || status=1
wait "$beside" || status=1
trap - EXIT
cat "$log"
exit $status
