// Requests to the server, with the key of this tab. Errors have the text that the API gives.

const KEY = "voxport.key"; // in sessionStorage, which ends with the tab

export function readKey() {
  return sessionStorage.getItem(KEY) ?? "";
}

export function storeKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

export class ApiError extends Error {
  constructor(message, status = 0, code = "") {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** The response of a request. Throws ApiError, or an AbortError if `options.signal` aborts it. */
export async function request(path, options = {}) {
  const headers = new Headers(options.headers);
  const key = readKey();
  try {
    if (key) headers.set("Authorization", `Bearer ${key}`);
  } catch {
    throw new ApiError("The key has characters that cannot be sent.");
  }
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer.");
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

async function errorOf(response) {
  if (response.status === 401) {
    const found = readKey() ? "This API key is wrong. Enter another" : "This server needs an API key. Enter";
    return new ApiError(`${found} one above.`, response.status);
  }
  let message = `The server answered with status ${response.status}.`;
  let code = "";
  try {
    const { error } = await response.json();
    [message, code] = [describe(error), error.code];
  } catch {
    // the body has another form
  }
  const seconds = response.headers.get("retry-after");
  if (seconds) message += ` Try again in ${seconds} s.`;
  return new ApiError(message, response.status, code);
}

/** The text of an error object of the API. */
export function describe(error) {
  const message = typeof error === "string" ? error : error.message;
  return `${message.charAt(0).toUpperCase()}${message.slice(1)}${/[.!?]$/.test(message) ? "" : "."}`;
}

export async function getJson(path) {
  return (await request(path)).json();
}

/** The data of each server-sent event of a response. Throws ApiError for an event with an error. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await read(reader, "transcription");
    if (done) return;
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const lines = part.split("\n").filter((line) => line.startsWith("data:"));
      const data = JSON.parse(lines.map((line) => line.slice(5)).join("\n"));
      if (data.error) throw new ApiError(describe(data.error));
      yield data;
    }
  }
}

/** Reads the next piece of a response. Throws ApiError if the connection ends too early. */
export async function read(reader, what) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(`The server ended the ${what} early.`);
  }
}
