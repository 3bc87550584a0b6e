// dependencies: openai
// The node SDK of OpenAI, without its sockets, which take a server with TLS only.
import OpenAI, { toFile } from "openai";
import { check, recording, TEXT } from "./checks.mjs";

const client = new OpenAI({ maxRetries: 0 });

await check("openai", {
  async speech() {
    const found = await client.audio.speech.create({ model: "tts-1", voice: "nova", input: TEXT, speed: 1 });
    return (await found.arrayBuffer()).byteLength > 5000;
  },
  async transcription() {
    const file = await toFile(recording(), "blob");
    return (await client.audio.transcriptions.create({ model: "whisper-1", file })).text.includes("bottles");
  },
  async transcription_events() {
    const file = await toFile(recording(), "audio.wav");
    let last;
    const events = await client.audio.transcriptions.create({ model: "gpt-4o-mini-transcribe", file, stream: true });
    for await (last of events);
    return last.type === "transcript.text.done" && last.text.includes("bottles");
  },
});
