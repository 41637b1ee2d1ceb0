"""Answers sampled from the model, and log-probabilities of answers for the trainer.

Owns prompts as tokens, packing, sampling and scoring; both go through the same forward pass. Does not know
rewards or losses. Token in, token out: what was sampled is trained on as it is, never decoded and encoded
again. Answers are a few tokens, so there is no key-value cache; a prompt with the same answer so far runs
once, however many samples share it.

Dimensions: N answer tokens of all samples, in order; U different (prompt, answer) pairs; V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor

from schemas import vocabulary
from trainer.batches import patchify
from trainer.errors import DataError
from trainer.model.config import ModelConfig
from trainer.model.model import ModelInputs, OmniModel
from trainer.rl.environments import Task


@dataclass(frozen=True)
class Prompt:
    """A task as the model sees it: one picture, then the question."""

    task: Task
    input_ids: tuple[int, ...]
    is_placeholder: tuple[bool, ...]
    patches: Tensor
    grid: tuple[int, int, int]


@dataclass(frozen=True)
class Answer:
    """Tokens that follow prompt number `prompt` of a list; the end token is one of them."""

    prompt: int
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Sample:
    """A sampled answer and the log-probability each token had when it was drawn."""

    answer: Answer
    logprobs: tuple[float, ...]


@dataclass(frozen=True)
class TokenScores:
    """Log-probability of each answer token and entropy of the distribution it is from, in nats [N]."""

    logprobs_N: Tensor
    entropy_N: Tensor


class PromptEncoder:
    """Turns tasks into prompts and answers into tokens and back.

    Raises:
        DataError: the tokenizer has more tokens than the model, or lacks a special one.
    """

    def __init__(self, tokenizer_path: str, config: ModelConfig) -> None:
        self._tokenizer = Tokenizer.from_file(tokenizer_path)
        self._vision = config.vision
        vocab_size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        if vocab_size > config.vocab_size:
            raise DataError(f"{tokenizer_path} has {vocab_size} tokens, the model {config.vocab_size}")
        self._begin, self._start_of_image, self._image, self._end_of_image, self.end_id = (
            self._special(token, tokenizer_path)
            for token in (
                vocabulary.BEGIN_OF_DOCUMENT,
                vocabulary.START_OF_IMAGE,
                vocabulary.IMAGE,
                vocabulary.END_OF_IMAGE,
                vocabulary.END_OF_DOCUMENT,
            )
        )

    def prompt(self, task: Task) -> Prompt:
        """Return the prompt of a task: begin of document, picture (enlarged to whole tokens), question."""
        vision = self._vision
        unit = vision.patch_size * vision.merge_size
        size = [-(-side // unit) * unit for side in task.picture.size]
        pixels = np.asarray(task.picture.resize((size[0], size[1]), Image.Resampling.BICUBIC))
        patches, grid = patchify(
            pixels[None], vision.patch_size, vision.temporal_patch_size, vision.merge_size
        )
        num_placeholders = len(patches) // vision.merge_size**2
        question = self._encode(f"\n\n{task.prompt}\n")
        before = (self._begin, self._start_of_image)
        after = (self._end_of_image, *question)
        return Prompt(
            task,
            (*before, *[self._image] * num_placeholders, *after),
            (*[False] * len(before), *[True] * num_placeholders, *[False] * len(after)),
            torch.from_numpy(patches),
            grid,
        )

    def answer(self, prompt: int, text: str) -> Answer:
        """Return `text` as the answer to prompt number `prompt`, with its end token."""
        return Answer(prompt, (*self._encode(text), self.end_id))

    def text(self, answer: Answer) -> str:
        """Return what an answer says, without the end token; other special tokens stay visible."""
        return self._tokenizer.decode([i for i in answer.ids if i != self.end_id], skip_special_tokens=False)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def _special(self, token: str, tokenizer_path: str) -> int:
        found = self._tokenizer.token_to_id(token)
        if found is None:
            raise DataError(f"{tokenizer_path} has no token {token!r}")
        return found


def pack(prompts: Sequence[Prompt], answers: Sequence[Answer]) -> ModelInputs:
    """Return one packed document for each answer: its prompt, then its tokens.

    Only the prompt's own placeholders take picture features: a placeholder that was sampled is a token like
    others.
    """
    chosen = [prompts[answer.prompt] for answer in answers]
    ids = [[*prompt.input_ids, *answer.ids] for prompt, answer in zip(chosen, answers, strict=True)]
    flags = [
        [*prompt.is_placeholder, *[False] * len(answer.ids)]
        for prompt, answer in zip(chosen, answers, strict=True)
    ]
    lengths = [len(document) for document in ids]
    return ModelInputs(
        input_ids=torch.tensor([i for document in ids for i in document]),
        positions=torch.cat([torch.arange(length) for length in lengths]),
        cu_seqlens=torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32),
        patches=torch.cat([prompt.patches for prompt in chosen]),
        grids=torch.tensor([prompt.grid for prompt in chosen]),
        is_placeholder=torch.tensor([flag for document in flags for flag in document]),
    )


def score(
    model: OmniModel, prompts: Sequence[Prompt], answers: Sequence[Answer], temperature: float
) -> TokenScores:
    """Return log-probabilities and entropies of answer tokens, with gradient, at the sampling temperature.

    The last token of an answer is predicted, not read, so answers to one prompt that differ in it alone run
    once; one token answers all share their prompt's pass.
    """
    read = [Answer(answer.prompt, answer.ids[:-1]) for answer in answers]
    unique = list(dict.fromkeys(read))
    inputs = pack(prompts, unique)
    ends = inputs.cu_seqlens[1:].tolist()
    positions = torch.cat(
        [torch.arange(end - len(r.ids) - 1, end) for end, r in zip(ends, unique, strict=True)]
    )
    logprobs_MV = _logprobs(model, inputs, positions, temperature)
    first = dict(zip(unique, np.cumsum([0, *(len(r.ids) + 1 for r in unique)]).tolist(), strict=False))
    index_N = torch.cat([torch.arange(first[r], first[r] + len(r.ids) + 1) for r in read])
    tokens_N = torch.tensor([token for answer in answers for token in answer.ids])
    entropy_M = -(logprobs_MV.exp() * logprobs_MV).sum(-1)
    return TokenScores(logprobs_MV[index_N, tokens_N], entropy_M[index_N])


@torch.no_grad()
def sample(
    model: OmniModel,
    prompts: Sequence[Prompt],
    samples_per_prompt: int,
    *,
    end_id: int,
    max_answer_tokens: int,
    temperature: float,
    generator: torch.Generator | None,
) -> list[Sample]:
    """Return samples in prompt order, each up to its end token or `max_answer_tokens`.

    Without a generator the likeliest token is taken each time (greedy).
    """
    answers = [Answer(prompt, ()) for prompt in range(len(prompts)) for _ in range(samples_per_prompt)]
    logprobs: list[tuple[float, ...]] = [() for _ in answers]
    growing = list(range(len(answers)))
    for _ in range(max_answer_tokens):
        sharing: dict[Answer, list[int]] = {}
        for i in growing:
            sharing.setdefault(answers[i], []).append(i)
        inputs = pack(prompts, list(sharing))
        logprobs_UV = _logprobs(model, inputs, inputs.cu_seqlens[1:].long() - 1, temperature).cpu()
        drawn_US = _draw(logprobs_UV, max(map(len, sharing.values())), generator)
        values_US = logprobs_UV.gather(1, drawn_US).tolist()
        for read, members, tokens, values in zip(
            sharing, sharing.values(), drawn_US.tolist(), values_US, strict=True
        ):
            for i, token, value in zip(members, tokens, values, strict=False):
                answers[i] = Answer(read.prompt, (*read.ids, token))
                logprobs[i] = (*logprobs[i], value)
        growing = [i for i in growing if answers[i].ids[-1] != end_id]
        if not growing:
            break
    return [Sample(answer, values) for answer, values in zip(answers, logprobs, strict=True)]


def _draw(logprobs_UV: Tensor, num_draws: int, generator: torch.Generator | None) -> Tensor:
    """Return independent draws from each row [U, draws]; always its likeliest token without a generator."""
    if generator is None:
        return logprobs_UV.argmax(-1, keepdim=True).expand(-1, num_draws)
    return torch.multinomial(logprobs_UV.exp(), num_draws, replacement=True, generator=generator)


def _logprobs(model: OmniModel, inputs: ModelInputs, positions: Tensor, temperature: float) -> Tensor:
    """Return log-probabilities of the token after each of the positions, on the model's device."""
    device = model.lm_head.weight.device
    hidden = model(inputs.to(device)).hidden[positions.to(device)]
    return (model.logits(hidden) / temperature).log_softmax(-1)
