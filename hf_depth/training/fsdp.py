"""What a T5 needs to be sharded by FSDP2, as accelerate does it."""

from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method
from transformers import PreTrainedModel


def share_embedding(model: PreTrainedModel) -> None:
    """
    Put one embedding module in the places of the three of a T5 that share a weight; to be called before sharding.

    Accelerate (1.15) makes the model's embedding a group of its own, and PyTorch (2.13) refuses a parameter that is in
    two groups: that of the embedding, and that of the encoder's and the decoder's embeddings.
    """
    model.set_input_embeddings(model.get_input_embeddings())


def gather_in_generation(model: PreTrainedModel) -> None:
    """
    Let `model.generate()` gather sharded parameters as `model.forward()` does; other models are left as they are.

    Generation calls the encoder by itself, whose last layer norm belongs to the group of the whole model.
    """
    if isinstance(model, FSDPModule) and "generate" not in vars(model):
        register_fsdp_forward_method(model, "generate")
