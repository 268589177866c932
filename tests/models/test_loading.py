"""Laws of `load_model`: the model fits the tokenizer, is what the checkpoint was, or is refused with a reason."""

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
from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoModelForSeq2SeqLM,
    ByT5Tokenizer,
    MT5Config,
    T5Config,
    UMT5Config,
)
from transformers.integrations import HfDeepSpeedConfig

from helpers import run_in_two_processes, tiny_mt5_tokenizer, tiny_tokenizer
from hf_depth import DepthConfig, DepthForConditionalGeneration, T5ForConditionalGeneration, add_sentence_tokens
from hf_depth.data.tokenization import check_sentence_tokens, load_tokenizer
from hf_depth.models.loading import (
    ATTENTION_IMPLEMENTATIONS,
    BIAS_FIELD,
    checkpoint_model_type,
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
        # So are those of Google.
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
            if model_type == "t5":
                stock = AutoModelForSeq2SeqLM.from_pretrained(again).eval()
                torch.testing.assert_close(logits(stock, batch), logits(model, batch))
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
        with self.assertRaisesRegex(ValueError, f"{self.folder} is a PEFT adapter"):
            load_model(self.folder, PLAIN)
        message = rf"{self.folder} is a PEFT adapter.*`load_model`.*from_pretrained\(model, '{self.folder}'\)"
        with self.assertRaisesRegex(ValueError, message):
            checkpoint_model_type(self.folder)

    def test_a_model_in_a_subfolder_that_is_none_of_ours_is_not_taken_for_a_missing_one(self):
        Path(self.folder, "part").mkdir()
        Path(self.folder, "part", "config.json").write_text('{"layers": 1}')
        with self.assertRaisesRegex(ValueError, "is no T5 and no DEPTH model, by its config.json"):
            load_config(self.folder, subfolder="part")

    @parameterized.parameters(
        ([], "config.json.*"), (["checkpoint-9", "checkpoint-10"], "Its last checkpoint is .*-10.$")
    )
    def test_a_folder_without_a_model_is_named_with_its_last_checkpoint(self, checkpoints, advice):
        for name in checkpoints:
            Path(self.folder, name).mkdir()
        with self.assertRaisesRegex(ValueError, f"^{self.folder} is no T5 and no DEPTH model, .*{advice}"):
            load_model(self.folder, PLAIN)

    @parameterized.product(name=("Pix2Struct", "Bert"), model_type=("depth", "t5", None))
    def test_another_architecture_is_refused_by_name(self, name, model_type):
        config = getattr(transformers, f"{name}Config")()
        message = f"{config.model_type!r}, which is no encoder-decoder. Name a checkpoint that `AutoModelForSeq2SeqLM`"
        with self.assertRaisesRegex(ValueError, f"The configuration is .* {message}"):
            load_model(config, TOKENIZER, model_type=model_type)
        config.save_pretrained(self.folder)
        with self.assertRaisesRegex(ValueError, f"{self.folder} is .* {message}"):
            load_model(self.folder, TOKENIZER, model_type=model_type)
        with self.assertRaisesRegex(ValueError, f"is that of a {config.model_type!r}; a 'depth' model can be made of"):
            DepthForConditionalGeneration.from_pretrained(self.folder)

    @parameterized.parameters("LongT5", "SwitchTransformers", "ProphetNet", "Marian")
    def test_a_family_that_cannot_be_depth_is_refused_with_the_reason_and_what_goes(self, name):
        config = getattr(transformers, f"{name}Config")()
        message = (
            f'kind {config.model_type!r}; .* takes a mask for each pair .*routing of Switch.* Give `model_type="t5"`'
        )
        with self.assertRaisesRegex(ValueError, message):
            load_model(config, TOKENIZER, model_type="depth")


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
        self.assertIs(model.lm_head.weight, model.shared.weight)
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
        message = f"of a {config.model_type!r}: `hf_depth.load_model"
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
        self.assertTrue(model.is_activation_checkpointing)
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
            self.assertTrue(model.is_activation_checkpointing)

    def test_a_vocabulary_that_was_asked_for_must_hold_the_tokenizer(self):
        for source in (None, T5Config(**SIZE)):
            with self.assertRaisesRegex(
                ValueError, "`vocab_size` 520 is smaller than the tokenizer, which has 521 .*640"
            ):
                load_model(source, TOKENIZER, model_type="depth", vocab_size=520, **TINY)
            self.assertEqual(load_model(source, PLAIN, model_type="t5", vocab_size=520, **TINY).config.vocab_size, 520)

    @parameterized.parameters(
        ({"drop_out_rate": 0.1}, "Unknown argument `drop_out_rate` .* Did you mean 'dropout_rate'"),
        ({"first_sentence_token_id": 7}, "`first_sentence_token_id` is 7, but the tokenizer has 500"),
        ({"num_sentence_tokens": 7}, "`num_sentence_tokens` is 7, but the tokenizer has 20"),
        ({"pad_token_id": 7}, "`pad_token_id` is 7, but the tokenizer has 0"),
        ({"eos_token_id": 7}, "`eos_token_id` is 7, but the tokenizer has 1"),
        ({"dtype": torch.bfloat16}, "Unknown argument `dtype` of `load_model`"),
        ({"model_type": "t6"}, "Unknown `model_type` 't6'. The kinds are: 'depth', 't5'"),
    )
    def test_an_argument_that_means_nothing_is_refused(self, changes, message):
        with self.assertRaisesRegex(ValueError, message):
            load_model(None, TOKENIZER, **{**TINY, **changes})

    def test_a_size_goes_by_the_names_of_other_models_too(self):
        names = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4}
        config = load_model(None, TOKENIZER, **TINY | {"d_model": 8} | names).config
        self.assertEqual((config.d_model, config.num_layers, config.num_heads), (24, 1, 4))

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
        with self.assertRaisesRegex(ValueError, r"fit `vocab_size`=50. `load_model\(.*tokenizer, model_type="):
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
    @parameterized.parameters({}, {"dropout_rate": 0.1})
    def test_a_model_gets_sdpa_unless_another_implementation_is_asked_for(self, **changes):
        model = load_model(None, TOKENIZER, **TINY | changes)
        self.assertEqual({part.config._attn_implementation for part in (model, model.decoder)}, {"sdpa"})
        for name in ATTENTION_IMPLEMENTATIONS[1:]:
            model = load_model(None, TOKENIZER, attn_implementation=name, **TINY | changes)
            self.assertEqual(model.decoder.config._attn_implementation, name)

    def test_a_name_that_is_registered_with_transformers_is_taken_as_it_is(self):
        with self.assertRaisesRegex(ValueError, "sdpa_of_a_test"):
            load_model(None, TOKENIZER, attn_implementation="sdpa_of_a_test", **TINY)
        AttentionInterface.register("sdpa_of_a_test", AttentionInterface()["sdpa"])
        model = load_model(None, TOKENIZER, attn_implementation="sdpa_of_a_test", **TINY)
        self.assertEqual(model.config._attn_implementation, "sdpa_of_a_test")

    def test_flex_attention_of_transformers_which_reads_the_bias_wrongly_is_refused(self):
        with self.assertRaisesRegex(ValueError, "flex_attention"):
            load_model(None, TOKENIZER, attn_implementation="flex_attention", **TINY)

    def test_a_saved_model_does_not_say_which_it_had(self):
        model = load_model(None, TOKENIZER, attn_implementation="depth_flex", **TINY)
        with TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            loaded = DepthForConditionalGeneration.from_pretrained(folder)
            self.assertNotIn("attn_implementation", Path(folder, "config.json").read_text())
        self.assertEqual(loaded.config._attn_implementation, "sdpa")
