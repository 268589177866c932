"""DEPTH over the encoder-decoders of transformers other than T5: the laws that hold for each of them."""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from absl.testing import parameterized
from datasets import Dataset
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING as STOCK

from helpers import SENTENCES, tiny_tokenizer
from hf_depth import DepthObjective, DepthTrainer, DepthTrainingArguments, SpanCorruptionObjective, load_model
from hf_depth.data.tokenization import check_sentence_tokens, sentence_fields
from hf_depth.models.configuration_depth import FAMILIES
from hf_depth.models.modeling_depth import DepthMixin, is_sentence_token
from hf_depth.models.stock import decoder_inputs
from tiny_models import family_fields, tiny_depth

TOKENIZER = tiny_tokenizer(sentence_tokens=True)
IDS = torch.tensor([[46, 40, 5, 6, 7, 43, 8, 9, 10, 41, 11, 1], [46, 42, 15, 16, 17, 44, 20, 21, 1, 0, 0, 0]])
TARGET = torch.tensor([[2, 40, 5, 6, 41, 7, 8], [2, 42, 9, 10, 44, 11, 12]])
BATCH = {
    "input_ids": IDS,
    "attention_mask": (IDS != 0).long(),
    "labels": torch.tensor([[40, 5, 6, 41, 7, 8, 1], [42, 9, 10, 44, 1, -100, -100]]),
}
SOURCE = {name: BATCH[name] for name in ("input_ids", "attention_mask")}


def implementations(family):
    return ("eager", "sdpa") if STOCK[AutoConfig.for_model(family).__class__]._supports_sdpa else ("eager",)


def plain_model(family, vocab_size):
    """A random model of transformers."""
    fields = {**family_fields(family), "vocab_size": vocab_size}
    config = AutoConfig.for_model(family, **fields)
    for part in (getattr(config, "encoder", config), getattr(config, "decoder", config)):
        getattr(part, "text_config", part).vocab_size = vocab_size
    return STOCK[type(config)](config)


def plain_config(family, model):
    """The configuration of the model that a DEPTH is made of."""
    fields = {name: value for name, value in model.config.to_dict().items() if name != "model_type"}
    return AutoConfig.for_model(family, **fields)


EACH = [(family, implementation) for family in FAMILIES for implementation in implementations(family)]


