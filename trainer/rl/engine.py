"""Answers sampled from the model, and log-probabilities of answers for the trainer.

Owns prompts as tokens, packing, sampling and scoring; both go through the same forward pass. Does not know rewards or
losses. Token in, token out: what was sampled is trained on as it is, never decoded and encoded again. Answers are a few
tokens, so there is no key-value cache; a prompt with the same answer so far runs once, however many samples share it.

Dimensions: N answer tokens of all samples, in order; U different (prompt, answer) pairs; V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from schemas import vocabulary
from trainer.batches import patchify
from trainer.errors import DataError
from trainer.model.config import VisionConfig
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
        DataError: the tokenizer lacks a special token.
    """

    def __init__(self, tokenizer_path: str, vision: VisionConfig) -> None:
        self._tokenizer = Tokenizer.from_file(tokenizer_path)
        self._vision = vision
        self.vocab_size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self._begin, self._start_of_image, self._image, self._end_of_image, self.end_id = (
            self._special(token, tokenizer_path) for token in
            (vocabulary.BEGIN_OF_DOCUMENT, vocabulary.START_OF_IMAGE, vocabulary.IMAGE, vocabulary.END_OF_IMAGE,
             vocabulary.END_OF_DOCUMENT))

    def prompt(self, task: Task) -> Prompt:
        """Return the prompt of a task: begin of document, picture, question."""
        vision = self._vision
        patches, grid = patchify(np.asarray(task.picture)[None], vision.patch_size, vision.temporal_patch_size,
                                 vision.merge_size)
        num_placeholders = len(patches) // vision.merge_size ** 2
        question = self._encode("\n\n" + task.prompt)
        before = (self._begin, self._start_of_image)
        after = (self._end_of_image, *question)
        return Prompt(
            task, (*before, *[self._image] * num_placeholders, *after),
            (*[False] * len(before), *[True] * num_placeholders, *[False] * len(after)), torch.from_numpy(patches), grid)

    def answer(self, prompt: int, text: str) -> Answer:
        """Return `text` as the answer to prompt number `prompt`, with its end token."""
        return Answer(prompt, (*self._encode(f" {text}"), self.end_id))

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

    Only the prompt's own placeholders take picture features: a placeholder id that was sampled is a token like others.
    """
    chosen = [prompts[answer.prompt] for answer in answers]
    ids = [[*prompt.input_ids, *answer.ids] for prompt, answer in zip(chosen, answers, strict=True)]
    flags = [[*prompt.is_placeholder, *[False] * len(answer.ids)] for prompt, answer in zip(chosen, answers, strict=True)]
    lengths = [len(document) for document in ids]
    return ModelInputs(
        input_ids=torch.tensor([i for document in ids for i in document]),
        positions=torch.cat([torch.arange(length) for length in lengths]),
        cu_seqlens=torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32),
        patches=torch.cat([prompt.patches for prompt in chosen]),
        grids=torch.tensor([prompt.grid for prompt in chosen]),
        is_placeholder=torch.tensor([flag for document in flags for flag in document]))


def score(model: OmniModel, prompts: Sequence[Prompt], answers: Sequence[Answer], temperature: float) -> TokenScores:
    """Return log-probabilities and entropies of all answer tokens, with gradient, at the sampling temperature.

    Equal answers to one prompt run once and share their entries.
    """
    unique = list(dict.fromkeys(answers))
    inputs = pack(prompts, unique)
    ends = inputs.cu_seqlens[1:].tolist()
    positions = torch.cat([torch.arange(end - len(a.ids), end) - 1 for end, a in zip(ends, unique, strict=True)])
    logprobs_MV = _logprobs(model, inputs, positions, temperature)
    tokens_M = inputs.input_ids[positions + 1]
    first = dict(zip(unique, np.cumsum([0, *(len(a.ids) for a in unique)]).tolist(), strict=False))
    index_N = torch.cat([torch.arange(first[a], first[a] + len(a.ids)) for a in answers])
    logprobs_M = logprobs_MV.gather(1, tokens_M[:, None])[:, 0]
    entropy_M = -(logprobs_MV.exp() * logprobs_MV).sum(-1)
    return TokenScores(logprobs_M[index_N], entropy_M[index_N])


@torch.no_grad()
def sample(model: OmniModel, prompts: Sequence[Prompt], samples_per_prompt: int, *, end_id: int, max_answer_tokens: int,
           temperature: float, generator: torch.Generator | None) -> list[Sample]:
    """Return samples in prompt order, each up to its end token or `max_answer_tokens`.

    Without a generator the likeliest token is taken each time (greedy).
    """
    answers = [Answer(prompt, ()) for prompt in range(len(prompts)) for _ in range(samples_per_prompt)]
    logprobs: list[tuple[float, ...]] = [() for _ in answers]
    growing = list(range(len(answers)))
    for _ in range(max_answer_tokens):
        unique = list(dict.fromkeys(answers[i] for i in growing))
        inputs = pack(prompts, unique)
        logprobs_UV = _logprobs(model, inputs, inputs.cu_seqlens[1:].long() - 1, temperature)
        row = {answer: number for number, answer in enumerate(unique)}
        logprobs_GV = logprobs_UV[[row[answers[i]] for i in growing]]
        tokens = (logprobs_GV.argmax(-1) if generator is None else
                  torch.multinomial(logprobs_GV.exp(), 1, generator=generator)[:, 0]).tolist()
        for number, (i, token) in enumerate(zip(growing, tokens, strict=True)):
            answers[i] = Answer(answers[i].prompt, (*answers[i].ids, token))
            logprobs[i] = (*logprobs[i], float(logprobs_GV[number, token]))
        growing = [i for i in growing if answers[i].ids[-1] != end_id]
        if not growing:
            break
    return [Sample(answer, values) for answer, values in zip(answers, logprobs, strict=True)]


def _logprobs(model: OmniModel, inputs: ModelInputs, positions: Tensor, temperature: float) -> Tensor:
    """Return log-probabilities of the token after each of the positions."""
    return (model.logits(model(inputs).hidden[positions]) / temperature).log_softmax(-1)
