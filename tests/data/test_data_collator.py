"""Laws of the collators: no text is lost, batches depend on (seed, epoch, example) alone, wrong examples are named."""

import copy
import math
import pickle
from dataclasses import replace

import datasets
import numpy as np
import torch
from absl.testing import absltest, parameterized
from torch.utils.data import DataLoader, DistributedSampler

from helpers import DOCUMENTS, SENTENCES, fork_server, tiny_tokenizer
from hf_depth import DepthConfig, DepthForConditionalGeneration
from hf_depth.data.data_collator import DataCollatorForDepth, DataCollatorForT5SpanCorruption
from hf_depth.data.noise_lengths import depth_input_and_target_lengths, t5_raw_length
from hf_depth.data.tokenization import (
    TextEncoder,
    add_mode_tokens,
    eosen_token_id,
    sentence_token_ids,
    sentinel_token_ids,
)
from rebuild import rebuild_depth, rebuild_t5, sentence_order

MODES = ("[R]", "[S]", "[X]")
TOKENIZER = add_mode_tokens(tiny_tokenizer(sentence_tokens=True), MODES)
SENTINELS = sentinel_token_ids(TOKENIZER).tolist()
SENTENCE_TOKENS = sentence_token_ids(TOKENIZER).tolist()
EOS, PAD, EOSEN = TOKENIZER.eos_token_id, TOKENIZER.pad_token_id, eosen_token_id(TOKENIZER)
TOKENS = np.arange(3, min(SENTINELS))  # ids that a text can have
ENCODED = TextEncoder(TOKENIZER)(SENTENCES)
COLLATORS = (
    ("t5", DataCollatorForT5SpanCorruption, {}),
    ("prefix_lm", DataCollatorForT5SpanCorruption, {"objective": "prefix_lm"}),
    ("mixture", DataCollatorForT5SpanCorruption, {"objective": "mixture_of_denoisers"}),
    ("depth", DataCollatorForDepth, {}),
)


def example_of(sentences):
    return {"input_ids": sum(sentences, []), "sentence_lengths": list(map(len, sentences))}


def real_examples():
    """Windows of one to eight successive sentences of the test text, from every sentence on."""
    return [example_of(ENCODED[start : start + 1 + start % 8]) for start in range(len(ENCODED))]


def random_examples(number, seed=0, most_sentences=12, mean_length=10):
    rng = np.random.default_rng(seed)
    examples = []
    for _ in range(number):
        lengths = 1 + rng.poisson(mean_length, rng.integers(1, most_sentences + 1))
        examples.append(example_of([rng.choice(TOKENS, length).tolist() for length in lengths + (lengths.sum() < 2)]))
    return examples


def unpadded(batch):
    """List of (input, target) without padding, which stands at the end and nowhere else."""
    columns = (batch[name].tolist() for name in ("input_ids", "attention_mask", "labels"))
    for ids, mask, labels in zip(*columns, strict=True):
        width, label_width = sum(mask), sum(label != -100 for label in labels)
        assert ids[width:] == [PAD] * (len(ids) - width) and PAD not in ids[:width] and all(mask[:width])
        assert labels[label_width:] == [-100] * (len(labels) - label_width) and PAD not in labels
        yield ids[:width], labels[:label_width]


def pairs_of(batches):
    return [pair for batch in batches for pair in unpadded(batch)]


def rebuilt(name, inputs, targets):
    """The tokens of an example."""
    if name == "t5":
        return rebuild_t5(inputs, targets, SENTINELS, EOS)
    if name == "prefix_lm":
        return inputs[:-1] + targets[:-1]
    if name == "mixture":
        assert inputs[0] in TOKENIZER.convert_tokens_to_ids(list(MODES))
        return rebuild_t5(inputs[1:], targets, SENTINELS, EOS)
    return sum(rebuild_depth(inputs, targets, SENTINELS, SENTENCE_TOKENS, EOSEN, EOS), [])


