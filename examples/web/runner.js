// Opens a bundle of one of these families.
import {Bundle} from "./bundle.js";
import {Engine} from "./engine.js";
import {QwenASR} from "./qwen3_asr.js";
import {QwenTTS} from "./qwen3_tts.js";
import {VoxtralRealtime} from "./voxtral_realtime.js";
import {VoxtralTTS} from "./voxtral_tts.js";

const FAMILIES = {
  voxtral_tts: VoxtralTTS, qwen3_tts: QwenTTS, voxtral_realtime: VoxtralRealtime, qwen3_asr: QwenASR,
};

// ort: the module onnxruntime-web. options: of its sessions.
export async function open(ort, source, options) {
  try {
    const bundle = await Bundle.open(source), family = FAMILIES[bundle.family];
    if (!family) throw new Error(`family ${bundle.family} is unknown here`);
    return await family.open(bundle, new Engine(ort, bundle, options));
  } catch (error) {
    throw new Error(`${source.name}: ${error.message}`);
  }
}
