// A client of Octavo in Node.js that uses no package: docs/protocol.md over ZMTP 3.0 (NULL
// mechanism) on a plain TCP socket. Usage: node client.mjs HOST PORT '{"prompt": ..., "params": ...}'
// Prints one JSON line: {"accepted", "text", "ids", "reason", "seed", "seqs"}, or {"error": ...}.
import net from "node:net";
import { randomBytes } from "node:crypto";

// --- msgpack, as much as the protocol needs -------------------------------------------------
function pack(value) {
  if (value === null || value === undefined) return Buffer.from([0xc0]);
  if (value === true) return Buffer.from([0xc3]);
  if (value === false) return Buffer.from([0xc2]);
  if (typeof value === "number") {
    if (Number.isInteger(value) && value >= 0 && value < 128) return Buffer.from([value]);
    const whole = Number.isInteger(value);
    const bytes = Buffer.alloc(9);
    bytes[0] = whole ? 0xd3 : 0xcb;
    if (whole) bytes.writeBigInt64BE(BigInt(value), 1);
    else bytes.writeDoubleBE(value, 1);
    return bytes;
  }
  if (typeof value === "string") {
    const text = Buffer.from(value, "utf8");
    return Buffer.concat([sized(0xdb, text.length), text]);
  }
  if (Array.isArray(value)) return Buffer.concat([sized(0xdd, value.length), ...value.map(pack)]);
  const entries = Object.entries(value);
  const parts = entries.flatMap(([name, item]) => [pack(name), pack(item)]);
  return Buffer.concat([sized(0xdf, entries.length), ...parts]);
}

function sized(code, length) {
  const bytes = Buffer.alloc(5);
  bytes[0] = code;
  bytes.writeUInt32BE(length, 1);
  return bytes;
}

function unpack(bytes) {
  let at = 0;
  const take = (count) => bytes.subarray(at, (at += count));
  const uint = (size) => Number(size === 8 ? take(8).readBigUInt64BE() : take(size).readUIntBE(0, size));
  const list = (count) => Array.from({ length: count }, next);
  const map = (count) => Object.fromEntries(Array.from({ length: count }, () => [next(), next()]));
  const text = (count) => take(count).toString("utf8");
  function next() {
    const code = take(1)[0];
    if (code < 0x80) return code;
    if (code < 0x90) return map(code & 0x0f);
    if (code < 0xa0) return list(code & 0x0f);
    if (code < 0xc0) return text(code & 0x1f);
    if (code >= 0xe0) return code - 256;
    switch (code) {
      case 0xc0: return null;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xca: return take(4).readFloatBE();
      case 0xcb: return take(8).readDoubleBE();
      case 0xcc: case 0xcd: case 0xce: case 0xcf: return uint(1 << (code - 0xcc));
      case 0xd0: case 0xd1: case 0xd2: return take(1 << (code - 0xd0)).readIntBE(0, 1 << (code - 0xd0));
      case 0xd3: return Number(take(8).readBigInt64BE());
      case 0xd9: case 0xda: case 0xdb: return text(uint(1 << (code - 0xd9)));
      case 0xdc: case 0xdd: return list(uint(2 << (code - 0xdc)));
      case 0xde: case 0xdf: return map(uint(2 << (code - 0xde)));
      default: throw new Error(`msgpack code ${code} is not used in this protocol`);
    }
  }
  return next();
}

