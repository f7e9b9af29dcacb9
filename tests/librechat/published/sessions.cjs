// Sessions: calls with one hint use one box, one after the other.
const assert = require('node:assert/strict');
const { randomBytes } = require('node:crypto');
const { since, once, assertPrinted } = require('./claims.cjs');
const { Host } = require('./host.cjs');

const SESSIONS = '3.2.59';
const hint = (scope = 'v2:user') => `${scope}:${randomBytes(16).toString('hex')}`;
const names = (files) => files.map((file) => file.name).sort();
const claim = (check) => since(SESSIONS, check);

module.exports = {
  'a session keeps files and processes, with hints of every shape': claim(async ({ client }) => {
    for (const scope of ['v2:user', 'v2:agent-user', 'v2:conversation', 'v3:0123456789ab:user']) {
      const conversation = client.conversation({ hint: hint(scope) });
      const first = await conversation.bash('echo 1 > /tmp/mark; sleep 1000 & echo');
      assert.equal(first.artifact.runtime_status, 'new');
      const second = await conversation.bash('cat /tmp/mark; pgrep -c sleep');
      assertPrinted(second, '1\n1');
      assert.equal(second.artifact.runtime_status, 'reused');
      assert.equal(second.artifact.runtime_session_id, first.artifact.runtime_session_id);
      await conversation.bash('pkill sleep');
    }
  }),

  'the parallel calls of one turn wait for each other': claim(async ({ client }) => {
    const conversation = client.conversation({ hint: hint() });
    const code = (name) => `echo ${name} >> order.txt; wc -l < order.txt`;
    const calls = ['a', 'b', 'c', 'd'].map((name) => ['bash_tool', { command: code(name) }]);
    const messages = await conversation.turn(calls);
    const lines = messages.map((message) => /^stdout:\n(\d)$/m.exec(message.content)?.[1]).sort();
    assert.deepEqual(lines, ['1', '2', '3', '4']);
  }),

  'the first call of a turn waits for the prewarming': claim(async ({ client }) => {
    const runtime_session_hint = hint();
    const prewarmed = new Host(client).prewarm(runtime_session_hint);
    const message = await client.conversation({ hint: runtime_session_hint }).bash('echo 1');
    assertPrinted(message, '1');
    const { status, json } = await prewarmed;
    assert.equal(status, 200);
    assert.equal(json.runtime_session_id, message.artifact.runtime_session_id);
  }),

  'conversations of one person share a session': claim(async ({ client }) => {
    const shared = hint();
    const [one, other] = [1, 2].map(() => client.conversation({ hint: shared }));
    await one.bash('echo 1 > a.csv');
    assertPrinted(await other.bash('cat a.csv'), '1');
  }),

  'a session reports each content of a file once': claim(async ({ client }) => {
    const conversation = client.conversation({ hint: hint() });
    await conversation.bash('echo 1 > a.csv');
    const same = await conversation.bash('echo 1 > a.csv; echo 2 > b.csv');
    const generated = same.artifact.files.filter((file) => file.inherited !== true);
    assert.deepEqual(names(generated), ['b.csv']);
    const changed = await conversation.bash('echo 3 > a.csv');
    const [file] = changed.artifact.files.filter((one) => one.inherited !== true);
    assert.equal(file.name, 'a.csv');
    assert.equal(await new Host(client).download(file), '3\n');
  }),

  'a file that a session removed does not come back': since('3.9.1', async ({ client }) => {
    const conversation = client.conversation({ hint: hint() });
    await conversation.bash('echo 1 > a.csv; echo 2 > b.csv');
    await conversation.bash('rm a.csv');
    assert.deepEqual(names(conversation.files), ['b.csv']);
    assertPrinted(await conversation.bash('ls'), 'b.csv');
  }),

  'a stopped call leaves the queue of its session': since('3.9.1', async ({ client, ask }) => {
    const runtime_session_hint = hint();
    const host = new Host(client);
    const conversation = client.conversation({ hint: runtime_session_hint });
    await host.whileBusy(ask, { runtime_session_hint }, async () => {
      const stop = new AbortController();
      const stopped = conversation.bash('echo > ran.csv', { signal: stop.signal }).catch((error) => error);
      await host.untilWaiting(1);
      stop.abort();
      await stopped;
      await host.untilWaiting(0);
    });
    assertPrinted(await conversation.bash('ls | wc -l'), '0');
  }),

  'calls that wait run in the order in which they came': once(async ({ client, ask }) => {
    const more = { runtime_session_hint: hint() };
    const host = new Host(client);
    const waiting = [];
    await host.whileBusy(ask, more, async () => {
      for (const number of [1, 2, 3, 4]) {
        waiting.push(host.exec('bash', `echo ${number} >> order.txt`, more));
        await host.untilWaiting(number);
      }
    });
    for (const { status } of await Promise.all(waiting)) assert.equal(status, 200);
    assert.equal((await host.exec('bash', 'cat order.txt', more)).json.stdout, '1\n2\n3\n4\n');
  }),

  'a call that waits takes no time from its code': once(async ({ client, ask }) => {
    const host = new Host(client);
    const more = { runtime_session_hint: hint(), timeout: 2000 };
    const first = host.exec('bash', 'sleep 1.5', more);
    await ask('until 1 sleep');
    const second = host.exec('bash', 'sleep 1; echo 1', more);
    assert.equal((await first).json.status, null);
    const { json } = await second;
    assert.deepEqual([json.stdout, json.status], ['1\n', null]);
  }),

  'an empty hint means no session': once(async ({ client }) => {
    const { status, json } = await new Host(client).exec('bash', 'echo 1', { runtime_session_hint: '' });
    assert.deepEqual([status, json.stdout, json.runtime_session_id], [200, '1\n', undefined]);
  }),
};
