import json
import shutil
from collections import Counter
from itertools import chain, islice
from pathlib import Path

import torch
from absl.testing import parameterized
from accelerate import Accelerator

from helpers import tiny_tokenizer
from hf_depth import DataCollatorForDepth
from hf_depth.training.source_counts import COUNTED, SourceCounts
from tiny_training import TrainingTestCase, mixture, parameters, rows, run_on_two_ranks, tiny_model, trainer

ARGUMENTS = {"per_device_train_batch_size": 2, "learning_rate": 0.1, "logging_steps": 2}


def counts_of(examples) -> dict[str, int]:
    """What was seen of each source, counted from the examples themselves."""
    counts = Counter()
    for example in examples:
        name = "ab"[example["source"]]
        counts[f"{name}/examples"] += len(example.get("input_ids_per_example", "1"))
        counts[f"{name}/documents"] += int(example["num_documents"])
        counts[f"{name}/tokens"] += len(example["input_ids"])
    return dict(counts)


def source_logs(log_history) -> list[dict[str, float]]:
    counts = [{name: value for name, value in log.items() if "/" in name} for log in log_history]
    return [log for log in counts if log]


def drawn(num_consumers: int, number: int):
    """The first examples of each consumer of the stream."""
    stream = mixture("depth", streaming=True)
    return [list(islice(stream.consumer_examples([i], num_consumers), number)) for i in range(num_consumers)]


class SourceCountsTest(TrainingTestCase):
    def assert_contains(self, expected, counts):
        self.assertEqual(counts | expected, counts)

    def run_of(self, steps, **arguments):
        model = tiny_model("depth", dropout_rate=0.1)
        return trainer("depth", self.folder, model=model, mixed=True, max_steps=steps, **ARGUMENTS | arguments)

    def test_counts_of_a_stream_are_those_of_the_examples_drawn(self):
        run = self.run_of(20, streaming=True, dataloader_num_workers=2, gradient_accumulation_steps=2)
        run.train()
        examples = drawn(2, 40)
        seen = run.running.sources.latest
        self.assert_contains(counts_of(chain(*examples)), seen)
        for source, name in enumerate("ab"):
            last = [max(e["stream_epoch"] for e in part if e["source"] == source) for part in examples]
            self.assertGreaterEqual(min(last), 1)
            self.assertAlmostEqual(seen[f"{name}/passes"], sum(last) / 2, places=4)
        self.assertEqual(source_logs(run.state.log_history)[-1], seen)  # of the end of training

    def test_counts_of_map_style_data_are_those_of_their_epochs(self):
        run = self.run_of(-1, num_train_epochs=3, per_device_train_batch_size=6, logging_steps=50)
        run.train()
        self.assertEqual(run.train_dataset._epoch.item(), 2)
        data = mixture("depth", streaming=False)
        examples = []
        for epoch in range(3):
            data.set_epoch(epoch)
            examples += list(data)
        expected = counts_of(examples)
        for name, size in data.source_sizes.items():
            expected[f"{name}/passes"] = round(expected[f"{name}/examples"] / size, 4)
        self.assertEqual(run.running.sources.latest, expected)

    def test_each_example_of_a_packed_row_is_counted(self):
        data = mixture("depth", streaming=False, packing=True, packed_source_length=400, packed_target_length=400)
        drawn = [data[i] for i in range(len(data))]
        collator = DataCollatorForDepth(
            tiny_tokenizer(sentence_tokens=True), packed_source_length=400, packed_target_length=400
        )
        counts, batch = SourceCounts(data, torch.device("cpu")), collator(drawn)
        counts.add(**{name: batch[name] for name in COUNTED})
        seen = counts.metrics(Accelerator(cpu=True))
        self.assert_contains(counts_of(drawn), seen)
        self.assertGreater(seen["a/examples"], len([row for row in drawn if row["source"] == 0]))
        for source, (name, size) in enumerate(data.source_sizes.items()):
            num_drawn = sum(row["source"] == source for row in drawn)
            self.assertEqual(seen[f"{name}/passes"], round(num_drawn / size, 4))

    @parameterized.parameters((True, 2), (False, 0))
    def test_a_resumed_run_is_an_uninterrupted_one_with_its_counts(self, streaming, workers):
        arguments = {"streaming": streaming, "dataloader_num_workers": workers, "gradient_accumulation_steps": 2}
        steps, until = (9, 5) if streaming else (6, 3)  # a source of the stream comes to its second pass
        whole = self.run_of(steps, **arguments)
        whole.train()
        self.run_of(until, **arguments, save_strategy="steps", save_steps=until).train()
        resumed = self.run_of(steps, **arguments)
        resumed.train(resume_from_checkpoint=True)
        for name, value in parameters(whole.model).items():
            self.assertTrue(torch.equal(value, parameters(resumed.model)[name]), name)
        found, expected = (source_logs(run.state.log_history) for run in (resumed, whole))
        # The part that ended earlier has a log of its end.
        self.assertEqual([log for log in found if log in expected], expected)

    @parameterized.parameters(False, True)
    def test_a_run_that_was_killed_after_its_last_checkpoint_has_its_counts(self, streaming):
        arguments = {"streaming": streaming, "save_strategy": "steps", "save_steps": 4}
        whole = self.run_of(4, **arguments)
        whole.train()
        resumed = self.run_of(4, **arguments)
        resumed.train(resume_from_checkpoint=True)
        self.assertEqual(source_logs(resumed.state.log_history)[-1], source_logs(whole.state.log_history)[-1])
        self.assertEqual(resumed.running.sources.table(), whole.running.sources.table())

    def test_another_number_of_processes_goes_on_with_the_counts_of_all(self):
        def train(processes, steps, resumes, **more):
            arguments = ARGUMENTS | {"mixed": True, "max_steps": steps, "save_strategy": "steps", **more}
            arguments["per_device_train_batch_size"] = 4 // processes
            if processes == 1:
                trainer("depth", self.folder, **arguments).train(resume_from_checkpoint=resumes)
            else:
                run_on_two_ranks("depth", self.folder, arguments)
            state = json.loads(Path(self.folder, f"checkpoint-{steps}", "trainer_state.json").read_text())
            return source_logs(log for log in state["log_history"] if "loss" in log)

        expected = train(1, 6, resumes=False)
        shutil.rmtree(self.folder)
        train(2, 3, resumes=False)  # between two logs
        found = train(1, 6, resumes=True)
        self.assertLen(found, 3)
        for log, other in zip(found, expected, strict=True):
            self.assertEqual(log.keys(), other.keys())
            for name, value in log.items():
                self.assertAlmostEqual(value, other[name], delta=1e-5, msg=name)


class EvaluationTest(TrainingTestCase):
    def test_sources_are_evaluated_one_by_one_and_together(self):
        run = trainer("depth", self.folder, predict_with_generate=True, per_device_eval_batch_size=1)
        data = rows(9)
        run.eval_dataset = {"a": data[:4], "b": data[4:]}
        metrics = run.evaluate()
        self.assertLen(run.state.log_history, 1)
        alone = {name: run.evaluate(part, metric_key_prefix=f"eval_{name}") for name, part in run.eval_dataset.items()}
        together = run.evaluate(data)
        for expected in (*alone.values(), together):
            for name, value in expected.items():
                if not any(
                    word in name for word in ("second", "time", "attention_entropy")
                ):  # the last is of one batch
                    self.assertAlmostEqual(metrics[name], value, delta=1e-5, msg=name)
        self.assertNotIn("eval_a", metrics)