def is_shuffled(inputs, targets):
    return sentence_order(inputs, SENTENCE_TOKENS) != sentence_order(targets, SENTENCE_TOKENS)


def ragged(lengths):
    """Texts of so many tokens, `</s>` included."""
    return np.concatenate([[5] * (length - 1) + [EOS] for length in lengths]), np.array(lengths)


GOOD = np.array([5, EOS, 5, 6, EOS]), np.array([2, 3])


class OwnCollator(DataCollatorForT5SpanCorruption):
    corrupted = None

    def _corrupt(self, examples, token_ids, lengths, random):
        return self.corrupted


def own_collator(corrupted, **arguments):
    """A collator that makes this of any two examples."""
    collator = OwnCollator(TOKENIZER, **arguments)
    collator.corrupted = corrupted if corrupted is None else tuple(corrupted)
    return collator


class BatchTest(parameterized.TestCase):
    @parameterized.named_parameters(*COLLATORS)
    def test_real_text_is_rebuilt_exactly(self, collator, arguments):
        name = self._testMethodName.removeprefix("test_real_text_is_rebuilt_exactly_")
        collator = collator(TOKENIZER, **arguments)
        examples = real_examples()
        for epoch in range(5):
            collator.set_epoch(epoch)
            for original, pair in zip(examples, unpadded(collator(examples)), strict=True):
                self.assertEqual(rebuilt(name, *pair), original["input_ids"])

    @parameterized.named_parameters(*COLLATORS)
    def test_all_labels_end_in_eos_and_have_it_once(self, collator, arguments):
        for inputs, targets in unpadded(collator(TOKENIZER, **arguments)(random_examples(100))):
            self.assertEqual((targets[-1], targets.count(EOS), inputs[-1], inputs.count(EOS)), (EOS, 1, EOS, 1))

    @parameterized.named_parameters(*COLLATORS)
    def test_tensors_have_the_promised_types_and_nothing_else_leaves(self, collator, arguments):
        examples = random_examples(4)
        batch = collator(TOKENIZER, **arguments)(examples)
        self.assertEqual(set(batch), {"input_ids", "attention_mask", "labels"})
        self.assertEqual(
            [batch[name].dtype for name in ("input_ids", "attention_mask", "labels")],
            [torch.int64, torch.bool, torch.int64],
        )
        self.assertEqual(batch["attention_mask"].shape, batch["input_ids"].shape)
        batch = collator(TOKENIZER, **arguments)(
            [{**example, "num_cut_tokens": 7, "other": "x"} for example in examples]
        )
        self.assertEqual(set(batch), {"input_ids", "attention_mask", "labels", "num_cut_tokens"})
        torch.testing.assert_close(batch["num_cut_tokens"], torch.full((4,), 7))

    def test_no_token_of_a_text_is_a_special_token(self):
        texts = ["Keep <extra_id_3>, <sent_2>, <eosen>, </s> and <pad> as they are written.", *DOCUMENTS]
        examples = [{"input_ids": ids, "sentence_lengths": [len(ids)]} for ids in TextEncoder(TOKENIZER)(texts)]
        inputs, targets = next(unpadded(DataCollatorForDepth(TOKENIZER)(examples)))
        tokens = rebuilt("depth", inputs, targets)
        self.assertEqual(tokens, examples[0]["input_ids"])
        self.assertEmpty({*SENTINELS, *SENTENCE_TOKENS, EOSEN, EOS, PAD} & set(tokens))

    def test_128_examples_leave_in_less_than_a_megabyte(self):
        rng = np.random.default_rng(0)
        examples = [example_of([rng.choice(TOKENS, 30).tolist() for _ in range(19)]) for _ in range(128)]
        for collator in (DataCollatorForT5SpanCorruption(TOKENIZER, 0.3), DataCollatorForDepth(TOKENIZER)):
            batch = collator(examples)
            self.assertLess(sum(tensor.nbytes for tensor in batch.values()), 1_000_000)
            self.assertGreater(batch["input_ids"].shape[1], 450)


