"""Makes the computing module of each graph from loaded weights: linears are fused, the delay is folded."""

from torch import nn

from model.layers.embedding import TokenEmbedding
from model.voxtral_realtime.config import Options, VoxtralRealtimeConfig
from model.voxtral_realtime.decoder import Decoder
from model.voxtral_realtime.encoder import Encoder
from model.voxtral_realtime.weights import WEIGHTS_OF_GRAPH, VoxtralRealtimeWeights


def build(
    graph: str,
    root: VoxtralRealtimeWeights,
    config: VoxtralRealtimeConfig,
    options: Options,
    cache_length: int,
) -> nn.Module:
    """The module of `graph`. Its weights are loaded in `root`; fusing removes some of them from there."""
    match graph:
        case "embed_tokens":
            return TokenEmbedding(root.audio.tok_embeddings)
        case "encoder":
            return Encoder(root.audio, config)
        case "decoder":
            return Decoder(root, config, options, cache_length)
    raise ValueError(f"graph {graph!r}: unknown, expected one of {', '.join(WEIGHTS_OF_GRAPH)}")
