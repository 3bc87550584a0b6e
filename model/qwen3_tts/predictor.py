"""The code predictor: codes 1 to K - 1 of a frame, one after another, in one graph."""

import torch
from torch import nn

from voxport.model.layers.basic import Layer
from voxport.model.layers.block import parts_of
from voxport.model.layers.rope import RotaryTable
from voxport.model.qwen3_tts.blocks import Block, BlockWeights
from voxport.model.qwen3_tts.config import PredictorConfig
from voxport.model.qwen3_tts.modules import TalkerWeights, code_tables


def filtered_logits(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor
) -> torch.Tensor:
    """logits [B, V], settings [B] -> logits / temperature, and -inf for ids outside top_k or top_p.

    As `runtime.sampler.sample`: the k largest, ties included, then the fewest whose probabilities add up to
    at least p.
    """
    scores = logits / temperature[:, None]
    ordered = scores.topk(scores.shape[-1]).values  # ExecuTorch has no kernel for sort
    left_out = torch.arange(scores.shape[-1]) >= top_k[:, None]
    chance = torch.where(left_out, -torch.inf, ordered).softmax(dim=-1)
    left_out = torch.logical_or(left_out, chance.cumsum(dim=-1) - chance >= top_p[:, None])
    least = torch.where(left_out, torch.inf, ordered).amin(dim=-1, keepdim=True)
    return torch.where(scores < least, -torch.inf, scores)


class CodePredictor(nn.Module):
    """hidden [B, 1, talker width], codes int64 [B, K] -> chosen int64 [B, K], logits [B, K - 1, codes].

    Position 0 is the talker's hidden value, position p > 0 the embedding of code p - 1, whose output gives
    code p. A code of `codes` that is not negative is taken as it is. The others are drawn: the argmax of
    `filtered_logits` and `noise` [B, K - 1, codes]. Frames share nothing but `hidden`.
    """

    def __init__(self, weights: TalkerWeights, config: PredictorConfig):
        super().__init__()
        own = weights.code_predictor
        self.config = config
        self.layers = nn.ModuleList(Block(part) for part in parts_of(own.model.layers, BlockWeights))
        self.blocks = parts_of(self.layers, Block)
        self.norm = own.model.norm
        self.rotary = RotaryTable(
            config.head_dim, config.rope_theta, config.num_code_groups, interleaved=False
        )
        self.tables = code_tables(weights)[:-1]  # nothing follows the last code
        self.heads = own.lm_head
        self.projection: Layer = getattr(own, "small_to_mtp_projection", nn.Identity())

    def forward(
        self,
        hidden: torch.Tensor,
        codes: torch.Tensor,
        noise: torch.Tensor,
        temperature: torch.Tensor,
        top_k: torch.Tensor,
        top_p: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows: list[tuple[torch.Tensor, ...]] = [() for _ in self.blocks]
        chosen, logits = [codes[:, 0]], []
        x = torch.cat((hidden, self.tables[0](codes[:, :1])), dim=1)
        start = 0
        for index, head in enumerate(self.heads):
            y, start = self.projection(x), start + x.shape[1]
            positions = torch.arange(start - x.shape[1], start)
            rotation = self.rotary(positions.expand(codes.shape[0], -1))
            for layer, block in enumerate(self.blocks):
                y, *grown = block.attend_and_append(y, rotation, rows[layer])
                rows[layer] = tuple(grown)
            logits.append(head(self.norm(y[:, -1])))
            drawn = (filtered_logits(logits[-1], temperature, top_k, top_p) + noise[:, index]).argmax(dim=-1)
            given = codes[:, index + 1]
            chosen.append(torch.where(given < 0, drawn, given))
            if index + 1 < len(self.tables):
                x = self.tables[index + 1](chosen[-1])[:, None]
        return torch.stack(chosen, dim=1), torch.stack(logits, dim=1)