class WidthTest(parameterized.TestCase):
    @parameterized.parameters((512, 114, 0.15), (512, 257, 0.3), (64, 64, 0.3))
    def test_raw_length_fills_fixed_widths_without_padding(self, source, target, density):
        raw = t5_raw_length(source, density, 3.0, target)
        collator = DataCollatorForT5SpanCorruption(
            TOKENIZER, density, max_source_length=source, max_target_length=target, padding="max_length"
        )
        batch = collator([{"input_ids": TOKENS[np.arange(raw) % len(TOKENS)]}, {"input_ids": TOKENS[:7]}])
        self.assertEqual((batch["input_ids"].shape, batch["labels"].shape), ((2, source), (2, target)))
        self.assertTrue(batch["attention_mask"][0].all())

    def test_whatever_the_computed_lengths_allow_fits_into_fixed_widths(self):
        examples = random_examples(300)
        lengths, sentences = np.array([(len(e["input_ids"]), len(e["sentence_lengths"])) for e in examples]).T
        bounds = [int(bound.max()) for bound in depth_input_and_target_lengths(lengths, sentences, 0.3, 3.0)]
        collator = DataCollatorForDepth(
            TOKENIZER, max_source_length=bounds[0], max_target_length=bounds[1], padding="max_length"
        )
        for epoch in range(5):
            collator.set_epoch(epoch)
            batch = collator(examples)
            self.assertEqual([batch["input_ids"].shape[1], batch["labels"].shape[1]], bounds)

    @parameterized.parameters("longest", True)
    def test_padding_reaches_to_the_longest_example(self, padding):
        batch = DataCollatorForT5SpanCorruption(TOKENIZER, padding=padding)(random_examples(9))
        self.assertTrue(batch["attention_mask"].any(dim=0).all())
        self.assertTrue((batch["labels"] != -100).any(dim=0).all())

    @parameterized.parameters(("longest", 8), ("longest", 64), ("max_length", 64))
    def test_widths_are_multiples_on_request(self, padding, multiple):
        lengths = {"max_source_length": 300, "max_target_length": 200} if padding == "max_length" else {}
        collator = DataCollatorForDepth(TOKENIZER, padding=padding, pad_to_multiple_of=multiple, **lengths)
        plain = replace(collator, pad_to_multiple_of=None)
        examples = random_examples(6)
        batch, unrounded = collator(examples), plain(examples)
        for name in ("input_ids", "labels"):
            self.assertEqual(batch[name].shape[1] % multiple, 0)
            self.assertLess(batch[name].shape[1] - unrounded[name].shape[1], multiple)
        self.assertEqual(pairs_of([batch]), pairs_of([unrounded]))


class DepthTest(parameterized.TestCase):
    def test_sentence_tokens_and_noise_are_fresh_at_every_visit_and_repeat_with_it(self):
        collator = DataCollatorForDepth(TOKENIZER, sentence_shuffling_probability=0.0)
        examples = [example_of(ENCODED[:6])]
        visits = []
        for epoch in (0, 1, 2, 3, 0, 1):
            collator.set_epoch(epoch)
            visits += pairs_of([collator(examples)])
        self.assertEqual(visits[:2], visits[4:])
        self.assertLen({tuple(sentence_order(targets, SENTENCE_TOKENS)) for _, targets in visits}, 4)
        self.assertLen({tuple(targets) for _, targets in visits}, 4)

    def test_shuffled_and_unshuffled_examples_differ_in_nothing_but_sentence_order(self):
        examples = random_examples(200)
        never, always = (DataCollatorForDepth(TOKENIZER, sentence_shuffling_probability=p) for p in (0, 1))
        pairs = list(zip(unpadded(never(examples)), unpadded(always(examples)), strict=True))
        for (plain, targets), (shuffled, same_targets) in pairs:
            self.assertEqual(targets, same_targets)
            self.assertFalse(is_shuffled(plain, targets))
            self.assertCountEqual(plain, shuffled)
            self.assertEqual(rebuilt("depth", plain, targets), rebuilt("depth", shuffled, targets))
        self.assertGreater(sum(plain != shuffled for (plain, _), (shuffled, _) in pairs), 150)

    @parameterized.parameters(0.0, 0.3, 0.5, 1.0)
    def test_examples_are_shuffled_independently_at_the_requested_rate(self, probability):
        # Ten short sentences: left in order by chance once in three million times.
        rng = np.random.default_rng(0)
        examples = [example_of(rng.choice(TOKENS, (10, 2)).tolist()) for _ in range(4000)]
        collator = DataCollatorForDepth(TOKENIZER, sentence_shuffling_probability=probability)
        shuffled = [is_shuffled(*pair) for pair in unpadded(collator(examples))]
        self.assertAlmostEqual(np.mean(shuffled), probability, delta=0.02)


