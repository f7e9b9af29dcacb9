// Limits of a server with keys: the model learns what happened in words that its client knows.
const assert = require('node:assert/strict');
const { randomBytes } = require('node:crypto');
const { since, assertRefused, assertPrinted } = require('./claims.cjs');
const { Host } = require('./host.cjs');

const SESSIONS = '3.2.59';
const KEY = () => ({ 'X-API-Key': 'a-key' });
// The key with a small quota.
const SMALL_KEY = () => ({ 'X-API-Key': 'small-key' });
const newHint = () => `v2:user:${randomBytes(16).toString('hex')}`;
const functions = { noop: [{}, async () => 'done'] };
const hostOf = (client) => new Host(client, KEY());
// Occupies a session or a place meanwhile. Ends when the server has the place back.
async function whileBusy(client, ask, more, meanwhile) {
  await hostOf(client).whileBusy(ask, more, meanwhile);
  await hostOf(client).untilMetric('tare_runs_running 0');
}
const withKey = (client, more) => client.conversation({ headers: KEY, functions, ...more });

const MEMORY = 'x = bytearray(1 << 30)';
const FLOOD = 'import sys\nwhile True: sys.stdout.write("x" * 10000)';

// Checks that the model learns when to try again.
function assertRetryAfter(client, message) {
  assert.equal(message.status, 'error', message.content);
  const shown = client.since('3.3.1') ? /rate-limited\. Retry after \d+ seconds\./ : /429/;
  assert.match(message.content, shown);
}

module.exports = {
  'a wrong key is not authorized': async ({ client }) => {
    const message = await client.conversation({ headers: () => ({ 'X-API-Key': 'x' }) }).bash('echo 1');
    assertRefused(client, message, 401, 'unauthorized');
  },

  'the time limit ends code': async ({ client }) => {
    const { content } = await withKey(client).python('import time; print(1, flush=True); time.sleep(1000)');
    assert.match(content, /stdout:\n1\n[^]*\[sandbox\] Time limit exceeded/);
  },

  'the memory limit ends code': async ({ client }) => {
    assert.match((await withKey(client).python(MEMORY)).content, /\[sandbox\] Out of memory/);
  },

  'an output flood ends code': async ({ client }) => {
    const { content } = await withKey(client).python(FLOOD);
    assert.match(content, /\[sandbox\] stdout length exceeded/);
  },

  'limits of code that calls tools are errors': async ({ client }) => {
    const limits = [
      [MEMORY, 'Out of memory', 'Execution exceeded the memory limit.'],
      [FLOOD, 'stdout length exceeded', 'Execution output exceeded the size limit.'],
    ];
    for (const [code, error, sentence] of limits) {
      const { status, content } = await withKey(client).run('run_tools_with_code', { code });
      assert.equal(status, 'error', content);
      assert.ok(content.includes(client.since('3.3.1') ? sentence : error), content);
    }
  },

  'a quota says when to try again': async ({ client }) => {
    const conversation = client.conversation({ headers: SMALL_KEY });
    const messages = await conversation.turn([1, 2, 3].map(() => ['execute_code', { lang: 'bash', code: 'echo 1' }]));
    const refused = messages.filter((message) => message.status === 'error');
    assert.ok(refused.length >= 2);
    refused.forEach((message) => assertRetryAfter(client, message));
  },

  'a busy server is unavailable for a moment': async ({ client, ask }) => {
    const host = hostOf(client);
    const third = async () => {
      assertRefused(client, await withKey(client).bash('echo 1'), 503, 'unavailable');
    };
    await whileBusy(client, ask, {}, () => host.whileBusy(ask, {}, third, 2));
  },

  'a session that stays busy is unavailable for a moment': since(SESSIONS, async ({ client, tap, ask }) => {
    const hint = newHint();
    await whileBusy(client, ask, { runtime_session_hint: hint }, async () => {
      const message = await withKey(client, { hint }).bash('echo 1');
      assertRefused(client, message, 409, 'unavailable');
      assert.equal(tap.of(client.version, '/exec').at(-1).answer.error, 'runtime_session_busy');
    });
    assertPrinted(await withKey(client, { hint }).bash('echo 1'), '1');
  }),

  'the queue of a session is bounded': since(SESSIONS, async ({ client, ask }) => {
    const hint = newHint();
    const calls = [1, 2, 3, 4].map(() => ['bash_tool', { command: 'echo 1' }]);
    await whileBusy(client, ask, { runtime_session_hint: hint }, async () => {
      const messages = await withKey(client, { hint }).turn(calls);
      const refused = messages.filter(({ content }) => /rate-limited/.test(content));
      assert.equal(refused.length, 2);
      refused.forEach((message) => assertRetryAfter(client, message));
    });
  }),

  'calls that wait for a session take no place of others': since(SESSIONS, async ({ client, ask }) => {
    const hint = newHint();
    await whileBusy(client, ask, { runtime_session_hint: hint }, async () => {
      const waiting = [1, 2].map(() => withKey(client, { hint }).bash('echo 1'));
      assertPrinted(await withKey(client).bash('echo 2'), '2');
      await Promise.all(waiting);
    });
  }),

  'the model learns how many files were lost': since('3.8.0', async ({ client, tap }) => {
    const write = 'head -c 3000000 /dev/zero > a.bin; cp a.bin b.bin';
    const runs = [
      ['/exec', await withKey(client).bash(write)],
      ['/exec/programmatic', await withKey(client).run('run_tools_with_bash', { code: write })],
    ];
    for (const [path, message] of runs) {
      assert.match(message.content, /Artifact delivery warning: [12] of 2 generated files/);
      const { answer } = tap.of(client.version, path).at(-1);
      assert.deepEqual(message.artifact.artifact_delivery, answer.artifact_delivery);
      assert.equal(answer.artifact_truncation, undefined);
    }
  }),
};
