"""Makes the computing module of each graph from loaded weights: linears are fused, constants are folded."""

from torch import nn

from model.layers.embedding import TokenEmbedding
from model.voxtral_tts.acoustic import AcousticStep
from model.voxtral_tts.backbone import Backbone, CodeEmbedding
from model.voxtral_tts.codec import Codec
from model.voxtral_tts.config import Options, VoxtralTTSConfig
from model.voxtral_tts.weights import WEIGHTS_OF_GRAPH, VoxtralTTSWeights


def build(
    graph: str, root: VoxtralTTSWeights, config: VoxtralTTSConfig, options: Options, cache_length: int
) -> nn.Module:
    """The module of `graph`. Its weights are loaded in `root`; fusing removes some of them from there."""
    match graph:
        case "embed_text":
            return TokenEmbedding(root.mm_audio_embeddings.tok_embeddings)
        case "embed_codes":
            table = root.mm_audio_embeddings.audio_codebook_embeddings["embeddings"]
            return CodeEmbedding(table, config.code_offsets)
        case "backbone":
            return Backbone(root, config, cache_length)
        case "acoustic_step":
            return AcousticStep(root.acoustic_transformer, config.acoustic)
        case "codec":
            return Codec(root.audio_tokenizer, config.codec, options)
    raise ValueError(f"graph {graph!r}: unknown, expected one of {', '.join(WEIGHTS_OF_GRAPH)}")
