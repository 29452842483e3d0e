#!/bin/sh
# Runs one command on a node and uses its result: its output and its exit code.
#
#     one.sh COMMAND [ARGUMENT…]
set -eu
[ $# -gt 0 ] || { echo "one.sh: no command is given: one.sh COMMAND [ARGUMENT…]" >&2; exit 2; }

# `run` prints the end of the job's output on standard output, and how the job goes on standard error.
code=0
output=$(nodekeeper run --name "one-$(basename "$1")" -- "$@") || code=$?

case $code in
0) printf 'The command said: %s\n' "$output" ;;
125) echo "one.sh: the job ended without an exit code: nodekeeper says above why" >&2 ;;
130) echo "one.sh: the job was cancelled" >&2 ;;
*) printf 'The command failed with exit code %s and said: %s\n' "$code" "$output" >&2 ;;
esac
exit "$code"
