import functools
import itertools
import string
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar
from unittest import mock

import numpy as np
from absl.testing import parameterized
from datasets import Dataset, IterableDataset
from transformers import T5Tokenizer, TrainingArguments

from helpers import DOCUMENTS, SENTENCES, CorpusTestCase, tiny_mt5_tokenizer, tiny_tokenizer
from hf_depth.data.base_objective import Objective
from hf_depth.data.data_collator import DataCollatorForDepth, DataCollatorForT5SpanCorruption
from hf_depth.data.denoisers import UL2_DENOISERS, Denoiser
from hf_depth.data.mixture import DocumentMixture, Mixing, MixtureSource
from hf_depth.data.objectives import (
    OBJECTIVES,
    DepthObjective,
    DepthPrefixLMObjective,
    MixtureOfDenoisersObjective,
    PrefixLMObjective,
    SpanCorruptionObjective,
)
from hf_depth.data.preprocessing import NoExamplesError
from hf_depth.data.streams import ExampleStream
from hf_depth.data.tokenization import TextEncoder, add_mode_tokens, add_sentence_tokens, sentinel_token_ids
from tiny_training import tiny_model

TOKENIZER = add_mode_tokens(tiny_tokenizer(sentence_tokens=True), ["[R]", "[S]", "[X]"])
TEXTS = [*DOCUMENTS, SENTENCES[0], "", " ".join(SENTENCES)]
LENGTHS = {"max_source_length": 128, "max_target_length": 96}


def documents(texts=TEXTS):
    return Dataset.from_dict({"text": texts, "url": [str(number) for number in range(len(texts))]})


def same(examples, others):
    """Whether two prepared data sets hold the same examples."""
    pairs = itertools.zip_longest(examples, others, fillvalue={})
    return all(
        {k: np.asarray(v).tolist() for k, v in a.items()} == {k: np.asarray(v).tolist() for k, v in b.items()}
        for a, b in pairs
    )


class UndecoratedObjective(SpanCorruptionObjective):
    mean_noise_span_length: float = 16.0


class ExtendedObjective(SpanCorruptionObjective):
    ratio: float = 0.5


@dataclass
class UntypedObjective(DepthObjective):
    min_sentences = 3


@dataclass
class DecoratedObjective(ExtendedObjective):
    mean_noise_span_length: float = 16.0


class NamedObjective(SpanCorruptionObjective):
    name: ClassVar[str] = "named"
    model_type = "t5"
    packed_examples = 3


@dataclass(slots=True)
class SlottedObjective(SpanCorruptionObjective):
    name: ClassVar[str] = "slotted"


class ConstantObjective(SpanCorruptionObjective):
    name = "constant"
    most_words: "ClassVar[int]" = 3


@dataclass
class ComputedObjective(SpanCorruptionObjective):
    name: ClassVar[str] = "computed"

    @property
    def pack_examples(self):
        return vars(self)["joins"]

    @pack_examples.setter
    def pack_examples(self, value):
        vars(self)["joins"] = value


