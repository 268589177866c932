"""
Do two training processes on gloo end as they should? Trains a tiny model in two processes, again and again.

    python benchmarks/process_exits.py                     # 200 starts, 3 of them at a time

An exit is clean if both processes end by themselves with status 0. The processes are forked from one that has imported
everything already, so that a start is cheap, and end as a script does: the interpreter frees all that is left.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field

import torch

from hf_depth import (
    DepthObjective,
    DepthTrainer,
    DepthTrainingArguments,
    add_sentence_tokens,
    load_model,
    train_tokenizer,
)
from hf_depth.data.tokenization import TextEncoder

DOCUMENTS = [["The dog barked.", "The cat slept."], ["It rained.", "We stayed in.", "Nobody came."]]
MODEL = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}


@dataclass
class Start:
    """Two processes that train together."""

    pids: list[int]
    deadline: float
    statuses: dict[int, int] = field(default_factory=dict)

    def is_over(self) -> bool:
        """Whether both have ended; past the deadline they are killed."""
        if time.monotonic() > self.deadline:
            for pid in set(self.pids) - self.statuses.keys():
                os.kill(pid, signal.SIGKILL)
        for pid in set(self.pids) - self.statuses.keys():
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self.statuses[pid] = os.waitstatus_to_exitcode(status)
        return len(self.statuses) == len(self.pids)


def train(objective: DepthObjective, examples: list[dict[str, list[int]]], folder: str, steps: int) -> None:
    """A short run of the trainer, evaluation included, to its end; one of two processes."""
    trainer = DepthTrainer(
        model=load_model(None, objective.tokenizer, **MODEL),
        args=DepthTrainingArguments(
            folder, max_steps=steps, logging_steps=1, use_cpu=True, save_strategy="no", disable_tqdm=True
        ),
        data_collator=objective.collator(),
        train_dataset=examples,
        eval_dataset=examples,
        processing_class=objective.tokenizer,
    )
    trainer.train()
    trainer.evaluate()
    trainer.end()


def fork(store: str, rank: int) -> int:
    """As `os.fork`; the child has the environment that `torchrun` gives to a process, and its place in the group."""
    pid = os.fork()
    if pid == 0:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a trainer prints
        # By a file: a port that is free now may not be so when the group takes it.
        torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    return pid


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=200)
    parser.add_argument("--parallel", type=int, default=3, help="How many runs at a time.")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=300.0, help="Seconds after which a run hangs.")
    arguments = parser.parse_args()

    texts = [" ".join(sentences) for sentences in DOCUMENTS]
    tokenizer = add_sentence_tokens(train_tokenizer(texts, vocab_size=300, allow_fewer=True))
    objective = DepthObjective(tokenizer, max_source_length=64)
    # Without `datasets`: the threads of its Arrow would be missing in a fork, which waits for them at its end.
    encoded = [TextEncoder(tokenizer)(sentences) for sentences in DOCUMENTS * 8]
    examples = [{"input_ids": sum(ids, []), "sentence_lengths": [len(each) for each in ids]} for ids in encoded]
    active: list[Start] = []
    over: list[Start] = []
    folder = tempfile.gettempdir()  # nothing is saved
    while len(over) < arguments.starts:
        if len(active) < arguments.parallel and len(active) + len(over) < arguments.starts:
            store, pids = f"{folder}/process_exits_{os.getpid()}_{len(active) + len(over)}", []
            for rank in range(2):
                pids.append(fork(store, rank))
                if pids[-1] == 0:
                    train(objective, examples, folder, arguments.steps)
                    return  # to the end of the interpreter
            active.append(Start(pids, time.monotonic() + arguments.timeout))
        ended = [start for start in active if start.is_over()]
        active = [start for start in active if start not in ended]
        over += ended
        for start in ended:
            if any(start.statuses.values()):
                print(f"exit statuses {list(start.statuses.values())}", flush=True)
        if ended:
            clean = sum(not any(start.statuses.values()) for start in over)
            print(f"clean exits: {clean} / {len(over)}", flush=True)
        time.sleep(0.02)
    sys.exit(clean < arguments.starts)


if __name__ == "__main__":
    main()
