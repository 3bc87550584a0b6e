// dependencies: playwright-core
// A page of another origin in Chromium reads speech and a transcript by `fetch`.
import { createServer } from "node:http";
import { chromium } from "playwright-core";
import { ADDRESS, check, KEY, recording, TEXT } from "./checks.mjs";

const PORT = 18439; // of the origin that the server allows

const page = createServer((_, answer) => answer.end("<!doctype html>")).listen(PORT);
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
const tab = await browser.newPage();
await tab.goto(`http://localhost:${PORT}/`);

// functions of the page

async function spoken([url, key, text]) {
  const headers = { authorization: `Bearer ${key}`, "content-type": "application/json" };
  const body = JSON.stringify({ model: "tts-1", voice: "alloy", input: text });
  const answer = await fetch(`${url}/v1/audio/speech`, { method: "POST", headers, body });
  return answer.headers.get("x-request-id") && (await answer.arrayBuffer()).byteLength > 5000;
}

async function written([url, key, sound]) {
  const bytes = Uint8Array.from(atob(sound), each => each.charCodeAt());
  const body = new FormData();
  body.append("file", new Blob([bytes], { type: "audio/wav" }), "audio.wav");
  body.append("model", "whisper-1");
  const headers = { authorization: `Bearer ${key}` };
  return (await fetch(`${url}/v1/audio/transcriptions`, { method: "POST", headers, body })).text();
}

await check("playwright-core", {
  speech: () => tab.evaluate(spoken, [ADDRESS, KEY, TEXT]),
  transcription: async () => (await tab.evaluate(written, [ADDRESS, KEY, recording().toString("base64")])).includes("bottles"),
}).finally(() => Promise.all([browser.close(), page.close()]));