class ObjectiveTest(parameterized.TestCase):
    @parameterized.parameters(
        (UndecoratedObjective, "mean_noise_span_length"),
        (ExtendedObjective, "ratio"),
        (UntypedObjective, "min_sentences"),
        (DecoratedObjective, "ratio"),  # of its base
    )
    def test_settings_of_ones_own_that_would_be_left_out_are_an_error(self, objective, name):
        message = f"`{name}` of {objective.__name__} is no field, .*`@dataclass`.*`{name}: float = …`"
        with self.assertRaisesRegex(TypeError, message):
            objective(TOKENIZER)

    @parameterized.parameters(NamedObjective, SlottedObjective, ConstantObjective, ComputedObjective)
    def test_what_is_no_setting_needs_no_field(self, objective):
        self.assertEqual(objective(TOKENIZER).settings["objective"], objective.name)

    @parameterized.product(
        objective=list(OBJECTIVES.values()), pack_examples=(False, True), padding=("longest", "max_length")
    )
    def test_the_collator_takes_what_the_objective_prepares(self, objective, pack_examples, padding):
        settings = {"pack_examples": pack_examples} if objective.model_type == "t5" else {}
        objective = objective(TOKENIZER, **LENGTHS, **settings)
        examples = objective.prepare(documents())
        collator = objective.collator(padding=padding)
        for epoch in range(20):
            collator.set_epoch(epoch)
            batch = collator(list(examples))
            for name, length in zip(("input_ids", "labels"), LENGTHS.values(), strict=True):
                self.assertEqual(len(batch[name]), len(examples))
                self.assertBetween(batch[name].shape[1], length if padding == "max_length" else 1, length)

    @parameterized.parameters(*OBJECTIVES.values())
    def test_sentinels_of_an_mt5_are_those_of_a_t5(self, objective):
        tokenizers = [tiny_mt5_tokenizer(), tiny_tokenizer()]
        batches = []
        for tokenizer in tokenizers:
            tokenizer = add_mode_tokens(add_sentence_tokens(tokenizer), ["[R]", "[S]", "[X]"])
            made = objective(tokenizer, **LENGTHS)
            examples = list(made.prepare(documents([*DOCUMENTS, "Text with <extra_id_3>. And ▁<extra_id_4>."])))
            batches.append({name: column.tolist() for name, column in made.collator()(examples).items()})
        self.assertEqual(*batches)

    def test_a_prefix_language_model_needs_no_sentinels(self):
        pieces = ["<pad>", "</s>", "<unk>", "▁", *string.ascii_letters, *string.punctuation]
        tokenizer = T5Tokenizer(extra_ids=0, vocab=[(piece, -1.0) for piece in pieces])
        objective = PrefixLMObjective(tokenizer, **LENGTHS)
        batch = objective.collator()(list(objective.prepare(documents())))
        self.assertLess(batch["input_ids"].max(), len(tokenizer))
        self.assertEmpty(sentinel_token_ids(tokenizer, allow_none=True))
        SpanCorruptionObjective(tokenizer, **LENGTHS)
        self.assertLen(sentinel_token_ids(tokenizer), 100)

    @parameterized.parameters(*OBJECTIVES.values())
    def test_no_token_is_lost_or_added(self, objective):
        # A window of one sentence cannot be continued between sentences: there it is left out, with a warning.
        lengths = {"max_source_length": 512} if objective is DepthPrefixLMObjective else LENGTHS
        examples = objective(TOKENIZER, **lengths).prepare(documents())
        expected = sum(sum(map(len, TextEncoder(TOKENIZER)(text.split("\n"))), 0) for text in TEXTS if text)
        total = sum(len(example["input_ids"]) for example in examples)
        # Sentences are encoded one by one: the space between them is part of no token, or of the next one's first.
        self.assertAlmostEqual(total, expected, delta=0.05 * expected)

    @parameterized.parameters(*OBJECTIVES.values())
    def test_a_stream_gives_the_examples_of_map_style_data(self, objective):
        objective = objective(TOKENIZER, **LENGTHS)
        stream = objective.prepare(documents().to_iterable_dataset())
        self.assertIsInstance(stream, IterableDataset)
        self.assertTrue(same(stream, objective.prepare(documents())))

    @parameterized.product(objective=list(OBJECTIVES.values()), streaming=(False, True))
    def test_max_samples_takes_the_first_examples(self, objective, streaming):
        objective = objective(TOKENIZER, **LENGTHS)
        everything = list(objective.prepare(documents()))
        for number in (1, 3, len(everything), len(everything) + 5):
            data = documents().to_iterable_dataset() if streaming else documents()
            self.assertTrue(same(objective.prepare(data, max_samples=number), everything[:number]))

    def test_max_samples_prepares_few_documents(self):
        texts = [SENTENCES[number % len(SENTENCES)] for number in range(100)]
        objective = DepthObjective(TOKENIZER, **LENGTHS)
        prepared = mock.patch("hf_depth.data.base_objective.prepare_dataset", side_effect=AssertionError)
        with mock.patch.object(Dataset, "select", side_effect=lambda indices: self.assertLess(len(indices), 20)):
            with prepared, self.assertRaises(AssertionError):
                objective.prepare(documents(texts), max_samples=10)

    def test_each_objective_gives_its_own_collator(self):
        for objective in (DepthObjective, DepthPrefixLMObjective):
            self.assertIsInstance(objective(TOKENIZER).collator(), DataCollatorForDepth)
            self.assertEqual(objective(TOKENIZER).collator().objective, objective.name)
        for objective in (SpanCorruptionObjective, PrefixLMObjective, MixtureOfDenoisersObjective):
            objective = objective(TOKENIZER)
            self.assertIsInstance(objective.collator(), DataCollatorForT5SpanCorruption)
            self.assertEqual(objective.collator().objective, objective.name)

    def test_settings_reach_preprocessor_and_collator(self):
        objective = DepthObjective(
            TOKENIZER,
            **LENGTHS,
            mlm_probability=0.2,
            mean_noise_span_length=2.0,
            sentence_shuffling_probability=0.7,
            max_sentences=3,
        )
        preprocessor, collator = objective.preprocessor("body"), objective.collator(seed=7, pad_to_multiple_of=8)
        for made in (preprocessor, collator):
            for name in ("mlm_probability", "mean_noise_span_length", "max_source_length", "max_target_length"):
                self.assertEqual(getattr(made, name), getattr(objective, name))
        self.assertEqual((preprocessor.max_sentences, preprocessor.text_column), (3, "body"))
        self.assertEqual(
            (collator.sentence_shuffling_probability, collator.seed, collator.pad_to_multiple_of), (0.7, 7, 8)
        )

    @parameterized.parameters(
        (DepthObjective, 512),
        (DepthPrefixLMObjective, 512),
        (SpanCorruptionObjective, 114),
        (PrefixLMObjective, 512),
        (MixtureOfDenoisersObjective, 341),
    )
    def test_the_target_is_by_default_as_long_as_it_must(self, objective, length):
        # 114 is T5's own target length for 512 tokens (Raffel et al. 2020; t5's `random_spans_helper`).
        self.assertEqual(objective(TOKENIZER).max_target_length, length)

    def test_denoisers_are_told_as_text(self):
        told = MixtureOfDenoisersObjective(TOKENIZER, denoisers=["{density: 0.2, weight: 3}"]).settings["denoisers"]
        self.assertEqual(told, ["density 0.2, one span at the end, weight 3"])

    @parameterized.parameters(*UL2_DENOISERS)
    def test_windows_fit_whatever_denoiser_is_drawn(self, denoiser):
        lengths = {"max_source_length": 96, "max_target_length": 60}
        objective = MixtureOfDenoisersObjective(TOKENIZER, **lengths)
        examples = list(objective.prepare(documents()))
        collator = MixtureOfDenoisersObjective(TOKENIZER, **lengths, denoisers=[denoiser]).collator()
        for epoch in range(20):
            collator.set_epoch(epoch)
            batch = collator(examples)
            self.assertLessEqual(batch["input_ids"].shape[1], 96)
            self.assertLessEqual(batch["labels"].shape[1], 60)

    def test_settings_are_told_without_the_tokenizer(self):
        self.assertEqual(
            PrefixLMObjective(TOKENIZER).settings,
            {"objective": "prefix_lm", "max_source_length": 512, "max_target_length": 512, "pack_examples": False},
        )

    @parameterized.parameters(
        (DepthPrefixLMObjective, {"max_sentences": 21}, "`max_sentences` must lie between 2 and 20"),
        (DepthObjective, {"max_sentences": 21}, "`max_sentences` must lie between 2 and 20"),
        (DepthObjective, {"max_sentences": 1}, "`max_sentences` must lie between 2 and 20"),
        (DepthObjective, {"mlm_probability": 0.0}, "mlm_probability"),
        (DepthObjective, {"sentence_shuffling_probability": 1.5}, "sentence_shuffling_probability"),
        (DepthObjective, {"sentence_language": "tlh"}, "language 'tlh'"),
        (SpanCorruptionObjective, {"mlm_probability": float("nan")}, "mlm_probability"),
        (SpanCorruptionObjective, {"mean_noise_span_length": 0.5}, "mean_noise_span_length"),
        (SpanCorruptionObjective, {"max_source_length": 2048}, "masked spans.*sentinels"),
        (DepthObjective, {"min_sentences": 0}, "`min_sentences` must lie between 1 and"),
        (DepthObjective, {"min_sentences": 21}, "`min_sentences` must lie between 1 and"),
        (PrefixLMObjective, {"max_source_length": -5}, "max_source_length"),
        (MixtureOfDenoisersObjective, {"denoisers": []}, "`denoisers` must hold a denoiser"),
        (MixtureOfDenoisersObjective, {"denoisers": ["{density: 2}"]}, "`density` of a denoiser must be .*, got 2"),
        (MixtureOfDenoisersObjective, {"denoisers": [Denoiser(0.2, mode="[Z]")]}, "no mode token `.Z.`.*add_mode"),
        (MixtureOfDenoisersObjective, {"max_source_length": 2048}, "masked spans.*sentinels.*length` of `denoisers`"),
        (PrefixLMObjective, {"max_target_length": 0}, "max_target_length"),
    )
    def test_wrong_settings_are_refused_by_name(self, objective, settings, message):
        with self.assertRaisesRegex(ValueError, message):
            objective(TOKENIZER, **settings)

    @parameterized.product(objective=list(OBJECTIVES.values()), tokenizer=(None, "t5-small"))
    def test_a_name_is_no_tokenizer(self, objective, tokenizer):
        with self.assertRaisesRegex(ValueError, "`tokenizer` must be a tokenizer.*load_tokenizer"):
            objective(tokenizer)

    @parameterized.parameters(0, -1)
    def test_no_examples_cannot_be_asked_for(self, number):
        with self.assertRaisesRegex(ValueError, "`max_samples` must be at least 1"):
            PrefixLMObjective(TOKENIZER).prepare(documents(), max_samples=number)

    def test_texts_are_no_data_set(self):
        with self.assertRaisesRegex(ValueError, "must be a data set, got list.*from_dict"):
            PrefixLMObjective(TOKENIZER).prepare(TEXTS)

    def test_one_split_alone_with_nothing_to_unshuffle_is_reported(self):
        with self.assertLogs("hf_depth.data.objectives", "WARNING") as logs:
            DepthObjective(TOKENIZER, **LENGTHS).prepare(documents(SENTENCES[:3]))
        self.assertIn("nothing to un-shuffle", logs.output[0])

    def test_splits_are_not_documents(self):
        with self.assertRaisesRegex(ValueError, "splits 'train'.*prepare_splits"):
            PrefixLMObjective(TOKENIZER).prepare({"train": documents()})

    @parameterized.parameters(*OBJECTIVES.values())
    def test_a_model_that_does_not_fit_the_collator_is_refused(self, objective):
        model = tiny_model("depth", vocab_size=len(TOKENIZER))
        objective(TOKENIZER).collator(model=model)
        model.encoder.config.first_sentence_token_id -= 1
        with self.assertRaisesRegex(ValueError, "load_model"):
            objective(TOKENIZER).collator(model=model)

    def test_depth_needs_sentence_tokens(self):
        with self.assertRaisesRegex(ValueError, "add_sentence_tokens"):
            DepthObjective(tiny_tokenizer())


