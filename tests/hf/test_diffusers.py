"""The scheduler and the pipeline for diffusers: its conventions, as its own tests of discrete schedulers check them."""

import pytest
import torch

import unmask
import unmask.hf
from tests.helpers import oracle
from tests.hf.test_hf import tiny_bert
from unmask.names import PREDICTORS

pytest.importorskip("diffusers", reason="diffusers is an extra: pip install 'unmask[diffusers]'")

from unmask.hf.diffusers import FirstHittingPipeline, FirstHittingScheduler, FirstHittingSchedulerOutput

MASK = 5


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def run(scheduler, model, sample, generator):
    for t in scheduler.timesteps:
        sample = scheduler.step(model(sample, None), t, sample, generator=generator).prev_sample
    return sample


class TestScheduler:
    def test_timesteps_are_counted(self):
        scheduler = FirstHittingScheduler(mask_token_id=MASK)
        assert scheduler.order == 1 and len(scheduler.timesteps) == scheduler.config.num_inference_steps == 32
        scheduler.set_timesteps(8)
        assert scheduler.num_inference_steps == 8 and scheduler.timesteps.tolist() == list(range(8))
        with pytest.raises(ValueError, match="must be > 0"):
            scheduler.set_timesteps(0)
        with pytest.raises(ValueError, match="must see how many are masked"):
            scheduler.set_timesteps(None)
        scheduler.set_timesteps(None, sample=torch.tensor([[MASK, 1, 2], [MASK, 1, MASK]]))
        assert len(scheduler.timesteps) == 2

    def test_it_is_saved_and_loaded(self, tmp_path):
        scheduler = FirstHittingScheduler(
            mask_token_id=MASK, special_token_ids=[0, 1], top_k=3, predictor="extrapolate"
        )
        scheduler.save_pretrained(tmp_path)
        again = FirstHittingScheduler.from_pretrained(tmp_path)
        kept = [{k: v for k, v in one.config.items() if not k.startswith("_")} for one in (scheduler, again)]
        assert kept[0] == kept[1] and kept[1]["special_token_ids"] == [0, 1] and kept[1]["top_k"] == 3
        changed = FirstHittingScheduler.from_config(scheduler.config, temperature=0.5)
        assert changed.config.temperature == 0.5 and changed.config.top_k == 3
        sample, logits = torch.full((4, 6), MASK), torch.randn(4, 6, MASK, generator=seeded())
        for one in (scheduler, again):
            one.set_timesteps(3)
        steps = [one.step(logits, 0, sample, generator=seeded(1)).prev_sample for one in (scheduler, again)]
        assert torch.equal(*steps) and not bool(torch.isin(steps[0], torch.tensor([0, 1])).any())

    def test_output_and_tuple_are_the_same(self):
        scheduler, logits = FirstHittingScheduler(mask_token_id=MASK), torch.randn(3, 7, MASK, generator=seeded())
        sample = torch.full((3, 7), MASK)
        sample[:, 0] = 2
        scheduler.set_timesteps(2)
        found = scheduler.step(logits, 0, sample, generator=seeded(1))
        plain = scheduler.step(logits, torch.tensor(0), sample, generator=seeded(1), return_dict=False)
        assert isinstance(found, FirstHittingSchedulerOutput)
        assert all(torch.equal(a, b) for a, b in zip(found.to_tuple(), plain, strict=True))
        assert torch.equal(found.transfer_index, found.prev_sample != sample) and found.transfer_index.any()
        assert not bool(found.transfer_index[:, 0].any())  # what was visible stays
        expected = logits.softmax(-1).gather(2, found.prev_sample.clamp(max=4).unsqueeze(2)).squeeze(2)
        assert torch.allclose(found.sampled_probs, torch.where(found.transfer_index, expected, 0.0))
        assert torch.equal(found.pred_logits, logits) and bool((sample[:, 1:] == MASK).all())

    @pytest.mark.parametrize("steps", [None, 1, 3, 8])
    @pytest.mark.parametrize("predictor", PREDICTORS)
    def test_its_tokens_are_those_of_unmask_sample(self, steps, predictor):
        """The seed from the generator is the sampler's: the tokens are the same, so the distribution is."""
        model = oracle(3, 5)
        sample = torch.full((40, 5), model.mask_id)
        sample[::3, 1], sample[::4, 4] = 2, 0
        seed = int(torch.randint(2**62, (), generator=seeded(7)))
        plan = unmask.plan.first_hitting if steps is None else unmask.plan.parallel
        how = {"predict": PREDICTORS[predictor], "temperature": 0.9}
        expected = unmask.sample(model, canvas=sample, plan=plan, steps=steps, seed=seed, **how).tokens
        scheduler = unmask.hf.Scheduler(mask_token_id=model.mask_id, predictor=predictor, temperature=0.9)
        assert type(scheduler) is FirstHittingScheduler
        scheduler.set_timesteps(steps, sample=sample)
        assert torch.equal(run(scheduler, model, sample, seeded(7)), expected)
        assert bool((sample[1] == model.mask_id).all())  # what was given is not changed

    def test_special_ids_and_the_mask_are_not_drawn(self):
        scheduler = FirstHittingScheduler(mask_token_id=MASK, special_token_ids=[0, 4])
        scheduler.set_timesteps(1)
        made = scheduler.step(torch.zeros(200, 3, 6), 0, torch.full((200, 3), MASK), generator=seeded())
        assert set(made.prev_sample.flatten().tolist()) == {1, 2, 3}

    def test_every_mask_is_filled_and_generators_repeat(self):
        model, scheduler = oracle(3, 4), FirstHittingScheduler(mask_token_id=3)
        sample = torch.full((20, 4), 3)
        made = []
        for seed in (1, 1, 2):
            scheduler.set_timesteps(16)  # more steps than tokens
            made.append(run(scheduler, model, sample, seeded(seed)))
        assert torch.equal(made[0], made[1]) and not torch.equal(made[0], made[2])
        assert not bool((made[0] == 3).any())

    def test_steps_are_taken_in_turn(self):
        scheduler, sample, logits = (
            FirstHittingScheduler(mask_token_id=MASK),
            torch.full((2, 4), MASK),
            torch.zeros(2, 4, MASK),
        )
        scheduler.set_timesteps(2)
        with pytest.raises(ValueError, match="begin with timestep 0"):
            scheduler.step(logits, 1, sample)
        with pytest.raises(ValueError, match=r"got \(2, 3, 5\) and \(2, 4\)"):
            scheduler.step(logits[:, :3], 0, sample)
        sample = scheduler.step(logits, 0, sample, generator=seeded()).prev_sample
        for wrong in (5, 2):
            with pytest.raises(ValueError, match=f"timestep={wrong}: the next step is 1 of 2"):
                scheduler.step(logits, wrong, sample)
        with pytest.raises(ValueError, match="predictor must be one of"):
            FirstHittingScheduler(mask_token_id=MASK, predictor="best")

    def test_add_noise_masks_by_the_time(self):
        scheduler, x = FirstHittingScheduler(mask_token_id=MASK), torch.zeros(3, 4000, dtype=torch.long)
        noisy = scheduler.add_noise(x, torch.tensor([0.0, 0.3, 1.0]), generator=seeded())
        share = (noisy == MASK).double().mean(1)
        assert share[0] == 0 and share[2] == 1
        assert abs(share[1] - 0.3) < 4.9 * (0.3 * 0.7 / 4000) ** 0.5  # false alarms: 1e-6
        with pytest.raises(ValueError, match="times from 0"):
            scheduler.add_noise(x, torch.tensor(1.5))


