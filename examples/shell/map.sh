#!/bin/sh
# Runs a command once for each line of standard input, and collects each result in a directory.
#
#     map.sh DIR COMMAND [ARGUMENT…] <LINES
#
# The line is the last argument of the command. DIR gets a file for each line N: N.out has the end of the job's output,
# N.state how the job ended. Exit code 0: all completed. 1: some did not, or nodekeeper could not be asked.
#
# The same DIR is the same work: a map.sh that was broken off can be started again. It submits what is missing and
# waits for the rest. No line runs a second time for that, unless all had ended when it was broken off. Another DIR is new
# work.
set -eu
[ $# -ge 2 ] || { echo "map.sh: give a directory and a command: map.sh DIR COMMAND <LINES" >&2; exit 2; }
dir=$1
shift
mkdir -p "$dir"

# The jobs, one a line. The token makes them differ from those of another DIR with the same lines.
[ -s "$dir/token" ] || od -An -N8 -tx1 /dev/urandom | tr -d ' \n' >"$dir/token"
token=$(cat "$dir/token")
command=$(for word; do printf %s "$word" | jq -R -s .; done | jq -s -c .)
jq -R -n -c --arg name "map-$token" --argjson command "$command" '[inputs] | to_entries[]
  | {name: $name, command: ($command + [.value]), env: {MAP_LINE: (.key + 1 | tostring)}}' >"$dir/jobs.new"
if [ -e "$dir/jobs" ] && ! cmp -s "$dir/jobs" "$dir/jobs.new"; then
  echo "map.sh: $dir belongs to other lines or another command: give another directory" >&2
  exit 2
fi
mv "$dir/jobs.new" "$dir/jobs"
[ -s "$dir/jobs" ] || { echo "map.sh: standard input has no line, so there is nothing to do" >&2; exit 2; }

code=0
if [ ! -s "$dir/ended" ]; then
  nodekeeper submit --file "$dir/jobs" --wait --json >"$dir/ended.new" || code=$?
  [ -s "$dir/ended.new" ] || exit "$code"
  mv "$dir/ended.new" "$dir/ended"
fi

jq -r '.[] | "\(.env.MAP_LINE) \(.job_id) \(.state)"' "$dir/ended" | while read -r line id state; do
  echo "$state" >"$dir/$line.state"
  nodekeeper job "$id" --json </dev/null | jq -j '(.all_allocs | last).log_tail // ""' >"$dir/$line.out"
  [ "$state" = complete ] || echo "map.sh: line $line: $state, see $dir/$line.out and: nodekeeper job $id" >&2
done
exit "$code"
