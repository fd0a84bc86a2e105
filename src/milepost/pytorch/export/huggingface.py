"""Take from a ``transformers`` or PEFT model what its own ``save_pretrained`` would write, without writing it there.

``save_pretrained`` writes straight to the final name and syncs nothing: a kill leaves half an export that looks whole, a power
cut one of empty files. What it *writes* is right, and is asked of the same functions: which tied weight is kept, in which names
and shapes a mixture of experts lies on disk, what the configuration says.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from milepost.errors import MissingExtraError, UsageError
from milepost.pytorch.export.contents import Contents, Tensors


def contents_of(model: Any, tokenizer: Any = None, *, dtype: torch.dtype | None = None) -> Contents:
    """Return what an export of a model is made of: weights, configuration, generation configuration, tokenizer; no optimizer.

    ``tokenizer`` is anything with ``save_pretrained``, a processor too. Runs on all ranks; gathers nothing.
    """
    if isinstance(model, Contents):
        return model if tokenizer is None else _with(model, _files_of(tokenizer.save_pretrained))
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError("hf", "transformers") from error
    model = _unwrapped(model)
    if _is_peft(model):
        contents = _of_peft(model)
    elif isinstance(model, transformers.PreTrainedModel):
        contents = _of_transformers(model, dtype)
    else:
        raise UsageError(
            "no model of transformers or PEFT",
            kind="bad-model",
            hint="give Saver a PreTrainedModel, a PeftModel, or milepost.pytorch.Contents(tensors, files)",
            type=type(model).__qualname__,
        )
    return contents if tokenizer is None else _with(contents, _files_of(tokenizer.save_pretrained))


def _unwrapped(model: Any) -> Any:
    """Take off what adds a prefix to all names: data parallelism, compilation."""
    while True:
        if isinstance(model, torch.nn.parallel.DistributedDataParallel | torch.nn.DataParallel):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod
        else:
            return model


def _is_peft(model: Any) -> bool:
    return any(kind.__module__.startswith("peft.") and kind.__name__ == "PeftModel" for kind in type(model).__mro__)


def _of_transformers(model: Any, dtype: torch.dtype | None) -> Contents:
    if getattr(model, "_hf_peft_config_loaded", False) or getattr(model, "hf_quantizer", None) is not None:
        raise UsageError(
            "a quantized model, or one with adapters of its own, is not exported",
            kind="bad-model",
            hint="wrap it by peft.get_peft_model, or export the model it was made of",
            type=type(model).__qualname__,
        )
    ignored = set(model._keys_to_ignore_on_save or ())
    tensors = {name: value for name, value in model.state_dict().items() if name not in ignored}
    files = _files_of(partial(_write_configurations, model))
    if dtype is not None:
        files["config.json"] = _with_dtype(files["config.json"], dtype)
    return Contents(tensors, files, partial(_finish, model), _same(model, tensors))


def _finish(model: Any, tensors: Tensors) -> Tensors:
    """Leave out tied weights, and give names and shapes that they have on disk: of each expert its own, for one."""
    from transformers.core_model_loading import revert_weight_conversion
    from transformers.modeling_utils import remove_tied_weights_from_state_dict

    finished: Tensors = revert_weight_conversion(model, remove_tied_weights_from_state_dict(dict(tensors), model))
    return finished


def _same(model: Any, tensors: Tensors) -> dict[str, object]:
    """Say which names are of one tensor. By the parameters: a state dict has a new view of each."""
    named = itertools.chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
    return {name: id(value) for name, value in named if name in tensors}


def _write_configurations(model: Any, directory: str) -> None:
    from transformers.dynamic_module_utils import custom_object_save

    config = copy.deepcopy(model.config)
    config.dtype = str(model.dtype).removeprefix("torch.")
    # FSDP2 makes a class of its own from the model's.
    config.architectures = [type(model).__name__.removeprefix("FSDP")]
    if model.is_remote_code():
        custom_object_save(model, directory, config=config)
    config.save_pretrained(directory)
    if model.can_generate() and model.generation_config is not None:
        model.generation_config.save_pretrained(directory)


def _with_dtype(config: bytes, dtype: torch.dtype) -> bytes:
    """Let a configuration say the dtype in which the weights are written, in all parts of it."""
    word = str(dtype).removeprefix("torch.")

    def changed(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: word if key == "dtype" and isinstance(part, str) else changed(part) for key, part in value.items()}
        return [changed(part) for part in value] if isinstance(value, list) else value

    return (json.dumps(changed(json.loads(config)), indent=2, sort_keys=True) + "\n").encode()


def _of_peft(model: Any) -> Contents:
    """Take the adapter that is in use, as PEFT writes it; the base model is where its configuration says."""
    from peft import get_peft_model_state_dict

    if len(model.peft_config) != 1:
        raise UsageError(
            "a model with several adapters is not exported",
            kind="bad-model",
            hint="delete those that are not trained: model.delete_adapter(name)",
            adapters=", ".join(model.peft_config),
        )
    ((adapter, settings),) = model.peft_config.items()
    # It selects by name and computes nothing, so parts of a sharded model may still be apart.
    tensors = get_peft_model_state_dict(model, state_dict=model.state_dict(), adapter_name=adapter)
    settings = copy.copy(settings)
    if settings.base_model_name_or_path is None:
        settings.base_model_name_or_path = getattr(model.get_base_model(), "name_or_path", None) or None
    settings.inference_mode = True
    mapping = None
    if settings.task_type is None:
        base = type(model.get_base_model())
        mapping = {"base_model_class": base.__name__.removeprefix("FSDP"), "parent_library": base.__module__}
    files = _files_of(partial(settings.save_pretrained, auto_mapping_dict=mapping))
    return Contents(tensors, files, stem="adapter_model", split=False)


def _files_of(write: Callable[[str], object]) -> dict[str, bytes]:
    """Let somebody write small files, and return them: theirs are neither synced nor all there after a kill."""
    with tempfile.TemporaryDirectory(prefix="milepost-") as directory:
        write(directory)
        found: dict[str, bytes] = {}
        for folder, _, names in os.walk(directory):
            for name in names:
                path = os.path.join(folder, name)
                with open(path, "rb") as file:
                    found[os.path.relpath(path, directory).replace(os.sep, "/")] = file.read()
        return found


def _with(contents: Contents, files: Mapping[str, bytes]) -> Contents:
    return Contents(contents.tensors, {**contents.files, **files}, contents.finish, contents.same, contents.stem, contents.split)
