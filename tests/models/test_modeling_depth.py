"""Laws of the model: its masks, that it is T5 without sentence tokens, its losses, and that it trains everywhere."""

import copy
import functools
import inspect
import itertools
import pickle
import tempfile

import accelerate
import numpy as np
import torch
from absl.testing import parameterized
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from transformers import T5Config
from transformers import T5ForConditionalGeneration as StockT5
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPastAndCrossAttentions
from transformers.utils import logging

from helpers import SENTENCES, tiny_tokenizer
from hf_depth.data.sentences import get_sentence_splitter
from hf_depth.data.tokenization import eosen_token_id, sentence_token_ids
from hf_depth.models.modeling_depth import (
    DepthForConditionalGeneration,
    T5ForConditionalGeneration,
    UMT5ForConditionalGeneration,
    is_sentence_token,
)
from hf_depth.tasks.preprocessing import TaskPreprocessor
from hf_depth.tasks.spec import TaskSpec
from tiny_models import (
    EOSEN,
    MODELS,
    SENTENCE_TOKENS,
    SIZE,
    V1_0,
    V1_1,
    VOCAB_SIZE,
    captured_masks,
    dense_mask,
    gradients,
    model_of,
    outputs_and_gradients,
    random_batch,
    random_ids,
    random_padding,
    tiny_config,
    tiny_model,
    tiny_t5_config,
)

IMPLEMENTATIONS = ("eager", "sdpa")
SWITCHES = ("hierarchical_encoder_mask", "hierarchical_decoder_mask", "hierarchical_cross_mask")


def dense_oracle(config, input_ids, source_is_real, decoder_ids, target_is_real) -> dict[str, torch.Tensor]:
    """The table of the design, one entry at a time: (B, Q, K) booleans for each of the three attentions."""

    def numbers(ids, is_real):  # of the sentence that each token belongs to
        count, result = 0, []
        for token, real in zip(ids, is_real, strict=True):
            count += real and token in SENTENCE_TOKENS
            result.append(count)
        if 1 in result[1:] and result[0] == 0:  # the token in front of the first sentence token belongs to it
            result[result.index(1) - 1] = 1
        return result

    masks = {"encoder": [], "decoder": [], "cross": []}
    for source, source_real, target, target_real in zip(
        input_ids.tolist(), source_is_real.tolist(), decoder_ids.tolist(), target_is_real.tolist(), strict=True
    ):
        number = numbers(source, source_real)
        has_sentences = any(real and token in SENTENCE_TOKENS for token, real in zip(source, source_real, strict=True))
        for mask in masks.values():
            mask.append([])
        for q, query in enumerate(source):
            confined = config.hierarchical_encoder_mask and query in SENTENCE_TOKENS
            masks["encoder"][-1].append(
                [source_real[k] and (not confined or number[k] == number[q]) for k in range(len(source))]
            )
        for q, query in enumerate(target):
            confined = config.hierarchical_decoder_mask and query in SENTENCE_TOKENS
            masks["decoder"][-1].append(
                [
                    k <= q and target_real[k] and (not confined or target[k] in SENTENCE_TOKENS)
                    for k in range(len(target))
                ]
            )
            confined = config.hierarchical_cross_mask and query in SENTENCE_TOKENS and has_sentences
            masks["cross"][-1].append(
                [source_real[k] and (not confined or source[k] in SENTENCE_TOKENS) for k in range(len(source))]
            )
    return {kind: torch.tensor(mask) for kind, mask in masks.items()}


def random_rows(seed, source_length, target_length, without_sentences) -> tuple[torch.Tensor, ...]:
    """Ids and padding masks of up to twelve sources, and those of their targets."""
    generator = torch.Generator().manual_seed(seed)
    number = torch.randint(1, 13, (), generator=generator).item()
    # Half of the seeds have no padding in the source, half none in the target; half of the rest is at the left.
    source_is_real = random_padding(generator, number, source_length, left=seed % 4 == 3) | (seed % 2 == 0)
    target_is_real = random_padding(generator, number, target_length, left=seed % 8 > 5) | (seed % 4 < 2)
    # A row is without any sentence token often enough.
    input_ids = random_ids(generator, number, source_length, 0.0 if without_sentences else 0.3) * source_is_real
    decoder_ids = random_ids(generator, number, target_length) * target_is_real
    return input_ids, source_is_real, decoder_ids, target_is_real


@functools.cache
def random_masked_batch(seeds: range) -> tuple[torch.Tensor, ...]:
    """The rows of several seeds, with padding at the same side, in a batch of one source and one target length."""
    # Numbers other than those of the rows; with these, there is a batch of each length from 1 to 12.
    generator = torch.Generator().manual_seed(1100 + seeds[0])
    lengths = torch.randint(1, 13, (2,), generator=generator).tolist()
    # In some batches no source has a sentence token, but the targets have.
    parts = [random_rows(seed, *lengths, without_sentences=seeds[0] % 7 == 6) for seed in seeds]
    return tuple(map(torch.cat, zip(*parts, strict=True)))


@functools.cache
def cached_oracle(seeds: range, **switches) -> dict[str, torch.Tensor]:
    return dense_oracle(tiny_config(**switches), *random_masked_batch(seeds))


