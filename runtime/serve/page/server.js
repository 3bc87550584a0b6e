// The state of the server, from its metrics.

import { request } from "/page/api.js";
import { element, showError } from "/page/elements.js";

const POLL_MS = 2000;
const FRAME_S = 0.08;
const LINE = /^voxport_(\w+?)(?:\{bundle="((?:[^"\\]|\\.)*)"\})? (\S+)$/;
const [rows, problem] = [element("server-rows"), element("server-error")];

const factors = new Map(); // model -> {frames, busy, text}
let isPolling = false;

/** Polls now, and then every 2 s while the page is visible. */
export async function pollServer() {
  if (isPolling) return;
  isPolling = true;
  while (!document.hidden) {
    let mayContinue = true;
    try {
      show(parse(await (await request("/metrics")).text()));
      showError(problem);
    } catch (error) {
      rows.replaceChildren();
      showError(problem, error.message);
      mayContinue = error.status !== 401; // goes on with another key
    }
    if (!mayContinue) break;
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
  isPolling = false;
}

/** The text of the metrics -> model -> name -> value. */
function parse(text) {
  const models = new Map();
  for (const line of text.split("\n")) {
    const [, name, label, value] = LINE.exec(line) ?? [];
    if (label === undefined) continue;
    const model = label.replace(/\\(.)/g, "$1");
    models.set(model, { ...models.get(model), [name]: Number(value) });
  }
  return models;
}

function show(models) {
  rows.replaceChildren(
    ...[...models].map(([model, values]) => {
      const row = document.createElement("tr");
      const head = document.createElement("th");
      head.scope = "row";
      head.textContent = model;
      const slots = `${values.slots_busy ?? 0} of ${values.slots}`;
      const cells = [values.waiting ?? 0, slots, factor(model, values)].map((text) => {
        const cell = document.createElement("td");
        cell.textContent = text;
        return cell;
      });
      row.append(head, ...cells);
      return row;
    }),
  );
}

/** The real-time factor of the latest work. It stays while there is none. */
function factor(model, values) {
  const [frames, busy] = [values.frames_total ?? 0, values.pass_seconds_sum ?? 0];
  const last = factors.get(model) ?? { frames: 0, busy: 0, text: "–" };
  if (frames === last.frames) return last.text;
  const isRestarted = frames < last.frames;
  const audio = FRAME_S * (frames - (isRestarted ? 0 : last.frames));
  const text = ((busy - (isRestarted ? 0 : last.busy)) / audio).toFixed(2);
  factors.set(model, { frames, busy, text });
  return text;
}

document.addEventListener("visibilitychange", pollServer);
