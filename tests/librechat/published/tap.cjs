// Forwards the requests of clients to the server, and records them with their answers.
//
// A client's base URL is `http://127.0.0.1:PORT/CLIENT/v1`. The tap removes CLIENT from the path and
// records the exchange under that name. It answers nothing itself: if the server closes a
// connection, the client loses its connection too, and the other way round.
const http = require('node:http');

class Tap {
  // `server` is the address of the server, which changes when the server is restarted.
  static async open(server) {
    const tap = new Tap();
    tap.server = server;
    tap.exchanges = [];
    tap.listener = http.createServer((request, response) => tap.forward(request, response));
    // The server alone decides when a connection ends.
    tap.listener.keepAliveTimeout = 0;
    await new Promise((resolve) => tap.listener.listen(0, '127.0.0.1', resolve));
    return tap;
  }

  // The base URL of this client.
  url(client) {
    return `http://127.0.0.1:${this.listener.address().port}/${client}/v1`;
  }

  // All exchanges of this client whose path ends like this, oldest first.
  of(client, ending) {
    return this.exchanges.filter((one) => one.client === client && one.path.endsWith(ending));
  }

  // The last exchanges and the last refused ones of this client, for the report of a failure.
  recent(client) {
    const all = this.exchanges.filter((one) => one.client === client);
    const refused = all.filter(({ status }) => ![200, undefined].includes(status));
    const shown = ({ path, sent, status, answer }) => JSON.stringify({ path, status, answer, sent });
    const last = new Set([...refused.slice(-3), ...all.slice(-3)]);
    return [...last].map((one) => `  ${shown(one).slice(0, 600)}`).join('\n');
  }

  close() {
    this.listener.closeAllConnections();
    this.listener.close();
  }

  async forward(request, response) {
    const [, client, path] = /^\/([^/]*)(\/.*)$/.exec(request.url);
    const sent = await whole(request);
    const exchange = { client, path, headers: request.headers, sent: json(sent) };
    this.exchanges.push(exchange);
    const headers = { ...request.headers, host: new URL(this.server).host };
    const { method } = request;
    const onward = http.request(new URL(path, this.server), { method, headers, agent: false });
    onward.on('error', (error) => {
      exchange.status = error.message;
      response.destroy();
    });
    onward.on('response', async (answer) => {
      const body = await whole(answer).catch(() => response.destroy());
      exchange.status = answer.statusCode;
      exchange.answer = json(body);
      response.writeHead(answer.statusCode, answer.headers).end(body);
    });
    response.on('close', () => onward.destroy());
    onward.end(sent);
  }
}

async function whole(stream) {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return Buffer.concat(parts);
}

function json(bytes) {
  try {
    return JSON.parse(bytes);
  } catch {
    return undefined;
  }
}

module.exports = { Tap };
