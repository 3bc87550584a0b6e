"""The holder of the speech tokenizer's decoder: parameters of the published names, which compute nothing."""

from itertools import pairwise

import torch
from torch import nn

from voxport.model.layers.basic import RMSNorm, codebook_entries, module_dict
from voxport.model.layers.channels import QWEN_PAIRS
from voxport.model.layers.qwen_block import AttentionWeights, MLPWeights
from voxport.model.qwen3_tts.config import CodecDecoderConfig

KERNEL, INPUT_KERNEL = 7, 3
DILATIONS = (1, 3, 9)


class CodebookWeights(nn.Module):
    """One residual quantiser of `layers` tables, and the projection of their sum."""

    def __init__(self, config: CodecDecoderConfig, layers: int):
        super().__init__()
        size, width = config.codebook_size, config.codebook_dim // 2
        tables = [
            nn.ParameterDict({"embedding_sum": torch.empty(size, width), "cluster_usage": torch.empty(size)})
            for _ in range(layers)
        ]
        self.vq = module_dict(layers=nn.ModuleList(module_dict(_codebook=table) for table in tables))
        self.output_proj = nn.Conv1d(width, config.codebook_dim, 1, bias=False)

    def projected_entries(self) -> torch.Tensor:
        """Projected entries of every table: float32 [layers, size, codebook_dim]."""
        project, tables = self.output_proj.weight[..., 0].T, []
        for layer in self.vq["layers"].children():
            book = layer.get_submodule("_codebook")
            entries = codebook_entries(
                book.get_parameter("embedding_sum"), book.get_parameter("cluster_usage")
            )
            tables.append(entries @ project)
        return torch.stack(tables)


class ScaleWeights(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.scale = nn.Parameter(torch.empty(width))


class CodecBlockWeights(nn.Module):
    """A block with a learned scale per channel on both branches, and no norms of queries and keys."""

    channel_pairs = QWEN_PAIRS

    def __init__(self, config: CodecDecoderConfig):
        super().__init__()
        self.self_attn, self.mlp = AttentionWeights(config, has_norms=False), MLPWeights(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn_layer_scale = ScaleWeights(config.hidden_size)
        self.mlp_layer_scale = ScaleWeights(config.hidden_size)


class ConvNeXtWeights(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dwconv = module_dict(conv=nn.Conv1d(width, width, KERNEL, groups=width))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.pwconv1, self.pwconv2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.empty(width))


class SnakeWeights(nn.Module):
    """Logarithms of frequency and amplitude per channel."""

    def __init__(self, width: int):
        super().__init__()
        self.alpha, self.beta = nn.Parameter(torch.empty(width)), nn.Parameter(torch.empty(width))


class ResidualWeights(nn.Module):
    def __init__(self, width: int, dilation: int):
        super().__init__()
        self.act1, self.act2 = SnakeWeights(width), SnakeWeights(width)
        self.conv1 = module_dict(conv=nn.Conv1d(width, width, KERNEL, dilation=dilation))
        self.conv2 = module_dict(conv=nn.Conv1d(width, width, 1))


def _stage_weights(width: int, next_width: int, rate: int) -> nn.ModuleDict:
    parts = [SnakeWeights(width), module_dict(conv=nn.ConvTranspose1d(width, next_width, 2 * rate, rate))]
    return module_dict(
        block=nn.ModuleList([*parts, *(ResidualWeights(next_width, each) for each in DILATIONS)])
    )


class CodecDecoderWeights(nn.Module):
    """All `decoder.*` tensors that decoding needs."""

    def __init__(self, config: CodecDecoderConfig):
        super().__init__()
        latent, width = config.latent_dim, config.hidden_size
        others = config.num_quantizers - config.num_semantic_quantizers
        self.quantizer = module_dict(
            rvq_first=CodebookWeights(config, config.num_semantic_quantizers),
            rvq_rest=CodebookWeights(config, others),
        )
        self.pre_conv = module_dict(conv=nn.Conv1d(config.codebook_dim, latent, INPUT_KERNEL))
        self.pre_transformer = module_dict(
            input_proj=nn.Linear(latent, width),
            layers=nn.ModuleList(CodecBlockWeights(config) for _ in range(config.num_hidden_layers)),
            norm=RMSNorm(width, config.rms_norm_eps),
            output_proj=nn.Linear(width, latent),
        )
        self.upsample = nn.ModuleList(
            nn.ModuleList(
                [module_dict(conv=nn.ConvTranspose1d(latent, latent, rate, rate)), ConvNeXtWeights(latent)]
            )
            for rate in config.upsampling_ratios
        )
        widths = [config.decoder_dim >> stage for stage in range(len(config.upsample_rates) + 1)]
        stages = [
            _stage_weights(*pair, rate)
            for pair, rate in zip(pairwise(widths), config.upsample_rates, strict=True)
        ]
        self.decoder = nn.ModuleList(
            [
                module_dict(conv=nn.Conv1d(latent, widths[0], KERNEL)),
                *stages,
                SnakeWeights(widths[-1]),
                module_dict(conv=nn.Conv1d(widths[-1], 1, KERNEL)),
            ]
        )


def codec_contexts(config: CodecDecoderConfig) -> list[tuple[str, int, int]]:
    """Name, channels and columns of the states of the convolutions, in order."""
    found = [("pre_conv", config.codebook_dim, INPUT_KERNEL - 1)]
    for index in range(len(config.upsampling_ratios)):
        found.append((f"upsample_{index}", config.latent_dim, KERNEL - 1))
    found.append(("decoder_0", config.latent_dim, KERNEL - 1))
    for stage in range(len(config.upsample_rates)):
        width = config.decoder_dim >> stage
        found.append((f"decoder_{stage + 1}_upsampler", width, 1))
        found += [
            (f"decoder_{stage + 1}_{unit}", width // 2, (KERNEL - 1) * dilation)
            for unit, dilation in enumerate(DILATIONS)
        ]
    found.append(("output", config.decoder_dim >> len(config.upsample_rates), KERNEL - 1))
    return found
