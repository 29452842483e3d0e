#!/bin/sh
# Runs a command with the numbers 0 to LAST, at most LIMIT of them at the same time, and prints each result in order.
#
#     array.sh LAST LIMIT COMMAND [ARGUMENT…]
#
# The command finds its number in NODEKEEPER_ARRAY_INDEX. Exit code 0: all jobs completed. 1: some did not.
set -eu
[ $# -ge 3 ] || { echo "array.sh: give the last number, the limit and a command: array.sh 9 3 COMMAND" >&2; exit 2; }
for number in "$1" "$2"; do
  case $number in
  '' | *[!0-9]*) echo "array.sh: '$number' is not a number: array.sh LAST LIMIT COMMAND" >&2; exit 2 ;;
  esac
done
last=$1 limit=$2
shift 2

name=array-$(uname -n)-$$
jobs=$(mktemp)
trap 'rm -f "$jobs"' EXIT
# Ctrl-C also cancels the jobs. Without this line they would go on.
trap 'nodekeeper cancel --name "$name" --yes; exit 130' INT TERM

code=0
nodekeeper submit --wait --json --name "$name" --array "0-$last%$limit" -- "$@" >"$jobs" || code=$?
# 1 also means that nothing was submitted. Then there is no JSON.
[ -s "$jobs" ] || exit "$code"

jq -r '.[] | "\(.env.NODEKEEPER_ARRAY_INDEX) \(.job_id) \(.state)"' "$jobs" | while read -r index id state; do
  printf '%s %s: ' "$index" "$state"
  # A job may have run more than once. The last one counts.
  nodekeeper job "$id" --json </dev/null | jq -r '(.all_allocs | last).log_tail // "" | rtrimstr("\n")'
done
exit "$code"