class TestPipeline:
    @pytest.fixture(scope="class")
    def pipe(self):
        model, tokenizer = tiny_bert()
        scheduler = FirstHittingScheduler(
            mask_token_id=tokenizer.mask_token_id, special_token_ids=tokenizer.all_special_ids
        )
        made = FirstHittingPipeline(model.eval(), scheduler, tokenizer)
        made.set_progress_bar_config(disable=True)
        return made

    def test_it_is_saved_loaded_and_gives_the_same_texts(self, pipe, tmp_path):
        texts = ["w1 [MASK] w3 [MASK]", "[MASK] w2"]
        before = pipe(texts, generator=seeded(3))
        pipe.save_pretrained(tmp_path)
        again = FirstHittingPipeline.from_pretrained(tmp_path)
        again.set_progress_bar_config(disable=True)
        assert type(again.scheduler) is FirstHittingScheduler
        after = again(texts, generator=seeded(3))
        assert before.texts == after.texts and torch.equal(before.sequences, after.sequences)
        assert before.texts[0].startswith("w1 ") and "[MASK]" not in before.texts[1]

    def test_steps_callbacks_and_ids(self, pipe):
        seen = []
        ids, texts = pipe(
            "[MASK] [MASK] [MASK] w1",
            num_inference_steps=2,
            generator=seeded(),
            output_type="seq",
            return_dict=False,
            callback_on_step_end=lambda _pipe, i, t, kwargs: seen.append((i, kwargs["x"].clone())),
        )
        assert texts is None and [i for i, _ in seen] == [0, 1] and torch.equal(seen[-1][1], ids)

    def test_what_is_wrong_is_said(self, pipe):
        with pytest.raises(ValueError, match=r"the text has no \[MASK\]"):
            pipe("w1 w2")
        with pytest.raises(ValueError, match="output_type"):
            pipe("[MASK]", output_type="pt")
