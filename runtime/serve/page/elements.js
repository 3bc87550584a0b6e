// Small helpers for the elements of the page.

export function element(id) {
  return document.getElementById(id);
}

/** Fills a select with values, and keeps the chosen one where it is still there. */
export function fill(select, values) {
  const chosen = select.value;
  select.replaceChildren(...values.map((value) => new Option(value, value)));
  if (values.includes(chosen)) select.value = chosen;
  select.disabled = values.length === 0;
}

/** Disables a button. The keyboard's focus moves to `next` where the button had it. */
export function disable(button, next) {
  const hadFocus = document.activeElement === button;
  button.disabled = true;
  if (hadFocus) next.focus();
}

/** Shows the text of an error, or hides it where there is none. */
export function showError(target, text = "") {
  target.textContent = text;
  target.hidden = !text;
}

export function seconds(value) {
  return `${value.toFixed(1)} s`;
}
