"""Sampling and scoring: one policy, any number of answer tokens, no re-tokenisation, loss on answers only."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from rewards import verify
from schemas import rollout
from schemas.vocabulary import IMAGE
from tests.trainer import rl_tiny
from trainer.errors import DataError
from trainer.model.config import VisionConfig
from trainer.model.model import OmniModel
from trainer.rl.engine import Answer, Prompt, PromptEncoder, Sample, pack, sample, score
from trainer.rl.environments import draw_task
from trainer.rl.rollouts import Rollouts, judge_samples, table
from trainer.rl.update import draw_demonstrations, forward_backward


@dataclass
class Scene:
    """A model with prompts and samples of up to three tokens."""

    model: OmniModel
    encoder: PromptEncoder
    prompts: list[Prompt]
    samples: list[Sample]

    def rollouts(self) -> Rollouts:
        """Return the samples judged so that some rewards differ in every group."""
        return judge_samples(
            self.prompts,
            self.samples,
            self.encoder,
            lambda answer, truth: verify.exact(answer[:1] or "a", "a"),
        )


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    tokenizer_path = rl_tiny.write_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    model, encoder = rl_tiny.untrained_model(), PromptEncoder(tokenizer_path, rl_tiny.MODEL)
    prompts = rl_tiny.prompts(encoder)
    with torch.no_grad():  # end token, "a" and "b" get likely: answers differ in length and often repeat
        likely = [encoder.end_id, *(encoder.answer(0, text).ids[0] for text in "ab")]
        usual = model(pack(prompts, [Answer(p, ()) for p in range(4)])).hidden.mean(0)
        model.lm_head.weight[likely] += 4 * usual / usual.square().sum()
    generator = torch.Generator().manual_seed(0)
    samples = sample(
        model, prompts, 12, end_id=encoder.end_id, max_answer_tokens=3, temperature=0.7, generator=generator
    )
    return Scene(model, encoder, prompts, samples)


def test_samples_end_at_the_end_token_or_the_limit(scene: Scene) -> None:
    lengths = [len(s.answer.ids) for s in scene.samples]
    assert len(lengths) == 48 and set(lengths) == {1, 2, 3}
    assert [s.answer.prompt for s in scene.samples] == [p for p in range(4) for _ in range(12)]
    for s in scene.samples:
        ended = [token == scene.encoder.end_id for token in s.answer.ids]
        assert not any(ended[:-1]) and (ended[-1] or len(ended) == 3)


def test_training_scores_are_the_logprobs_of_sampling(scene: Scene) -> None:
    answers = [s.answer for s in scene.samples]
    assert len(set(answers)) < len(answers)
    scores = score(scene.model, scene.prompts, answers, 0.7)
    sampled = torch.tensor([value for s in scene.samples for value in s.logprobs])
    torch.testing.assert_close(scores.logprobs_N.detach(), sampled, rtol=0, atol=1e-5)


def test_an_answer_scores_the_same_alone_and_among_others(scene: Scene) -> None:
    answers = [s.answer for s in scene.samples[:20]]
    together = score(scene.model, scene.prompts, answers, 1.0)
    alone = [score(scene.model, scene.prompts, [answer], 1.0) for answer in answers]
    torch.testing.assert_close(together.logprobs_N, torch.cat([a.logprobs_N for a in alone]))
    torch.testing.assert_close(together.entropy_N, torch.cat([a.entropy_N for a in alone]))


def test_greedy_takes_the_likeliest_token_each_time(scene: Scene) -> None:
    greedy = sample(
        scene.model, scene.prompts, 1, end_id=scene.encoder.end_id, max_answer_tokens=3, temperature=1.0,
        generator=None,
    )  # fmt: skip
    for s in greedy:
        for n, token in enumerate(s.answer.ids):
            inputs = pack(scene.prompts, [Answer(s.answer.prompt, s.answer.ids[:n])])
            assert scene.model.logits(scene.model(inputs).hidden[-1:]).argmax() == token


def test_sampling_follows_the_distribution_at_its_temperature(scene: Scene) -> None:
    prompts = scene.prompts[:1]
    draws = sample(
        scene.model, prompts, 4000, end_id=scene.encoder.end_id, max_answer_tokens=1, temperature=0.5,
        generator=torch.Generator().manual_seed(1),
    )  # fmt: skip
    counts = torch.bincount(torch.tensor([s.answer.ids[0] for s in draws]), minlength=rl_tiny.VOCAB_SIZE)
    inputs = pack(prompts, [Answer(0, ())])
    expected = (scene.model.logits(scene.model(inputs).hidden[-1:])[0] / 0.5).softmax(-1)
    assert (counts / 4000 - expected).abs().max() < 0.03 and expected.max() > 0.1


def test_a_sampled_placeholder_is_a_token_without_picture(scene: Scene) -> None:
    image_id = scene.encoder._tokenizer.token_to_id(IMAGE)
    inputs = pack(scene.prompts, [Answer(0, (image_id, 5))])
    assert (inputs.input_ids == image_id).sum() == inputs.is_placeholder.sum() + 1
    assert torch.isfinite(score(scene.model, scene.prompts, [Answer(0, (image_id, 5))], 1.0).logprobs_N).all()


def test_answers_survive_tokenising(scene: Scene) -> None:
    for text in ("7", "m", " two words"):
        assert scene.encoder.text(scene.encoder.answer(0, text)) == text


def test_the_loss_is_that_of_the_recorded_rows_with_their_mask(scene: Scene) -> None:
    spec = rl_tiny.spec(demonstration_weight=0.0, temperature=0.7)
    rollouts = scene.rollouts()
    rows = table(rollouts, first_group=8, policy_step=3)
    rollout.validate(rows)
    assert sorted(set(rows["group"].to_pylist())) == [8, 9, 10, 11]
    scene.model.zero_grad()
    sums = forward_backward(scene.model, rollouts, [], spec)
    ours = {n: p.grad.clone() for n, p in scene.model.named_parameters() if p.grad is not None}
    scene.model.zero_grad()
    total, num_tokens = torch.zeros(()), 0
    for row, s in zip(rows.to_pylist(), scene.samples, strict=True):
        inputs = pack(scene.prompts, [s.answer])
        assert inputs.input_ids.tolist() == row["input_ids"]
        logprobs = (scene.model.logits(scene.model(inputs).hidden) / 0.7).log_softmax(-1)
        for t in range(1, len(row["input_ids"])):
            if row["loss_mask"][t]:
                value, num_tokens = logprobs[t - 1, row["input_ids"][t]], num_tokens + 1
                weight = (value.detach() - row["logprobs"][t]).exp().clamp(max=spec.ratio_max)
                total = total - weight * row["advantage"] * value
    (total / num_tokens).backward()
    assert sums["loss"] == pytest.approx((total / num_tokens).item(), abs=1e-6)
    assert any(row["advantage"] for row in rows.to_pylist())
    for name, gradient in ours.items():
        expected = dict(scene.model.named_parameters())[name].grad
        torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("micro_prompts", [1, 3])
def test_micro_batches_change_neither_loss_nor_gradient(scene: Scene, micro_prompts: int) -> None:
    rollouts = scene.rollouts()
    results = []
    for micro in (None, micro_prompts):
        spec = rl_tiny.spec(micro_prompts=micro, temperature=0.7, max_answer_tokens=3)
        shown = draw_demonstrations(scene.encoder, scene.prompts, spec, 2, 0)
        scene.model.zero_grad()
        sums = forward_backward(scene.model, rollouts, shown, spec)
        gradients = [p.grad.clone() for p in scene.model.parameters() if p.grad is not None]
        results.append((sums, gradients))
    (whole, whole_gradients), (parts, part_gradients) = results
    assert parts == pytest.approx(whole, abs=1e-5)
    for whole_gradient, part_gradient in zip(whole_gradients, part_gradients, strict=True):
        torch.testing.assert_close(part_gradient, whole_gradient, rtol=1e-3, atol=1e-6)


def test_a_picture_is_enlarged_to_whole_tokens_of_the_model(scene: Scene, tmp_path: Path) -> None:
    vision = VisionConfig(hidden_size=24, num_heads=2, patch_size=14)
    encoder = PromptEncoder(
        rl_tiny.write_tokenizer(tmp_path), rl_tiny.MODEL.model_copy(update={"vision": vision})
    )
    prompt = encoder.prompt(draw_task("count", "train", 1, 0))
    assert prompt.grid == (1, 4, 4) and sum(prompt.is_placeholder) == 4


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    path = rl_tiny.write_tokenizer(tmp_path)
    with pytest.raises(DataError, match=r"tokens, the model 100"):
        PromptEncoder(path, rl_tiny.MODEL.model_copy(update={"vocab_size": 100}))
