"""Laws of `load_model`: the model fits the tokenizer, is what the checkpoint was, or is refused with a reason."""

import contextlib
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from unittest import mock

import torch
import transformers
from absl.testing import parameterized
from packaging.version import Version
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForSeq2SeqLM, ByT5Tokenizer, MT5Config, T5Config, UMT5Config
from transformers.integrations import deepspeed as hf_deepspeed

from helpers import tiny_mt5_tokenizer, tiny_tokenizer
from hf_depth import DepthConfig, DepthForConditionalGeneration, T5ForConditionalGeneration, add_sentence_tokens
from hf_depth.data.tokenization import check_sentence_tokens, load_tokenizer
from hf_depth.models import loading
from hf_depth.models.loading import (
    checkpoint_model_type,
    config_values,
    load_config,
    load_model,
    resolve_attention,
)
from hf_depth.models.modeling_depth import UMT5ForConditionalGeneration
from tiny_models import SIZE, V1_0, V1_1, checkpoints_gradients, random_batch

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
        folder = TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

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

    def test_each_layer_of_a_umt5_keeps_a_bias_of_its_own(self):
        self.saved("umt5")
        baseline = load_model(self.folder, PLAIN)
        depth = load_model(self.folder, TOKENIZER, model_type="depth")
        self.assertIs(type(baseline), UMT5ForConditionalGeneration)
        self.assertTrue(depth.config.relative_attention_bias_in_every_layer)
        for model in (baseline, depth):
            biases = [name for name, _ in model.named_parameters() if "relative_attention_bias" in name]
            self.assertLen(biases, 4)
        with TemporaryDirectory() as again:
            depth.save_pretrained(again)
            twin = load_model(again, TOKENIZER)
            self.assertIs(type(twin), DepthForConditionalGeneration)
            for name, value in depth.state_dict().items():
                self.assertTrue(torch.equal(twin.state_dict()[name], value), name)
            # As a T5 it is a UMT5.
            self.assertIs(type(load_model(again, TOKENIZER, model_type="t5")), UMT5ForConditionalGeneration)

    @parameterized.parameters("t5", "depth")
    def test_a_umt5_whose_file_says_so_has_an_unscaled_head_of_its_own(self, model_type):
        # So are those of Google. Transformers 5 to 5.23 scales their logits down: it takes the head for the embedding.
        original = with_head_of_its_own(original_model("umt5"))
        original.save_pretrained(self.folder)
        edit_config(self.folder, tie_word_embeddings=False)
        tokenizer = TOKENIZER if model_type == "depth" else PLAIN
        model = load_model(self.folder, tokenizer, model_type=model_type).eval()
        batch = random_batch(2, sentence_tokens=0.0)
        expected = logits(original, batch) * SIZE["d_model"] ** 0.5
        torch.testing.assert_close(logits(model, batch)[..., : SIZE["vocab_size"]], expected, rtol=1e-5, atol=1e-4)
        with TemporaryDirectory() as again:
            model.save_pretrained(again)
            self.assertFalse(config_values(load_config(again))["tie_word_embeddings"])
            twin = load_model(again, tokenizer).eval()
            if model_type == "t5":  # the class of transformers 5 scales them down once more, until 5.24
                stock = AutoModelForSeq2SeqLM.from_pretrained(again).eval()
                scale = 1 if Version(transformers.__version__) >= Version("5.24") else SIZE["d_model"] ** 0.5
                torch.testing.assert_close(logits(stock, batch) * scale, logits(model, batch))
        torch.testing.assert_close(logits(twin, batch), logits(model, batch), rtol=0, atol=0)

    @parameterized.parameters(*FAMILIES)
    def test_the_depth_class_itself_reads_the_checkpoint_when_it_has_rows_enough(self, family):
        original = self.saved(family, vocab_size=640)
        ids = {"first_sentence_token_id": 500, "num_sentence_tokens": 20, "eosen_token_id": 520}
        model = DepthForConditionalGeneration.from_pretrained(self.folder, **ids).eval()
        batch = random_batch(3)
        torch.testing.assert_close(logits(model, batch), logits(original, batch), rtol=1e-5, atol=1e-5)

    def test_the_kind_of_a_checkpoint_is_depth_or_t5(self):
        for family in FAMILIES:
            self.saved(family)
            self.assertEqual(checkpoint_model_type(self.folder), "t5")
            self.assertIsInstance(load_model(self.folder, PLAIN), T5ForConditionalGeneration)
        load_model(self.folder, TOKENIZER, model_type="depth").save_pretrained(self.folder)
        self.assertEqual(checkpoint_model_type(self.folder), "depth")

    @parameterized.parameters("half", "nothing", "missing")
    def test_weights_that_cannot_be_read_are_named(self, damage):
        self.saved()
        path = Path(self.folder, "model.safetensors")
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2] if damage == "half" else b"")
        if damage == "missing":
            path.unlink()
        with self.assertRaisesRegex(ValueError, f"The weights of {self.folder} cannot be read: .*fetch them again"):
            load_model(self.folder, PLAIN)

    def test_weights_that_are_not_finite_are_named(self):
        model = self.saved()
        with torch.no_grad():
            model.shared.weight[3, 2] = float("nan")
        model.save_pretrained(self.folder)
        with self.assertRaisesRegex(ValueError, f"shared.weight of {self.folder} is not finite"):
            load_model(self.folder, PLAIN)

    @parameterized.parameters(("model_type", "unknown"), ("auto_map", {"AutoConfig": "code.Config"}))
    def test_a_configuration_of_another_kind_is_named_and_its_code_not_offered(self, name, value):
        self.saved()
        path = Path(self.folder, "config.json")
        path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": "unknown", name: value}))
        with self.assertRaisesRegex(ValueError, f"{self.folder} is no T5 and no DEPTH model, by its config.json"):
            load_model(self.folder, PLAIN)

    @parameterized.parameters("nothing", "{", "[]")
    def test_a_tokenizer_that_cannot_be_read_is_named(self, content):
        if content != "nothing":
            self.saved()
            Path(self.folder, "tokenizer.json").write_text(content)
        with self.assertRaisesRegex(ValueError, f"The tokenizer '{self.folder}' cannot be read: .*`tokenizer_name`"):
            load_tokenizer(self.folder)

    def test_a_peft_adapter_is_named_with_the_way_to_load_it(self):
        self.saved()
        Path(self.folder, "config.json").rename(Path(self.folder, "adapter_config.json"))
        for load in (lambda: load_model(self.folder, PLAIN), lambda: checkpoint_model_type(self.folder)):
            with self.assertRaisesRegex(
                ValueError,
                rf"{self.folder} is a PEFT adapter.*`load_model`.*from_pretrained\(model, '{self.folder}'\)",
            ):
                load()

    def test_a_model_in_a_subfolder_that_is_none_of_ours_is_not_taken_for_a_missing_one(self):
        Path(self.folder, "part").mkdir()
        Path(self.folder, "part", "config.json").write_text('{"layers": 1}')
        with self.assertRaisesRegex(ValueError, "is no T5 and no DEPTH model, by its config.json"):
            load_config(self.folder, subfolder="part")

    @parameterized.parameters(([], "in it.$"), (["checkpoint-9", "checkpoint-10"], "its last checkpoint is .*-10.$"))
    def test_a_folder_without_a_model_is_named_with_its_last_checkpoint(self, checkpoints, advice):
        for name in checkpoints:
            Path(self.folder, name).mkdir()
        with self.assertRaisesRegex(ValueError, f"^{self.folder} holds no model: there is no config.json .*{advice}"):
            load_model(self.folder, PLAIN)

    @parameterized.product(
        name=("LongT5", "SwitchTransformers", "Pix2Struct", "Bert", "Bart"), model_type=("depth", "t5", None)
    )
    def test_another_architecture_is_refused_by_name(self, name, model_type):
        config = getattr(transformers, f"{name}Config")()
        message = f"{config.model_type!r}. Supported are 'depth' and 't5', 'mt5', 'umt5', which ByT5"
        with self.assertRaisesRegex(ValueError, f"The configuration is .* {message}"):
            load_model(config, TOKENIZER, model_type=model_type)
        config.save_pretrained(self.folder)
        with self.assertRaisesRegex(ValueError, f"{self.folder} is .* {message}"):
            load_model(self.folder, TOKENIZER, model_type=model_type)
        with self.assertRaisesRegex(ValueError, f"is that of a {config.model_type!r}; a DEPTH model can be made of"):
            DepthForConditionalGeneration.from_pretrained(self.folder)