class MaskTest(parameterized.TestCase):
    @parameterized.parameters(*IMPLEMENTATIONS)
    def test_masks_equal_the_dense_oracle_in_every_layer_and_are_built_once(self, attn_implementation):
        model = tiny_model(attn_implementation=attn_implementation)
        # Where padding is depends on a seed modulo 8. Some seeds are a batch by themselves, too; one of a single row.
        batches = [range(first, 200, 40) for first in range(40)] + [range(seed, seed + 1) for seed in range(8)]
        for seeds in batches:
            with self.subTest(seeds=seeds):
                self.check_against_the_oracle(model, seeds)

    @parameterized.parameters(*itertools.product(IMPLEMENTATIONS, SWITCHES))
    def test_each_mask_can_be_switched_off_by_itself(self, attn_implementation, switch):
        model = tiny_model(attn_implementation=attn_implementation, **{switch: False})
        for first in range(5):
            self.check_against_the_oracle(model, range(first, 200, 40), **{switch: False})

    @torch.no_grad()
    def check_against_the_oracle(self, model, seeds, **switches):
        input_ids, source_is_real, decoder_ids, target_is_real = random_masked_batch(seeds)
        with captured_masks(model) as masks:
            model(
                input_ids=input_ids,
                attention_mask=None if source_is_real.all() else source_is_real.long(),
                decoder_input_ids=decoder_ids,
                decoder_attention_mask=None if target_is_real.all() else target_is_real.long(),
            )
        for kind, expected in cached_oracle(seeds, **switches).items():
            self.assertTrue(all(mask is masks[kind][0] for mask in masks[kind]), kind)
            self.assertLen(masks[kind], 2)
            torch.testing.assert_close(dense_mask(masks[kind][0], kind, *expected.shape), expected, rtol=0, atol=0)

    def test_sentence_tokens_of_the_decoder_attend_to_all_of_an_input_without_sentence_tokens(self):
        model = tiny_model()
        with captured_masks(model) as masks:
            model(
                input_ids=torch.tensor([[5, 6, 7], [5, SENTENCE_TOKENS[0], 7]]),
                decoder_input_ids=torch.tensor([[0, SENTENCE_TOKENS[0]], [0, SENTENCE_TOKENS[0]]]),
            )
        self.assertEqual(masks["cross"][0][:, 0, 1].tolist(), [[True, True, True], [False, True, False]])

    def test_the_leading_eosen_belongs_to_the_first_sentence(self):
        model = tiny_model()
        with captured_masks(model) as masks:
            model(
                input_ids=torch.tensor([[EOSEN, SENTENCE_TOKENS[3], 5, EOSEN, SENTENCE_TOKENS[1], 6, EOSEN, 1]]),
                decoder_input_ids=torch.tensor([[0]]),
            )
        # As any `<eosen>` it stands before the sentence token that follows, hence to the sentence before that.
        self.assertEqual(masks["encoder"][0][0, 0, 1].tolist(), [True] * 4 + [False] * 4)
        self.assertEqual(masks["encoder"][0][0, 0, 4].tolist(), [False] * 4 + [True] * 4)
        self.assertTrue(masks["encoder"][0][0, 0, 0].all())

    @parameterized.parameters(*IMPLEMENTATIONS)
    def test_four_dimensional_masks_are_used_as_they_are(self, attn_implementation):
        batch = random_batch(0)
        model = tiny_model(attn_implementation=attn_implementation)
        mask = torch.rand(3, 1, 9, 9) if attn_implementation == "eager" else torch.rand(3, 1, 9, 9) < 0.8
        with captured_masks(model) as masks:
            model(**batch, decoder_attention_mask=mask)
        self.assertIs(masks["decoder"][0], mask)

    def test_the_state_of_a_sentence_token_does_not_depend_on_other_sentences(self):
        model = tiny_model(num_layers=1)
        first, second, third = SENTENCE_TOKENS[2], SENTENCE_TOKENS[0], SENTENCE_TOKENS[5]
        ids = [EOSEN, first, 5, 6, EOSEN, second, 7, 8, 9, EOSEN, third, 10, EOSEN, 1]
        states = model.encoder(torch.tensor([ids])).last_hidden_state[0]
        changed = list(ids)
        changed[7] = 30
        changed_states = model.encoder(torch.tensor([changed])).last_hidden_state[0]
        is_equal = (states == changed_states).all(-1).tolist()
        self.assertEqual([i for i, equal in enumerate(is_equal) if equal], [1, 10])  # bit by bit

    def test_logits_at_a_sentence_token_depend_on_no_ordinary_token_before_it(self):
        model = tiny_model()
        source = torch.tensor([[EOSEN, SENTENCE_TOKENS[1], 5, 6, EOSEN, 1]])
        target = [0, SENTENCE_TOKENS[1], 5, 6, EOSEN, SENTENCE_TOKENS[4], 7, EOSEN, SENTENCE_TOKENS[0]]
        changed = [30 if 3 <= token < 40 else token for token in target]
        logits, changed_logits = (
            model(input_ids=source, decoder_input_ids=torch.tensor([ids])).logits[0] for ids in (target, changed)
        )
        is_equal = (logits == changed_logits).all(-1).tolist()
        self.assertEqual([i for i, equal in enumerate(is_equal) if equal], [0, 1, 5, 8])