class DepthPrefixTest(parameterized.TestCase):
    def test_real_text_is_put_in_order_and_continued(self):
        collator = DataCollatorForDepth(TOKENIZER, objective="prefix_lm", sentence_shuffling_probability=1.0)
        examples = [example for example in real_examples() if len(example["sentence_lengths"]) > 1]
        for original, (inputs, targets) in zip(examples, unpadded(collator(examples)), strict=True):
            text = TOKENIZER.decode(inputs + targets).replace(" ", "")
            for sentence in np.split(original["input_ids"], np.cumsum(original["sentence_lengths"])[:-1]):
                self.assertIn(TOKENIZER.decode(sentence).replace(" ", ""), text)
            given, true = sentence_order(inputs, SENTENCE_TOKENS), sentence_order(targets, SENTENCE_TOKENS)
            self.assertCountEqual(true[: len(given)], given)
            self.assertLen(true, len(original["sentence_lengths"]))

    def test_a_single_sentence_and_another_objective_are_refused(self):
        collator = DataCollatorForDepth(TOKENIZER, objective="prefix_lm")
        with self.assertRaisesRegex(ValueError, "Example 1 of the batch has a single sentence.*min_sentences"):
            collator([example_of([[5], [6]]), example_of([[5, 6]])])
        with self.assertRaisesRegex(ValueError, "must be one of 'span_corruption', 'prefix_lm', got .ul2."):
            DataCollatorForDepth(TOKENIZER, objective="ul2")

    @parameterized.parameters(
        (DataCollatorForDepth, "prefix_lm"), (DataCollatorForT5SpanCorruption, "mixture_of_denoisers")
    )
    def test_whole_units_are_for_span_corruption(self, collator, objective):
        with self.assertRaisesRegex(
            ValueError, f"`whole_units` is for span corruption, not for `objective` '{objective}'"
        ):
            collator(TOKENIZER, objective=objective, whole_units=True)