class WeightsTest(LoadingTestCase):
    BIAS = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"

    @parameterized.product(model_type=("depth", "t5"), kind=("missing", "unexpected", "mismatched"))
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
        with self.assertRaisesRegex(ValueError, rf"weights of {self.folder} are not .*\({kind}: encoder\.block\.\d"):
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

    def test_an_encoder_alone_does_not_load(self):
        self.saved()

        def edit(weights):
            for name in [name for name in weights if name.startswith("decoder")]:
                del weights[name]

        self.edit_weights(edit)
        with self.assertRaisesRegex(ValueError, r"missing: decoder\.block\.0.* and \d+ more\)"):
            load_model(self.folder, PLAIN)

    def test_embeddings_of_another_size_than_the_configuration_says_do_not_load(self):
        self.saved()
        edit_config(self.folder, vocab_size=49)
        with self.assertRaisesRegex(ValueError, r"mismatched: .*shared\.weight"):
            load_model(self.folder, PLAIN)

    @parameterized.parameters("depth", "t5")
    def test_a_head_that_transformers_left_out_is_the_embedding(self, model_type):
        original = self.saved("flan-t5")
        self.assertNotIn("lm_head.weight", load_file(Path(self.folder, "model.safetensors")))
        model = load_model(self.folder, TOKENIZER, model_type=model_type)
        self.assertIsNot(model.lm_head.weight, model.shared.weight)
        torch.testing.assert_close(model.lm_head.weight[:50], original.shared.weight, rtol=0, atol=0)

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

    @parameterized.parameters("depth", "t5")
    def test_rows_beyond_the_tokenizer_stay(self, model_type):
        original = self.saved(vocab_size=777)
        model = load_model(self.folder, TOKENIZER, model_type=model_type)
        self.assertEqual(model.config.vocab_size, 777)
        torch.testing.assert_close(model.shared.weight, original.shared.weight, rtol=0, atol=0)


