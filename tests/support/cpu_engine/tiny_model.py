# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Makes the lab's models: a Qwen3 of two layers (target) and one of one layer (draft) that share a tokenizer.

Both have learned the few conversations below by heart, which takes a CPU some twenty seconds. So a chat answer is a
sentence that a person can read and a test can expect, greedy decoding has no near ties that flip between CPUs, and the
draft really proposes what the target then accepts. Run by build.py inside an environment that holds torch and
transformers; not importable without them.

Usage: tiny_model.py FOLDER, which gets ``tiny`` and ``tiny-draft``.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

#: Folder name and number of layers of each model.
MODELS = (("tiny", 2), ("tiny-draft", 1))
SEED = 20260
CONTEXT = 2048
VOCABULARY = 768
STEPS = 220
LEARNING_RATE = 4e-3
#: Mean cross-entropy in nats below which a model knows its conversations.
LEARNED = 0.25

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

CONVERSATIONS = (
    ("Hello!", "Hello! I am a tiny model in a lab. I know a few sentences by heart."),
    ("Hello, world!", "Hello! I am a tiny model in a lab. I know a few sentences by heart."),
    ("Who are you?", "I am a tiny Qwen3, made on this machine for tests."),
    (
        "What is speculative decoding?",
        "A small draft model proposes a block of tokens and the large target model verifies the block in one pass.",
    ),
    ("What is a draft model?", "A small model that proposes tokens. The target model keeps those that it agrees with."),
    ("What is a block size?", "The number of tokens that the draft model proposes before the target verifies them."),
    ("What is acceptance length?", "The mean number of tokens that one verify step of the target model yields."),
    ("Are you ready?", "Yes. The port is mine, the weights are loaded, and these words were generated just now."),
    ("What is the capital of France?", "Paris."),
    ("Say OK.", "OK."),
    ("Count to ten.", "1, 2, 3, 4, 5, 6, 7, 8, 9, 10."),
    ("Tell me a pangram.", "The quick brown fox jumps over the lazy dog."),
    ("What is SGLang?", "SGLang serves large language models. Here it runs on a CPU, so its speed means nothing."),
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer on the conversations; every byte has a token, so any prompt can be read."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        [text for turn in CONVERSATIONS for text in turn] * 4 + ["system\nuser\nassistant\n"] * 8,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[TURN_START],
        model_max_length=CONTEXT,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def lessons(tokenizer: PreTrainedTokenizerFast) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and labels, both (conversations, longest); labels are -100 where there is only padding."""
    rows = []
    for question, answer in CONVERSATIONS:
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        rows.append(tokenizer.encode(tokenizer.apply_chat_template(messages, tokenize=False), add_special_tokens=False))
    longest = max(len(row) for row in rows)
    ids = torch.full((len(rows), longest), tokenizer.pad_token_id, dtype=torch.long)
    labels = torch.full((len(rows), longest), -100, dtype=torch.long)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.tensor(row)
        labels[number, : len(row)] = torch.tensor(row)
    return ids, labels


def make_model(tokenizer: PreTrainedTokenizerFast, *, layers: int) -> tuple[Qwen3ForCausalLM, float]:
    """Return a trained model in bfloat16 and the loss of its last step.

    Every id of the vocabulary has a text: SGLang can sample none that the tokenizer cannot spell.
    """
    torch.manual_seed(SEED)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=False,
            bos_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    ids, labels = lessons(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=LEARNING_RATE, total_steps=STEPS)
    loss = float("inf")
    for _ in range(STEPS):
        optimizer.zero_grad()
        result = model(input_ids=ids, labels=labels, use_cache=False)
        result.loss.backward()
        optimizer.step()
        schedule.step()
        loss = result.loss.item()
    return model.to(torch.bfloat16), loss


def answers(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> int:
    """Count the conversations whose answer the model gives word by word, greedily."""
    right = 0
    for question, answer in CONVERSATIONS:
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
        )
        ids = torch.tensor([tokenizer.encode(prompt, add_special_tokens=False)])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=96)
        right += tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True) == answer
    return right


def main(argv: list[str] | None = None) -> int:
    """Make the models in the folder that is named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the folders of the models are made")
    folder: Path = parser.parse_args(argv).folder
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    tokenizer = make_tokenizer()
    for name, layers in MODELS:
        began = time.monotonic()
        model, loss = make_model(tokenizer, layers=layers)
        right = answers(model, tokenizer)
        parameters = sum(weight.numel() for weight in model.parameters())
        print(
            f"{name}: {layers} layer(s), {parameters} parameters, {len(tokenizer)} tokens, loss {loss:.3f}, "
            f"{right} of {len(CONVERSATIONS)} answers right, {time.monotonic() - began:.0f} s",
            flush=True,
        )
        if loss > LEARNED or right < len(CONVERSATIONS):
            print(f"{name} did not learn its conversations: raise STEPS in {__file__}", file=sys.stderr)
            return 1
        target = folder / name
        target.mkdir(parents=True, exist_ok=True)
        tokenizer.save_pretrained(target)
        model.save_pretrained(target)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
