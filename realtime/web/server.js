// The server as the page sees it: its health, a token, the live socket, and the voices.

const HEALTH_LIMIT_MS = 5000;
const NO_KEY = "This server asks for an API key: give it below.";
const WRONG_KEY = "The server does not take this API key.";

export class ServerError extends Error {}

export class Server {
  constructor(key) {
    this.key = key; // () => the API key, or ""
  }

  async request(path, options = {}) {
    const headers = new Headers(options.headers);
    if (this.key()) headers.set("Authorization", `Bearer ${this.key()}`);
    let answer;
    try {
      answer = await fetch(new URL(path, document.baseURI), { ...options, headers });
    } catch {
      throw new ServerError("The server cannot be reached.");
    }
    const body = await answer.json().catch(() => ({}));
    if (answer.status === 401) throw new ServerError(this.key() ? WRONG_KEY : NO_KEY);
    if (!answer.ok) throw new ServerError(body.message ?? `The server answered with ${answer.status}.`);
    return body;
  }

  async healthy() {
    try {
      const signal = AbortSignal.timeout(HEALTH_LIMIT_MS);
      return (await this.request("v1/health", { signal })).status === "ok";
    } catch {
      return false;
    }
  }

  async voices() {
    return (await this.request("model?page_size=1000")).items;
  }

  async addVoice(title, words, audio) {
    const form = new FormData();
    form.set("title", title);
    form.set("type", "tts");
    form.set("train_mode", "fast");
    form.set("visibility", "private");
    form.set("texts", words);
    form.set("voices", audio, "upload");
    return this.request("model", { method: "POST", body: form });
  }

  // A WebSocket cannot carry a key in its headers: a token that works once stands for it.
  async connect() {
    const url = new URL("v1/tts/live", document.baseURI);
    url.protocol = url.protocol.replace("http", "ws");
    url.searchParams.set("protocol", "json");
    url.searchParams.set("pool", "1");
    if (this.key()) {
      const { token } = await this.request("v1/tokens", { method: "POST" });
      url.searchParams.set("token", token);
    }
    const socket = new WebSocket(url);
    socket.binaryType = "arraybuffer";
    const opened = await new Promise((resolve) => {
      socket.onopen = () => resolve(true);
      socket.onclose = () => resolve(false);
    });
    if (opened) return socket;
    // A browser does not say why; another request may.
    await this.request("model?page_size=1");
    throw new ServerError("The server has no room for another listener now.");
  }
}