class FromPretrainedTest(LoadingTestCase):
    """`from_pretrained` of the classes themselves."""

    IDS = {"first_sentence_token_id": 20, "eosen_token_id": 40}  # within the rows of a tiny T5

    @parameterized.product(
        model=((T5ForConditionalGeneration, "UMT5"), (UMT5ForConditionalGeneration, "T5")),
        kind=("the other", "MT5", "LongT5", "SwitchTransformers", "Bart", "Depth"),
    )
    def test_a_t5_or_umt5_class_refuses_the_files_of_every_other_kind(self, model, kind):
        model_class, other = model
        kind = other if kind == "the other" else kind
        config = DepthConfig() if kind == "Depth" else getattr(transformers, f"{kind}Config")()
        config.save_pretrained(self.folder)
        save_file({}, Path(self.folder, "model.safetensors"), metadata={"format": "pt"})
        message = f"of a {config.model_type!r}. `hf_depth.load_model"
        for options in ({}, {"config": config}):
            with self.assertRaisesRegex(ValueError, message):
                model_class.from_pretrained(self.folder, **options)

    def test_the_depth_class_refuses_a_configuration_without_sentence_tokens(self):
        with self.assertRaisesRegex(ValueError, "class of 'depth' models, but the configuration is that of a 't5'"):
            DepthForConditionalGeneration(T5Config(**SIZE))

    def test_a_depth_configuration_made_of_another_file_is_a_depth_configuration(self):
        for family in FAMILIES:
            FAMILIES[family][1](**SIZE).save_pretrained(self.folder)
            self.assertEqual(DepthConfig.from_pretrained(self.folder).model_type, "depth")

    @parameterized.product(
        model_class=(DepthForConditionalGeneration, T5ForConditionalGeneration),
        kind=("missing", "unexpected", "encoder alone"),
    )
    def test_other_weights_are_refused_unless_the_caller_asks_for_their_names(self, model_class, kind):
        ids = self.IDS if model_class is DepthForConditionalGeneration else {}
        self.saved()
        name = WeightsTest.BIAS
        if kind == "missing":
            self.edit_weights(lambda weights: weights.pop(name))
        elif kind == "unexpected":
            name = name.replace("block.0", "block.1")
            self.edit_weights(lambda weights: weights.update({name: torch.zeros(32, 2)}))
        else:
            name, kind = "decoder.final_layer_norm.weight", "missing"
            transformers.T5EncoderModel(T5Config(**SIZE)).save_pretrained(self.folder)
        with self.assertRaisesRegex(ValueError, rf"weights of {self.folder} are not .*\({kind}: \w+coder\."):
            model_class.from_pretrained(self.folder, **ids)
        model, info = model_class.from_pretrained(self.folder, output_loading_info=True, **ids)
        self.assertIs(type(model), model_class)
        self.assertIn(name, info[f"{kind}_keys"])

    @parameterized.parameters(DepthForConditionalGeneration, T5ForConditionalGeneration)
    def test_sharded_and_dispatched_files_and_resized_embeddings_load(self, model_class):
        ids = self.IDS if model_class is DepthForConditionalGeneration else {}
        original = self.saved()
        original.save_pretrained(self.folder, max_shard_size="10KB")
        self.assertNotEmpty(list(Path(self.folder).glob("model-00002-of-*.safetensors")))
        Path(self.folder, "model.safetensors").unlink()
        batch = random_batch(5, sentence_tokens=0.0)
        batch["input_ids"], batch["labels"] = batch["input_ids"].clamp(max=19), batch["labels"].clamp(max=19)
        for options in ({}, {"device_map": "cpu"}, {"low_cpu_mem_usage": True}):
            model = model_class.from_pretrained(self.folder, **ids, **options)
            torch.testing.assert_close(logits(model, batch), logits(original, batch), rtol=1e-5, atol=1e-5)
        with self.assertRaisesRegex(RuntimeError, "ignore_mismatched_sizes"):
            model_class.from_pretrained(self.folder, **ids, vocab_size=64)
        model = model_class.from_pretrained(self.folder, **ids, vocab_size=64, ignore_mismatched_sizes=True)
        self.assertLen(model.shared.weight, 64)


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
                rf"`{name}` of {self.folder} is {trained}, .* tokenizer is {found}: .*load_tokenizer\('{self.folder}",
            ):
                load_model(self.folder, other, model_type=model_type)
        # A model from scratch, and a T5, have nothing to lose.
        self.assertEqual(getattr(load_model(self.model.config, other).config, name), found)
        self.assertIs(type(load_model(self.folder, other, model_type="t5")), T5ForConditionalGeneration)

    def test_the_tokenizer_beside_a_depth_checkpoint_fits_it(self):
        twin = load_model(self.folder, load_tokenizer(self.folder))
        self.assertTrue(torch.equal(twin.shared.weight, self.model.shared.weight))