class ReproducibilityTest(parameterized.TestCase):
    @parameterized.named_parameters(*COLLATORS)
    def test_an_example_is_the_same_in_any_batch_and_place(self, collator, arguments):
        collator, examples = collator(TOKENIZER, **arguments), random_examples(20)
        together = pairs_of([collator(examples)])
        self.assertEqual(pairs_of(collator([example]) for example in examples), together)
        self.assertEqual(pairs_of([collator(examples[::-1])]), together[::-1])

    @parameterized.named_parameters(*COLLATORS)
    def test_lists_arrays_and_datasets_give_the_same_examples(self, collator, arguments):
        collator, examples = collator(TOKENIZER, **arguments), random_examples(20)
        expected = collator(examples)
        dataset = datasets.Dataset.from_list(examples)
        for other in (
            [{name: np.array(values, np.int32) for name, values in example.items()} for example in examples],
            [dataset[i] for i in range(20)],
            [dataset.with_format("numpy")[i] for i in range(20)],
            list(dataset.to_iterable_dataset()),
        ):
            batch = collator(other)
            for name, tensor in expected.items():
                torch.testing.assert_close(batch[name], tensor, rtol=0, atol=0)

    def test_the_seed_changes_every_example(self):
        examples = random_examples(20, most_sentences=2, mean_length=90)
        for kind in (DataCollatorForT5SpanCorruption, DataCollatorForDepth):
            pairs = zip(*(pairs_of([kind(TOKENIZER, seed=seed)(examples)]) for seed in (1, 2)), strict=True)
            self.assertTrue(all(one != two for one, two in pairs))

    @parameterized.parameters(1, 3)
    def test_workers_give_the_same_batches_and_hear_of_new_epochs(self, num_workers):
        collator, examples = DataCollatorForDepth(TOKENIZER), random_examples(24)
        loader = DataLoader(examples, 4, collate_fn=collator, num_workers=num_workers, persistent_workers=True)
        for epoch in (0, 1, 5):
            collator.set_epoch(epoch)
            self.assertEqual(pairs_of(loader), pairs_of(DataLoader(examples, 4, collate_fn=collator)))

    def test_so_does_a_worker_that_shares_no_memory_with_this_process(self):
        collator, examples = DataCollatorForDepth(TOKENIZER), random_examples(8)
        settings = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": fork_server()}
        loader = DataLoader(examples, 4, collate_fn=collator, **settings)
        for epoch in (0, 1):
            collator.set_epoch(epoch)
            self.assertEqual(pairs_of(loader), pairs_of([collator(examples)]))

    def test_two_processes_share_the_examples_of_one(self):
        examples = random_examples(24)
        shards = []
        for rank in range(2):  # each with a collator of its own, and smaller batches
            sampler = DistributedSampler(examples, num_replicas=2, rank=rank, shuffle=False)
            loader = DataLoader(examples, 3, sampler=sampler, collate_fn=DataCollatorForDepth(TOKENIZER))
            shards.append(pairs_of(loader))
        alone = pairs_of(DataLoader(examples, 8, collate_fn=DataCollatorForDepth(TOKENIZER)))
        self.assertEqual([example for pair in zip(*shards, strict=True) for example in pair], alone)

    def test_streams_shuffled_and_sharded_give_the_same_examples(self):
        examples = random_examples(24)
        stream = datasets.Dataset.from_list(examples).to_iterable_dataset(num_shards=4).shuffle(seed=1, buffer_size=5)
        collator = DataCollatorForDepth(TOKENIZER)
        streamed = pairs_of(DataLoader(stream, 5, collate_fn=collator, num_workers=2))
        self.assertCountEqual(streamed, pairs_of([collator(examples)]))

    @parameterized.parameters(copy.deepcopy, copy.copy, lambda collator: pickle.loads(pickle.dumps(collator)))
    def test_copies_give_the_same_batches_and_can_be_told_the_epoch(self, duplicate):
        collator, examples = DataCollatorForDepth(TOKENIZER), random_examples(6)
        twin = duplicate(collator)
        loader = DataLoader(examples, 2, collate_fn=twin, num_workers=1, persistent_workers=True)
        for epoch in (0, 3):
            collator.set_epoch(epoch)
            twin.set_epoch(epoch)
            self.assertEqual(pairs_of(loader), pairs_of([collator(examples)]))


