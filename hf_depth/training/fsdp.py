"""What a T5 needs to be sharded by FSDP2, as accelerate does it."""

from accelerate import Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method
from transformers import PreTrainedModel


def share_embedding(model: PreTrainedModel) -> None:
    """
    Put one embedding module in the places of the three of a T5 that share a weight; to be called before sharding.

    Accelerate (1.15) makes the model's embedding a group of its own, and PyTorch (2.13) refuses a parameter that is in
    two groups: that of the embedding, and that of the encoder's and the decoder's embeddings.
    """
    model.set_input_embeddings(model.get_input_embeddings())


def leave_precision_to_autocast(plugin: FullyShardedDataParallelPlugin) -> None:
    """
    Let FSDP gather weights, and add gradients up, in float32; to be called before sharding.

    For `bf16` accelerate (1.15) has FSDP2 cast weights, inputs, outputs and gradients, and autocasts nothing: the
    residual stream, the sums of gradients and the loss would be bfloat16, unlike under plain data parallelism.
    """
    plugin.mixed_precision_policy = None


def prepare_evaluation(accelerator: Accelerator, model: PreTrainedModel) -> None:
    """
    Bring a model that was not trained here to the device, as a whole: accelerate (1.15) shards none without its
    optimizer under FSDP2, and raises an error. Without effect on a model that was prepared before, and elsewhere.
    """
    if accelerator.is_fsdp2 and not accelerator._models:
        accelerator.prepare_model(model, device_placement=True, evaluation_mode=True)


def gather_in_generation(model: PreTrainedModel) -> None:
    """
    Let `model.generate()` gather sharded parameters as `model.forward()` does; other models are left as they are.

    Generation calls the encoder by itself, whose last layer norm belongs to the group of the whole model.
    """
    if isinstance(model, FSDPModule) and "generate" not in vars(model):
        register_fsdp_forward_method(model, "generate")
