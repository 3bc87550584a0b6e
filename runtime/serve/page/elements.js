// Small helpers for the elements of the page.

export function element(id) {
  return document.getElementById(id);
}

/** Fills a select with items of `id` and perhaps `name`, and keeps the chosen one if it is still there. */
export function fill(select, items) {
  const chosen = select.value;
  select.replaceChildren(...items.map(({ id, name }) => new Option(name ?? id, id)));
  if (items.some(({ id }) => id === chosen)) select.value = chosen;
  select.disabled = items.length === 0;
}

/** Disables a button. The keyboard's focus moves to `next` if the button had it. */
export function disable(button, next) {
  const hadFocus = document.activeElement === button;
  button.disabled = true;
  if (hadFocus) next.focus();
}

/** Shows the text of an error, or hides it if there is none. */
export function showError(target, text = "") {
  target.textContent = text;
  target.hidden = !text;
}

export function seconds(value) {
  return `${value.toFixed(1)} s`;
}

/** Saves a Blob as a file of the user. */
export function download(content, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** A voice that a client made, with its time and length: several may have one name. */
export function describeVoice({ name, created_at: made, seconds: length }) {
  const details = [made && new Date(1000 * made).toLocaleString(), length && seconds(length)];
  return [name, ...details.filter(Boolean)].join(", ");
}
