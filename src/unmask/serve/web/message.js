// What a run came to, as something to read: a failure, with something to press, or a verdict.

import { rememberToken } from "./stream.js";

/** Nodes that say what went wrong and what to do; again() tries once more. */
export function explained(failure, again) {
  const what = document.createElement("strong");
  what.textContent = failure.message.replace(/([^.!?])$/, "$1.");
  const advice = document.createElement("span");
  advice.textContent = failure.advice ?? "";
  const parts = [what, " ", advice, " "];
  if (failure.status === 401 || failure.status === 403) {
    return [...parts, tokenForm(again)];
  }
  if (failure.status >= 400 && failure.status < 500 && !failure.retryAfter) {
    return parts; // the same again would fail again
  }
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Try again";
  button.addEventListener("click", again);
  if (failure.retryAfter) {
    countDown(button, failure.retryAfter);
  }
  return [...parts, button];
}

/** The server said when to come back: until then the button waits. */
function countDown(button, seconds) {
  button.disabled = seconds > 0;
  button.textContent = seconds > 0 ? `Try again in ${seconds} s` : "Try again";
  if (seconds > 0) {
    setTimeout(() => countDown(button, seconds - 1), 1000);
  }
}

function tokenForm(again) {
  const form = document.createElement("form");
  const label = document.createElement("label");
  const field = document.createElement("input");
  const button = document.createElement("button");
  Object.assign(field, { type: "password", autocomplete: "off", required: true });
  label.append("Token ", field);
  button.textContent = "Use it";
  form.append(label, " ", button);
  form.className = "token-form";
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    rememberToken(field.value);
    again();
  });
  return form;
}

/** What came of a comparison: a sentence, and both panes' numbers beside each other. */
export function concluded({ numbers, sentence }) {
  const made = (name, properties, ...children) => {
    const node = Object.assign(document.createElement(name), properties);
    node.append(...children);
    return node;
  };
  const cells = numbers.map(({ name, a, b }) => made("div", {}, made("dt", {}, name),
    made("dd", {}, made("b", { className: "a" }, `A ${a}`), " ", made("b", { className: "b" }, `B ${b}`))));
  return [made("p", {}, sentence), made("dl", { className: "numbers" }, ...cells)];
}
