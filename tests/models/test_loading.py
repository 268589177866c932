"""Laws of `load_model`: the model fits the tokenizer, is what the checkpoint was, or is refused with a reason."""

import functools
import json
import unittest
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import transformers
from absl.testing import parameterized
from safetensors.torch import load_file, save_file
from torch import distributed
from transformers import AutoModelForSeq2SeqLM, ByT5Tokenizer, MT5Config, T5Config, UMT5Config
from transformers.integrations import HfDeepSpeedConfig

from helpers import run_in_two_processes, tiny_mt5_tokenizer, tiny_tokenizer
from hf_depth import DepthConfig, DepthForConditionalGeneration, T5ForConditionalGeneration, add_sentence_tokens
from hf_depth.data.tokenization import check_sentence_tokens, load_tokenizer
from hf_depth.models.loading import (
    BIAS_FIELD,
    config_values,
    load_config,
    load_model,
)
from hf_depth.models.modeling_depth import UMT5ForConditionalGeneration
from tiny_models import SIZE, V1_0, V1_1, random_batch

PLAIN, TOKENIZER = tiny_tokenizer(), tiny_tokenizer(sentence_tokens=True)
GATED = {"feed_forward_proj": "gated-gelu"}
# The classes that the published checkpoints are of. Flan-T5 is a v1.1, ByT5 is one with a vocabulary of bytes.
FAMILIES = {
    "t5": (transformers.T5ForConditionalGeneration, T5Config, V1_0),
    "flan-t5": (transformers.T5ForConditionalGeneration, T5Config, V1_1),
    "byt5": (transformers.T5ForConditionalGeneration, T5Config, V1_1),
    "mt5": (transformers.MT5ForConditionalGeneration, MT5Config, GATED),
    "umt5": (transformers.UMT5ForConditionalGeneration, UMT5Config, GATED),
}
TINY = {name: value for name, value in SIZE.items() if name != "vocab_size"}


def original_model(family, **changes):
    """A random model of the class of transformers, in evaluation mode."""
    model_class, config_class, shape = FAMILIES[family]
    torch.manual_seed(0)
    model = model_class(config_class(**{**SIZE, **shape, **changes})).eval()
    for name, parameter in model.named_parameters():
        if "relative_attention_bias" in name:  # so that a bias that is lost or shared matters
            torch.nn.init.normal_(parameter)
    return model


def with_head_of_its_own(model):
    """The head of most published checkpoints, which transformers 5 ties unless the file has another."""
    torch.manual_seed(1)
    model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.shared.weight))
    return model


def logits(model, batch):
    with torch.no_grad():
        return model(**batch).logits


