#!/bin/bash
# Run a launcher, and pass SIGUSR1 and SIGTERM on to the processes that it started:
#   srun bash examples/slurm/forward_signals.sh accelerate launch …
# SLURM signals the first process of a task only. That would be the launcher, which SIGUSR1 ends at once, and SIGTERM
# too if it has a single process; the training would be killed with it, before it has saved a checkpoint. (Without
# `proctrack/cgroup` SLURM signals all processes. The training then goes on to its checkpoint without its launcher.)
for name in USR1 TERM; do
    trap "is_interrupted=1; was_signalled=1; pkill -$name -P \$(jobs -p)" "$name"
done
"$@" &
launcher=$!
is_interrupted=1
while [ -n "$is_interrupted" ]; do  # `wait` ends on a signal, with a status that is not the launcher's
    is_interrupted=
    wait "$launcher"
    status=$?
done
# A launcher ends with 1 whatever its processes end with. 85 is a run to be started again. A failure that no signal came
# before is above it: srun signals the other nodes then, and ends with the highest status of all.
if [ "$status" -ne 0 ] && [ -n "${was_signalled:-}" ]; then
    status=85
elif [ "$status" -ne 0 ] && [ "$status" -lt 85 ]; then
    status=86
fi
exit "$status"
