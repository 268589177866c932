"""A model that is sharded by FSDP2 computes what it does in one process."""

import os
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import torch
import torch.distributed as dist
from absl.testing import parameterized
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.fsdp_utils import fsdp2_prepare_model
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from helpers import run_in_two_processes, tiny_tokenizer
from hf_depth import DataCollatorForDepth
from hf_depth.training.fsdp import gather_in_generation, share_embedding
from tiny_training import rows, tiny_model


class FSDPTest(parameterized.TestCase):
    def test_two_processes_are_one(self):
        with TemporaryDirectory() as folder:
            run_in_two_processes(check_all, folder)
            self.assertCountEqual(os.listdir(folder), ["untied", "tied"])


def sharded(model):
    """The model as accelerate shards it. Its `Accelerator` would not on a CPU, but the function that it calls does."""
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        reshard_after_forward=True,
        cpu_ram_efficient_loading=False,
    )
    accelerator = SimpleNamespace(
        state=SimpleNamespace(fsdp_plugin=plugin),
        torch_device_mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("dp_shard",)),
        parallelism_config=SimpleNamespace(fsdp_dim_names=("dp_shard",)),
        mixed_precision="no",
        is_main_process=dist.get_rank() == 0,
    )
    share_embedding(model)
    return fsdp2_prepare_model(accelerator, model)


def check(folder, **changes):
    """Loss, gradients, generated ids and saved weights of a sharded model are those of one process."""
    batch = DataCollatorForDepth(tiny_tokenizer(sentence_tokens=True))(rows(8))
    batch = {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}
    own = {name: values[dist.get_rank() :: 2] for name, values in batch.items()}
    reference, model = tiny_model("depth", **changes), sharded(tiny_model("depth", **changes))
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())

    expected = reference(**batch).loss
    expected.backward()
    loss = model(**own, num_items_in_batch=(batch["labels"] != -100).sum()).loss
    (2 * loss).backward()  # gradients are averaged over the processes
    dist.all_reduce(loss)
    torch.testing.assert_close(loss, expected)
    gradients = {name: parameter.grad.full_tensor() for name, parameter in model.named_parameters()}
    torch.testing.assert_close(gradients, {name: p.grad for name, p in reference.named_parameters()})

    prompt = {"input_ids": own["input_ids"], "attention_mask": own["attention_mask"], "max_new_tokens": 5}
    for _ in range(2):
        gather_in_generation(model)
        assert torch.equal(model.eval().generate(**prompt), reference.eval().generate(**prompt))

    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        model.save_pretrained(folder, state_dict=weights)
        reloaded = type(reference).from_pretrained(folder)
        torch.testing.assert_close(dict(reloaded.state_dict()), dict(reference.state_dict()), rtol=0, atol=0)


def check_all(folder):
    check(f"{folder}/untied")
    check(f"{folder}/tied", tie_word_embeddings=True)
    dist.destroy_process_group()