class PMIMaskingTest(CorpusTestCase):
    NGRAMS = ("mr. bennet", "good fortune", "it is a", "a man", "my soul", "to hearing it")

    def objective(self, kind, **changes):
        self.write("pmi.txt", "".join(f"{ngram}\n" for ngram in self.NGRAMS))
        return kind(TOKENIZER, **LENGTHS, pmi_vocab_file=self.path("pmi.txt"), **changes)

    @parameterized.product(kind=(SpanCorruptionObjective, DepthObjective), mlm_probability=(0.15, 0.3))
    def test_collocations_are_masked_as_a_whole_and_windows_fit(self, kind, mlm_probability):
        objective = self.objective(kind, mlm_probability=mlm_probability, mean_noise_span_length=4.0)
        examples = list(objective.prepare(documents()))
        # A window of the token stream may begin inside the name: where it does depends on the tokenizer.
        whole = [not TOKENIZER.decode(example["input_ids"]).lstrip(" .").startswith("Bennet") for example in examples]
        collator = objective.collator()
        found = 0
        for epoch in range(40):
            collator.set_epoch(epoch)
            batch = collator(examples)
            self.assertLessEqual(batch["input_ids"].shape[1], LENGTHS["max_source_length"])
            self.assertLessEqual(batch["labels"].shape[1], LENGTHS["max_target_length"])
            targets = [" ".join(TOKENIZER.decode(labels[labels >= 0]).split()) for labels in batch["labels"]]
            found += sum("Mr. Bennet" in target for target in targets)
            for target in itertools.compress(targets, whole):
                self.assertEqual(target.count("Bennet"), target.count("Mr. Bennet"), target)
        self.assertGreater(found, 3)

    def test_the_units_are_a_column_that_is_declared(self):
        for kind in (SpanCorruptionObjective, DepthObjective):
            objective = self.objective(kind)
            examples = objective.prepare(documents())
            self.assertCountEqual(examples.column_names, objective.preprocessor().features)
            for example in examples:
                self.assertEqual(example["unit_lengths"].sum(), len(example["input_ids"]))

    @parameterized.product(kind=(SpanCorruptionObjective, DepthObjective), packing=(False, True))
    def test_a_vocabulary_that_does_not_fit_the_text_is_named(self, kind, packing):
        texts = documents(DOCUMENTS * 5)
        with self.assertLogs("hf_depth.data.objectives", "INFO") as logs:
            self.objective(kind, packing=packing).prepare_splits({"train": texts})
        self.assertRegex("\n".join(logs.output), r"train: [1-9][\d.]*% of [\d,]+ words .* stand in collocations")
        self.assertNotIn("Hardly any", "\n".join(logs.output))
        self.NGRAMS = ("no such", "thing here")
        for corpus in (texts, texts.to_iterable_dataset()):
            with self.assertLogs("hf_depth.data.objectives", "WARNING") as logs:
                self.objective(kind, packing=packing).prepare_splits({"train": corpus, "validation": documents()})
            self.assertLen(logs.output, 1)
            self.assertRegex(logs.output[0], r"train data \(0.00%\) stands in a collocation .*pmi.txt")

    def test_what_makes_units_concerns_no_other_examples(self):
        def versions(objective):
            return objective.training_preprocessor().versions

        for kind in (SpanCorruptionObjective, DepthObjective):
            plain, with_units = versions(kind(TOKENIZER, **LENGTHS)), versions(self.objective(kind))
            self.assertEqual(with_units, plain | {"units": with_units["units"]})
            self.assertNotIn("units", plain)

    def test_without_a_vocabulary_nothing_changes(self):
        self.assertNotIn("unit_lengths", DepthObjective(TOKENIZER, **LENGTHS).prepare(documents()).column_names)
        self.assertNotIn("pmi_vocab_file", DepthObjective(TOKENIZER).settings)

    def test_the_settings_tell_the_name_of_the_file_without_its_folder(self):
        self.assertEqual(self.objective(DepthObjective).settings["pmi_vocab_file"], "pmi.txt")

    def test_examples_without_units_and_wrong_units_are_named(self):
        for kind, plain in ((SpanCorruptionObjective, SpanCorruptionObjective), (DepthObjective, DepthObjective)):
            collator = self.objective(kind).collator()
            with self.assertRaisesRegex(ValueError, "no column `unit_lengths`.*Objective"):
                collator(list(plain(TOKENIZER, **LENGTHS).prepare(documents())))
            example = self.objective(kind).prepare(documents())[0]
            for units in ([len(example["input_ids"])], [1], [0, *example["unit_lengths"]]):
                with self.assertRaisesRegex(ValueError, "`unit_lengths` must lie between 1 and 12 and add up"):
                    collator([example | {"unit_lengths": units}])


