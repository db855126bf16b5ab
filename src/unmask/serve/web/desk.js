// What any page has: keys, and light or dark.

const THEMES = ["auto", "light", "dark"];

/** Call the actions by keys, unless somebody is typing or a control wants the key for itself. */
export function listen({ run, stop, toggle, move, go, colour }) {
  const keys = {
    " ": toggle,
    ArrowLeft: (event) => move(event.shiftKey ? -10 : -1),
    ArrowRight: (event) => move(event.shiftKey ? 10 : 1),
    Home: () => go(0), End: () => go(Infinity), c: colour, C: colour, "?": help,
  };
  document.addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open]")) {
      return;
    }
    if ((event.ctrlKey || event.metaKey) && event.key === "Enter") {
      event.preventDefault();
      run();
    } else if (event.key === "Escape") {
      stop();
    } else if (!event.ctrlKey && !event.metaKey && !event.altKey && keys[event.key] && !wants(event.target, event.key)) {
      event.preventDefault();
      keys[event.key](event);
    }
  });
  document.getElementById("help").addEventListener("click", help);
}

function help() {
  document.getElementById("keys").showModal();
}

/** Whether the focused control has a use of its own for a key. */
function wants(target, key) {
  if (target.matches("input[type=range]")) {
    return key !== " " && key.length > 1; // it moves by itself
  }
  if (target.matches("button, summary, a, input[type=radio]")) {
    return key === " " || (target.matches("input") && key.startsWith("Arrow"));
  }
  return target.matches("input, textarea, select");
}

/** A button that goes from what the system says to light to dark; remembered if the browser remembers. */
export function theme(button) {
  let chosen = "auto";
  try {
    chosen = localStorage.getItem("unmask-theme") ?? "auto";
  } catch {
    // A browser that keeps nothing starts with what the system says.
  }
  const apply = () => {
    document.documentElement.dataset.theme = chosen;
    button.textContent = `Theme: ${chosen}`;
  };
  button.addEventListener("click", () => {
    chosen = THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length];
    try {
      localStorage.setItem("unmask-theme", chosen);
    } catch {
      // Then it holds until the page is left.
    }
    apply();
  });
  apply();
}
