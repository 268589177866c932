"""By which topic `--help` shows a flag."""

OTHER = "all others of Seq2SeqTrainingArguments"

# The topics in the order of `--help`. A flag of none comes last, under OTHER; flags of other scripts are passed over.
TOPICS: dict[str, tuple[str, ...]] = {
    "what to do": ("output_dir", "do_train", "do_eval", "do_predict", "seed", "data_seed", "dry_run", "models"),
    "comparison": ("checkpoints", "tasks", "config", "steps", "seeds", "launcher", "shard", "keep_models"),
    "vocabulary of collocations": ("output_file", "pmi_vocab_size", "min_count", "max_counted"),
    "model": (
        *("model_type", "model_name_or_path", "model_revision", "config_name", "tokenizer_name", "cache_dir"),
        *("vocab_size", "d_model", "d_kv", "d_ff", "num_layers"),
        *("num_decoder_layers", "num_heads", "dropout_rate", "feed_forward_proj", "tie_word_embeddings"),
        *("num_sentence_tokens", "hierarchical_encoder_mask", "hierarchical_decoder_mask"),
        *("hierarchical_cross_mask", "attn_implementation"),
    ),
    "text or task": (
        *("benchmark", "dataset_name", "dataset_config_name", "dataset_revision", "excluded_datasets", "task_file"),
        "dataset_dir",
        *("train_file", "validation_file", "test_file", "dataset_mixture", "mixture_temperature"),
        *("mixture_stopping_strategy", "installed_packages", "text_column", "validation_split_percentage"),
        *("test_split_percentage", "split_seed", "max_train_samples", "max_eval_samples", "max_predict_samples"),
        *("max_examples_per_document", "mixing_temperature", "mixing_maximum", "streaming", "shuffle_buffer_size"),
        *("on_bad_record", "preprocessing_num_workers", "overwrite_cache", "tokenized_dataset_dir"),
        *("preprocessing_only", "shard_megabytes", "check_shard_hashes"),
    ),
    "Natural Instructions": (
        *("add_task_definition", "num_pos_examples", "num_neg_examples", "add_explanation", "add_task_name"),
        *("tk_instruct", "max_num_instances_per_task", "max_num_instances_per_eval_task"),
    ),
    "objective": (
        *("objective", "mlm_probability", "mean_noise_span_length", "sentence_shuffling_probability"),
        *("pmi_vocab_file", "denoisers", "mode_tokens", "sentence_language", "sentence_loss_coefficient"),
        *("metadata_columns", "metadata_probability"),
    ),
    "lengths": (
        *("max_source_length", "max_target_length", "max_sentences", "min_sentences", "pack_examples"),
        *("packing", "packed_source_length", "packed_target_length", "max_metadata_length"),
        *("pad_to_max_length", "pad_to_multiple_of"),
    ),
    "optimisation": (
        *("max_steps", "num_train_epochs", "per_device_train_batch_size", "gradient_accumulation_steps"),
        *("auto_find_batch_size", "learning_rate", "optim", "optim_args", "optim_target_modules", "weight_decay"),
        *("adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "label_smoothing_factor"),
        *("neftune_noise_alpha", "average_tokens_across_devices", "skip_bad_batches"),
    ),
    "schedule": ("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps"),
    "evaluation and prediction": (
        *("eval_strategy", "eval_steps", "eval_delay", "eval_on_start", "per_device_eval_batch_size"),
        *("eval_accumulation_steps", "prediction_mode", "length_normalize_scores", "predict_with_generate"),
        *("generation_max_length", "generation_num_beams", "generation_config", "load_best_model_at_end"),
        "generation_cache_implementation",
        *("metric_for_best_model", "greater_is_better", "early_stopping_patience", "early_stopping_threshold"),
        *("constrain_sentence_order", "probe_layer", "probe_pooling", "probe_normalization", "probe_read_together"),
        *("baselines", "prediction_loss_only", "bf16_full_eval", "fp16_full_eval"),
    ),
    "saving and resuming": (
        *("save_strategy", "save_steps", "save_total_limit", "save_only_model", "save_on_each_node"),
        *("resume_from_checkpoint", "allow_changed_arguments", "ignore_data_skip"),
        *("restore_callback_states_from_checkpoint", "enable_jit_checkpoint"),
    ),
    "logging and trackers": (
        *("logging_strategy", "logging_steps", "logging_first_step", "log_level", "log_level_replica"),
        *("log_on_each_node", "logging_nan_inf_filter", "disable_tqdm", "report_to", "run_name", "project"),
        *("trackio_space_id", "trackio_bucket_id", "trackio_static_space_id", "include_num_input_tokens_seen"),
    ),
    "Hub": (
        *("push_to_hub", "hub_model_id", "hub_private_repo", "hub_strategy", "hub_always_push", "hub_revision"),
        *("hub_license", "hub_token"),
    ),
    "hardware and speed": (
        *("use_cpu", "bf16", "fp16", "tf32", "residual_dtype"),
        *("torch_compile", "torch_compile_backend", "torch_compile_mode"),
        *("gradient_checkpointing", "gradient_checkpointing_kwargs", "activation_checkpointing"),
        *("activation_checkpointing_kwargs", "use_liger_kernel", "liger_kernel_config", "torch_empty_cache_steps"),
        *("dataloader_num_workers", "dataloader_pin_memory", "dataloader_persistent_workers"),
        *("dataloader_prefetch_factor", "dataloader_multiprocessing_context", "dataloader_in_order"),
        *("dataloader_drop_last", "full_determinism"),
    ),
    "several devices": (
        *("accelerator_config", "parallelism_config", "deepspeed", "fsdp", "fsdp_config", "ddp_backend"),
        *("ddp_timeout", "ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers"),
        *("ddp_static_graph", "local_rank"),
    ),
}


def topic_of(name: str) -> str:
    """
    The topic of a flag.

    >>> topic_of("learning_rate"), topic_of("debug")
    ('optimisation', 'all others of Seq2SeqTrainingArguments')
    """
    return next((topic for topic, names in TOPICS.items() if name in names), OTHER)
