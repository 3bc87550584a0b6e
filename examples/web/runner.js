// Opens a bundle of any family.
import {Bundle, BundleError} from "./bundle.js";
import {Engine} from "./engine.js";
import {QwenTTS} from "./qwen3_tts.js";
import {Listener} from "./voxtral_realtime.js";
import {VoxtralTTS} from "./voxtral_tts.js";

const FAMILIES = {voxtral_tts: VoxtralTTS, qwen3_tts: QwenTTS, voxtral_realtime: Listener};

// ort: the module onnxruntime-web or onnxruntime-node. options: of its sessions.
export async function open(ort, source, options) {
  const bundle = await Bundle.open(source), family = FAMILIES[bundle.family];
  if (!family) throw new BundleError(`${source.name}: family ${bundle.family} is unknown to this page`);
  return family.open(bundle, new Engine(ort, bundle, options));
}