class FamilyTest(parameterized.TestCase):
    def changed(self, model, batch, name, place):
        """Which outputs change, and how much, if the first example has another token at a place."""
        with torch.no_grad():
            before = model(**batch)
            ids = batch[name].clone()
            ids[0, place] = 30
            after = model(**{**batch, name: ids})
        field = "encoder_last_hidden_state" if name == "input_ids" else "logits"
        return (after[field] - before[field]).abs().amax(-1)[0]

    @parameterized.parameters(*EACH)
    def test_a_sentence_token_sees_its_sentence_and_earlier_sentence_tokens(self, family, implementation):
        model = tiny_depth(family, implementation, layers=1)
        batch = {**SOURCE, "decoder_input_ids": TARGET, "use_cache": False}
        # A word of the second sentence (7 to 9); T5Gemma has a sliding window of 6, which is half on each side.
        encoder = self.changed(model, batch, "input_ids", 7)
        self.assertLess(encoder[[1, 9]].max(), 1e-6)  # sentence tokens of other sentences
        self.assertGreater(encoder[[5, 6, 8]].min(), 1e-5)
        # A word of the first sentence: sentence token 41 (place 4) does not see it, those behind it do.
        decoder = self.changed(model, batch, "decoder_input_ids", 2)
        self.assertLess(decoder[[0, 1, 4]].max(), 1e-6)
        self.assertGreater(decoder[[2, 3, 5]].min(), 1e-6)
        with torch.no_grad():
            states = model.get_encoder()(**SOURCE)
            other = states.last_hidden_state.clone()
            other[0, 6] += 1  # a word's state
            logits = [
                model(
                    encoder_outputs=(each,), sentence_mask=states.sentence_mask, **{**batch, "input_ids": None}
                ).logits
                for each in (states.last_hidden_state, other)
            ]
        cross = (logits[1] - logits[0]).abs().amax(-1)[0]
        self.assertLess(cross[[1, 4]].max(), 1e-6)
        self.assertGreater(cross[[0, 2, 3, 5]].min(), 1e-6)

    @parameterized.parameters(*FAMILIES)
    def test_without_sentence_tokens_it_is_the_plain_model(self, family):
        model = tiny_depth(family)
        config = plain_config(family, model)
        plain = STOCK[type(config)]._from_config(config, attn_implementation=model.config._attn_implementation).eval()
        plain.load_state_dict(model.state_dict())
        inputs = {
            "input_ids": IDS.where(IDS < 40, 30),
            "attention_mask": BATCH["attention_mask"],
            "decoder_input_ids": TARGET.where(TARGET < 40, 30),
        }
        with torch.no_grad():
            torch.testing.assert_close(model(**inputs).logits, plain(**inputs).logits)

    @parameterized.parameters(*FAMILIES)
    def test_the_loss_is_the_mean_over_labels_and_every_parameter_gets_a_gradient(self, family):
        model = tiny_depth(family).train()
        outputs = model(**BATCH)
        self.assertIsNone(outputs.logits)
        logits = model(**BATCH, skip_logits=False).logits
        expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), BATCH["labels"].flatten())
        torch.testing.assert_close(outputs.loss, expected)
        torch.testing.assert_close(outputs.token_losses.sum() / 12, expected)
        torch.testing.assert_close(model(**BATCH, num_items_in_batch=24).loss, expected / 2)
        weights = torch.rand(BATCH["labels"].shape)
        weighted = model(**BATCH, loss_weights=weights)
        torch.testing.assert_close(weighted.loss, (weights * outputs.token_losses).sum())
        loss, *_ = model(**BATCH, return_dict=False)
        torch.testing.assert_close(loss, expected)
        model.zero_grad()
        outputs.loss.backward()
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and "vision" not in name and "multi_modal" not in name and "eoi" not in name:
                self.assertIsNotNone(parameter.grad, name)
                if "k_proj.bias" not in name:  # which a softmax does not see
                    self.assertGreater(parameter.grad.abs().max(), 0, name)

    @parameterized.parameters(*EACH)
    def test_generation_is_a_loop_by_hand(self, family, implementation):
        model = tiny_depth(family, implementation)
        start = model.config.decoder_start_token_id
        by_hand, done = torch.full((2, 1), start), torch.zeros(2, dtype=torch.bool)
        with torch.no_grad():
            for _ in range(12):
                logits = model(**SOURCE, decoder_input_ids=by_hand, use_cache=False).logits[:, -1]
                new = torch.where(done, 0, logits.argmax(-1))
                done |= new == 1
                by_hand = torch.cat([by_hand, new[:, None]], dim=1)
        settings = {**SOURCE, "max_new_tokens": 12, "do_sample": False}
        greedy = model.generate(**settings)
        self.assertEqual(greedy.tolist(), by_hand[:, : greedy.shape[1]].tolist())
        beams = [model.generate(**settings, num_beams=3, use_cache=use_cache).tolist() for use_cache in (True, False)]
        self.assertEqual(*beams)
        if family != "t5gemma":  # which has no static cache in transformers 5.24
            self.assertEqual(model.generate(**settings, cache_implementation="static").tolist(), greedy.tolist())

    def test_packed_rows_are_refused(self):
        segments = {f"{part}_segment_ids": torch.ones_like(IDS) for part in ("encoder", "decoder")}
        with self.assertRaisesRegex(ValueError, "A DepthBartFor.* takes no packed rows, since it embeds positions"):
            tiny_depth("bart")(**BATCH, **segments)

    @parameterized.parameters(*FAMILIES)
    def test_it_is_saved_and_loaded_as_depth(self, family):
        model = tiny_depth(family)
        with TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            files = sorted(path.name for path in Path(folder).glob("*.py"))
            again, info = AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)
            encoder = AutoModel.from_pretrained(folder, attn_implementation=model.config._attn_implementation).eval()
        self.assertEqual(files, ["configuration_depth.py", "modeling_depth.py"])
        inputs = {name: BATCH[name] for name in ("input_ids", "attention_mask")}
        with torch.no_grad():
            found, expected = encoder(**inputs), model.get_encoder()(**inputs)
        torch.testing.assert_close(found.last_hidden_state, expected.last_hidden_state, rtol=0, atol=0)
        self.assertEqual(found.sentence_mask.tolist(), expected.sentence_mask.tolist())
        self.assertIs(type(again), type(model))
        self.assertIsInstance(again, DepthMixin)
        self.assertEqual(again.config.model_type, f"depth_{family}")
        self.assertEmpty([*info["missing_keys"], *info["unexpected_keys"], *info["mismatched_keys"]])
        again.set_attn_implementation(model.config._attn_implementation)
        with torch.no_grad():
            torch.testing.assert_close(again.eval()(**BATCH).logits, model(**BATCH).logits, rtol=0, atol=0)

    def test_an_encoder_that_was_saved_alone_is_not_loaded_with_random_weights(self):
        with TemporaryDirectory() as folder:
            tiny_depth("bart").get_encoder().save_pretrained(folder)
            with self.assertRaisesRegex(ValueError, "lacks weights of the encoder.* Save the whole model"):
                AutoModel.from_pretrained(folder)

    @parameterized.parameters(*FAMILIES)
    def test_load_model_makes_depth_of_a_plain_checkpoint_with_the_ids_and_rows_of_the_tokenizer(self, family):
        plain = plain_model(family, 512)
        with TemporaryDirectory() as folder:
            plain.save_pretrained(folder)
            model = load_model(folder, TOKENIZER, model_type="depth")
            model.save_pretrained(folder)
            again = load_model(folder, TOKENIZER)
            back = load_model(folder, TOKENIZER, model_type="t5")
        self.assertEqual(type(model).__name__, f"Depth{FAMILIES[family]}ForConditionalGeneration")
        self.assertIs(type(again), type(model))
        self.assertIs(type(back), type(plain))
        fields = sentence_fields(TOKENIZER)
        self.assertEqual({name: getattr(model.config, name) for name in fields}, fields)
        check_sentence_tokens(again, TOKENIZER)
        self.assertEqual(model.config.vocab_size, 640)
        self.assertLen(again.get_output_embeddings().weight, 640)
        torch.testing.assert_close(again.state_dict(), model.state_dict(), rtol=0, atol=0)
        torch.testing.assert_close(back.state_dict(), model.state_dict(), rtol=0, atol=0)
        for name, value in plain.named_parameters():
            torch.testing.assert_close(model.get_parameter(name)[: len(value)], value, rtol=0, atol=0)
        start = plain.config.decoder_start_token_id
        self.assertEqual(
            (model.config.decoder_start_token_id, model.generation_config.decoder_start_token_id), (start,) * 2
        )
        ids = model.encode_sentences(TOKENIZER, ["Call me Ishmael.", "There is nothing surprising in this!"])
        self.assertGreater(model.get_encoder()(ids).sentence_mask.sum(), 1)
        self.assertTrue(model(input_ids=ids, labels=ids).loss.isfinite())

    @parameterized.parameters("depth", "t5")
    def test_the_loss_of_the_trainer_is_the_weighted_mean_however_batches_are_accumulated(self, model_type):
        objective = (DepthObjective if model_type == "depth" else SpanCorruptionObjective)(
            TOKENIZER, max_source_length=48, max_target_length=60
        )
        texts = [" ".join(SENTENCES[start : start + 3]) for start in range(4)]
        data = objective.prepare(Dataset.from_dict({"text": texts})).select(range(4))
        batch = objective.collator()(list(data))
        model = load_model(plain_model("bart", 512).config, TOKENIZER, model_type=model_type)
        labels = batch["labels"]
        inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"].long()}
        with torch.no_grad():
            logits = model(**inputs, decoder_input_ids=decoder_inputs(model, labels)).logits
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
        expected = losses[labels != -100].sum() + losses[is_sentence_token(labels, model.config)].sum()
        expected = expected.item() / (labels != -100).sum().item()
        for size, steps in ((len(data), 1), (len(data) // 2, 2)):
            with TemporaryDirectory() as folder:
                args = DepthTrainingArguments(
                    output_dir=folder, max_steps=1, per_device_train_batch_size=size, learning_rate=0.0,
                    gradient_accumulation_steps=steps, sentence_loss_coefficient=2.0, save_strategy="no", use_cpu=True,
                )  # fmt: skip
                trainer = DepthTrainer(model, args, objective.collator(), data, processing_class=TOKENIZER)
                self.assertAlmostEqual(trainer.train().training_loss, expected, places=4)

    def test_a_configuration_of_a_family_gives_a_model_from_scratch(self):
        config = AutoConfig.for_model("bart", **family_fields("bart"))
        model = load_model(config, TOKENIZER, model_type="depth", d_model=16)
        self.assertEqual(
            (model.config.vocab_size, model.config.d_model, model.config.model_type), (640, 16, "depth_bart")
        )
        with self.assertRaisesRegex(ValueError, "`num_sentence_tokens` of the tokenizer is 20, which"):
            load_model(config, TOKENIZER, model_type="depth", num_sentence_tokens=7)
        with self.assertRaisesRegex(ValueError, "`first_sentence_token_id` of .* is .*, but the tokenizer has 500"):
            with TemporaryDirectory() as folder:
                tiny_depth("bart").save_pretrained(folder)
                load_model(folder, TOKENIZER)
