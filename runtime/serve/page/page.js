// The start of the page: the key, and what the server offers.

import { getJson, readKey, storeKey } from "/page/api.js";
import { element, showError } from "/page/elements.js";
import { offerSpeech } from "/page/speech.js";
import { offerTranscription } from "/page/transcription.js";
import { offerVoices } from "/page/voices.js";

const [key, problem] = [element("key"), element("page-error")];

async function load() {
  document.querySelectorAll(".error[id]").forEach((each) => showError(each));
  try {
    const [page, voices] = await Promise.all([getJson("/v1/page"), getJson("/v1/audio/voices")]);
    offerSpeech(page, voices.voices);
    offerTranscription(page);
    offerVoices(page, voices.voices, load);
  } catch (error) {
    showError(problem, error.message);
    if (error.status === 401) key.focus();
  }
}

element("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  storeKey(key.value.trim());
  load();
});

key.value = readKey();
load();
