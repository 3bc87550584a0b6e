// dependencies: @mistralai/mistralai
// The node SDK of Mistral.
import { Mistral } from "@mistralai/mistralai";
import { ADDRESS, check, KEY, recording, TEXT } from "./checks.mjs";

const client = new Mistral({ apiKey: KEY, serverURL: ADDRESS });
const file = { fileName: "bottles.wav", content: recording() };

await check("@mistralai/mistralai", {
  async speech() {
    const found = await client.audio.speech.complete({ model: "voxtral-mini-tts-2603", input: TEXT });
    return Buffer.from(found.audioData, "base64").length > 5000;
  },
  async transcription() {
    const found = await client.audio.transcriptions.complete({ model: "voxtral-mini-latest", file });
    return found.text.includes("bottles");
  },
  async transcription_events() {
    let last;
    for await (last of await client.audio.transcriptions.stream({ model: "voxtral-mini-latest", file }));
    return last.event === "transcription.done";
  },
  async models() { return (await client.models.list()).data.length; },
  async voices() { return (await client.audio.voices.list()).items.length; },
});