class ModelTest(parameterized.TestCase):
    """The `model` of a collator is compared with its tokenizer, and leaves no trace."""

    CONFIG = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "vocab_size": len(TOKENIZER)}

    def depth_model(self, **ids):
        fitting = {"first_sentence_token_id": SENTENCE_TOKENS[0], "eosen_token_id": EOSEN}
        return DepthForConditionalGeneration(DepthConfig(**self.CONFIG, **(fitting | ids)))

    @parameterized.parameters(DataCollatorForT5SpanCorruption, DataCollatorForDepth)
    def test_a_model_with_other_sentence_tokens_is_refused(self, collator):
        with self.assertRaisesRegex(ValueError, "`model.config.eosen_token_id` is 5, but .*load_model"):
            collator(TOKENIZER, model=self.depth_model(eosen_token_id=5))

    @parameterized.named_parameters(*COLLATORS)
    def test_a_model_that_fits_is_not_kept(self, collator, arguments):
        checked, plain = (collator(TOKENIZER, **arguments, model=model) for model in (self.depth_model(), None))
        self.assertEqual(checked, plain)
        self.assertEqual(vars(checked).keys(), vars(plain).keys())
        self.assertIsNone(checked.model)
        self.assertNotIn(b"torch.nn", pickle.dumps(checked))

    def test_fields_can_be_replaced(self):
        collator = replace(DataCollatorForDepth(TOKENIZER, model=self.depth_model()), sentence_shuffling_probability=1)
        self.assertEqual(collator, DataCollatorForDepth(TOKENIZER, sentence_shuffling_probability=1))
        with self.assertRaisesRegex(ValueError, "`model.config.first_sentence_token_id` is 7"):
            replace(collator, model=self.depth_model(first_sentence_token_id=7))