class ConfigurationTest(LoadingTestCase):
    def test_a_model_from_scratch_is_a_small_t5_v1_1_of_the_tokenizer(self):
        model = load_model(None, TOKENIZER, **{**TINY, "num_layers": 1})
        self.assertIs(type(model), DepthForConditionalGeneration)
        self.assertEqual(model.config.vocab_size, 640)
        self.assertFalse(model.config.tie_word_embeddings)
        self.assertEqual(model.config.num_decoder_layers, 1)
        check_sentence_tokens(model, TOKENIZER)

    @parameterized.parameters("depth", "t5")
    def test_a_model_is_float32_whatever_its_configuration_says(self, model_type):
        config = T5Config(**SIZE, dtype="bfloat16")
        model = load_model(config, TOKENIZER, model_type=model_type)
        self.assertEqual({parameter.dtype for parameter in model.parameters()}, {torch.float32})
        self.assertEqual(config.dtype, torch.bfloat16)

    @parameterized.product(family=("t5", "flan-t5", "mt5", "umt5"), model_type=("depth", "t5"))
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
        self.assertTrue(checkpoints_gradients(model))
        self.assertEqual(model.config.tie_word_embeddings, family in ("t5", "umt5"))
        biases = [name for name, _ in model.named_parameters() if "relative_attention_bias" in name]
        self.assertLen(biases, 4 if family == "umt5" else 2)

    def test_a_configuration_says_what_kind_of_model_it_is_of(self):
        depth = DepthConfig(**{**SIZE, "vocab_size": 32128}, hierarchical_cross_mask=False)
        model = load_model(depth, TOKENIZER)
        self.assertIs(type(model), DepthForConditionalGeneration)
        self.assertFalse(model.config.hierarchical_cross_mask)
        self.assertEqual(model.config.vocab_size, 32128)
        self.assertIs(type(load_model(depth, PLAIN, model_type="t5")), T5ForConditionalGeneration)
        self.assertIs(type(load_model(T5Config(**SIZE), PLAIN)), T5ForConditionalGeneration)

    def test_gradient_checkpointing_of_a_checkpoint_is_kept(self):
        self.saved()
        edit_config(self.folder, gradient_checkpointing=True)
        for model_type in ("depth", "t5"):
            model = load_model(self.folder, TOKENIZER, model_type=model_type)
            self.assertTrue(checkpoints_gradients(model))

    def test_a_vocabulary_that_was_asked_for_must_hold_the_tokenizer(self):
        for source in (None, T5Config(**SIZE)):
            with self.assertRaisesRegex(
                ValueError, "`vocab_size` 520 is smaller than the tokenizer, which has 521 .*640"
            ):
                load_model(source, TOKENIZER, model_type="depth", vocab_size=520, **TINY)
            self.assertEqual(load_model(source, PLAIN, model_type="t5", vocab_size=520, **TINY).config.vocab_size, 520)

    @parameterized.parameters(
        ({"drop_out_rate": 0.1}, "Unknown argument `drop_out_rate` .* Did you mean 'dropout_rate'"),
        ({"hidden_size": 16}, "Unknown argument `hidden_size` of `load_model`. In a T5 it is `d_model`"),
        ({"num_hidden_layers": 1}, "`num_hidden_layers` .* `num_layers`"),
        ({"num_attention_heads": 2}, "`num_attention_heads` .* `num_heads`"),
        ({"intermediate_size": 32}, "`intermediate_size` .* `d_ff`"),
        ({"first_sentence_token_id": 7}, "`first_sentence_token_id` is 7, but the tokenizer has 500"),
        ({"num_sentence_tokens": 7}, "`num_sentence_tokens` is 7, but the tokenizer has 20"),
        ({"pad_token_id": 7}, "`pad_token_id` is 7, but the tokenizer has 0"),
        ({"eos_token_id": 7}, "`eos_token_id` is 7, but the tokenizer has 1"),
        ({"dtype": torch.bfloat16}, r"`dtype` is no argument of `load_model`.*`load_model\(...\).to\(torch.bfloat16"),
        ({"model_type": "t6"}, "Unknown `model_type` 't6'. The kinds are: 'depth', 't5'"),
    )
    def test_an_argument_that_means_nothing_is_refused(self, changes, message):
        with self.assertRaisesRegex(ValueError, message):
            load_model(None, TOKENIZER, **{**TINY, **changes})

    @parameterized.parameters(
        ("num_layers", 1), ("d_model", 8), ("vocab_size", 64), ("tie_word_embeddings", False),
        ("relative_attention_bias_in_every_layer", True),
    )  # fmt: skip
    def test_the_size_of_a_checkpoint_cannot_be_changed(self, name, value):
        self.saved()
        with self.assertRaisesRegex(ValueError, f"`{name}` is {value}, but the checkpoint has"):
            load_model(self.folder, PLAIN, **{name: value})
        kept = json.loads(Path(self.folder, "config.json").read_text()).get(name, False)
        self.assertEqual(load_model(self.folder, PLAIN, **{name: kept}, dropout_rate=0.5).config.dropout_rate, 0.5)

    def test_a_depth_model_needs_a_tokenizer_with_sentence_tokens(self):
        self.saved()
        for source in (None, self.folder):
            with self.assertRaisesRegex(ValueError, r"no token `<sent_0>`: call `add_sentence_tokens\(tokenizer\)`"):
                load_model(source, PLAIN, model_type="depth")

    def test_the_default_ids_in_another_vocabulary_name_the_way_out(self):
        self.saved()
        with self.assertRaisesRegex(ValueError, r"do not fit `vocab_size`=50. `load_model\(.*tokenizer, model_type="):
            DepthForConditionalGeneration.from_pretrained(self.folder)

    @parameterized.parameters(*FAMILIES)
    def test_no_words_of_another_vocabulary_are_sentence_tokens(self, family):
        config = FAMILIES[family][1](**{**SIZE, "vocab_size": 32_384})
        config.save_pretrained(self.folder)
        ids = {"first_sentence_token_id": 32_300, "eosen_token_id": 32_320}
        for given in ({}, {"eosen_token_id": 32_320}):
            with self.assertRaisesRegex(ValueError, r"words in this one of 32384. `load_model\(name, tokenizer"):
                DepthConfig.from_pretrained(self.folder, **given)
        DepthConfig.from_pretrained(self.folder, **ids).save_pretrained(self.folder)
        self.assertEqual(DepthConfig.from_pretrained(self.folder).first_sentence_token_id, 32_300)

    def test_the_configuration_of_transformers_is_read_as_it_is(self):
        self.saved("flan-t5")
        self.assertEqual(load_config(self.folder).to_dict(), AutoConfig.from_pretrained(self.folder).to_dict())


