// Requests that LibreChat's own server sends, beside those of its client library.

const { setTimeout } = require('node:timers/promises');

class Host {
  // `headers` are added to every request.
  constructor(client, headers = {}) {
    this.client = client;
    this.headers = headers;
  }

  // Sends JSON and returns the status and the answer.
  async post(path, body, more = {}) {
    const { headers, signal } = more;
    return this.send(path, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json', ...headers },
      body: JSON.stringify(body),
      signal,
    });
  }

  async send(path, options = {}) {
    const headers = { 'User-Agent': 'LibreChat/1.0', ...this.headers, ...options.headers };
    const response = await fetch(`${this.client.baseUrl}${path}`, { ...options, headers });
    const text = await response.text();
    const isJson = response.headers.get('content-type')?.includes('json') === true;
    return { status: response.status, text, ...(isJson && { json: JSON.parse(text) }) };
  }

  // Executes code of the host. `more` has fields for the body, and `signal`.
  async exec(lang, code, { signal, ...more } = {}) {
    return this.post('/exec', { lang, code, ...more }, { signal });
  }

  // When a turn begins, LibreChat starts the session and does not wait.
  prewarm(hint) {
    return this.exec('bash', 'true', { runtime_session_hint: hint });
  }

  // The implementation of the tool `read_file`.
  readFile(path, more) {
    return this.exec('bash', `cat '${path}'`, more);
  }

  // The implementation of the tool `write_file`.
  writeFile(path, content, more) {
    const code = `python3 - <<'PY'
import base64, pathlib
path = pathlib.Path('${path}')
path.parent.mkdir(parents=True, exist_ok=True)
path.write_bytes(base64.b64decode('${Buffer.from(content).toString('base64')}'))
PY`;
    return this.exec('bash', code, more);
  }

  // LibreChat reads images in chunks, because the size of standard output is limited.
  readChunk(path, offset, bytes, more) {
    const code = `python3 - <<'PY'
import base64
with open('${path}', 'rb') as file:
    file.seek(${offset})
    print(base64.b64encode(file.read(${bytes})).decode(), end='')
PY`;
    return this.exec('bash', code, more);
  }

  // Calls `meanwhile` while code of this request sleeps; it is the sleeper number `count`.
  async whileBusy(ask, more, meanwhile, count = 1) {
    const stop = new AbortController();
    const options = { timeout: 60000, ...more, signal: stop.signal };
    const running = this.exec('bash', 'exec sleep 1000', options).catch((error) => error);
    try {
      await ask(`until ${count} sleep`);
      await meanwhile();
    } finally {
      stop.abort();
      await running;
      await ask(`until ${count - 1} sleep`);
    }
  }

  // Waits until this many calls wait for their sessions.
  untilWaiting(count) {
    return this.untilMetric(`tare_session_calls_waiting ${count}`);
  }

  // Waits until the server's metrics contain this line. With tokens they need another key.
  async untilMetric(line) {
    while (!(await this.send('/../metrics')).text.includes(`${line}\n`)) await setTimeout(5);
  }

  // Uploads a file of `{kind, id, version?}`, and returns it as a ToolNode keeps it.
  async upload(name, content, owner) {
    const body = new FormData();
    for (const [field, value] of Object.entries(owner)) body.append(field, String(value));
    body.append('file', new Blob([content]), name);
    const { json } = await this.send('/upload', { method: 'POST', body });
    const { id: resource_id, ...rest } = owner;
    const { storage_session_id, session_id } = json;
    return { id: json.files[0].fileId, name, storage_session_id, session_id, resource_id, ...rest };
  }

  async download({ storage_session_id, id }, { kind, id: owner } = { kind: 'user', id: 'u1' }) {
    const { text } = await this.send(`/download/${storage_session_id}/${id}?kind=${kind}&id=${owner}`);
    return text;
  }
}

module.exports = { Host };
