// The server as the page sees it: its health, a token, the live socket, and the voices.

export class ServerError extends Error {}

export class Server {
  constructor(key) {
    this.key = key; // () => the API key, or ""
  }

  async request(path, options = {}) {
    const headers = new Headers(options.headers);
    if (this.key()) headers.set("Authorization", `Bearer ${this.key()}`);
    const answer = await fetch(new URL(path, document.baseURI), { ...options, headers });
    const body = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new ServerError(body.message ?? `the server answered ${answer.status}`);
    return body;
  }

  async healthy() {
    try {
      return (await this.request("v1/health")).status === "ok";
    } catch {
      return false;
    }
  }

  async voices() {
    return (await this.request("model?page_size=100")).items;
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
    await new Promise((resolve, reject) => {
      socket.onopen = resolve;
      socket.onclose = () => reject(new ServerError("the server cannot be reached or is full"));
    });
    return socket;
  }
}