class PaddingTest(parameterized.TestCase):
    @parameterized.parameters(*itertools.product(("eager", "sdpa"), ("right", "left"), ("pad", "random ids")))
    def test_padding_of_the_input_leaves_the_logits_unchanged(self, attn_implementation, side, content):
        model = tiny_model(attn_implementation=attn_implementation)
        batch = random_batch(1)
        padding = (0, 5) if side == "right" else (5, 0)
        padded = {
            **batch,
            "input_ids": torch.nn.functional.pad(batch["input_ids"], padding),
            "attention_mask": torch.nn.functional.pad(batch["attention_mask"], padding),
        }
        if content == "random ids":  # sentence tokens among them
            noise = random_ids(torch.Generator().manual_seed(0), *padded["input_ids"].shape, 0.8)
            padded["input_ids"] = torch.where(padded["attention_mask"], padded["input_ids"], noise)
        torch.testing.assert_close(model(**padded).logits, model(**batch).logits, rtol=1e-5, atol=1e-5)

    @parameterized.parameters("eager", "sdpa")
    def test_padding_of_the_target_leaves_logits_and_loss_unchanged(self, attn_implementation):
        model = tiny_model(attn_implementation=attn_implementation)
        batch = random_batch(2)
        outputs = model(**batch)
        padded = model(**{**batch, "labels": torch.nn.functional.pad(batch["labels"], (0, 5), value=-100)})
        torch.testing.assert_close(padded.logits[:, :9], outputs.logits, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(padded.loss, outputs.loss, rtol=1e-6, atol=1e-6)

    @parameterized.parameters("eager", "sdpa")
    def test_padding_at_the_left_of_the_target_leaves_the_logits_unchanged(self, attn_implementation):
        model = tiny_model(attn_implementation=attn_implementation)
        source = {name: value for name, value in random_batch(3).items() if name != "labels"}
        decoder_ids = random_ids(torch.Generator().manual_seed(3), 3, 6)
        padded = torch.nn.functional.pad(decoder_ids, (4, 0))
        logits = model(**source, decoder_input_ids=decoder_ids).logits
        padded_logits = model(**source, decoder_input_ids=padded, decoder_attention_mask=(padded > 0).long()).logits
        torch.testing.assert_close(padded_logits[:, 4:], logits, rtol=1e-5, atol=1e-5)

    def test_examples_of_a_batch_do_not_influence_each_other(self):
        model = tiny_model()
        batch = random_batch(4, batch_size=4)
        together = model(**batch).logits
        for row in range(4):
            alone = model(**{name: value[row : row + 1] for name, value in batch.items()}).logits
            torch.testing.assert_close(alone[0], together[row], rtol=1e-5, atol=1e-5)


class ImplementationTest(parameterized.TestCase):
    @parameterized.parameters(
        *itertools.product(MODELS, ("padded", "full"), (None,)),
        *itertools.product(("depth",), ("padded",), SWITCHES),
        ("depth", "nothing", None),
    )
    def test_logits_and_gradients_of_sdpa_are_those_of_eager(self, kind, layout, switch):
        changes = {} if switch is None else {switch: False}
        batch = random_batch(5)
        if layout == "full":
            del batch["attention_mask"]
        elif layout == "nothing":  # a row of the input is all padding
            batch["attention_mask"][1] = False
        models = [model_of(kind, name, **changes) for name in IMPLEMENTATIONS]
        (expected, right), (found, gradient) = (outputs_and_gradients(model, batch) for model in models)
        self.assertTrue(found.loss.isfinite())
        torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(gradient, right, rtol=1e-3, atol=1e-5)
        for stack in ("encoder", "decoder"):
            bias = gradient[f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
            self.assertGreater(bias.abs().sum().item(), 1e-3, "the relative bias is not trained")


def stock_twin(model, config, attn_implementation):
    """The T5 of transformers with the same weights."""
    stock = tiny_model(config, attn_implementation, seed=1, model_class=StockT5)
    if not config.scale_decoder_outputs:  # the stock class ties the head of v1.1
        stock.lm_head.weight = torch.nn.Parameter(stock.lm_head.weight.detach().clone())
    stock.load_state_dict(model.state_dict())
    return stock


class PlainT5Test(parameterized.TestCase):
    @parameterized.product(shape=(V1_0, V1_1), attn_implementation=IMPLEMENTATIONS, kind=("depth", "t5"))
    def test_without_sentence_tokens_logits_and_loss_are_those_of_t5(self, shape, attn_implementation, kind):
        model = model_of(kind, attn_implementation, **shape)
        stock = stock_twin(model, tiny_t5_config(**shape), attn_implementation)
        for seed in range(5):
            batch = random_batch(seed, sentence_tokens=0.0)
            if seed == 0:
                batch = {**batch, "attention_mask": None}
            if seed == 1:
                batch = {name: tensor.flip(1) for name, tensor in batch.items()}  # padding at the left
            ours, theirs = model(**batch), stock(**batch)
            torch.testing.assert_close(ours.logits, theirs.logits, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(ours.loss, theirs.loss, rtol=1e-5, atol=1e-5)

    def test_hidden_states_and_attentions_come_as_in_t5(self):
        batch = random_batch(7, sentence_tokens=0.0)
        model = tiny_model(attn_implementation="eager")
        stock = stock_twin(model, tiny_t5_config(), "eager")
        options = {"output_hidden_states": True, "output_attentions": True}
        ours, theirs = model(**batch, **options), stock(**batch, **options)
        for name in (
            "encoder_hidden_states",
            "encoder_attentions",
            "decoder_hidden_states",
            "decoder_attentions",
            "cross_attentions",
        ):
            self.assertLen(ours[name], len(theirs[name]), name)
            for our_layer, their_layer in zip(ours[name], theirs[name], strict=True):
                torch.testing.assert_close(our_layer, their_layer, rtol=1e-5, atol=1e-5)

    @parameterized.parameters(V1_0, V1_1)
    def test_initial_weights_are_those_of_t5(self, **shape):
        size = {"d_model": 64, "d_kv": 32, "d_ff": 96, **shape}
        model = tiny_model(**size)
        stock = tiny_model(tiny_t5_config(**size), model_class=StockT5)
        self.assertEqual(model.state_dict().keys(), stock.state_dict().keys())
        for name, parameter in stock.state_dict().items():
            std = parameter.std().item()
            if name == "lm_head.weight" and shape == V1_1:  # stock T5 has tied it
                std = 64**-0.5
            # The relative biases have 64 numbers only.
            tolerance = 0.5 if "relative" in name else 0.1
            self.assertAlmostEqual(model.state_dict()[name].std().item(), std, delta=tolerance * std, msg=name)


class GivenStatesTest(parameterized.TestCase):
    """Embeddings and encoder outputs do not show where the sentence tokens are: a mask does, or it is an error."""

    def test_embeddings_with_sentence_masks_are_as_good_as_ids(self):
        model, batch = tiny_model(), random_batch(6)
        expected = model(**batch).logits
        embedded = {**batch, "inputs_embeds": model.shared(batch["input_ids"])}
        sentence_mask = is_sentence_token(embedded.pop("input_ids"), model.config)
        torch.testing.assert_close(model(**embedded, sentence_mask=sentence_mask).logits, expected)
        with self.assertRaisesRegex(ValueError, "`inputs_embeds` do not say .* pass `sentence_mask`"):
            model(**embedded)
        decoder_ids = model.prepare_decoder_input_ids_from_labels(batch["labels"])
        decoder_mask = is_sentence_token(decoder_ids, model.config)
        embedded |= {"sentence_mask": sentence_mask, "decoder_inputs_embeds": model.shared(decoder_ids)}
        torch.testing.assert_close(model(**embedded, decoder_sentence_mask=decoder_mask).logits, expected)

    @parameterized.parameters("hierarchical_decoder_mask", "hierarchical_cross_mask")
    def test_decoder_embeddings_without_a_sentence_mask_are_refused(self, switch):
        other = ({"hierarchical_decoder_mask", "hierarchical_cross_mask"} - {switch}).pop()
        model, batch = tiny_model(**{other: False}), random_batch(6)
        decoder_inputs_embeds = model.shared(model.prepare_decoder_input_ids_from_labels(batch["labels"]))
        with self.assertRaisesRegex(ValueError, "`decoder_inputs_embeds` do not .* pass `decoder_sentence_mask`"):
            model(**batch, decoder_inputs_embeds=decoder_inputs_embeds)

    def test_decoder_embeddings_are_continued_from_a_cache(self):
        model, batch = tiny_model(), random_batch(6)
        decoder_ids = random_ids(torch.Generator().manual_seed(6), 3, 7)
        del batch["labels"]
        expected = model(**batch, decoder_input_ids=decoder_ids).logits
        cache = model(**batch, decoder_input_ids=decoder_ids[:, :4], use_cache=True).cache
        rest = model(
            **batch,
            decoder_inputs_embeds=model.shared(decoder_ids[:, 4:]),
            decoder_sentence_mask=is_sentence_token(decoder_ids, model.config),
            cache=cache,
        )
        torch.testing.assert_close(rest.logits, expected[:, 4:], rtol=1e-4, atol=1e-5)

    @parameterized.parameters("sentence_mask", "decoder_sentence_mask")
    def test_a_sentence_mask_may_be_given_beside_ids(self, name):
        model, batch = tiny_model(), random_batch(6)
        ids = (
            batch["input_ids"]
            if name == "sentence_mask"
            else model.prepare_decoder_input_ids_from_labels(batch["labels"])
        )
        mask = is_sentence_token(ids, model.config)
        torch.testing.assert_close(model(**batch, **{name: mask}).logits, model(**batch).logits)
        if name == "sentence_mask":
            with self.assertRaisesRegex(ValueError, rf"`{name}` must have .*, shape \(3, 12\), got"):
                model(**batch, **{name: mask[:, :-2]})

    def test_a_model_without_hierarchical_masks_needs_no_sentence_masks(self):
        model, batch = tiny_model(**{switch: False for switch in SWITCHES}), random_batch(6)
        expected = model(**batch).logits
        embeddings = {
            "inputs_embeds": model.shared(batch.pop("input_ids")),
            "decoder_inputs_embeds": model.shared(model.prepare_decoder_input_ids_from_labels(batch["labels"])),
        }
        torch.testing.assert_close(model(**batch, **embeddings).logits, expected)

    @parameterized.product(
        kind=("output", "plain output", "plain tuple", "plain output of T5"), remedy=("ids", "mask", "none")
    )
    def test_encoder_outputs_of_any_kind_give_the_same_logits_or_an_error(self, kind, remedy):
        model, batch = tiny_model(), random_batch(6)
        expected = model(**batch).logits
        input_ids = batch.pop("input_ids")
        encoder_outputs = model.encoder(input_ids, batch["attention_mask"])
        sentence_mask = is_sentence_token(input_ids, model.config)
        torch.testing.assert_close(encoder_outputs.sentence_mask, sentence_mask)
        if kind == "plain output":
            encoder_outputs = BaseModelOutput(last_hidden_state=encoder_outputs.last_hidden_state)
        elif kind == "plain tuple":
            encoder_outputs = (encoder_outputs.last_hidden_state,)
        elif kind == "plain output of T5":
            encoder_outputs = BaseModelOutputWithPastAndCrossAttentions(encoder_outputs.last_hidden_state)
        batch |= {"encoder_outputs": encoder_outputs}
        batch |= {"ids": {"input_ids": input_ids}, "mask": {"sentence_mask": sentence_mask}, "none": {}}[remedy]
        if remedy == "none" and "plain" in kind:
            with self.assertRaisesRegex(ValueError, "`encoder_outputs` do not .* pass `sentence_mask`"):
                model(**batch)
        else:
            torch.testing.assert_close(model(**batch).logits, expected)

    def test_the_encoder_takes_its_arguments_by_position_and_keeps_the_sentence_mask_that_it_was_given(self):
        model, batch = tiny_model(), random_batch(6)
        ids, mask = batch["input_ids"], batch["attention_mask"]
        expected = model.encoder(ids, mask)
        embeddings = model.shared(ids)
        found = model.encoder(None, mask, None, None, embeddings, sentence_mask=expected.sentence_mask)
        torch.testing.assert_close(found.last_hidden_state, expected.last_hidden_state)
        self.assertEqual(found.sentence_mask.tolist(), expected.sentence_mask.tolist())
        other = torch.zeros_like(expected.sentence_mask)
        self.assertFalse(model.encoder(ids, mask, sentence_mask=other).sentence_mask.any())

    @parameterized.parameters(*IMPLEMENTATIONS)
    def test_offloaded_weights_give_the_same_logits(self, attn_implementation):
        model, batch = tiny_model(attn_implementation=attn_implementation), random_batch(6)
        expected = model(**batch).logits
        with torch.no_grad():
            torch.testing.assert_close(accelerate.cpu_offload(model)(**batch).logits, expected)

    def test_an_exported_model_takes_batches_of_any_size(self):
        model, batch = tiny_model(), random_batch(6)
        shapes = {name: {0: torch.export.Dim.AUTO} for name in batch}
        exported = torch.export.export(model, (), batch, dynamic_shapes=shapes).module()
        one = {name: tensor[1:2].expand(5, -1) for name, tensor in batch.items()}
        torch.testing.assert_close(exported(**one).logits, model(**one).logits)

    def test_no_input_at_all_is_refused_as_in_t5(self):
        with self.assertRaisesRegex(ValueError, "exactly one of input_ids or inputs_embeds"):
            tiny_model()(decoder_input_ids=torch.tensor([[0]]))
        with self.assertRaisesRegex(ValueError, "nothing for the decoder: pass `labels`.*or call `generate"):
            tiny_model()(input_ids=torch.tensor([[5, 1]]))

    def test_a_tuple_of_the_encoder_keeps_its_hidden_states_and_attentions(self):
        model, batch = tiny_model(attn_implementation="eager"), random_batch(6)
        options = {"output_hidden_states": True, "output_attentions": True}
        expected = model(**batch, **options)
        encoder_outputs = model.encoder(batch["input_ids"], batch["attention_mask"], **options, return_dict=False)
        outputs = model(**batch, encoder_outputs=encoder_outputs, **options)
        for name in ("encoder_hidden_states", "encoder_attentions", "cross_attentions"):
            torch.testing.assert_close(outputs[name], expected[name])


class SeveralTargetsTest(parameterized.TestCase):
    @parameterized.product(attn_implementation=IMPLEMENTATIONS, kind=("depth", "t5"), is_encoded=(False, True))
    def test_one_input_may_have_several_targets(self, attn_implementation, kind, is_encoded):
        model, batch = model_of(kind, attn_implementation), random_batch(6)
        targets = {"labels": batch["labels"]}
        one = {name: tensor[1:2] for name, tensor in batch.items()}
        every = {name: tensor.expand(3, -1) for name, tensor in one.items()} | targets
        expected = model(**every).logits
        if is_encoded:
            ids = one.pop("input_ids")
            one["encoder_outputs"] = model.encoder(ids, one["attention_mask"])
        torch.testing.assert_close(model(**one | targets).logits, expected)


class SeveralDevicesTest(parameterized.TestCase):
    @parameterized.product(kind=("depth", "t5"), attn_implementation=IMPLEMENTATIONS, skip_logits=(False, True))
    def test_a_model_may_be_on_another_device_than_its_inputs(self, kind, attn_implementation, skip_logits):
        # As with `device_map`. This device holds no values, but refuses tensors of another one, as a GPU does.
        model = model_of(kind, attn_implementation)
        for part in (model.encoder, model.decoder, model.lm_head):
            add_hook_to_module(part.to("meta"), AlignDevicesHook("meta"))
        batch = {name: torch.ones(2, 6, dtype=torch.long) for name in ("input_ids", "labels")}
        segments = {f"{part}_segment_ids": batch["input_ids"] for part in ("encoder", "decoder")}
        others = ({}, segments, {"loss_weights": torch.ones(2, 6)}, {"num_items_in_batch": torch.tensor(12)})
        for more in others:
            outputs = model(**batch, skip_logits=skip_logits, **more)
            self.assertEqual((outputs.token_losses.shape, outputs.loss.device.type), ((2, 6), "meta"))

    @parameterized.parameters("depth", "t5")
    def test_a_step_of_a_model_without_values_has_shapes(self, kind):
        with torch.device("meta"):
            model = model_of(kind)
            batch = {name: torch.ones(2, 6, dtype=torch.long) for name in ("input_ids", "labels")}
        model.train()(**batch).loss.backward()
        self.assertEqual({parameter.grad.device.type for parameter in model.parameters()}, {"meta"})


class SignatureTest(parameterized.TestCase):
    """`generate()`, the Trainer and PEFT go by names and order of the arguments."""

    @parameterized.parameters(T5ForConditionalGeneration, UMT5ForConditionalGeneration, DepthForConditionalGeneration)
    def test_arguments_of_t5_come_first_and_in_its_order(self, model_class):
        names, ours = (list(inspect.signature(cls.forward).parameters) for cls in (StockT5, model_class))
        self.assertEqual(ours[: len(names) - 1], names[:-1])
        self.assertEqual(ours[-1], names[-1])

    @parameterized.parameters("depth", "t5")
    def test_arguments_may_be_given_by_position(self, kind):
        model, batch = model_of(kind), random_batch(6)
        decoder_ids = model.prepare_decoder_input_ids_from_labels(batch["labels"])
        encoder_outputs = model.encoder(batch["input_ids"], batch["attention_mask"])
        outputs = model(
            None, batch["attention_mask"], decoder_ids, None, encoder_outputs, None, None, None, batch["labels"]
        )
        torch.testing.assert_close(outputs.loss, model(**batch).loss)

    @parameterized.parameters("depth", "t5")
    def test_hidden_states_and_attentions_come_by_argument_and_by_configuration(self, kind):
        names = ("encoder_hidden_states", "decoder_hidden_states", "encoder_attentions", "decoder_attentions")
        batch, by_argument = random_batch(7), model_of(kind, "eager")
        outputs = by_argument(**batch, output_hidden_states=True, output_attentions=True)
        by_config = model_of(kind, "eager", output_hidden_states=True, output_attentions=True)
        for name in (*names, "cross_attentions"):
            self.assertLen(outputs[name], 3 if "hidden" in name else 2)
            torch.testing.assert_close(by_config(**batch)[name], outputs[name])
        self.assertIsNone(by_argument(**batch).cross_attentions)


class LossTest(parameterized.TestCase):
    @parameterized.parameters(*MODELS)
    def test_token_losses_are_cross_entropy_and_zero_without_a_label(self, kind):
        model, batch = model_of(kind), random_batch(8)
        outputs = model(**batch)
        labels = batch["labels"]
        log_probabilities = outputs.logits.log_softmax(-1)
        for row, column in itertools.product(*map(range, labels.shape)):
            label = labels[row, column].item()
            expected = 0.0 if label == -100 else -log_probabilities[row, column, label].item()
            self.assertAlmostEqual(outputs.token_losses[row, column].item(), expected, places=5)
        number = (labels != -100).sum()
        torch.testing.assert_close(outputs.loss, outputs.token_losses.sum() / number)
        torch.testing.assert_close(
            outputs.loss, torch.nn.functional.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten())
        )

    @parameterized.product(kind=("depth", "t5"), training=(False, True), skip_logits=(None, False))
    def test_the_number_of_items_replaces_the_number_of_labels(self, kind, training, skip_logits):
        model, batch = model_of(kind).train(training), random_batch(9)
        loss, number = model(**batch).loss, (batch["labels"] != -100).sum()
        for num_items in (7, torch.tensor(7), torch.tensor(7.0), torch.tensor([7]), torch.tensor([[7]])):
            found = model(**batch, num_items_in_batch=num_items, skip_logits=skip_logits).loss
            torch.testing.assert_close(found, loss * number / 7)

    @parameterized.product(kind=("depth", "t5"), training=(False, True))
    def test_labels_and_weights_have_the_shape_of_the_decoder_input(self, kind, training):
        model, batch = model_of(kind).train(training), random_batch(9)
        labels = batch["labels"]
        weights = torch.rand(*labels.shape)
        for wrong in (weights.t(), weights.flatten(), weights[:, :1], weights[0], weights[..., None]):
            with self.assertRaisesRegex(ValueError, r"`loss_weights` must have .* \(3, 9\), got the shape"):
                model(**batch, loss_weights=wrong)
        batch["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels)
        for wrong in (labels[:, :-1], labels[:2], labels.t(), labels.flatten(), labels[..., None]):
            with self.assertRaisesRegex(ValueError, r"`labels` must have .* \(3, 9\), got the shape"):
                model(**{**batch, "labels": wrong})

    @parameterized.product(kind=("depth", "t5"), skip_logits=(True, False))
    def test_a_batch_without_labels_to_learn_has_loss_zero(self, kind, skip_logits):
        model, batch = model_of(kind), random_batch(10)
        batch["labels"] = torch.full_like(batch["labels"], -100)
        for num_items in (None, 0, torch.tensor(0)):
            options = {"num_items_in_batch": num_items, "skip_logits": skip_logits}
            self.assertEqual(model(**batch, **options).loss.item(), 0.0)
            for name, gradient in gradients(model, batch, **options).items():
                self.assertEqual(gradient.abs().sum().item(), 0.0, name)

    @parameterized.parameters("depth", "t5")
    def test_tuples_hold_what_the_output_holds(self, kind):
        model, batch = model_of(kind), random_batch(11)
        outputs = model(**batch)
        as_tuple = model(**batch, return_dict=False)
        self.assertIsInstance(as_tuple, tuple)
        for index, value in ((0, outputs.loss), (1, outputs.logits), (-1, outputs.token_losses)):
            torch.testing.assert_close(as_tuple[index], value)
        model.config.return_dict = False
        self.assertIsInstance(model(**batch), tuple)

    @parameterized.parameters("depth", "t5")
    def test_no_cache_is_built_beside_a_loss(self, kind):
        model, batch = model_of(kind), random_batch(12)
        self.assertIsNone(model(**batch).cache)
        self.assertIsNotNone(model(**batch, use_cache=True).cache)
        decoder_ids = model.prepare_decoder_input_ids_from_labels(batch.pop("labels"))
        outputs = model(**batch, decoder_input_ids=decoder_ids)
        self.assertIsNotNone(outputs.cache)
        self.assertIsNone(outputs.loss)
        self.assertIsNone(outputs.token_losses)

    @parameterized.parameters(*MODELS)
    def test_training_has_no_logits_unless_they_are_asked_for_and_the_same_gradients(self, kind):
        model, batch = model_of(kind).train(), random_batch(0)
        self.assertIsNone(model(**batch).logits)
        self.assertIsNone(model(**batch).predictions)
        self.assertIsNotNone(model(**batch, skip_logits=False).logits)
        expected = gradients(model, batch, skip_logits=False)
        torch.testing.assert_close(gradients(model, batch), expected, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(model(**batch).loss, model(**batch, skip_logits=False).loss)

    @parameterized.parameters(*MODELS)
    def test_evaluation_has_logits_or_else_the_likeliest_ids(self, kind):
        model, batch = model_of(kind), random_batch(1)
        whole, skipped = model(**batch), model(**batch, skip_logits=True)
        self.assertIsNone(whole.predictions)
        self.assertIsNone(skipped.logits)
        torch.testing.assert_close(skipped.token_losses, whole.token_losses)
        expected = whole.logits.argmax(-1).masked_fill(batch["labels"] == -100, -100)
        self.assertEqual(skipped.predictions.tolist(), expected.tolist())

    @parameterized.product(train=(True, False), skip_logits=(True, False))
    def test_labels_may_be_int32(self, train, skip_logits):
        model, batch = tiny_model().train(train), random_batch(1)
        loss = model(**batch | {"labels": batch["labels"].int()}, skip_logits=skip_logits).loss
        torch.testing.assert_close(loss, model(**batch).loss)

    @parameterized.product(kind=("depth", "t5"), plain_head=(True, False))
    def test_weights_of_labels_make_the_loss(self, kind, plain_head):
        model, batch = model_of(kind).train(), random_batch(2)
        weights = torch.rand(batch["labels"].shape)
        outputs = model(**batch, skip_logits=False)
        (weights * outputs.token_losses).sum().backward()
        expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
        if not plain_head:
            model.lm_head.register_forward_hook(lambda module, args, output: output.clone())
        weighted = model(**batch, loss_weights=weights)
        self.assertIsNone(weighted.logits)
        self.assertFalse(weighted.token_losses.requires_grad)
        torch.testing.assert_close(weighted.loss, (weights * outputs.token_losses).sum())
        torch.testing.assert_close(model(**batch, loss_weights=weights, num_items_in_batch=3).loss, weighted.loss / 3)
        found = gradients(model, batch, loss_weights=weights)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)

    @parameterized.parameters(({"skip_logits": True},), ({"loss_weights": torch.ones(3, 9)},))
    def test_there_is_no_loss_without_labels(self, arguments):
        batch = random_batch(4)
        decoder_ids = batch.pop("labels").clamp(min=0)
        with self.assertRaisesRegex(ValueError, "need `labels`"):
            tiny_model()(**batch, decoder_input_ids=decoder_ids, **arguments)

    @parameterized.parameters((None,), (7,), (torch.tensor(49),))
    def test_a_model_in_float64_has_a_loss_of_that_precision(self, num_items):
        model, batch = tiny_model().double(), random_batch(5)
        losses = [model(**batch, skip_logits=skip, num_items_in_batch=num_items).loss for skip in (True, False)]
        torch.testing.assert_close(*losses, rtol=1e-12, atol=0)


class CompiledStackTest(parameterized.TestCase):
    @parameterized.product(kind=("depth", "t5"), name=("encoder", "decoder"))
    def test_a_compiled_stack_is_as_good_as_a_plain_one(self, kind, name):
        torch.compiler.reset()
        model, batch = model_of(kind), random_batch(0)
        expected = gradients(model, batch)
        getattr(model, name).compile(backend="eager")
        torch.testing.assert_close(gradients(model, batch), expected)
        setattr(model, name, torch.compile(getattr(model, name), backend="eager"))
        found = gradients(model, batch)
        torch.testing.assert_close({key.replace("_orig_mod.", ""): found[key] for key in found}, expected)


class TrainingTest(parameterized.TestCase):
    @parameterized.product(shape=(V1_0, V1_1), attn_implementation=("eager", "sdpa"))
    def test_training_changes_every_parameter(self, shape, attn_implementation):
        model = tiny_model(attn_implementation=attn_implementation, **shape).train()
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
        losses = []
        for _ in range(8):
            losses.append(model(**random_batch(13)).loss)
            losses[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
        self.assertLess(losses[-1].item(), 0.9 * losses[0].item())
        for name, parameter in model.named_parameters():
            self.assertFalse(torch.equal(parameter, before[name]), name)

    @parameterized.product(kind=list(MODELS), attn_implementation=IMPLEMENTATIONS, use_reentrant=(False, True))
    def test_gradient_checkpointing_gives_the_same_gradients(self, kind, attn_implementation, use_reentrant):
        model, batch = model_of(kind, attn_implementation).train(), random_batch(14)
        expected = gradients(model, batch)
        model.activation_checkpointing_enable({"use_reentrant": use_reentrant})
        if use_reentrant:  # as the trainer does: a reentrant block needs an input that has a gradient
            model.enable_input_require_grads()
        self.assert_close(gradients(model, batch), expected)

    @parameterized.parameters(*MODELS)
    def test_gradient_checkpointing_of_the_configuration_is_honored(self, kind):
        expected = gradients(model_of(kind).train(), random_batch(14))
        model_class, make_config = MODELS[kind]
        config = make_config()
        config.gradient_checkpointing = True
        model = tiny_model(config, model_class=model_class).train()
        self.assertTrue(model.is_activation_checkpointing)
        self.assert_close(gradients(model, random_batch(14)), expected)

    @parameterized.product(kind=("depth", "t5"), checkpointing=(False, True))
    def test_layers_of_low_rank_beside_frozen_ones_are_trained_alone(self, kind, checkpointing):
        class LowRank(torch.nn.Module):  # as those of PEFT
            def __init__(self, layer):
                super().__init__()
                self.base_layer = layer
                self.a = torch.nn.Linear(layer.in_features, 2, bias=False)
                self.b = torch.nn.Linear(2, layer.out_features, bias=False)
                torch.nn.init.zeros_(self.b.weight)

            def forward(self, states):
                return self.base_layer(states) + self.b(self.a(states))

        model, batch = model_of(kind).train().requires_grad_(False), random_batch(18)
        expected = model(**batch).loss
        layers = [module for name, module in model.named_modules() if name.endswith("Attention")]
        for attention in layers:
            attention.q, attention.v = LowRank(attention.q), LowRank(attention.v)
        model.lm_head = LowRank(model.lm_head)
        if checkpointing:
            model.enable_input_require_grads()
            model.activation_checkpointing_enable()
        loss = model(**batch).loss
        torch.testing.assert_close(loss, expected)
        loss.backward()
        trained = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
        self.assertEqual(trained, {name for name, parameter in model.named_parameters() if parameter.requires_grad})
        self.assertLen(trained, 2 * (2 * len(layers) + 1))

    def assert_close(self, found, expected):
        self.assertEqual(found.keys(), expected.keys())
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, expected[name], msg=lambda text, name=name: f"{name}: {text}")

    def test_bfloat16_is_finite_and_near_float32(self):
        batch = random_batch(15)
        expected = gradients(tiny_model(), batch)
        loss = tiny_model()(**batch).loss
        for kind in ("weights", "autocast"):
            model = tiny_model().to(torch.bfloat16) if kind == "weights" else tiny_model()
            with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
                outputs = model(**batch)
                found = gradients(model, batch)
            self.assertEqual(outputs.loss.dtype, torch.float32)
            torch.testing.assert_close(outputs.loss, loss, rtol=0.02, atol=0.02)
            flat = torch.cat([gradient.float().flatten() for gradient in found.values()])
            flat_expected = torch.cat([gradient.flatten() for gradient in expected.values()])
            self.assertTrue(flat.isfinite().all())
            self.assertGreater(torch.cosine_similarity(flat, flat_expected, dim=0).item(), 0.99)

    @parameterized.parameters(
        *(("depth", "eager", "eager"), ("depth", "sdpa", "aot_eager")),
        *(("t5", "sdpa", "aot_eager"), ("umt5", "sdpa", "eager")),
    )
    def test_a_compiled_training_step_is_one_graph_and_changes_nothing(self, kind, attn_implementation, backend):
        torch.compiler.reset()
        model = model_of(kind, attn_implementation).train()
        batch = random_batch(16)
        outputs, expected = outputs_and_gradients(model, batch)
        compiled = torch.compile(model, fullgraph=True, backend=backend, dynamic=False)
        compiled_outputs, found = outputs_and_gradients(compiled, batch, use_cache=False)
        torch.testing.assert_close(compiled_outputs.loss, outputs.loss)
        self.assert_close({name.removeprefix("_orig_mod."): gradient for name, gradient in found.items()}, expected)

    def test_copies_and_pickles_are_the_same_model(self):
        model, batch = tiny_model(), random_batch(17)
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            torch.testing.assert_close(twin(**batch).logits, model(**batch).logits, rtol=0, atol=0)
            self.assertIs(twin.encoder.embed_tokens.weight, twin.shared.weight)
            self.assertIsNot(twin.shared.weight, model.shared.weight)
            self.assertEqual(twin(**batch).logits.shape[-1], VOCAB_SIZE)


class EmbeddingTest(parameterized.TestCase):
    EMBEDDINGS = {"encoder.embed_tokens.weight": "shared.weight", "decoder.embed_tokens.weight": "shared.weight"}

    @parameterized.product(shape=(V1_0, V1_1), kind=("depth", "t5"))
    def test_what_is_tied_is_what_is_said_to_be_tied(self, shape, kind):
        model = model_of(kind, **shape)
        expected = self.EMBEDDINGS | ({"lm_head.weight": "shared.weight"} if shape == V1_0 else {})
        for after in ("building", "resizing", "loading"):
            with self.subTest(after=after), tempfile.TemporaryDirectory() as folder:
                if after == "resizing":
                    model.resize_token_embeddings(60)
                elif after == "loading":
                    model.save_pretrained(folder)
                    model = type(model).from_pretrained(folder)
                self.assertEqual(model.all_tied_weights_keys, expected)
                self.assertIs(model.encoder.embed_tokens.weight, model.shared.weight)
                self.assertIs(model.decoder.embed_tokens.weight, model.shared.weight)
                self.assertEqual(model.lm_head.weight is model.shared.weight, shape == V1_0)

    @parameterized.parameters((47, None), (40, 48), (64, None))
    def test_a_model_that_was_resized_loads(self, rows, multiple):
        model, batch = tiny_model(), random_batch(0)
        model.resize_token_embeddings(rows, pad_to_multiple_of=multiple)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            torch.testing.assert_close(
                DepthForConditionalGeneration.from_pretrained(folder)(**batch).logits, model(**batch).logits
            )

    def test_t5_without_a_start_token_in_its_configuration_starts_with_padding(self):
        config = T5Config(**{name: value for name, value in SIZE.items() if name != "decoder_start_token_id"})
        model = tiny_model(config, model_class=T5ForConditionalGeneration)
        self.assertEqual(model.prepare_decoder_input_ids_from_labels(torch.tensor([[5, 6]])).tolist(), [[0, 5]])
        self.assertEqual(model.generate(torch.tensor([[5, 6]]), max_new_tokens=1)[0, 0].item(), 0)


class EncodeSentencesTest(parameterized.TestCase):
    """What a DEPTH model makes of sentences is what a run reads."""

    def setUp(self):
        super().setUp()
        self.tokenizer = tiny_tokenizer(sentence_tokens=True)
        self.model = DepthForConditionalGeneration(
            tiny_config(
                vocab_size=len(self.tokenizer),
                first_sentence_token_id=int(sentence_token_ids(self.tokenizer)[0]),
                num_sentence_tokens=20,
                eosen_token_id=eosen_token_id(self.tokenizer),
            )
        )

    def test_an_input_is_that_of_fine_tuning_also_where_it_is_cut(self):
        random = np.random.default_rng(0)
        spec = TaskSpec("tests", "pair", ("premise", "hypothesis"), ("first:", "second:"), labels=("no", "yes"))
        num_cut = 0
        for _ in range(30):
            number = int(random.choice([1, 2, 4, 14]))
            example = {name: " ".join(random.choice(SENTENCES, size=number)) for name in spec.text_column_name}
            max_length = int(random.integers(8, 400))
            preprocessor = TaskPreprocessor(self.tokenizer, spec, max_source_length=max_length)
            expected = preprocessor({name: [text] for name, text in example.items()})
            num_cut += expected["num_cut_tokens"][0] > 0
            texts = []
            for name, prefix in zip(spec.text_column_name, spec.prefix, strict=True):
                first, *others = get_sentence_splitter()(example[name])
                texts.append([f"{prefix} {first}", *others])
            found = self.model.encode_sentences(self.tokenizer, *texts, max_length=max_length)
            self.assertEqual(found.tolist(), [expected["input_ids"][0].tolist()])
        self.assertBetween(num_cut, 10, 27)

    def test_sentinels_are_read_as_such_and_sentence_tokens_as_text(self):
        ids = self.model.encode_sentences(self.tokenizer, ["Call me <sent_0>.", "It is <extra_id_3>."])[0].tolist()
        text = self.tokenizer.decode(ids).replace(" ", "")
        self.assertEqual(text, "<eosen><sent_0>Callme<sent_0>.<eosen><sent_1>Itis<extra_id_3>.<eosen></s>")
        self.assertIn(self.tokenizer.convert_tokens_to_ids("<extra_id_3>"), ids)
        tokens = is_sentence_token(torch.tensor(ids), self.model.config)
        self.assertEqual(tokens.nonzero().flatten().tolist()[0], 1)
        self.assertEqual(tokens.sum().item(), 2)
        ids = self.model.encode_sentences(self.tokenizer, ["An <eosen> <extra_id_3>."])[0].tolist()
        self.assertEqual(ids.count(self.model.config.eosen_token_id), 2)

    def test_it_is_said_once_that_sentences_share_the_last_token(self):
        for logger in (logging.get_logger(), logging.get_logger("hf_depth")):
            type(logger).warning_once.cache_clear()
        with self.assertLogs("hf_depth", "WARNING") as logs:
            for _ in range(2):
                ids = self.model.encode_sentences(self.tokenizer, ["Call me."] * 22)
        self.assertLen(logs.output, 1)
        self.assertIn("22 sentences, but 20 sentence tokens: the last 3 share one", logs.output[0])
        self.assertEqual(is_sentence_token(ids, self.model.config).sum().item(), 20)

    def test_a_text_that_is_no_list_of_sentences_is_refused(self):
        for texts in (["A text."], ["First.", "Second."], [["A list."], "A text."]):
            with self.assertRaisesRegex(TypeError, r"text is a list: `encode_sentences\(tokenizer, \["):
                self.model.encode_sentences(self.tokenizer, *texts)

    @parameterized.parameters("", " ", "\u200b")
    def test_no_sentence_is_left_out_of_the_count(self, empty):
        with self.assertRaisesRegex(ValueError, "The sentence .* has no tokens: leave it out"):
            self.model.encode_sentences(self.tokenizer, ["Call me."], ["It is.", empty, "So."])

    @parameterized.parameters(0, -1)
    def test_a_length_without_room_for_the_end_is_refused(self, max_length):
        with self.assertRaisesRegex(ValueError, f"`max_length` is {max_length}, but an input has at least one token"):
            self.model.encode_sentences(self.tokenizer, ["Call me."], max_length=max_length)

    def test_an_input_without_a_sentence_is_its_end(self):
        self.assertEqual(self.model.encode_sentences(self.tokenizer, []).tolist(), [[self.tokenizer.eos_token_id]])
