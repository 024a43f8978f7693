#!/usr/bin/env bash
# All tests: `scripts/test.sh [REPORTS]`. Those against a real Kafka and a real PostgreSQL run beside the others,
# for they wait half of the time; what they say is shown when they have ended. (Two groups, not more: on two cores
# a third makes them run into their time-outs.) REPORTS is a folder for what became of each test.
set -uo pipefail
cd "$(dirname "$0")/.."
set -m # the group in the background is a process group of its own, and may be sent Ctrl-C

reports=${1:-}
log=build/tests/services.log
mkdir -p "$(dirname "$log")"

run() { # name, what pytest is to run
    local name=$1
    shift
    .venv/bin/python -m pytest --durations=12 ${reports:+--junitxml="$reports/$name.xml"} "$@"
}

run services tests/services >"$log" 2>&1 &
services=$!
trap 'kill -- "-$services" 2>/dev/null' EXIT

status=0
run tests || status=1
wait "$services" || status=1
trap - EXIT
echo "--- tests/services"
cat "$log"
exit $status
