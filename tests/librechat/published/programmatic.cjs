// Code that calls tools: run_tools_with_code and run_tools_with_bash.
const assert = require('node:assert/strict');
const { since, withTool, once, assertPrinted } = require('./claims.cjs');
const { Host } = require('./host.cjs');

const PYTHON = 'run_tools_with_code';
const BASH = 'run_tools_with_bash';
const CITY = { properties: { city: { type: 'string' }, unit: { type: 'string' } }, required: ['city'] };

// A conversation with tools, which records their arguments in `calls`.
function withTools(client, options = {}) {
  const calls = [];
  const functions = {
    'get-weather': [CITY, async (input) => (calls.push(input), { city: input.city, degrees: 20 })],
    fails: [{}, async () => { throw new Error('no luck'); }],
    noop: [{}, async () => 'done'],
  };
  return Object.assign(client.conversation({ functions, ...options }), { inputs: calls });
}

// Waits until `look` returns something true, for at most ten seconds.
async function eventually(look) {
  for (let tries = 0; !look() && tries < 1000; tries++) {
    await new Promise((done) => setTimeout(done, 10));
  }
  return look();
}

// Checks that the call failed, and that the model learns why and sees standard error.
function assertFailed(client, message, error, sentence, stderr) {
  assert.equal(message.status, 'error', message.content);
  const shown = client.since('3.3.1') ? `Code execution failed. ${sentence}` : error;
  assert.ok(message.content.includes(shown), message.content);
  assert.ok(message.content.includes(stderr), message.content);
}

