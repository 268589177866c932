"""Each benchmark runs, at sizes at which its figures mean nothing."""

import contextlib
import io
import logging
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import torch
from absl.testing import absltest, parameterized
from torch.utils.flop_counter import FlopCounterMode

from helpers import ROOT, SENTENCES, load_script, process_environment, tiny_tokenizer
from hf_depth import DepthForConditionalGeneration, load_model
from tiny_tasks import as_jsonl, rte_rows
from tiny_training import save_pretraining

TINY_STEP = "--d_model 16 --d_kv 8 --d_ff 32 --num_heads 2 --num_layers 1 --vocab_size 256 --batch_size 2"
COMMANDS = {
    "collators": ("--batch_size 2 --rounds 1", "DEPTH"),
    "crash_resume": (
        "--kills 1 --kinds map --processes 2 --workers 0 --accumulation 2",
        "runs restored after 1 kills",
    ),
    "evaluation_memory": ("--examples 2 --length 16 --vocab_size 2100", "MB"),
    "evaluation_order": (
        "--examples 5 --rounds 1 --batch_size 2 --d_model 16 --d_kv 8 --num_layers 1 --num_heads 2 "
        "--generate_tokens 2",
        "| generation |",
    ),
    "label_scoring": ("--examples 4 --rounds 1 --d_model 16 --num_layers 1", "ratio"),
    "masked_tokens": (
        "--max_source_length 64 --validation_split_percentage 20 --use_cpu true",
        "after the token before",
    ),
    "optimizers": ("--d_model 16 --d_ff 32 --num_layers 1 --vocab_size 64 --steps 2", "adamw_scale"),
    "order_baselines": ("--max_length 96", "ranker on words"),
    "packing": (
        "--max_source_length 128 --batch_size 2 --steps 1 --warmup_steps 0 --d_model 16 --d_kv 8 --d_ff 32",
        "real tokens per CPU second",
    ),
    "passage_baselines": ("", "bag of words"),
    "preparation": ("--runs 1 --megabytes 0.01 --num_proc 1", "peak memory"),
    "probing": ("--tasks glue/rte --train_samples 9", "bag_of_words"),
    "process_exits": ("--starts 1 --steps 1", "clean exits: 1 / 1"),
    "run_cost": ("--size small --examples_per_second 100", "| FLOPs of the run |"),
    "trainer_overhead": (
        "--d_model 16 --d_kv 8 --d_ff 32 --num_heads 2 --num_layers 1 --vocab_size 2100 --max_source_length 64 "
        "--steps 2 --tiny_steps 2 --warmup_steps 1 --logging_steps 2",
        "| Seq2SeqTrainer |",
    ),
    "training_step": (TINY_STEP + " --source_length 32 --target_length 16 --steps 1 --warmup_steps 0", "ratio"),
}

READS_TEXT = ("masked_tokens", "order_baselines", "packing", "preparation")
READS_A_MODEL = ("masked_tokens",)
FORKS = ("crash_resume", "process_exits")  # a process that has trained, as the one of the tests, is not to be forked


class BenchmarksTest(parameterized.TestCase):
    def test_every_benchmark_is_run(self):
        self.assertCountEqual(COMMANDS, [path.stem for path in (ROOT / "benchmarks").glob("*.py")])

    @parameterized.named_parameters((name, name, *command) for name, command in COMMANDS.items())
    def test_it_prints_its_figures(self, name, flags, expected):
        if name in READS_TEXT:
            path = Path(self.enterContext(tempfile.TemporaryDirectory()), "texts.txt")
            documents = (" ".join([*SENTENCES, f"It was day {day}."]) for day in range(40))
            path.write_text("\n\n".join(documents), encoding="utf-8")
            flags = f"{flags} --train_file {path}"
        if name in READS_A_MODEL:
            folder = self.enterContext(tempfile.TemporaryDirectory())
            tokenizer = tiny_tokenizer(sentence_tokens=True)
            tokenizer.save_pretrained(folder)
            load_model(None, tokenizer, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2).save_pretrained(folder)
            flags = f"{flags} --output_dir {folder}"
        if name == "probing":
            folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
            save_pretraining(folder / "run", 3, kind="depth")
            for split in ("train", "validation", "test"):
                (folder / f"{split}.jsonl").write_text(as_jsonl(rte_rows(12).to_list()), encoding="utf-8")
            flags = f"{flags} --runs depth={folder}/run --dataset_dir {folder} --output {folder}/probes.jsonl"
        run = self.run_in_a_process if name in FORKS else self.run_here
        self.assertIn(expected, run(ROOT / f"benchmarks/{name}.py", flags.split()))

    def test_the_flops_of_a_run_are_those_that_torch_counts(self):
        run_cost = load_script("benchmarks/run_cost.py")
        with mock.patch.dict(run_cost.SIZES, tiny=(32, 48, 2, 2)):
            config = run_cost.depth_config("tiny")
        config.num_decoder_layers, config.vocab_size = 3, 32_128
        config._attn_implementation = "eager"
        model = DepthForConditionalGeneration(config)
        ids, labels = torch.randint(3, 99, (2, 24)), torch.randint(3, 99, (2, 10))
        with FlopCounterMode(display=False) as counter:
            model(input_ids=ids, labels=labels, use_cache=False).loss.backward()
        self.assertEqual(counter.get_total_flops(), 2 * run_cost.training_flops(config, 24, 10))

    def test_a_rate_is_measured(self):
        run_cost = load_script("benchmarks/run_cost.py")
        args = mock.Mock(num_threads=1, batch_size=2, source_length=8, target_length=4)
        self.addCleanup(torch.set_num_threads, torch.get_num_threads())
        with mock.patch.dict(run_cost.SIZES, tiny=(32, 48, 2, 2)), mock.patch.object(run_cost, "MEASURED_SECONDS", 0):
            rate, name = run_cost.measure(run_cost.depth_config("tiny"), args)
        self.assertGreater(rate, 0)
        self.assertNotEmpty(name)

    def run_here(self, path, flags):
        """What a benchmark prints; a process of its own would take six seconds for its imports."""
        self.addCleanup(torch.set_num_threads, torch.get_num_threads())
        self.addCleanup(logging.disable, logging.NOTSET)
        output = self.enterContext(contextlib.redirect_stdout(io.StringIO()))
        with mock.patch.dict(os.environ), mock.patch.object(sys, "argv", [str(path), *flags]):
            runpy.run_path(str(path), run_name="__main__")
        return output.getvalue()

    def run_in_a_process(self, path, flags):
        command = [sys.executable, str(path), *flags]
        result = subprocess.run(command, env=process_environment(), capture_output=True, text=True, timeout=300)
        self.assertEqual(result.returncode, 0, result.stderr[-3000:])
        return result.stdout


if __name__ == "__main__":
    absltest.main()