class ErrorTest(parameterized.TestCase):
    @parameterized.parameters(
        ({"mlm_probability": 0.0}, "`mlm_probability` must be between 0.001 and 0.999, got 0.0"),
        ({"mean_noise_span_length": 0.5}, "`mean_noise_span_length` must be at least 1 and finite, got 0.5"),
        ({"mlm_probability": 15}, "`mlm_probability` must be between 0.001 and 0.999, got 15"),
        ({"mlm_probability": math.nan}, "`mlm_probability` must be between 0.001 and 0.999, got nan"),
        ({"max_source_length": 0}, "`max_source_length` must be between 1 and 131072, got 0"),
        ({"max_target_length": -1}, "`max_target_length` must be between 1 and 131072, got -1"),
        ({"padding": "shortest"}, '`padding` must be "longest" or "max_length"'),
        ({"padding": False}, '`padding` must be "longest" or "max_length"'),
        ({"padding": "max_length", "max_source_length": 9}, "needs `max_source_length` and `max_target_length`"),
        ({"max_source_length": 10**9}, "`max_source_length` must be between 1 and 131072, got 1000000000"),
        ({"pad_to_multiple_of": 0}, "`pad_to_multiple_of` must be between 1 and"),
    )
    def test_bad_arguments_are_named_at_once(self, arguments, message):
        for collator in (DataCollatorForT5SpanCorruption, DataCollatorForDepth):
            with self.assertRaisesRegex(ValueError, message):
                collator(TOKENIZER, **arguments)

    def test_an_objective_of_another_name_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "`objective` must be one of .*'mixture_of_denoisers', got .ul2."):
            DataCollatorForT5SpanCorruption(TOKENIZER, objective="ul2")

    @parameterized.parameters(-0.1, 1.1, 2, math.nan)
    def test_a_share_of_shuffled_examples_that_is_none_is_an_error(self, probability):
        with self.assertRaisesRegex(
            ValueError, f"`sentence_shuffling_probability` must be between 0 and 1( and finite)?, got {probability}"
        ):
            DataCollatorForDepth(TOKENIZER, sentence_shuffling_probability=probability)

    def test_a_tokenizer_without_the_tokens_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "add_sentence_tokens"):
            DataCollatorForDepth(tiny_tokenizer())
        tokenizer = tiny_tokenizer()
        tokenizer.pad_token = None
        with self.assertRaisesRegex(ValueError, "no `pad_token`"):
            DataCollatorForT5SpanCorruption(tokenizer)

    @parameterized.parameters(
        ({"text": "It rained.", "id": 7}, r"no column `input_ids`, only \['id', 'text'\]"),
        ({}, r"no column `input_ids`, only \[\]"),
        ("It rained.", "no column `input_ids`, but is of type `str`"),
    )
    def test_raw_text_is_refused_with_the_step_that_prepares_it(self, example, message):
        wanted = (
            (DataCollatorForT5SpanCorruption, "SpanCorruptionObjective", "SpanCorruptionPreprocessor"),
            (DataCollatorForDepth, "DepthObjective", "DepthPreprocessor"),
        )
        for collator, objective, preprocessor in wanted:
            examples = [example_of([[5, 6]]), example]
            step = f"Example 1 .*{message}.*`{objective}\\(...\\).prepare\\(documents\\)`.*{preprocessor}`"
            with self.assertRaisesRegex(ValueError, step):
                collator(TOKENIZER)(examples)

    @parameterized.parameters(DataCollatorForT5SpanCorruption, DataCollatorForDepth)
    def test_an_empty_batch_is_refused(self, collator):
        with self.assertRaisesRegex(ValueError, "no example in the batch"):
            collator(TOKENIZER)([])

    def test_examples_for_depth_are_one_text_to_t5(self):
        examples = random_examples(20)
        for objective in ("span_corruption", "prefix_lm", "mixture_of_denoisers"):
            collator = DataCollatorForT5SpanCorruption(TOKENIZER, objective=objective)
            alone = collator([{"input_ids": example["input_ids"]} for example in examples])
            self.assertEqual(pairs_of([collator(examples)]), pairs_of([alone]))

    @parameterized.parameters(PAD, EOS, SENTINELS[0], SENTINELS[-1], SENTENCE_TOKENS[0], EOSEN, len(TOKENIZER), -1)
    def test_ids_that_are_no_tokens_of_a_text_are_named(self, wrong):
        examples = random_examples(3)
        examples[1]["input_ids"][-1] = wrong
        with self.assertRaisesRegex(ValueError, f"Example 1 of the batch has {wrong} in `input_ids`"):
            DataCollatorForDepth(TOKENIZER)(examples)

    @parameterized.parameters(PAD, SENTINELS[0], len(TOKENIZER), -1)
    def test_t5_takes_no_special_id_but_an_end_of_document_between_documents(self, wrong):
        for objective in ("span_corruption", "prefix_lm"):
            collator = DataCollatorForT5SpanCorruption(TOKENIZER, objective=objective)
            collator([{"input_ids": [5, 6, EOS, 7]}])
            for ids in ([5, 6, 7, EOS], [EOS, 5, 6, 7], [5, wrong, 6, 7]):
                with self.assertRaisesRegex(ValueError, "Example 1 of the batch has .* in `input_ids`, which is no"):
                    collator([{"input_ids": [5, 6]}, {"input_ids": ids}])

    @parameterized.parameters(
        ({"input_ids": [5, 6]}, "no column `sentence_lengths`.*remove_unused_columns=False"),
        ({"input_ids": [5, 6], "sentence_lengths": [1]}, "example 0 of the batch add up to 1, for 2 tokens"),
        ({"input_ids": [5, 6], "sentence_lengths": [0, 2]}, "The smallest is 0"),
        ({"input_ids": [], "sentence_lengths": []}, "Example 0 of the batch has nothing in `input_ids`"),
        ({"input_ids": [5], "sentence_lengths": []}, "Example 0 of the batch has nothing in `sentence_lengths`"),
        ({"input_ids": [5] * 21, "sentence_lengths": [1] * 21}, "has 21 sentences, but the tokenizer has 20"),
    )
    def test_wrong_examples_are_named(self, example, message):
        with self.assertRaisesRegex(ValueError, message):
            DataCollatorForDepth(TOKENIZER)([example])

    @parameterized.parameters("span_corruption", "prefix_lm", "mixture_of_denoisers")
    def test_a_lone_token_is_an_error_for_t5_alone(self, objective):
        examples = [{"input_ids": [5, 6]}, {"input_ids": [5], "sentence_lengths": [1]}]
        with self.assertRaisesRegex(ValueError, "Example 1 of the batch has a single token"):
            DataCollatorForT5SpanCorruption(TOKENIZER, objective=objective)(examples)
        self.assertEqual(DataCollatorForDepth(TOKENIZER)(examples[1:])["labels"].shape, (1, 3))

    @parameterized.parameters(("max_source_length", 40), ("max_target_length", 20))
    def test_nothing_is_truncated(self, name, limit):
        examples = [example_of([[5] * 10]), example_of([[5] * 60]), example_of([[5] * 20])]
        for collator in (DataCollatorForT5SpanCorruption(TOKENIZER, 0.3), DataCollatorForDepth(TOKENIZER)):
            collator = replace(collator, **{name: limit})
            with self.assertRaisesRegex(
                ValueError, f"Example 1 .* 60 tokens, .* after corruption, but `{name}` is {limit}"
            ):
                collator(examples)

    @parameterized.product(
        padding=("longest", "max_length"), packed=(False, True), grows=("inputs", "targets"), exactly=(False, True)
    )
    def test_noise_of_ones_own_that_makes_an_example_too_long_is_an_error(self, padding, packed, grows, exactly):
        # The lengths together fill both rows, so that only those of each example tell that one is too long.
        long, lengths = (4, [4, 4]) if exactly else (5, [3, 5])
        parts = {"inputs": ragged([4, 4]), "targets": ragged([4, 4])} | {grows: ragged(lengths)}
        lengths = {"max_source_length": 4, "max_target_length": 4}
        packed_lengths = {"packed_source_length": 8, "packed_target_length": 8} if packed else {}
        collator = own_collator(parts.values(), padding=padding, **lengths, **packed_lengths)
        examples = [{"input_ids": [5, 6, 7]}] * 2
        if packed:
            examples = [{"input_ids": [5, 6, 7] * 2, "input_ids_per_example": [3, 3]}]
        if exactly:
            self.assertEqual(int((collator(examples)["labels"] != -100).sum()), 8)
            return
        name = {"inputs": "max_source_length", "targets": "max_target_length"}[grows]
        message = f"`OwnCollator._corrupt` gives example 1 .* {long} tokens in its {grows}, but `{name}` is 4"
        with self.assertRaisesRegex(ValueError, message):
            collator(examples)

    @parameterized.parameters(
        ((GOOD,),),
        ((GOOD[0], GOOD),),
        (None,),
        ((GOOD, (GOOD[0], [2, 2, 1])),),
        (((GOOD[0], [4, 4]), GOOD),),
        (((GOOD[0].astype(float), [2, 3]), GOOD),),
        ((GOOD, ([[5, 1], [5, 6, 1]], [2, 3])),),
        ((GOOD, (GOOD[0], [0, 5])),),
    )
    def test_noise_of_ones_own_that_returns_something_else_is_an_error(self, corrupted):
        message = "`OwnCollator._corrupt` must return inputs and targets, each as a pair: the ids of all 2 examples in"
        with self.assertRaisesRegex(ValueError, message):
            own_collator(corrupted)([{"input_ids": [5, 6, 7]}] * 2)

    def test_noise_of_ones_own_may_return_lists_and_small_integers(self):
        corrupted = (GOOD[0].tolist(), [2, 3]), (GOOD[0].astype(np.int32), GOOD[1].astype(np.int16))
        batch = own_collator(corrupted)([{"input_ids": [5, 6, 7]}] * 2)
        self.assertEqual(batch["labels"].tolist(), [[5, EOS, -100], [5, 6, EOS]])
        self.assertEqual({values.dtype for values in batch.values()}, {torch.int64, torch.bool})

    def test_more_spans_than_sentinels_are_an_error(self):
        examples = [{"input_ids": [5] * 1024, "sentence_lengths": [1024]}]
        for collator in (DataCollatorForT5SpanCorruption(TOKENIZER, 0.3), DataCollatorForDepth(TOKENIZER)):
            with self.assertRaisesRegex(ValueError, "102 masked spans, but the tokenizer has 100 sentinels"):
                collator(examples)


if __name__ == "__main__":
    absltest.main()