module.exports = {
  'Python calls tools in sequence and concurrently, and catches errors': async ({ client }) => {
    const code = `first = await get_weather(city="A")
here, there = await asyncio.gather(get_weather(city="B"), get_weather(city="C"))
print(first["city"], here["city"], there["degrees"])
try:
    await fails()
except Exception as error:
    print(error)`;
    assertPrinted(await withTools(client).run(PYTHON, { code }), 'A B 20\nno luck');
  },

  'bash calls tools in sequence and concurrently, and sees errors': withTool(BASH, async ({ client }) => {
    const code = `get_weather '{"city":"A"}'
get_weather '{"city":"B"}' > b.json & get_weather '{"city":"C"}' > c.json & wait
cat b.json c.json
fails '{}' || echo failed`;
    const message = await withTools(client).run(BASH, { code });
    const weather = (city) => `{"city":"${city}","degrees":20}`;
    assertPrinted(message, `${weather('A')}\n${weather('B')}\n${weather('C')}\nfailed`);
  }),

  'two programs of one turn call tools at the same time': async ({ client }) => {
    const code = 'print((await get_weather(city="A"))["city"])';
    const messages = await withTools(client).turn([[PYTHON, { code }], [PYTHON, { code }]]);
    messages.forEach((message) => assertPrinted(message, 'A'));
  },

  'code may call no tool at all': async ({ client }) => {
    assertPrinted(await withTools(client).run(PYTHON, { code: 'print(await asyncio.sleep(0, 1))' }), '1');
  },

  'code with an empty manifest runs without tools': since('3.8.0', async ({ client, tap }) => {
    const conversation = withTools(client);
    const run = (tool, code) => conversation.run(tool, { code, tool_manifest: [] });
    assertPrinted(await run(PYTHON, 'import asyncio\nprint(await asyncio.sleep(0, 1))'), '1');
    assertPrinted(await run(BASH, 'echo 2'), '2');
    assert.equal(tap.of(client.version, '/exec').at(-1).answer.stdout, '2\n');
  }),

  'a program that fails is an error with its exit code': async ({ client }) => {
    const conversation = withTools(client);
    const failed = await conversation.run(PYTHON, { code: 'await noop()\nraise KeyError("why")' });
    assertFailed(client, failed, 'Sandbox exited with code 1', 'Execution exited with code 1', 'KeyError');
  },

  'a command that fails is an error with its exit code': withTool(BASH, async ({ client }) => {
    const failed = await withTools(client).run(BASH, { code: 'noop "{}"; echo why >&2; exit 3' });
    assertFailed(client, failed, 'Sandbox exited with code 3', 'Execution exited with code 3', 'why');
  }),

  'a program that a signal ended has no exit code': withTool(BASH, async ({ client }) => {
    const failed = await withTools(client).run(BASH, { code: 'echo why >&2; kill -KILL $$' });
    const unknown = 'exited with code unknown';
    assertFailed(client, failed, `Sandbox ${unknown}`, `Execution ${unknown}`, 'why');
  }),

  'the time limit is an error that the model can read': async ({ client }) => {
    const code = 'import time; time.sleep(1000)';
    const failed = await withTools(client).run(PYTHON, { code, timeout: 1000 });
    assertFailed(client, failed, 'Time limit exceeded', 'Execution exceeded the time limit.', '');
  },

  'arguments may be positional, and those that are None are not sent': async ({ client }) => {
    const conversation = withTools(client);
    const code = `await get_weather("A")
await get_weather("B", "K")
await get_weather("C", unit=None)`;
    await conversation.run(PYTHON, { code });
    assert.deepEqual(conversation.inputs, [{ city: 'A' }, { city: 'B', unit: 'K' }, { city: 'C' }]);
  },

  'code may use the names that the reference server provides': async ({ client }) => {
    const code = `print(json.dumps(1), os.getcwd(), sys.version_info[0], asyncio.__name__)
kinds: Dict[str, List[Optional[Union[int, Any]]]] = {}
try:
    await fails()
except ToolExecutionError as error:
    print(error)`;
    const message = await withTools(client).run(PYTHON, { code });
    assertPrinted(message, '1 /mnt/data 3 asyncio\nno luck');
  },

  'a call of a tool that is not registered is an error': async ({ client }) => {
    const call = JSON.stringify({ key: 'k', name: 'rm', input: {} });
    const code = `await noop()\nopen('/tmp/code/calls/0', 'w').write('${call}')`;
    const failed = await withTools(client).run(PYTHON, { code });
    const error = 'Sandbox requested an unregistered tool: rm';
    assertFailed(client, failed, error, 'Generated code requested a tool that is not available.', '');
  },

  'a file that code removed does not come back': since('3.9.1', async ({ client }) => {
    for (const [tool, code] of [[PYTHON, 'os.remove("a.csv")'], [BASH, 'rm a.csv']]) {
      const conversation = withTools(client);
      await conversation.bash('echo 1 > a.csv; echo 2 > b.csv');
      await conversation.run(tool, { code });
      assert.deepEqual(conversation.files.map((file) => file.name), ['b.csv']);
    }
  }),

  'files that code lost are counted by reason': since('3.9.1', async ({ client, tap }) => {
    const code = 'for n in range(102): open(f"{n}.csv", "w").write("x")';
    await withTools(client).run(PYTHON, { code });
    const { answer } = tap.of(client.version, '/exec/programmatic').at(-1);
    assert.deepEqual(answer.artifact_truncation.reasons, { max_files: 2 });
  }),

  'code that calls tools never runs in a session': since('3.2.59', async ({ client, tap }) => {
    const hint = 'v2:user:00000000000000000000000000000001';
    const conversation = withTools(client, { hint });
    await conversation.bash('echo > /tmp/mark');
    const code = 'import os\nawait noop()\nprint(os.path.exists("/tmp/mark"))';
    assertPrinted(await conversation.run(PYTHON, { code }), 'False');
    const { sent, answer } = tap.of(client.version, '/exec/programmatic').at(-2);
    assert.equal(sent.runtime_session_hint, hint);
    assert.equal(answer.runtime_session_id, undefined);
  }),

  'stopping a turn cancels its code': since('3.9.1', async ({ client, tap, ask }) => {
    for (const [tool, code] of [[PYTHON, 'import os; os.execvp("sleep", ["sleep", "1000"])'], [BASH, 'exec sleep 1000']]) {
      const cancels = () => tap.of(client.version, '/cancel');
      const before = cancels().length;
      const stop = new AbortController();
      const stopped = withTools(client).run(tool, { code }, { signal: stop.signal }).catch((error) => error);
      await ask('until 1 sleep');
      stop.abort();
      await stopped;
      await ask('until 0 sleep');
      // The client also closes its connection, which may end the code before the cancel is sent.
      const cancel = await eventually(() => cancels()[before]);
      assert.match(cancel.sent.request_id, /^[A-Za-z0-9_-]{16,128}$/);
      assert.ok([200, 202].includes(await eventually(() => cancel.status)));
    }
  }),

  'a cancel may arrive before its request': once(async ({ client }) => {
    const host = new Host(client);
    const request_id = 'early-0123456789abcdef';
    const early = await host.post('/exec/programmatic/cancel', { request_id });
    assert.deepEqual([early.status, early.json.status], [202, 'cancellation_requested']);
    const headers = { 'X-LibreChat-Code-Request-ID': request_id };
    const body = { lang: 'bash', code: 'echo ran', tools: [{ name: 'noop' }], timeout: 5000 };
    const { status, json } = await host.post('/exec/programmatic', body, { headers });
    assert.deepEqual([status, json.status], [200, 'error']);
    assert.equal(json.error, 'Programmatic execution request cancelled');
    assert.equal((await host.post('/exec/programmatic/cancel', {})).status, 400);
  }),

  'a cancel of finished code says so': once(async ({ client }) => {
    const host = new Host(client);
    const request_id = 'finished-0123456789abcdef';
    const headers = { 'X-LibreChat-Code-Request-ID': request_id };
    const body = { lang: 'bash', code: 'echo 1', tools: [{ name: 'noop' }], timeout: 5000 };
    assert.equal((await host.post('/exec/programmatic', body, { headers })).json.status, 'completed');
    const { status, json } = await host.post('/exec/programmatic/cancel', { request_id });
    assert.deepEqual([status, json.status], [200, 'already_completed']);
  }),

  'a plain command needs no tools, and its language wins over lang': once(async ({ client }) => {
    const host = new Host(client);
    const body = { lang: 'python', language: 'bash', code: 'echo $((1 + 1))', tools: [], timeout: 5000 };
    const { status, json } = await host.post('/exec/programmatic', body);
    assert.deepEqual([status, json.status, json.stdout], [200, 'completed', '2\n']);
  }),
};
