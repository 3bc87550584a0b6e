// Sound of a page: samples that are played while more come, recordings of files, and the microphone.
const worklets = new URL("worklets.js", import.meta.url);

async function contextOf(rate) {
  if (!isSecureContext) throw new Error("sound needs a page of localhost, or one with TLS");
  const context = new AudioContext({sampleRate: rate});
  await context.audioWorklet.addModule(worklets);
  return context;
}

// Plays the samples of an async iterable of Float32Array. Resolves when the last one was heard.
export async function play(parts, rate, {signal, onPart = () => {}}) {
  const context = await contextOf(rate), player = new AudioWorkletNode(context, "player");
  const isDone = new Promise(resolve => (player.port.onmessage = resolve));
  player.connect(context.destination);
  try {
    for await (const samples of parts) {
      if (signal.aborted) return;
      onPart(samples);
      player.port.postMessage(samples.slice());
    }
    player.port.postMessage(null);
    await Promise.race([isDone, new Promise(resolve => signal.addEventListener("abort", resolve))]);
  } finally {
    await context.close();
  }
}

// Samples of a sound file at this rate, mono
export async function readSound(file, rate) {
  const sound = await new OfflineAudioContext(1, 1, rate).decodeAudioData(await file.arrayBuffer());
  const channels = Array.from({length: sound.numberOfChannels}, (_, i) => sound.getChannelData(i));
  return channels[0].map((_, i) => channels.reduce((sum, each) => sum + each[i], 0) / channels.length);
}

// A recording without its offset, as loud as the models expect
export function amplified(recording) {
  const mean = recording.reduce((sum, each) => sum + each, 0) / recording.length;
  const samples = recording.map(each => each - mean);
  const peak = samples.reduce((most, each) => Math.max(most, Math.abs(each)), 0);
  const isQuiet = peak >= 10 ** (-60 / 20) && peak < 10 ** (-6 / 20);
  const factor = isQuiet ? Math.min(10 ** (40 / 20), 10 ** (-1 / 20) / peak) : 1;
  return samples.map(each => Math.min(Math.max(factor * each, -1), 1));
}

// Yields samples of the microphone until `signal` aborts
export async function* microphone(rate, signal) {
  const stream = await navigator.mediaDevices.getUserMedia({audio: {channelCount: 1}});
  const context = await contextOf(rate), recorder = new AudioWorkletNode(context, "recorder");
  const sound = new ReadableStream({
    start(controller) {
      recorder.port.onmessage = ({data}) => signal.aborted || controller.enqueue(data);
      signal.addEventListener("abort", () => controller.close());
    },
  }).getReader();
  try {
    signal.throwIfAborted();
    context.createMediaStreamSource(stream).connect(recorder);
    for (let part; !(part = await sound.read()).done; ) yield part.value;
  } finally {
    stream.getTracks().forEach(track => track.stop());
    await context.close();
  }
}
