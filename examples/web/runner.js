// Opens a bundle of any family.
import {Bundle} from "./bundle.js";
import {Engine} from "./engine.js";
import {QwenTTS} from "./qwen3_tts.js";
import {Listener} from "./voxtral_realtime.js";
import {VoxtralTTS} from "./voxtral_tts.js";

const FAMILIES = {voxtral_tts: VoxtralTTS, qwen3_tts: QwenTTS, voxtral_realtime: Listener};

// ort: the module onnxruntime-web. options: of its sessions.
export async function open(ort, source, options) {
  const bundle = await Bundle.open(source);
  return familyOf(bundle).open(bundle, new Engine(ort, bundle, options));
}

export function familyOf(bundle) {
  const family = FAMILIES[bundle.family];
  if (!family) throw new Error(`${bundle.source.name}: family ${bundle.family} is unknown here`);
  return family;
}
