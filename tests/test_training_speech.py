"""Training of speech with frames that are as far off as the model's own."""

import torch

from tools.training.speech.batches import NEAR_SPREAD, with_near_codes
from tools.training.speech.losses import mean_acoustic_loss
from tools.training.speech.model import SpeechModel, trained_config
from voxport.bundle.constants.voxtral_tts import FIRST_CODE

TOP = 20


def test_near_codes_keep_the_semantic_code_and_what_is_no_frame() -> None:
    codes = torch.full((4, 50, 25), FIRST_CODE + TOP // 2)
    is_frame = torch.arange(50).expand(4, 50) >= 25
    found = with_near_codes(codes, is_frame, TOP, torch.Generator().manual_seed(0))
    assert torch.equal(found[..., 0], codes[..., 0]) and torch.equal(found[:, :25], codes[:, :25])
    moved = (found - codes)[:, 25:, 1:].float()
    assert 0.1 * TOP / 2 < moved.std() < NEAR_SPREAD * TOP / 2
    assert found[:, 25:, 1:].min() >= FIRST_CODE and found[:, 25:, 1:].max() <= FIRST_CODE + TOP


def test_the_paths_of_a_mean_lead_to_it_from_any_noise() -> None:
    """With values that no condition explains, the loss falls to their variance, and samples to their mean."""
    torch.manual_seed(0)
    model = SpeechModel(trained_config())
    head = model.weights.acoustic_transformer
    optimiser, noise = torch.optim.Adam(head.parameters(), 1e-3), torch.Generator().manual_seed(0)
    hidden = torch.zeros(256, model.config.dim)
    for _ in range(60):
        levels = torch.sign(torch.randn(256, 24, generator=noise)) * 0.6
        optimiser.zero_grad()
        loss = mean_acoustic_loss(model, levels, hidden, noise)
        loss.backward()
        optimiser.step()
    start = torch.randn(256, 24, generator=noise)
    reached = start + model.velocity(start, torch.zeros(256), hidden)
    assert float(loss) < 0.6 and float(reached.square().mean()) < 0.3
