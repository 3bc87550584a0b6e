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