def edit_config(folder, **changes):
    path = Path(folder, "config.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


class LoadingTestCase(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.enterContext(TemporaryDirectory())

    def saved(self, family="t5", tokenizer=PLAIN, **changes):
        """A checkpoint as transformers saves it; returns the model."""
        model = original_model(family, **changes)
        model.save_pretrained(self.folder)
        tokenizer.save_pretrained(self.folder)
        return model

    def edit_weights(self, edit):
        path = Path(self.folder, "model.safetensors")
        weights = load_file(path)
        edit(weights)
        save_file(weights, path, metadata={"format": "pt"})


class FamilyTest(LoadingTestCase):
    @parameterized.product(family=tuple(FAMILIES), own_head=(False, True))
    def test_without_sentence_tokens_a_checkpoint_computes_what_its_own_class_does(self, family, own_head):
        tokenizer = {"byt5": ByT5Tokenizer(), "mt5": tiny_mt5_tokenizer()}.get(family, PLAIN)
        original = original_model(family, vocab_size=384 if family == "byt5" else 512)
        if own_head:
            with_head_of_its_own(original)
        original.save_pretrained(self.folder)
        tokenizer.save_pretrained(self.folder)
        rows = original.config.vocab_size
        batch = random_batch(0, sentence_tokens=0.0)
        prompt = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"].long()}
        tokens = rows if family == "byt5" else len(PLAIN)  # rows behind them may be those of sentence tokens
        options = {"max_new_tokens": 8, "do_sample": False, "suppress_tokens": [*range(tokens, 1024)]}
        expected, generated = logits(original, batch), original.generate(**prompt, **options).tolist()
        for model_type in ("t5", "depth"):
            with self.subTest(model_type):
                tokenizer = load_tokenizer(self.folder)
                if model_type == "depth":
                    add_sentence_tokens(tokenizer)
                model = load_model(self.folder, tokenizer, model_type=model_type).eval()
                check_sentence_tokens(model, tokenizer)
                torch.testing.assert_close(logits(model, batch)[..., :rows], expected, rtol=1e-5, atol=1e-5)
                self.assertEqual(model.generate(**prompt, **options).tolist(), generated)

    @parameterized.parameters(*FAMILIES)
    def test_a_baseline_saves_what_transformers_loads_and_we_load_again(self, family):
        self.saved(family)
        model = load_model(self.folder, PLAIN, model_type="t5").eval()
        self.assertIsInstance(model, T5ForConditionalGeneration)
        expected = logits(model, random_batch(1))
        with TemporaryDirectory() as again:
            model.save_pretrained(again)
            original, info = AutoModelForSeq2SeqLM.from_pretrained(again, output_loading_info=True)
            self.assertEqual(type(original).__module__.split(".")[0], "transformers")
            self.assertEqual(type(original).__name__, type(model).__name__)
            self.assertEmpty([*info["missing_keys"], *info["unexpected_keys"], *info["mismatched_keys"]])
            torch.testing.assert_close(logits(original.eval(), random_batch(1)), expected)
            twin = load_model(again, PLAIN).eval()
        self.assertIs(type(twin), type(model))
        torch.testing.assert_close(logits(twin, random_batch(1)), expected, rtol=0, atol=0)

    def test_a_depth_made_of_a_umt5_is_a_umt5_without_sentence_tokens(self):
        self.saved("umt5")
        depth = load_model(self.folder, TOKENIZER, model_type="depth")
        self.assertIs(type(depth), DepthForConditionalGeneration)
        depth.save_pretrained(self.folder)
        plain = load_model(self.folder, TOKENIZER, model_type="t5")
        self.assertIs(type(plain), UMT5ForConditionalGeneration)
        torch.testing.assert_close(plain.state_dict(), depth.state_dict(), rtol=0, atol=0)

    @parameterized.parameters("t5", "depth")
    def test_a_umt5_whose_file_says_so_has_an_unscaled_head_of_its_own(self, model_type):
        # So are those of Google, which do not say how the output is scaled.
        original = with_head_of_its_own(original_model("umt5"))
        original.save_pretrained(self.folder)
        path = Path(self.folder, "config.json")
        fields = json.loads(path.read_text()) | {"tie_word_embeddings": False}
        path.write_text(json.dumps({name: value for name, value in fields.items() if name != "scale_decoder_outputs"}))
        tokenizer = TOKENIZER if model_type == "depth" else PLAIN
        model = load_model(self.folder, tokenizer, model_type=model_type).eval()
        batch = random_batch(2, sentence_tokens=0.0)
        expected = logits(original, batch) * SIZE["d_model"] ** 0.5
        torch.testing.assert_close(logits(model, batch)[..., : SIZE["vocab_size"]], expected, rtol=1e-5, atol=1e-4)
        with TemporaryDirectory() as again:
            model.save_pretrained(again)
            self.assertFalse(config_values(load_config(again))["tie_word_embeddings"])
            twin = load_model(again, tokenizer).eval()
            if model_type == "t5":
                stock = AutoModelForSeq2SeqLM.from_pretrained(again).eval()
                torch.testing.assert_close(logits(stock, batch), logits(model, batch))
        torch.testing.assert_close(logits(twin, batch), logits(model, batch), rtol=0, atol=0)


def without_config(folder):
    Path(folder, "config.json").unlink()


def with_broken_weights(folder):
    path = Path(folder, "model.safetensors")
    path.write_bytes(path.read_bytes()[:1000])


def with_nan(folder):
    weights = load_file(Path(folder, "model.safetensors"))
    weights["shared.weight"][3, 2] = float("nan")
    save_file(weights, Path(folder, "model.safetensors"), metadata={"format": "pt"})


class RefusalTest(LoadingTestCase):
    @parameterized.parameters(
        (with_broken_weights, "The weights of .* cannot be read: .*fetch them again"),
        (with_nan, "shared.weight of .* is not finite"),
        (without_config, "is no T5 and no DEPTH model, .*config.json"),
        (functools.partial(edit_config, model_type="unknown"), "is no T5 and no DEPTH model, by its config.json"),
        (functools.partial(edit_config, vocab_size=49), r"mismatched: .*shared\.weight"),
    )
    def test_a_folder_that_holds_no_model_is_named(self, damage, message):
        self.saved()
        damage(self.folder)
        with self.assertRaisesRegex(ValueError, message):
            load_model(self.folder, PLAIN)

    def test_a_tokenizer_that_cannot_be_read_is_named(self):
        self.saved()
        Path(self.folder, "tokenizer.json").write_text("{")
        with self.assertRaisesRegex(ValueError, f"The tokenizer '{self.folder}' cannot be read: .*`tokenizer_name`"):
            load_tokenizer(self.folder)

    @parameterized.parameters(
        ("Bert", None, "'bert', which is no encoder-decoder. Name a checkpoint that `AutoModelForSeq2SeqLM`"),
        ("Marian", "depth", "kind 'marian', .* takes a mask for each pair .*Give `model_type=\"t5\"`"),
    )
    def test_another_architecture_is_refused_by_name(self, name, model_type, message):
        with self.assertRaisesRegex(ValueError, message):
            load_model(getattr(transformers, f"{name}Config")(), TOKENIZER, model_type=model_type)


class WeightsTest(LoadingTestCase):
    BIAS = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"

    @parameterized.parameters(("depth", "missing"), ("t5", "unexpected"), ("depth", "mismatched"))
    def test_a_checkpoint_with_other_weights_does_not_load(self, model_type, kind):
        self.saved()

        def edit(weights):
            value = weights.pop(self.BIAS)
            if kind == "unexpected":
                weights[self.BIAS] = value
                weights["encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight"] = value.clone()
            elif kind == "mismatched":
                weights[self.BIAS] = value[:5]

        self.edit_weights(edit)
        with self.assertRaisesRegex(ValueError, rf"weights of {self.folder} are not .*\(1 {kind}: encoder\.block\.\d"):
            load_model(self.folder, TOKENIZER, model_type=model_type)

    @parameterized.product(model_type=("depth", "t5"), shape=(V1_0, V1_1))
    def test_the_files_of_the_original_release_load(self, model_type, shape):
        original = self.saved(**shape)
        head = original.shared.weight if shape is V1_0 else torch.randn_like(original.shared.weight)

        def edit(weights):  # google/t5-small and its sisters hold copies of tied weights, and a bias that nothing uses
            copies = ("encoder.embed_tokens", "decoder.embed_tokens", "lm_head")
            weights |= {f"{name}.weight": original.shared.weight.detach().clone() for name in copies}
            weights["lm_head.weight"] = head.detach().clone()
            weights["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = torch.zeros(32, 2)

        self.edit_weights(edit)
        model = load_model(self.folder, PLAIN if model_type == "t5" else TOKENIZER, model_type=model_type)
        torch.testing.assert_close(model.lm_head.weight[: len(head)], head, rtol=0, atol=0)

    @parameterized.product(model_type=("depth", "t5"), shape=(V1_0, V1_1))
    def test_missing_rows_are_added_to_embedding_and_head_and_no_row_is_lost(self, model_type, shape):
        original = T5ForConditionalGeneration(T5Config(**SIZE, **shape))
        original.save_pretrained(self.folder)
        model = load_model(self.folder, TOKENIZER, model_type=model_type)
        for part in (model, model.encoder, model.decoder):
            self.assertEqual(part.config.vocab_size, 640)  # 521 tokens, up to a multiple of 128
        for name in ("shared", "lm_head"):
            weight = model.get_submodule(name).weight
            self.assertEqual(weight.shape, (640, SIZE["d_model"]))
            torch.testing.assert_close(weight[:50], original.get_submodule(name).weight, rtol=0, atol=0)
            self.assertTrue(weight[50:].isfinite().all() and weight[50:].std() > 0)
        self.assertIs(model.encoder.embed_tokens.weight, model.shared.weight)
        self.assertEqual(model.lm_head.weight is model.shared.weight, shape == V1_0)
        check_sentence_tokens(model, TOKENIZER)
        loss = model(**random_batch(4)).loss
        with TemporaryDirectory() as again:
            model.save_pretrained(again)
            torch.testing.assert_close(load_model(again, TOKENIZER)(**random_batch(4)).loss, loss)


class SentenceTokensTest(LoadingTestCase):
    def setUp(self):
        super().setUp()
        self.model = load_model(None, TOKENIZER, **TINY)
        self.model.save_pretrained(self.folder)
        TOKENIZER.save_pretrained(self.folder)

    @parameterized.parameters(("first_sentence_token_id", 501, 500), ("num_sentence_tokens", 7, 20))
    def test_a_depth_checkpoint_needs_the_sentence_tokens_that_it_was_trained_with(self, name, found, trained):
        other = tiny_tokenizer()
        if name == "first_sentence_token_id":
            other.add_tokens(["<other>"])
        add_sentence_tokens(other, 7 if name == "num_sentence_tokens" else 20)
        for model_type in (None, "depth"):
            with self.assertRaisesRegex(
                ValueError,
                rf"`{name}` of {self.folder} is {trained}, .* tokenizer has {found}\..*load_tokenizer\('{self.folder}",
            ):
                load_model(self.folder, other, model_type=model_type)
        # A model from scratch, and a T5, have nothing to lose.
        self.assertEqual(getattr(load_model(self.model.config, other).config, name), found)
        self.assertIs(type(load_model(self.folder, other, model_type="t5")), T5ForConditionalGeneration)


class ConfigurationTest(LoadingTestCase):
    def test_a_model_from_scratch_is_a_small_t5_v1_1_of_the_tokenizer(self):
        model = load_model(None, TOKENIZER, **{**TINY, "num_layers": 1})
        self.assertIs(type(model), DepthForConditionalGeneration)
        self.assertEqual(model.config.vocab_size, 640)
        self.assertFalse(model.config.tie_word_embeddings)
        self.assertEqual(model.config.num_decoder_layers, 1)
        check_sentence_tokens(model, TOKENIZER)

    @parameterized.parameters(("t5", "depth"), ("flan-t5", "t5"), ("umt5", "depth"), ("umt5", "t5"))
    def test_a_configuration_gets_the_ids_and_the_rows_of_the_tokenizer_and_keeps_the_rest(self, family, model_type):
        _, config_class, shape = FAMILIES[family]
        config = config_class(**{**SIZE, **shape, "layer_norm_epsilon": 0.125})
        config.gradient_checkpointing = True
        before = config.to_dict()
        model = load_model(config, TOKENIZER, model_type=model_type, attn_implementation="eager")
        self.assertEqual(config.to_dict(), before)
        check_sentence_tokens(model, TOKENIZER)
        self.assertEqual(model.config.vocab_size, 640)
        self.assertEqual(model.config.layer_norm_epsilon, 0.125)
        self.assertEqual(model.config._attn_implementation, "eager")
        self.assertTrue(model.is_activation_checkpointing)
        self.assertEqual(model.config.tie_word_embeddings, family in ("t5", "umt5"))
        biases = [name for name, _ in model.named_parameters() if "relative_attention_bias" in name]
        self.assertLen(biases, 4 if family == "umt5" else 2)

    def test_a_vocabulary_that_was_asked_for_must_hold_the_tokenizer(self):
        for source in (None, T5Config(**SIZE)):
            with self.assertRaisesRegex(
                ValueError, "`vocab_size` 520 is smaller than the tokenizer, which has 521 .*640"
            ):
                load_model(source, TOKENIZER, model_type="depth", vocab_size=520, **TINY)
            self.assertEqual(load_model(source, PLAIN, model_type="t5", vocab_size=520, **TINY).config.vocab_size, 520)

    @parameterized.parameters(
        ({"drop_out_rate": 0.1}, "Unknown argument `drop_out_rate` .* Did you mean 'dropout_rate'"),
        ({"first_sentence_token_id": 7}, "`first_sentence_token_id` of the tokenizer is 500, which"),
        ({"attn_implementation": "flex_attention"}, "flex_attention"),
        ({"eos_token_id": 7}, "`eos_token_id` of the tokenizer is 1, which"),
        ({"dtype": torch.bfloat16}, "Unknown argument `dtype` of `load_model`"),
        ({"model_type": "t6"}, "Unknown `model_type` 't6'. The kinds are: 'depth', 't5'"),
    )
    def test_an_argument_that_means_nothing_is_refused(self, changes, message):
        with self.assertRaisesRegex(ValueError, message):
            load_model(None, TOKENIZER, **{**TINY, **changes})

    @parameterized.parameters(("num_layers", 1), ("tie_word_embeddings", False))
    def test_the_size_of_a_checkpoint_cannot_be_changed(self, name, value):
        self.saved()
        with self.assertRaisesRegex(ValueError, f"`{name}` is {value}, but the checkpoint has"):
            load_model(self.folder, PLAIN, **{name: value})
        kept = json.loads(Path(self.folder, "config.json").read_text()).get(name, False)
        self.assertEqual(load_model(self.folder, PLAIN, **{name: kept}, dropout_rate=0.5).config.dropout_rate, 0.5)

    @parameterized.parameters("t5", "mt5")
    def test_no_words_of_another_vocabulary_are_sentence_tokens(self, family):
        config = FAMILIES[family][1](**{**SIZE, "vocab_size": 32_384})
        config.save_pretrained(self.folder)
        ids = {"first_sentence_token_id": 32_300, "eosen_token_id": 32_320}
        for given in ({}, {"eosen_token_id": 32_320}):
            with self.assertRaisesRegex(ValueError, r"vocabulary of 32384 rows, .* are words. `load_model\(name, tok"):
                DepthConfig.from_pretrained(self.folder, **given)
        DepthConfig.from_pretrained(self.folder, **ids).save_pretrained(self.folder)
        self.assertEqual(DepthConfig.from_pretrained(self.folder).first_sentence_token_id, 32_300)


WIDE = {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4, BIAS_FIELD: True}


def load_in_parts(folder: str):
    """Models of which each of two processes holds a part; the first one writes down what they are as a whole."""
    import deepspeed

    deepspeed.init_distributed("gloo")
    batch = {"train_batch_size": 2, "train_micro_batch_size_per_gpu": 1}
    config = HfDeepSpeedConfig({"zero_optimization": {"stage": 3}, **batch})  # only weakly referred to
    for name, source, options in (("scratch", None, WIDE), ("loaded", folder, {})):
        torch.manual_seed(0)
        model = load_model(source, TOKENIZER, model_type="depth", **options)
        assert hasattr(model.encoder.final_layer_norm.weight, "ds_id")
        with deepspeed.zero.GatheredParameters(list(model.parameters())):
            if distributed.get_rank() == 0:
                state = {name: value.detach().clone() for name, value in model.named_parameters()}
                torch.save(state, f"{folder}/{name}.pt")
    del config
    distributed.destroy_process_group()


@unittest.skipUnless(find_spec("deepspeed"), "needs DeepSpeed")
class ZeRO3Test(LoadingTestCase):
    def test_parts_of_models_are_those_of_whole_ones(self):
        original = self.saved("flan-t5")
        self.edit_weights(lambda weights: self.assertNotIn("lm_head.weight", weights))
        run_in_two_processes(load_in_parts, self.folder)
        scratch, loaded = (torch.load(f"{self.folder}/{name}.pt") for name in ("scratch", "loaded"))
        torch.manual_seed(0)
        expected = dict(load_model(None, TOKENIZER, **WIDE).named_parameters())
        self.assertEqual(scratch.keys(), expected.keys())
        for name, value in expected.items():
            torch.testing.assert_close(scratch[name], value, rtol=0, atol=0, msg=name)
        for name, value in original.named_parameters():
            torch.testing.assert_close(loaded[name][: len(value)], value, rtol=0, atol=0, msg=name)
        # A missing head is the embedding, which has rows for the sentence tokens.
        self.assertNotIn("lm_head.weight", loaded)
        self.assertEqual(loaded["shared.weight"].shape, (640, SIZE["d_model"]))
        self.assertGreater(loaded["shared.weight"][50:].std().item(), 0)


class AttentionTest(parameterized.TestCase):
    def test_layers_share_what_they_add_by_default_and_a_saved_model_does_not_say_so(self):
        model = load_model(None, TOKENIZER, **TINY)
        self.assertEqual(model.config._attn_implementation, "depth_sdpa")
        with TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            loaded = DepthForConditionalGeneration.from_pretrained(folder)
            self.assertNotIn("attn_implementation", Path(folder, "config.json").read_text())
        self.assertEqual(loaded.config._attn_implementation, "sdpa")
