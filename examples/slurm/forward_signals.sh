#!/bin/bash
# Run a launcher, and pass SIGUSR1 and SIGTERM on to the processes that it started:
#   srun bash examples/slurm/forward_signals.sh accelerate launch …
# SLURM signals the first process of a task only. That would be the launcher, which SIGUSR1 ends at once, and SIGTERM
# too if it has a single process; the training would be killed with it, before it has saved a checkpoint.
for name in USR1 TERM; do
    trap "pkill -$name -P \$(jobs -p)" "$name"
done
"$@" &
launcher=$!
wait "$launcher"
status=$?
while [ "$status" -gt 128 ] && kill -0 "$launcher" 2> /dev/null; do  # it was a signal that ended `wait`
    wait "$launcher"
    status=$?
done
exit "$status"
