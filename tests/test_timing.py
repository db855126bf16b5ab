import pytest
import torch
from scipy import stats

from tests.helpers import FALSE_ALARM, chi_square, generator
from unmask.timing import AdaptiveCount, count, independent, stratified, vdm


@pytest.mark.parametrize("times", [independent, vdm, stratified])
def test_every_time_is_uniform_by_itself(times):
    """Over many batches each index of the batch is U(0, 1). False alarm 1e-6 over 3 indices."""
    g = generator(0)
    drawn = torch.stack([times(8, g) for _ in range(4000)])
    for i in (0, 3, 7):
        index = torch.randint(8, (4000,), generator=g) if times is stratified else torch.full((4000,), i)
        values = drawn.gather(1, index.unsqueeze(1)).squeeze(1)
        assert stats.kstest(values.numpy(), "uniform").pvalue > FALSE_ALARM / 3
    assert drawn.dtype == torch.float64
    assert bool(((drawn >= 0) & (drawn < 1)).all())


def test_vdm_is_an_evenly_spaced_comb():
    t = vdm(16, generator(1)).sort().values
    torch.testing.assert_close(t.diff(), torch.full((15,), 1 / 16, dtype=torch.float64))


def test_stratified_has_one_time_in_each_bin():
    assert (stratified(16, generator(2)) * 16).floor().tolist() == list(range(16))


def test_count_covers_1_to_L_uniformly():
    """n = ceil(L t) for uniform t. False alarm 1e-6."""
    n = count(independent(20_000, generator(3)), 7)
    assert chi_square(torch.bincount(n, minlength=8), torch.tensor([0] + [1 / 7] * 7)) > FALSE_ALARM
    assert count(torch.tensor([0.0, 1.0, 1e-300]), 7).tolist() == [1, 7, 1]


def test_stratified_counts_cover_each_n_equally():
    assert count(stratified(14, generator(4)), 7).bincount(minlength=8).tolist() == [0] + [2] * 7


def test_a_process_takes_its_share_of_the_global_batch():
    whole = stratified(8, generator(5))
    shares = [stratified(8, generator(5))[rank::2] for rank in range(2)]
    assert torch.equal(torch.stack(shares, 1).flatten(), whole)


class TestAdaptiveCount:
    def filled(self, scale) -> AdaptiveCount:
        adaptive = AdaptiveCount(4)
        for _ in range(10):
            adaptive.update(torch.arange(1, 5), scale)
        return adaptive

    def test_uniform_until_every_n_has_ten_values(self):
        adaptive = AdaptiveCount(4)
        for _ in range(9):
            adaptive.update(torch.arange(1, 5), torch.tensor([1.0, 2, 3, 4]))
        assert adaptive.probabilities().tolist() == [0.25] * 4
        adaptive.update(torch.tensor([1, 2, 3]), torch.tensor([1.0, 2, 3]))
        assert adaptive.probabilities().tolist() == [0.25] * 4

    def test_then_proportional_to_the_root_of_the_mean_square(self):
        adaptive = self.filled(torch.tensor([1.0, 2, 3, 4]))
        torch.testing.assert_close(adaptive.probabilities(), torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64))

    def test_old_values_are_forgotten(self):
        adaptive = self.filled(torch.tensor([9.0, 9, 9, 1]))
        for _ in range(10):
            adaptive.update(torch.arange(1, 5), torch.ones(4))
        assert adaptive.probabilities().tolist() == [0.25] * 4

    def test_the_weights_make_any_average_unbiased(self):
        """E[w f(n)] = mean of f exactly: sum_n p_n w_n f(n), with w read off the draws."""
        adaptive = self.filled(torch.tensor([1.0, 2, 3, 4]))
        n, weight = adaptive.draw(4000, generator(6))
        f = torch.tensor([5.0, -1, 2, 7], dtype=torch.float64)
        by_n = {k: weight[n == k][0] for k in range(1, 5)}
        p = adaptive.probabilities()
        assert float(sum(p[k - 1] * by_n[k] * f[k - 1] for k in by_n)) == pytest.approx(float(f.mean()), rel=1e-12)
        assert chi_square(torch.bincount(n, minlength=5)[1:], p) > FALSE_ALARM

    def test_state_survives_a_round_trip(self):
        adaptive, other = self.filled(torch.tensor([1.0, 2, 3, 4])), AdaptiveCount(4)
        other.load_state_dict(adaptive.state_dict())
        assert torch.equal(other.probabilities(), adaptive.probabilities())
        with pytest.raises(ValueError, match="history"):
            AdaptiveCount(5).load_state_dict(adaptive.state_dict())


def test_bad_sizes_are_named():
    with pytest.raises(ValueError, match="batch size"):
        stratified(0, generator(0))
    with pytest.raises(ValueError, match="length"):
        count(torch.tensor([0.5]), 0)
    with pytest.raises(ValueError, match="length"):
        AdaptiveCount(0)
