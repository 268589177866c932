"""Laws of training on packed rows: it is training on their examples, in losses, logs and weights."""

import inspect
from unittest import mock

from absl.testing import parameterized
from datasets import Dataset

from helpers import SENTENCES, tiny_tokenizer
from hf_depth import DepthObjective, DepthTrainer, DepthTrainingArguments, PrefixLMObjective, SpanCorruptionObjective
from hf_depth.data.packing import unpack_rows
from hf_depth.training.previews import first_examples
from hf_depth.training.statistics import example_statistics, summarize
from tiny_training import TrainingTestCase, parameters, tiny_model

TOKENIZER = tiny_tokenizer(sentence_tokens=True)
OBJECTIVES = (("depth", DepthObjective), ("t5", SpanCorruptionObjective), ("t5", PrefixLMObjective))
ARGUMENTS = {
    "per_device_train_batch_size": 3,
    "max_steps": 4,
    "optim": "sgd",
    "learning_rate": 0.5,
    "max_grad_norm": 0.0,
    "lr_scheduler_type": "constant",
    "logging_steps": 1,
    "save_strategy": "no",
    "disable_tqdm": True,
    "use_cpu": True,
}


class SeparateRows:
    """Gives the examples of packed rows to a collator one per row."""

    def __init__(self, collator):
        self.collator = collator

    def __call__(self, rows):
        return self.collator(unpack_rows(rows))

    def set_epoch(self, epoch):
        self.collator.set_epoch(epoch)


def packed(kind, **settings):
    objective = kind(TOKENIZER, max_source_length=160, packing=True, **settings)
    texts = [" ".join(SENTENCES[number % 13 :][: 1 + number % 4]) for number in range(20)]
    return objective, objective.prepare(Dataset.from_dict({"text": texts}))


class PackedTrainingTest(TrainingTestCase):
    def trainer(self, model, collator, rows, **changes):
        arguments = DepthTrainingArguments(self.folder, **ARGUMENTS | changes)
        return DepthTrainer(model=model, args=arguments, data_collator=collator, train_dataset=rows)

    @parameterized.product(objective=OBJECTIVES, coefficient=(1.0, 3.0))
    def test_losses_logs_and_weights_are_those_of_separate_rows(self, objective, coefficient):
        kind, objective = objective
        objective, rows = packed(objective)
        runs = [
            self.trainer(tiny_model(kind), collator, rows, sentence_loss_coefficient=coefficient, **changes)
            for collator, changes in (
                (objective.collator(), {}),
                (objective.collator(), {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 3}),
                (SeparateRows(objective.collator()), {}),
            )
        ]
        for run in runs:
            run.train()
        expected = runs[-1].state.log_history[: ARGUMENTS["max_steps"]]
        for run in runs[:-1]:
            self.assert_close(parameters(run.model), parameters(runs[-1].model))
            for log, wanted in zip(run.state.log_history, expected, strict=False):
                self.assertEqual(log.keys(), wanted.keys())
                for name in set(log) - {"padding_fraction", "tokens_per_second", "epoch"}:
                    self.assertAlmostEqual(log[name], wanted[name], delta=1e-5, msg=name)
        padding = [sum(log["padding_fraction"] for log in logs) for logs in (runs[0].state.log_history[:-1], expected)]
        self.assertLess(*padding)

    @parameterized.parameters(*OBJECTIVES[:2])
    def test_statistics_of_rows_are_the_sums_over_their_examples(self, kind, objective):
        objective, rows = packed(objective)
        model, rows = tiny_model(kind).eval(), list(rows)
        sums = []
        for collator in (objective.collator(), SeparateRows(objective.collator())):
            batch = collator(rows)
            inputs = {name: value for name, value in batch.items() if name != "num_cut_tokens"}
            outputs = model(**inputs, skip_logits=False)
            statistics = example_statistics(
                batch["input_ids"],
                batch["attention_mask"],
                batch["labels"],
                outputs.token_losses,
                model.config,
                predictions=outputs.logits.argmax(-1),
                decoder_segment_ids=batch.get("decoder_segment_ids"),
            )
            sums.append(summarize(statistics.sum(0)))
        self.assertEqual(sums[0].keys(), sums[1].keys())
        if kind == "depth":
            self.assertGreater(sums[0]["shuffled_fraction"], 0.2)
        for name in set(sums[0]) - {"padding_fraction"}:
            self.assertAlmostEqual(sums[0][name], sums[1][name], delta=1e-5, msg=name)

    def test_a_model_that_would_let_examples_see_each_other_is_refused(self):
        objective, rows = packed(SpanCorruptionObjective)
        run = self.trainer(tiny_model("stock_t5"), objective.collator(), rows)
        with self.assertRaisesRegex(ValueError, "takes no `encoder_segment_ids`: the examples of a packed row would"):
            run.train()

    def test_the_model_is_looked_at_once_however_long_the_run(self):
        objective, rows = packed(SpanCorruptionObjective)
        numbers = []
        for steps in (1, 3):
            run = self.trainer(tiny_model("t5"), objective.collator(), rows, max_steps=steps)
            with mock.patch("inspect.signature", side_effect=inspect.signature) as signature:
                run.train()
            numbers.append(signature.call_args_list.count(mock.call(run.model.forward)))
        self.assertEqual(*numbers)

    def test_targets_begin_with_the_start_token_of_the_model(self):
        objective, rows = packed(SpanCorruptionObjective)
        model = tiny_model("t5", decoder_start_token_id=5)
        with self.assertRaisesRegex(ValueError, "starts the targets of packed rows with 0, the model with 5. Give"):
            self.trainer(model, objective.collator(), rows).train()
        collator = objective.collator(model=model)
        self.assertEqual(collator(list(rows))["decoder_input_ids"][0, 0], 5)
        self.trainer(model, collator, rows, max_steps=1).train()

    def test_packed_evaluation_data_are_refused(self):
        objective, rows = packed(DepthObjective)
        run = self.trainer(tiny_model("depth"), objective.collator(), rows)
        with self.assertRaisesRegex(ValueError, "The evaluation data are packed, .* packing=False"):
            run.evaluate(rows)

    def test_a_preview_shows_single_examples(self):
        _, rows = packed(DepthObjective)
        first = first_examples(rows)
        expected = unpack_rows([rows[0]])
        self.assertLen(first, 2)
        self.assertEqual(first[0]["input_ids"].tolist(), expected[0]["input_ids"].tolist())