class PrepareSplitsTest(parameterized.TestCase):
    def test_splits_come_with_their_statistics(self):
        objective = DepthObjective(TOKENIZER, **LENGTHS)
        corpus = {"train": documents(), "validation": documents(DOCUMENTS)}
        data, statistics = objective.prepare_splits(corpus, max_samples={"train": 4})
        self.assertLen(data["train"], 4)
        self.assertTrue(same(data["validation"], objective.prepare(documents(DOCUMENTS))))
        self.assertEqual(statistics["train"]["examples"], 4)

    def test_a_stream_to_train_on_never_ends_and_one_to_evaluate_on_is_read(self):
        objective = SpanCorruptionObjective(TOKENIZER, **LENGTHS)
        stream = documents().to_iterable_dataset()
        data, statistics = objective.prepare_splits({"train": stream, "validation": stream}, seed=3)
        once = list(objective.prepare(documents()))
        self.assertIsInstance(data["train"], ExampleStream)
        for epoch in range(2):
            part = islice(data["train"], epoch * len(once), (epoch + 1) * len(once))
            part = sorted(part, key=lambda example: example["input_ids"].tolist())
            self.assertEqual([example["stream_epoch"] for example in part], [epoch] * len(once))
            part = [{name: example[name] for name in once[0]} for example in part]
            self.assertTrue(same(part, sorted(once, key=lambda example: example["input_ids"].tolist())))
        self.assertIsInstance(data["validation"], Dataset)
        self.assertTrue(same(data["validation"], once))
        self.assertEqual(list(statistics), ["validation"])

    def test_another_seed_gives_a_stream_another_order(self):
        corpus = {"train": documents([*SENTENCES[:8], *TEXTS]).to_iterable_dataset()}

        def order(seed):
            stream = SpanCorruptionObjective(TOKENIZER, **LENGTHS).prepare_splits(corpus, seed=seed)[0]["train"]
            return [example["input_ids"].tolist() for example in islice(stream, 8)]

        self.assertEqual(order(3), order(3))
        self.assertNotEqual(order(3), order(4))

    @parameterized.parameters(False, True)
    def test_another_seed_draws_the_sources_of_a_mixture_in_another_order(self, streaming):
        parts = {name: documents() for name in ("a", "b")}
        if streaming:
            parts = {name: part.to_iterable_dataset() for name, part in parts.items()}
        sources = [MixtureSource(name, train_file=f"{name}.txt") for name in parts]
        corpus = {"train": DocumentMixture(parts, sources, Mixing({"a": 1, "b": 1}))}

        def drawn(seed):
            mixture = SpanCorruptionObjective(TOKENIZER, **LENGTHS).prepare_splits(corpus, seed=seed)[0]["train"]
            return [example["source"] for example in islice(iter(mixture), 5)]

        self.assertEqual(drawn(3), drawn(3))
        self.assertLen({tuple(drawn(seed)) for seed in range(5)}, 5)

    @parameterized.parameters(1, 3)
    def test_max_samples_of_a_stream_to_train_on_are_its_first_examples(self, number):
        objective = SpanCorruptionObjective(TOKENIZER, **LENGTHS)
        corpus = {"train": documents().to_iterable_dataset(num_shards=2)}
        data, statistics = objective.prepare_splits(corpus, max_samples={"train": number})
        self.assertTrue(same(data["train"], list(objective.prepare(documents()))[:number]))
        self.assertEqual(statistics["train"]["examples"], number)

    @parameterized.product(
        split=("train", "validation"),
        max_samples=(None, 5),
        texts=(["", "  "], SENTENCES[:3]),
        streaming=(False, True),
    )
    def test_documents_that_give_no_example_are_an_error(self, split, max_samples, texts, streaming):
        objective = DepthObjective(TOKENIZER, **LENGTHS, min_sentences=2)
        data = documents(texts).to_iterable_dataset() if streaming else documents(texts)
        with self.assertRaisesRegex(NoExamplesError, "None of the|no document with"):
            objective.prepare_splits({split: data}, max_samples={split: max_samples})

    @parameterized.product(streaming=(False, True), number=(1, 3))
    def test_samples_are_found_behind_documents_that_give_none(self, streaming, number):
        objective = DepthObjective(TOKENIZER, **LENGTHS, min_sentences=2)
        data = documents([*SENTENCES[:9], "", *DOCUMENTS, " ".join(SENTENCES)])
        data = data.to_iterable_dataset() if streaming else data
        for split in ("train", "validation"):
            prepared, _ = objective.prepare_splits({split: data}, max_samples={split: number})
            self.assertLen(prepared[split], number)

    def test_a_stream_with_nothing_to_unshuffle_is_refused(self):
        with self.assertRaisesRegex(ValueError, "train data.*nothing to un-shuffle"):
            stream = documents(SENTENCES[:3]).to_iterable_dataset()
            DepthObjective(TOKENIZER, **LENGTHS).prepare_splits({"train": stream})

    def test_one_process_prepares_before_the_others(self):
        entered = mock.create_autospec(TrainingArguments.main_process_first, return_value=mock.MagicMock())
        main_process_first = functools.partial(entered, None)
        PrefixLMObjective(TOKENIZER).prepare_splits({"test": documents()}, main_process_first=main_process_first)
        entered.assert_called_once_with(None, desc="preparing the test split")

    def test_what_is_no_split_is_refused(self):
        objective = PrefixLMObjective(TOKENIZER)
        with self.assertRaisesRegex(ValueError, "must hold splits.*got Dataset.*prepare"):
            objective.prepare_splits(documents())
        with self.assertRaisesRegex(ValueError, "no split 'trian'. Did you mean 'train'"):
            objective.prepare_splits({"train": documents()}, max_samples={"trian": 3})

    def test_examples_of_one_sentence_have_no_order_to_learn(self):
        objective = DepthObjective(TOKENIZER, **LENGTHS)
        alone = documents(SENTENCES[:3])
        with self.assertRaisesRegex(ValueError, "train data.*nothing to un-shuffle"):
            objective.prepare_splits({"train": alone})
        with self.assertLogs("hf_depth.data.objectives", "WARNING") as logs:
            objective.prepare_splits({"validation": alone})
        self.assertIn("nothing to un-shuffle", logs.output[0])

    def test_many_unknown_tokens_are_reported(self):
        with self.assertLogs("hf_depth.data.base_objective", "WARNING") as logs:
            SpanCorruptionObjective(TOKENIZER).prepare_splits({"train": documents(["читать письмо " * 20])})
        self.assertRegex(logs.output[0], r"\d+\.\d% of the train tokens are unknown")


@dataclass
class FirstHalf(Objective):
    """An objective of a user: read the first half of a window, write the second."""

    model_type: ClassVar[str] = "t5"
    name: ClassVar[str] = "first_half"

    def preprocessor(self, text_column="text"):
        return PrefixLMObjective(self.tokenizer, self.max_source_length).preprocessor(text_column)

    def make_collator(self, **arguments):
        def halves(examples):
            cut = [len(example["input_ids"]) // 2 for example in examples]
            return [
                (example["input_ids"][:i], example["input_ids"][i:]) for example, i in zip(examples, cut, strict=True)
            ]

        return halves


class NewObjectiveTest(parameterized.TestCase):
    def test_a_new_objective_is_one_class(self):
        objective = FirstHalf(TOKENIZER, max_source_length=16)
        data, statistics = objective.prepare_splits({"train": documents()})
        for first, second in objective.collator()(list(data["train"])):
            self.assertBetween(len(second) - len(first), 0, 1)
        self.assertEqual(statistics["train"]["examples"], len(data["train"]))
        self.assertEqual(objective.settings["objective"], "first_half")