class ZeRO3Test(LoadingTestCase):
    """With a stand-in for DeepSpeed: what it partitions is the model of a single process."""

    def setUp(self):
        super().setUp()
        self.partitioned = []

    @contextlib.contextmanager
    def zero3(self, **settings):
        config = mock.Mock(
            is_zero3=lambda: True, config={"train_batch_size": 8, **settings}
        )  # only weakly referred to
        deepspeed = SimpleNamespace(
            init_distributed=lambda: None,
            zero=SimpleNamespace(Init=lambda module, config_dict_or_path: self.partitioned.append(module)),
        )
        with (
            mock.patch.dict(sys.modules, deepspeed=deepspeed),
            mock.patch.object(hf_deepspeed, "_hf_deepspeed_config_weak_ref", lambda: config),
        ):
            yield
            self.assertIs(hf_deepspeed._hf_deepspeed_config_weak_ref(), config)

    def assert_partitioned_as_in_one_process(self, make):
        torch.manual_seed(0)
        expected = dict(make().named_parameters())
        torch.manual_seed(0)
        with self.zero3():
            model = make()
        self.assertLen(self.partitioned, 1)
        self.assertIs(self.partitioned[0], model)
        self.assertEqual([name for name, _ in model.named_parameters()], list(expected))
        for name, parameter in model.named_parameters():
            self.assertTrue(torch.equal(parameter, expected[name]), name)

    @parameterized.parameters((None,), (T5Config(**SIZE | V1_1),), (UMT5Config(**SIZE | GATED),))
    def test_a_model_from_scratch_is_that_of_a_single_process(self, config):
        arguments = {"model_type": "depth", **TINY} if config is None else {}
        self.assert_partitioned_as_in_one_process(lambda: load_model(config, TOKENIZER, **arguments))

    @parameterized.parameters(("bf16", torch.bfloat16), ("fp16", torch.float16))
    def test_the_parts_have_the_type_that_is_computed_in(self, name, dtype):
        with self.zero3(**{name: {"enabled": True}}):
            model = load_model(None, TOKENIZER, **TINY)
        self.assertEqual({parameter.dtype for parameter in model.parameters()}, {dtype})

    @parameterized.parameters("t5", "depth")
    def test_added_rows_are_those_of_a_single_process(self, model_type):
        self.saved(vocab_size=len(PLAIN))
        self.assert_partitioned_as_in_one_process(lambda: load_model(self.folder, TOKENIZER, model_type=model_type))

    def test_a_missing_head_is_a_copy_of_the_embedding(self):
        self.saved("mt5")
        self.edit_weights(lambda weights: weights.pop("lm_head.weight", None))
        self.assert_partitioned_as_in_one_process(lambda: load_model(self.folder, PLAIN))

    def test_weights_that_the_model_does_not_have_are_refused(self):
        self.saved()
        self.edit_weights(lambda weights: weights.update({"pooler.weight": torch.zeros(1)}))
        for load in (lambda: load_model(self.folder, PLAIN), self.from_pretrained):
            with self.zero3(), self.assertRaisesRegex(ValueError, "unexpected: pooler.weight"):
                load()

    def test_a_model_built_of_parts_is_refused(self):
        original = torch.nn.Linear.__init__

        def partitioned(linear, *args, **kwargs):
            original(linear, *args, **kwargs)
            linear.weight.ds_id = 0

        with (
            mock.patch.object(torch.nn.Linear, "__init__", partitioned),
            self.assertRaisesRegex(ValueError, r"inside of `deepspeed.zero.Init\(\)`.*`load_model`"),
        ):
            T5ForConditionalGeneration(T5Config(**SIZE))

    def from_pretrained(self):
        return T5ForConditionalGeneration.from_pretrained(self.folder)


class AttentionTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        loading._fastest_attention.cache_clear()
        self.addCleanup(loading._fastest_attention.cache_clear)

    def test_a_model_gets_what_is_fastest_and_its_name_is_logged_once(self):
        with (
            mock.patch("torch.accelerator.current_accelerator", return_value=None),
            self.assertLogs("hf_depth.models.loading", "INFO") as logs,
        ):
            models = [load_model(None, TOKENIZER, **TINY) for _ in range(2)]
        self.assertEqual([model.config._attn_implementation for model in models], ["depth_sdpa"] * 2)
        self.assertEqual([model.decoder.config._attn_implementation for model in models], ["depth_sdpa"] * 2)
        self.assertLen(logs.output, 1)
        self.assertIn("attn_implementation is depth_sdpa, on a CPU", logs.output[0])

    def test_a_machine_without_a_gpu_is_a_cpu_whatever_torch_was_built_for(self):
        with mock.patch("torch._C._accelerator_getAccelerator", return_value=torch.device("cuda")):
            self.assertEqual(resolve_attention(), "depth_sdpa")

    def test_a_model_with_dropout_gets_sdpa(self):
        model = load_model(None, TOKENIZER, **TINY | {"dropout_rate": 0.1})
        self.assertEqual(model.config._attn_implementation, "sdpa")

    def test_a_name_is_taken_as_it_is(self):
        self.assertEqual(resolve_attention("eager", dropout_rate=0.1, device="cuda"), "eager")

    def test_a_name_that_is_no_implementation_is_refused_with_the_nearest_one(self):
        with self.assertRaisesRegex(ValueError, "Unknown `attn_implementation` 'depth_sdap'.*'depth_sdpa'"):
            load_model(None, TOKENIZER, attn_implementation="depth_sdap")

    def test_from_pretrained_keeps_the_default_of_transformers(self):
        model = load_model(None, TOKENIZER, **TINY)
        with TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            loaded = DepthForConditionalGeneration.from_pretrained(folder)
            self.assertNotIn("attn_implementation", Path(folder, "config.json").read_text())
        self.assertEqual(loaded.config._attn_implementation, "sdpa")

    def test_a_gpu_gets_the_kernels_that_pass_their_check(self):
        def check(device, head_size, dtype):
            seen.append((device.type, head_size, dtype))

        seen = []
        with (
            mock.patch.dict(loading.ATTENTION_CHECKS, {"depth_triton": check}),
            self.assertLogs("hf_depth.models.loading", "INFO") as logs,
        ):
            self.assertEqual(resolve_attention(head_size=32, device="cuda"), "depth_triton")
            self.assertEqual(seen, [("cuda", 32, torch.float32), ("cuda", 32, torch.bfloat16)])
            resolve_attention(head_size=32, device="cuda", dtype=torch.float16)
        self.assertEqual(seen[2:], [("cuda", 32, torch.float16)])
        self.assertIn("Checking depth_triton on cuda", logs.output[0])

    def test_a_model_for_the_cpu_of_a_machine_with_a_gpu_gets_what_is_fastest_there(self):
        checks = {"depth_triton": mock.Mock(return_value=None)}
        with (
            mock.patch("torch.accelerator.current_accelerator", return_value=torch.device("cuda")),
            mock.patch.dict(loading.ATTENTION_CHECKS, checks),
        ):
            models = [load_model(None, TOKENIZER, device=device, **TINY) for device in ("cpu", None)]
        self.assertEqual([model.config._attn_implementation for model in models], ["depth_sdpa", "depth_triton"])
        checks["depth_triton"].assert_called_with(torch.device("cuda"), TINY["d_kv"], torch.bfloat16)

    @parameterized.parameters("they are off the formula", None)
    def test_a_gpu_without_working_kernels_gets_sdpa_and_a_reason(self, problem):
        checks = {} if problem is None else {"depth_triton": lambda *arguments: problem}
        with (
            mock.patch.dict(loading.ATTENTION_CHECKS, checks, clear=True),
            self.assertLogs("hf_depth.models.loading", "WARNING") as logs,
        ):
            self.assertEqual(resolve_attention(device="cuda"), "sdpa")
        self.assertIn(problem or "it is not there", logs.output[0])
