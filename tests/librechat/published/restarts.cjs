// A restart of the server loses nothing that a conversation needs.
const assert = require('node:assert/strict');
const { randomBytes } = require('node:crypto');
const { since, assertRefused, assertPrinted } = require('./claims.cjs');

const newHint = () => `v2:conversation:${randomBytes(16).toString('hex')}`;
const names = (files) => files.map((file) => file.name).sort();

async function restart({ tap, ask }, how = 'stop') {
  await ask(how);
  tap.server = await ask('start');
}

module.exports = {
  'a conversation keeps its files': async (world) => {
    const conversation = world.client.conversation();
    await conversation.bash('echo 1 > a.csv');
    await restart(world);
    assertPrinted(await conversation.bash('cat a.csv'), '1');
  },

  'a session goes on, and its files are not reported again': since('3.2.59', async (world) => {
    for (const how of ['stop', 'kill']) {
      const hint = newHint();
      const first = await world.client.conversation({ hint }).bash('echo 1 > a.csv; echo 2 > b.csv');
      await restart(world, how);
      // Another conversation of the same person does not send the files.
      const second = await world.client.conversation({ hint }).bash('cat a.csv; echo 3 > b.csv');
      assertPrinted(second, '1');
      assert.equal(second.artifact.runtime_status, 'reused');
      const generated = second.artifact.files.filter((file) => file.inherited !== true);
      assert.deepEqual(names(generated), ['b.csv']);
      const id = (message) => message.artifact.files.find((file) => file.name === 'a.csv').id;
      assert.equal(id(second), id(first));
    }
  }),

  'code that waits for its tools says that it must be run again': async (world) => {
    const functions = { noop: [{}, async () => (await restart(world), 'done')] };
    const conversation = world.client.conversation({ functions });
    const message = await conversation.run('run_tools_with_code', { code: 'print(await noop())' });
    assertRefused(world.client, message, 404, 'unavailable');
  },

  'a server that stops finishes its calls and takes no others': async (world) => {
    const { client, ask, tap } = world;
    const running = client.conversation().bash('sleep 2; echo 1');
    await ask('until 1 sleep');
    await ask('stop');
    // It may serve a few more calls until it notices the signal.
    let message;
    do message = await client.conversation().bash('echo 2');
    while (message.status !== 'error');
    if (client.since('3.3.1')) assertRefused(client, message, 503, 'unavailable');
    assertPrinted(await running, '1');
    tap.server = await ask('start');
    assertPrinted(await client.conversation().bash('echo 3'), '3');
  },
};
