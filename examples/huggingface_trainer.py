"""Hugging Face's Trainer: torchrun --nproc-per-node 2 examples/huggingface_trainer.py.

Only the callback is ours: each process trains its own copy on its own share of the data, after
every step another eighth of the model is averaged, and what is evaluated is the averaged model.
"""

from tempfile import TemporaryDirectory

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from partavg.integrations.huggingface import PartialAveraging

STEPS = 100
TOKENS = 32


def sequences(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Texts that count in threes, 5 8 11 14 …, from any number."""
    starts = torch.randint(TOKENS, (count, 1), generator=torch.Generator().manual_seed(seed))
    texts = (starts + 3 * torch.arange(16)) % TOKENS
    return [{"input_ids": text, "labels": text} for text in texts]


def main() -> None:
    """Train a small language model, and say how good the averaged one is."""
    config = GPT2Config(
        vocab_size=TOKENS, n_positions=16, n_embd=32, n_layer=2, n_head=2,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    with TemporaryDirectory() as folder:
        trainer = Trainer(
            GPT2LMHeadModel(config),
            TrainingArguments(
                folder,
                max_steps=STEPS,
                learning_rate=3e-3,
                per_device_train_batch_size=16,
                report_to=[],
                save_strategy="no",
                use_cpu=True,
            ),
            train_dataset=sequences(2000, seed=1),
            eval_dataset=sequences(200, seed=2),
            callbacks=[PartialAveraging(interval=8)],
        )
        trainer.train()
        loss = trainer.evaluate()["eval_loss"]
    if trainer.is_world_process_zero():
        print(f"{trainer.args.world_size} ranks, loss of the averaged model: {loss:.3f}")


if __name__ == "__main__":
    main()
