// dependencies: ai@6 @ai-sdk/openai@3 @ai-sdk/mistral@3
// dependencies: ai@7 @ai-sdk/openai@4 @ai-sdk/mistral@4
// The AI SDK of Vercel with its providers openai and mistral.
import * as ai from "ai";
import { createMistral } from "@ai-sdk/mistral";
import { createOpenAI } from "@ai-sdk/openai";
import { ADDRESS, check, KEY, recording, TEXT } from "./checks.mjs";

const transcribe = ai.transcribe ?? ai.experimental_transcribe;
const generateSpeech = ai.generateSpeech ?? ai.experimental_generateSpeech;
const options = { baseURL: `${ADDRESS}/v1`, apiKey: KEY };
const openai = createOpenAI(options), mistral = createMistral(options);

const spoken = async model => (await generateSpeech({ model, text: TEXT, maxRetries: 0 })).audio.uint8Array.length > 5000;
async function written(model, providerOptions) {
  const found = await transcribe({ model, audio: recording(), maxRetries: 0, providerOptions });
  return found.text.includes("bottles");
}

const uses = {
  speech: () => spoken(openai.speech("gpt-4o-mini-tts")),
  transcription: () => written(openai.transcription("gpt-4o-transcribe")),
  whisper: () => written(openai.transcription("whisper-1")),
  words: () => written(openai.transcription("whisper-1"), { openai: { timestampGranularities: ["word"], language: "en" } }),
  mistral_speech: () => spoken(mistral.speech("voxtral-mini-tts-2603")),
};
if (mistral.transcription) uses.mistral_transcription = () => written(mistral.transcription("voxtral-mini-latest"));
await check("ai", uses);
