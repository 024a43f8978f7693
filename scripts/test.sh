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
    .venv/bin/python -m pytest ${reports:+--junitxml="$reports/$name.xml"} "$@"
}

# Halves of about the same length.
services=tests/services
declare -A group=(
    [services-1]="$services/journal $services/test_[a-g]*.py $services/test_kafka_chaos.py $services/test_kafka_look.py"
)
group[services-2]="$services/test_[h-z]*.py --ignore=$services/test_kafka_chaos.py --ignore=$services/test_kafka_look.py"

declare -A started
trap 'for pid in "${started[@]}"; do kill -- "-$pid" 2>/dev/null; done' EXIT

for name in "${!group[@]}"; do
    # shellcheck disable=SC2086 - words, and patterns
    run "$name" ${group[$name]} >"$logs/$name.log" 2>&1 &
    started[$name]=$!
done

status=0
run tests || status=1
for name in "${!group[@]}"; do
    wait "${started[$name]}" || status=1
    echo "--- $name"
    grep -v '|rdkafka#' "$logs/$name.log" # it tells of every broker that a test has killed
done
started=()
exit $status
