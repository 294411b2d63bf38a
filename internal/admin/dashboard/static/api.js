// Asks /api/v1, and nothing else. Every question has an end.

const patience = 8_000; // milliseconds that an answer may take

// Failed is an answer that is an error: what failed, and what to do.
export class Failed extends Error {
  constructor(status, text, cure) {
    super(text);
    this.status = status;
    this.cure = cure;
  }
}

// Unreachable means that nobody answered.
export class Unreachable extends Error {}

const stored = "kv3fs.token";
let token = "";
try {
  token = sessionStorage.getItem(stored) ?? "";
} catch {
  // Storage is off: the token is asked for after every load.
}

export const hasToken = () => token !== "";

export function setToken(text) {
  token = text;
  try {
    if (text) sessionStorage.setItem(stored, text);
    else sessionStorage.removeItem(stored);
  } catch {
    // As above.
  }
}

// get returns the answer at /api/v1/PATH, or throws Failed or Unreachable.
export async function get(path) {
  let answer, text;
  try {
    answer = await fetch(`/api/v1/${path}`, {
      headers: token ? { Authorization: `Bearer ${token}` } : {},
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      signal: AbortSignal.timeout(patience),
    });
    text = await answer.text();
  } catch (e) {
    throw new Unreachable(e.name === "TimeoutError" ? `no answer within ${patience / 1000} s` : "no connection");
  }
  let body = null;
  try {
    body = JSON.parse(text);
  } catch {
    if (answer.ok) throw new Failed(answer.status, "the answer is not JSON", "");
  }
  if (!answer.ok) throw new Failed(answer.status, body?.error || text.trim().slice(0, 300) || `status ${answer.status}`, body?.cure ?? "");
  return body;
}

// Poll asks for a path again and again, each time when the last answer is there and its period over, but not while the page
// is hidden or paused.
export class Poll {
  #timer = 0;
  #asking = false;
  #stopped = false;

  // path returns what to ask for; done and failed are called with the answer or the error.
  constructor(path, periodSeconds, done, failed) {
    Object.assign(this, { path, periodSeconds, done, failed });
  }

  // now asks at once, or when the question that is on its way is answered.
  async now() {
    clearTimeout(this.#timer);
    if (this.#asking) {
      this.again = true;
      return;
    }
    this.#asking = true;
    this.again = false;
    try {
      const path = this.path();
      this.done(await get(path), path);
    } catch (e) {
      if (!(e instanceof Failed || e instanceof Unreachable)) console.error(e);
      this.failed(e);
    }
    this.#asking = false;
    if (this.again) this.now();
    else this.#plan();
  }

  stop() {
    this.#stopped = true;
    clearTimeout(this.#timer);
  }

  go() {
    this.#stopped = false;
    this.now();
  }

  #plan() {
    if (!this.#stopped) this.#timer = setTimeout(() => this.now(), this.periodSeconds * 1000);
  }
}
