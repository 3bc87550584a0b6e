"""The speaker encoder: a mel spectrogram to a vector (ECAPA-TDNN)."""

import torch
import torch.nn.functional as F
from torch import nn

from voxport.model.layers.basic import conv_of, module_dict
from voxport.model.qwen3_tts.config import SpeakerEncoderConfig


def _tdnn_weights(width: int, next_width: int, kernel: int = 1, dilation: int = 1) -> nn.ModuleDict:
    return module_dict(conv=nn.Conv1d(width, next_width, kernel, dilation=dilation))


class SpeakerEncoderWeights(nn.Module):
    """All `speaker_encoder.*` tensors."""

    def __init__(self, config: SpeakerEncoderConfig):
        super().__init__()
        channels, scale = config.enc_channels, config.enc_res2net_scale
        kernels, dilations = config.enc_kernel_sizes, config.enc_dilations
        blocks: list[nn.Module] = [_tdnn_weights(config.mel_dim, channels[0], kernels[0], dilations[0])]
        for index in range(1, len(channels) - 1):
            width, part = channels[index], channels[index] // scale
            inner = (_tdnn_weights(part, part, kernels[index], dilations[index]) for _ in range(scale - 1))
            blocks.append(
                module_dict(
                    tdnn1=_tdnn_weights(channels[index - 1], width),
                    res2net_block=module_dict(blocks=nn.ModuleList(inner)),
                    tdnn2=_tdnn_weights(width, width),
                    se_block=module_dict(
                        conv1=nn.Conv1d(width, config.enc_se_channels, 1),
                        conv2=nn.Conv1d(config.enc_se_channels, width, 1),
                    ),
                )
            )
        self.blocks = nn.ModuleList(blocks)
        whole = channels[-1]
        self.mfa = _tdnn_weights(sum(channels[1:-1]), whole, kernels[-1], dilations[-1])
        self.asp = module_dict(
            tdnn=_tdnn_weights(3 * whole, config.enc_attention_channels),
            conv=nn.Conv1d(config.enc_attention_channels, whole, 1),
        )
        self.fc = nn.Conv1d(2 * whole, config.enc_dim, 1)


class TDNN(nn.Module):
    """x [1, C, T] -> relu(conv x) [1, C', T], with reflected ends."""

    def __init__(self, weights: nn.Module):
        super().__init__()
        self.conv = conv_of(weights)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        width = (self.conv.kernel_size[0] - 1) * self.conv.dilation[0]
        if width:
            x = F.pad(x, (width // 2, width - width // 2), "reflect")
        return F.relu(self.conv(x))


class SqueezedBlock(nn.Module):
    """A Res2Net block between two TDNN, scaled per channel (squeeze and excitation)."""

    def __init__(self, weights: nn.Module):
        super().__init__()
        self.first, self.last = (TDNN(weights.get_submodule(name)) for name in ("tdnn1", "tdnn2"))
        self.inner = nn.ModuleList(map(TDNN, weights.get_submodule("res2net_block.blocks").children()))
        self.squeeze = weights.get_submodule("se_block.conv1")
        self.excite = weights.get_submodule("se_block.conv2")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = list(self.first(x).chunk(len(self.inner) + 1, dim=1))
        parts[1] = self.inner[0](parts[1])
        for index in range(2, len(parts)):
            parts[index] = self.inner[index - 1](parts[index] + parts[index - 1])
        y = self.last(torch.cat(parts, dim=1))
        scale = self.excite(F.relu(self.squeeze(y.mean(dim=-1, keepdim=True)))).sigmoid()
        result: torch.Tensor = x + y * scale
        return result


class SpeakerEncoder(nn.Module):
    """The graph of `speaker_encoder`: mel float32 [1, F, bands] -> vector [1, enc_dim]. F is at least 5."""

    def __init__(self, weights: SpeakerEncoderWeights):
        super().__init__()
        first, *blocks = weights.blocks
        self.first = TDNN(first)
        self.blocks = nn.ModuleList(map(SqueezedBlock, blocks))
        self.whole = TDNN(weights.mfa)
        self.attention_in = TDNN(weights.asp["tdnn"])
        self.attention_out, self.fc = weights.asp["conv"], weights.fc

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        x, found = self.first(mel.transpose(1, 2)), []
        for block in self.blocks:
            x = block(x)
            found.append(x)
        x = self.whole(torch.cat(found, dim=1))
        mean, deviation = _statistics(x, torch.full_like(x[:, :1], 1.0) / x.shape[-1])
        around = torch.cat((x, mean.expand_as(x), deviation.expand_as(x)), dim=1)
        weight = self.attention_out(self.attention_in(around).tanh()).softmax(dim=-1)
        vector: torch.Tensor = self.fc(torch.cat(_statistics(x, weight), dim=1))
        return vector[..., 0]


def _statistics(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Weighted mean and standard deviation over time: [1, C, 1] each.

    The published floor of the variance, 1e-12, is no float16. Without it the result differs by 1e-6 at most.
    """
    mean = (weight * x).sum(dim=-1, keepdim=True)
    variance = (weight * (x - mean).square()).sum(dim=-1, keepdim=True)
    return mean, variance.clamp_min(0.0).sqrt()
