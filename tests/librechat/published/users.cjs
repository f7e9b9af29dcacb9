// Users with tokens: each reaches only what is theirs.
const assert = require('node:assert/strict');
const { randomUUID } = require('node:crypto');
const { since, once, assertRefused, assertPrinted } = require('./claims.cjs');
const { Host } = require('./host.cjs');
const { authorized } = require('./tokens.cjs');

const TOKENS = '3.2.0';
const SESSIONS = '3.2.59';
const HINT = 'v2:user:0123456789abcdef0123456789abcdef';
const REQUEST = 'X-LibreChat-Code-Request-ID';
const NOOP = [{ name: 'noop' }];

const of = (client, user, more = {}) => client.conversation({ headers: authorized(user), ...more });
const hostOf = (client, user) => new Host(client, authorized(user)());

module.exports = {
  'a token with all claims is accepted by every tool': since(TOKENS, async ({ client }) => {
    const functions = { noop: [{}, async () => 'done'] };
    const conversation = of(client, 'ann', { functions });
    assertPrinted(await conversation.python('print(1)'), '1');
    assertPrinted(await conversation.bash('echo 2'), '2');
    assertPrinted(await conversation.run('run_tools_with_code', { code: 'print(await noop())' }), 'done');
    assertPrinted(await conversation.run('run_tools_with_bash', { code: 'noop "{}"' }), 'done');
  }),

  'a missing, foreign or expired token is not authorized': since(TOKENS, async ({ client }) => {
    const past = Math.floor(Date.now() / 1000) - 600;
    const expired = { iat: past, nbf: past, exp: past + 300 };
    const foreign = () => ({ Authorization: 'Bearer a.b.c' });
    for (const headers of [undefined, foreign, authorized('ann', expired), authorized('ann', { aud: 'x' })]) {
      const message = await client.conversation({ headers }).bash('echo 1');
      assertRefused(client, message, 401, 'unauthorized');
    }
  }),

  'the same hint of another user is another session': since(SESSIONS, async ({ client }) => {
    const [ann, ben] = ['ann', 'ben'].map((user) => of(client, user, { hint: HINT }));
    const mine = await ann.bash('echo secret > /tmp/mark');
    const other = await ben.bash('ls /tmp/mark 2>/dev/null || echo none');
    assertPrinted(other, 'none');
    assert.notEqual(other.artifact.runtime_session_id, mine.artifact.runtime_session_id);
  }),

  'a user cannot use the files of another user': since(TOKENS, async ({ client }) => {
    const ann = of(client, 'ann');
    const { artifact } = await ann.bash('echo secret > a.csv');
    const ben = of(client, 'ben');
    ben.sessions.set('execute_code', { session_id: artifact.session_id, files: artifact.files });
    assertRefused(client, await ben.bash('cat a.csv'), 403, 'unauthorized');
    const [{ storage_session_id, id }] = artifact.files;
    const stolen = await hostOf(client, 'ben').send(`/download/${storage_session_id}/${id}?kind=user&id=ann`);
    assert.equal(stolen.status, 403);
  }),

  'a user cannot continue the code of another user': since(TOKENS, async ({ client, tap }) => {
    const { version } = client;
    const steal = async () => {
      const { answer } = tap.of(version, '/exec/programmatic').at(-1);
      const { continuation_token, tool_calls } = answer;
      const tool_results = tool_calls.map((call) => ({ call_id: call.id, result: 'forged' }));
      const next = { continuation_token, tool_results };
      const { status } = await hostOf(client, 'ben').post('/exec/programmatic', next);
      assert.ok([400, 403, 404].includes(status), String(status));
      return 'done';
    };
    const conversation = of(client, 'ann', { functions: { noop: [{}, steal] } });
    const message = await conversation.run('run_tools_with_code', { code: 'print(await noop())' });
    assertPrinted(message, 'done');
  }),

  'a user cannot cancel the code of another user': once(async ({ client, ask }) => {
    const request_id = randomUUID();
    const cancel = (user) => hostOf(client, user).post('/exec/programmatic/cancel', { request_id });
    const ann = new Host(client, { ...authorized('ann')(), [REQUEST]: request_id });
    await ann.whileBusy(ask, {}, async () => {
      assert.equal((await cancel('ben')).status, 403);
      await ask('until 1 sleep');
      assert.equal((await cancel('ann')).status, 202);
      await ask('until 0 sleep');
    });
  }),

  'an early cancel of one user stops no request of another': once(async ({ client }) => {
    const request_id = randomUUID();
    await hostOf(client, 'ben').post('/exec/programmatic/cancel', { request_id });
    const body = { lang: 'bash', code: 'echo ran', tools: NOOP, timeout: 5000 };
    const headers = { [REQUEST]: request_id };
    const { json } = await hostOf(client, 'ann').post('/exec/programmatic', body, { headers });
    assert.deepEqual([json.status, json.stdout], ['completed', 'ran\n']);
  }),

  'the queue of one user delays no other user': since(SESSIONS, async ({ client, ask }) => {
    const [ann, more] = [hostOf(client, 'ann'), { runtime_session_hint: HINT }];
    const waiting = [];
    await ann.whileBusy(ask, more, async () => {
      waiting.push(...[1, 2, 3].map(() => ann.exec('bash', 'true', more)));
      assertPrinted(await of(client, 'ben', { hint: HINT }).bash('echo 1'), '1');
    });
    for (const { status } of await Promise.all(waiting)) assert.equal(status, 200);
  }),

  'code for an attached worker never runs here': since(TOKENS, async ({ client, tap }) => {
    const attached = authorized('ann', { code_worker_id: 'w1' });
    const worker = () => ({ ...attached(), 'X-LibreChat-Code-Worker-ID': 'w1' });
    const functions = { noop: [{}, async () => 'done'] };
    const conversation = client.conversation({ headers: worker, functions });
    const calls = [
      ['execute_code', { lang: 'py', code: 'print(1)' }],
      ['bash_tool', { command: 'echo 1' }],
      ['run_tools_with_code', { code: 'print(await noop())' }],
      ['run_tools_with_bash', { code: 'noop "{}"' }],
    ];
    const messages = await conversation.turn(calls);
    messages.forEach((message) => assertRefused(client, message, 409, 'unsupported'));
    assert.equal(tap.of(client.version, '/exec').at(-1).answer.error, 'bridge_worker_mismatch');
  }),

  'code for an attached workspace never runs here': since('3.9.1', async ({ client, tap }) => {
    const workspace = { workspaceId: 'w1', workspaceInstanceId: 'a'.repeat(64) };
    const message = await of(client, 'ann', workspace).bash('echo 1');
    assertRefused(client, message, 409, 'unsupported');
    const { sent, answer } = tap.of(client.version, '/exec/programmatic').at(-1);
    assert.deepEqual(sent.tools, []);
    assert.equal(answer.error, 'bridge_worker_mismatch');
  }),

  'routes of the bridge do not exist, with and without a token': once(async ({ client }) => {
    for (const host of [new Host(client), hostOf(client, 'ann')]) {
      for (const path of ['/bridge/pairings', '/bridge/workers/w1/status', '/workspace-tools/execute']) {
        const { status, json } = await host.post(path, {});
        assert.equal(status, 404, path);
        assert.ok(json !== undefined, path);
      }
    }
  }),
};