// --- ZMTP 3.0: greeting, READY, then frames -------------------------------------------------
class Dealer {
  constructor(host, port, onMessage) {
    this.input = Buffer.alloc(0);
    this.parts = [];
    this.state = "greeting";
    this.onMessage = onMessage;
    this.socket = net.connect(port, host);
    const greeting = Buffer.alloc(64);
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10] = 3; // version 3.0
    greeting.write("NULL", 12);
    this.socket.write(greeting);
    this.socket.on("data", (data) => {
      this.input = Buffer.concat([this.input, data]);
      while (this.read());
    });
  }

  read() {
    if (this.state === "greeting") {
      if (this.input.length < 64) return false;
      this.input = this.input.subarray(64);
      const body = Buffer.concat([
        Buffer.from([5]), Buffer.from("READY"),
        Buffer.from([11]), Buffer.from("Socket-Type"), Buffer.from([0, 0, 0, 6]), Buffer.from("DEALER"),
      ]);
      this.frame(0x04, body);
      this.state = "ready";
      this.onReady?.();
      return true;
    }
    if (this.input.length < 2) return false;
    const flags = this.input[0];
    const long = (flags & 2) !== 0;
    const head = long ? 9 : 2;
    if (this.input.length < head) return false;
    const size = long ? Number(this.input.readBigUInt64BE(1)) : this.input[1];
    if (this.input.length < head + size) return false;
    const body = Buffer.from(this.input.subarray(head, head + size));
    this.input = this.input.subarray(head + size);
    if (flags & 4) { // a command: READY needs no answer, PING wants a PONG with its context
      if (body.subarray(1, 5).toString() === "PING") {
        this.frame(0x04, Buffer.concat([Buffer.from([4]), Buffer.from("PONG"), body.subarray(7)]));
      }
      return true;
    }
    this.parts.push(body);
    if (!(flags & 1)) this.onMessage(this.parts.splice(0));
    return true;
  }

  frame(flags, body) {
    if (body.length < 256) this.socket.write(Buffer.concat([Buffer.from([flags, body.length]), body]));
    else {
      const head = Buffer.alloc(9);
      head[0] = flags | 2;
      head.writeBigUInt64BE(BigInt(body.length), 1);
      this.socket.write(Buffer.concat([head, body]));
    }
  }

  send(header, ...attachments) {
    const frames = [pack({ v: 1, ...header }), ...attachments];
    frames.forEach((body, index) => this.frame(index < frames.length - 1 ? 1 : 0, body));
  }
}

// --- the protocol ---------------------------------------------------------------------------
const [host, port, asked] = process.argv.slice(2);
const request = JSON.parse(asked);
const id = "from-node";
const result = { accepted: false, text: "", ids: [], seqs: [] };
const WINDOW = 8;

function finish(more) {
  console.log(JSON.stringify({ ...result, ...more }));
  clearInterval(beat);
  dealer.socket.end();
}

const dealer = new Dealer(host, Number(port), (frames) => {
  const message = unpack(frames[0]);
  switch (message.type) {
    case "welcome": {
      const empty = Buffer.alloc(0);
      const tokens = Array.isArray(request.prompt);
      const prompt = tokens ? Buffer.from(Uint32Array.from(request.prompt).buffer) : empty;
      const kind = tokens ? { kind: "tokens" } : { kind: "text", text: request.prompt };
      dealer.send({ type: "submit", id, ...kind, params: request.params, window: WINDOW }, prompt, empty);
      break;
    }
    case "accepted":
      result.accepted = true;
      break;
    case "chunk":
      if (message.seq !== result.seqs.length) break; // a duplicate
      result.seqs.push(message.seq);
      for (let at = 0; at < frames[1].length; at += 4) result.ids.push(frames[1].readUInt32LE(at));
      for (const piece of message.pieces) result.text += piece.text;
      dealer.send({ type: "credit", id, received: result.seqs.length, tokens: result.ids.length + WINDOW });
      break;
    case "done":
      dealer.send({ type: "ack", id });
      finish({ reason: message.samples[0].reason, seed: message.seed });
      break;
    case "error":
      if (message.seq !== undefined) dealer.send({ type: "ack", id });
      finish({ error: message.code, message: message.message, retryable: message.retryable });
      break;
  }
});
dealer.onReady = () => dealer.send({ type: "hello", role: "client", name: randomBytes(16).toString("hex") });
const beat = setInterval(() => dealer.send({ type: "ping" }), 100);
