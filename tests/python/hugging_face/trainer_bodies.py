"""Functions that the ranks run: scripts of transformers' Trainer, which differ between gloo and weft in the backend's name."""

from pathlib import Path

import model_bodies
import torch
import torch.distributed as dist
from rank_worker import as_under_torchrun
from transformers import HfArgumentParser, Trainer, TrainingArguments
from transformers.distributed import DistributedConfig

STEPS = 4


class Sequences(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = model_bodies.sequence(index)
        return {"input_ids": tokens, "labels": tokens}


def _arguments(folder: Path, backend: str, **options: object) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        ddp_backend=backend,
        max_steps=STEPS,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        dataloader_num_workers=2,
        learning_rate=1e-2,
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        **options,
    )


def _losses(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def ddp(backend: str, port: int, folder: Path) -> tuple[list[float], list[float]]:
    """Losses of a run, and of one that continues it from its checkpoint in the middle."""
    with as_under_torchrun(port):
        arguments = _arguments(folder, backend, save_strategy="steps", save_steps=STEPS // 2)
        assert dist.get_backend() == backend
        trainer = Trainer(model=model_bodies.make_model("llama"), args=arguments, train_dataset=Sequences())
        trainer.train()
        assert isinstance(trainer.model_wrapped, torch.nn.parallel.DistributedDataParallel)
        resumed = Trainer(model=model_bodies.make_model("llama", seed=1), args=arguments, train_dataset=Sequences())
        resumed.train(resume_from_checkpoint=str(folder / f"checkpoint-{STEPS // 2}"))
        return _losses(trainer), _losses(resumed)


def fsdp2(backend: str, port: int, folder: Path) -> list[float]:
    """Losses of a model that transformers itself shards with FSDP2 when it loads it."""
    with as_under_torchrun(port):
        dist.init_process_group(backend)
        if dist.get_rank() == 0:
            model_bodies.make_model("llama").save_pretrained(folder / "model")
        dist.barrier()
        model = model_bodies.LlamaForCausalLM.from_pretrained(folder / "model", distributed_config=DistributedConfig(fsdp_size=dist.get_world_size()))
        assert isinstance(next(model.parameters()), torch.distributed.tensor.DTensor)
        trainer = Trainer(model=model, args=_arguments(folder, backend, save_strategy="no"), train_dataset=Sequences())
        trainer.train()
        assert dist.get_backend() == backend
        return _losses(trainer)


def command_line() -> str:
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(
        ["--output_dir", "unused", "--use_cpu", "--ddp_backend", "weft", "--report_to", "none"]
    )
    return arguments.ddp_backend
