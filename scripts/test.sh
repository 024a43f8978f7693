#!/usr/bin/env bash
# All tests: `scripts/test.sh [REPORTS]`. First those that need nothing, then those against a real Kafka and a real
# PostgreSQL; each in two halves side by side, for they wait half of the time. (More at once, on two cores, run into
# their time-outs.) REPORTS is a folder for what became of each test.
set -uo pipefail
cd "$(dirname "$0")/.."
set -m # what runs in the background is a process group of its own, and may be sent Ctrl-C
shopt -s extglob

reports=${1:-}
logs=build/tests
mkdir -p "$logs"
status=0

run() { # name, what pytest is to run
    local name=$1
    shift
    .venv/bin/python -m pytest --durations=12 ${reports:+--junitxml="$reports/$name.xml"} "$@"
}

both() { # name; what is to run stands in `first` and `second`, halves of about the same length
    run "$1-1" "${first[@]}" </dev/null &
    local one=$!
    run "$1-2" "${second[@]}" </dev/null >"$logs/$1-2.log" 2>&1 &
    local two=$!
    # shellcheck disable=SC2064 # the processes of now
    trap "kill -INT -- -$one -$two 2>/dev/null; wait; exit 130" INT TERM
    wait "$one" || status=1
    wait "$two" || status=1
    trap - INT TERM
    cat "$logs/$1-2.log"
}

first=(tests/fault)
second=(tests/!(fault|services|__pycache__|*.py))
both tests

services=tests/services
first=("$services/journal" $services/test_[a-g]*.py $services/test_kafka_@(chaos|look|replay).py)
second=($services/test_[h-jl-z]*.py $services/test_kafka!(_chaos|_look|_replay).py)
both services

exit $status
