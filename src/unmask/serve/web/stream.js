// Talking to the server: its models, and a run as a stream of events. Whatever goes wrong becomes a Failure in words.

// A stream has begun with 200: what failed later tells its kind alone.
const STATUS = { invalid_request_error: 400, overloaded_error: 503 };
const TOKEN = "unmask-token"; // a bearer token lives as long as the tab, and never goes into a link

/** What went wrong and what to do about it, for a person to read. `param` names the setting to blame, if one is. */
export class Failure extends Error {
  constructor(what, advice, { param = null, retryAfter = null, status = 0 } = {}) {
    super(what);
    Object.assign(this, { advice, param, retryAfter, status });
  }
}

export function rememberToken(token) {
  sessionStorage.setItem(TOKEN, token);
}

/** The models that the server has, with what the page needs to know of each. */
export async function models() {
  const response = await ask("v1/models");
  const listed = await response.json();
  return listed.data.map((entry) => ({ id: entry.id, ...entry.unmask }));
}

/** Leave a picture of a run with the server, which shows it wherever the link is previewed; its name. */
export async function keepPicture(blob) {
  const response = await ask("pictures", { method: "POST", body: blob, headers: { "Content-Type": "image/png" } });
  return (await response.json()).id;
}

/** The events of one run, as [name, data], until its end. Throws a Failure where there is none. */
export async function* run(request, signal) {
  const response = await ask("v1/unmask", {
    method: "POST", signal, body: JSON.stringify({ ...request, stream: true }),
    headers: { "Content-Type": "application/json", Accept: "text/event-stream" },
  });
  for await (const [name, data] of events(response.body, signal)) {
    if (name === "error") {
      throw failed(STATUS[data.error.type] ?? 500, data.error, null);
    }
    if (name === "end") {
      return;
    }
    yield [name, data];
  }
  throw new Failure("The connection broke before the run was finished.",
    "What has arrived is kept. Run it again: the same seed gives the same text.");
}

async function ask(path, options = {}) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    throw gone(error, options.signal);
  }
  if (!response.ok) {
    const body = await response.json().catch(() => ({}));
    throw failed(response.status, body.error ?? {}, response.headers.get("Retry-After"));
  }
  return response;
}

function gone(error, signal) {
  if (signal?.aborted) {
    return error;
  }
  return new Failure("The server does not answer.",
    "Is unmask serve still running? Start it again, and then run this again.");
}

function failed(status, error, retryAfter) {
  const message = error.message ?? `The server answered with status ${status}.`;
  const details = { param: error.param ?? null, status, retryAfter: null };
  if (status === 401 || status === 403) {
    return new Failure(message, "This server wants a token: the one it was started with.", details);
  }
  if (status === 503 || status === 429) {
    const seconds = Math.max(1, Math.ceil(Number(retryAfter) || 1));
    return new Failure(message, "It takes no more runs at the moment.", { ...details, retryAfter: seconds });
  }
  if (status >= 400 && status < 500) {
    return new Failure(message, "Change that, and run again.", details);
  }
  const advice = "The server could not finish this run. Run it again, or look at the server's log.";
  return new Failure(message, advice, details);
}

/** Server-sent events of a body, as [name, JSON]. Chunks may end anywhere, in the middle of a character too. */
export async function* events(body, signal) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      rest += decoder.decode(value ?? new Uint8Array(), { stream: !done });
      // A chunk may end between the two halves of a line's end, so a last CR waits for what follows.
      const whole = rest.endsWith("\r") && !done ? rest.slice(0, -1) : rest;
      const blocks = whole.replace(/\r\n?/g, "\n").split("\n\n");
      rest = blocks.pop() + rest.slice(whole.length);
      for (const block of blocks) {
        const event = parsed(block);
        if (event) {
          yield event;
        }
      }
      if (done) {
        return;
      }
    }
  } catch (error) {
    if (signal?.aborted || !(error instanceof TypeError)) {
      throw error;
    }
    // The connection was cut in the middle: the same as an end that came too early.
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parsed(block) {
  let name = "message";
  const data = [];
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") {
      name = value;
    } else if (field === "data") {
      data.push(value);
    }
  }
  return data.length ? [name, JSON.parse(data.join("\n"))] : null;
}
